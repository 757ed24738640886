"""A state as bytes, and what is no snapshot of this program."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.message import Message
from schemas.scheduling import ScheduleEvent, WorkerChange, WorkEvent
from services.scheduler.core import snapshot
from services.scheduler.core.entries import decided, undecided
from services.scheduler.core.jobs import Job
from services.scheduler.core.live import Live
from services.scheduler.core.snapshot import MOST_BYTES, Snapshot, SnapshotError, decode, encode, shape
from services.scheduler.core.state import State, fold
from tests.support.message_strategies import MESSAGES
from tests.support.scheduled_jobs import BEGAN_NS, cluster_node, entry, job_spec, submission
from tests.support.traffic import profile, two_jobs


def _state() -> State:
    return fold(State(), [entry(nodes=(cluster_node(),)), *(submission(job_spec(f"j{n}")) for n in range(25))])


@given(st.lists(MESSAGES[ScheduleEvent], max_size=3))
def test_whatever_an_entry_holds_comes_back(entries: list[Message]) -> None:
    state = fold(State(), [each for each in entries if isinstance(each, ScheduleEvent)])
    assert decode(encode(Snapshot(1, 2, 3, state=state))).state == state


def test_what_comes_back_can_be_folded_on() -> None:
    """Frozen dataclasses without slots are copied by their `__dict__`: it holds the fields and nothing else."""
    kept = _state()
    read = decode(encode(Snapshot(26, 1, 1, state=kept))).state
    live, job = read.live["j7"], read.live["j7"].job
    for value, kind in ((read, State), (live, Live), (job, Job)):
        assert list(vars(value)) == [each.name for each in dataclasses.fields(kind)]
    assert list(read.live) == [f"j{n}" for n in range(25)]


def test_learned_traffic_and_shifts_come_back() -> None:
    """At whichever entry: with two jobs that take turns, and after one of them has ended."""
    profiles = (profile("a", 1_240, 540), profile("b", 1_240, 540))
    over = [
        WorkEvent(job="a", attempt=1, rank=rank, node=node, change=WorkerChange.ENDED, time_ns=1)
        for rank, node in enumerate(("n1", "n3"))
    ]
    log, state = two_jobs(BEGAN_NS), fold(State(), two_jobs(BEGAN_NS))
    for told in ({"profiles": profiles}, {"worked": tuple(over)}):
        log.append(decided(state, entry(leader="s", **told), "index")[0])
        state = fold(state, log[-1:])
    states = [fold(State(), log[:count]) for count in range(len(log) + 1)]
    assert [sorted(each.traffic.shifts) for each in states] == [[], [], ["a", "b"], []]
    for count, each in enumerate(states):
        kept = decode(encode(Snapshot(count, 0, 0, state=each))).state
        assert kept == each
        for later in log[count:]:
            assert count == 0 or decided(kept, undecided(later), "index")[0] == later
            kept = fold(kept, [later])
        assert kept == state


def _packed(*rows: object) -> bytes:
    return zlib.compress(b"".join(msgpack.packb(row) for row in rows))


WHOLE = encode(Snapshot(26, 1, 1, state=_state()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        WHOLE[:-3],
        WHOLE[3:],
        _packed(),
        _packed(("Snapshot", "sequence", 1)),
        _packed(1, 2),
        _packed(("Job", "sequence", 1)),
        _packed(("State", "no such field", 1)),
        _packed(("State", "live", {"a": {"job": 1}})),
        _packed(("State", "arrivals", "many")),
        zlib.compress(b"\xc1"),
        zlib.compress(b"\x91" * 100_000),
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError, match="it cannot be read"):
        decode(data)


def test_a_small_object_that_becomes_a_large_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 100 * len(WHOLE) < MOST_BYTES
    monkeypatch.setattr(snapshot, "MOST_BYTES", 1_000)
    with pytest.raises(SnapshotError, match="too large"):
        decode(WHOLE)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(SnapshotError, match="cannot be written"):
        encode(Snapshot(1 << 70, 1, 1))


def test_the_shape_follows_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class deep below, a name, a type and a default count."""
    field: dict[str, Any] = {"low_s": float}

    def shape_with(*fields: Any) -> str:
        estimate = dataclasses.make_dataclass("Estimate", fields)
        holder = dataclasses.make_dataclass("Snapshot", [("estimates", dict[str, estimate])])  # type: ignore[valid-type]
        monkeypatch.setattr(snapshot, "Snapshot", holder)
        shape.cache_clear()
        return shape()

    found = [
        shape_with(*field.items()),
        shape_with(("high_s", float)),
        shape_with(("low_s", int)),
        shape_with(("low_s", float, 1.0)),
        shape_with(("low_s", float, 2.0)),
    ]
    assert len(set(found)) == len(found)
    assert found[0] == shape_with(*field.items())
    monkeypatch.undo()
    shape.cache_clear()

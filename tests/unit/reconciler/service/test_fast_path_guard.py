"""When the reconciler looks after a silent fast path: never while it is heard, always within its limit and a little."""

from __future__ import annotations

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services._edge.fast_path_heartbeat import Beat, decode_beat, encode_beat
from services._edge.override_tables import OverrideTables
from services.reconciler import fast_path_guard
from services.reconciler.fast_path_guard import DEFAULT_TIMEOUT_S, MARGIN_S, RETRY_S, FastPathGuard, HeartbeatTimeout
from tests.support.deadline import until
from tests.support.manual_clock import ManualClock

BEAT = Beat(OverrideTables(300, 95), 0.5)
LIMIT_S = DEFAULT_TIMEOUT_S + MARGIN_S


@given(st.lists(st.floats(0.001, 0.69), max_size=60))
def test_whoever_is_heard_in_time_is_never_looked_at(pauses_s) -> None:
    timeout, now_s = HeartbeatTimeout(OverrideTables(), 10.0), 10.0
    for pause_s in pauses_s:
        now_s += pause_s
        assert not timeout.update(BEAT, now_s)


@given(st.lists(st.floats(0.001, 0.3), max_size=30), st.floats(0, 0.2))
def test_silence_is_looked_at_within_its_limit_and_again_and_again(pauses_s, late_s) -> None:
    timeout, now_s = HeartbeatTimeout(OverrideTables(), 10.0), 10.0
    for pause_s in pauses_s:
        now_s += pause_s
        timeout.update(BEAT, now_s)
    heard_s = now_s

    assert timeout.due_s == pytest.approx(heard_s + LIMIT_S)
    now_s = timeout.due_s + late_s
    assert timeout.update(None, now_s)
    assert now_s - heard_s < 1.0, "the issue's second, the look itself aside"
    assert timeout.due_s == pytest.approx(now_s + RETRY_S)
    assert timeout.update(None, timeout.due_s)
    assert not timeout.update(BEAT, timeout.due_s + 0.1), "back"


def test_who_stood_still_itself_gives_the_other_its_time() -> None:
    """A machine that was suspended, a container with both in it that was paused."""
    timeout = HeartbeatTimeout(OverrideTables(), 10.0)
    timeout.update(BEAT, 10.1)
    assert not timeout.update(None, 100.0)
    assert timeout.due_s == pytest.approx(100.0 + LIMIT_S)
    assert timeout.update(None, 100.0 + LIMIT_S)


def test_a_heartbeat_says_what_is_to_be_emptied_and_how_patient_to_be() -> None:
    timeout = HeartbeatTimeout(OverrideTables(), 10.0)
    assert not timeout.update(BEAT._replace(silence_s=5.0), 10.1)
    assert timeout.tables == OverrideTables(300, 95)
    assert timeout.due_s == pytest.approx(10.1 + 5.0 + MARGIN_S)


@given(st.builds(OverrideTables, st.integers(1, 2**32 - 1), st.integers(1, 32_764)), st.floats(0.2, 60))
def test_a_heartbeat_survives_the_way(own, silence_s) -> None:
    assert decode_beat(encode_beat(Beat(own, silence_s))) == Beat(own, silence_s)


@given(st.binary(max_size=64))
def test_noise_is_no_heartbeat(data) -> None:
    assert decode_beat(data) is None


class Receiver:
    """A receiver that hears what a test puts in."""

    def __init__(self, _netns):
        self._file = open("/dev/null", "rb")  # noqa: PTH123, SIM115 - a descriptor; closed below

    def fileno(self):
        return self._file.fileno()

    def read(self):
        return None

    def close(self):
        self._file.close()


class Place:
    """A namespace that is there."""

    def __init__(self, _netns):
        self.there = True

    def present(self):
        return self.there


async def test_a_namespace_that_was_made_anew_is_listened_to_before_anything_is_deleted(monkeypatch) -> None:
    clock, receivers, looks = ManualClock(), [], []

    def receiver(netns):
        if len(receivers) == 1:
            receivers.append(None)
            raise FileNotFoundError(2, "No such file or directory")
        receivers.append(Receiver(netns))
        return receivers[-1]

    monkeypatch.setattr(fast_path_guard, "HeartbeatReceiver", receiver)
    monkeypatch.setattr(fast_path_guard, "Namespace", Place)
    monkeypatch.setattr(fast_path_guard, "remove_active", lambda *_: looks.append(clock.monotonic()) or [])
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *_: None)
    began_s = clock.monotonic()
    guard = FastPathGuard("h1", OverrideTables(), clock)
    troubles = []
    guard.on_error = troubles.append
    guard._namespace.there = False
    task = asyncio.create_task(guard.run())
    try:
        await clock.settle()
        await clock.advance(LIMIT_S)  # it has gone, and there is no other one yet
        assert (len(receivers), len(troubles)) == (2, 1)
        await clock.advance(RETRY_S)  # there is one: its fast path has its time
        assert (len(receivers), looks) == (3, [])
        await clock.advance(LIMIT_S)
        await until(lambda: looks, what="a look")
        assert looks == [pytest.approx(began_s + 2 * LIMIT_S + RETRY_S)]
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_what_was_deleted_is_told_and_so_is_why_it_could_not_be(monkeypatch) -> None:
    clock, looks = ManualClock(), []

    def remove_active(netns, own):
        looks.append((netns, own))
        if len(looks) == 1:
            return ["10.255.0.2"]
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(fast_path_guard, "HeartbeatReceiver", Receiver)
    monkeypatch.setattr(fast_path_guard, "Namespace", Place)
    monkeypatch.setattr(fast_path_guard, "remove_active", remove_active)
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *_: None)
    guard = FastPathGuard("h1", OverrideTables(), clock)
    removed, troubles = [], []
    guard.on_removed, guard.on_error = removed.append, troubles.append
    task = asyncio.create_task(guard.run())
    try:
        for count in range(1, 4):
            await clock.settle()
            await clock.advance(LIMIT_S if count == 1 else RETRY_S)
            await until(lambda count=count: len(looks) == count, what=f"look {count}")
    finally:
        task.cancel()
        await asyncio.wait([task])

    assert looks[0] == ("h1", OverrideTables())
    assert [(one.destinations, round(one.silent_s, 3)) for one in removed] == [(["10.255.0.2"], LIMIT_S)]
    assert troubles == ["[Errno 1] Operation not permitted"], "once, not at each look"
    assert guard.removed_total == 1

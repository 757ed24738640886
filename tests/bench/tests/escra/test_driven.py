"""What a run has used: from the kernel's counters, or, where a container was killed, from the samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.escra.disturbance import MachineTime
from tests.bench.escra.measure import Recording, Tick
from tests.bench.escra.rig import Costs
from tests.bench.escra.session import Driven, Spent
from tests.support.cfs_batches import START_NS, Row, batch

_NOTHING = Costs(0, 0, 0)


def recording() -> Recording:
    """One container, 10 ms in each of two periods."""
    ticks = []
    for number in range(2):
        message = batch(number, [Row()])
        columns = {name: message.column(name).astype("int64") for name in message.column_types}
        ticks.append(Tick(START_NS + number, tuple(message.keys), columns))
    return Recording.of([Tick(tick.time_ns, tick.keys, _kept(tick)) for tick in ticks])


def _kept(tick: Tick) -> dict:
    empty = Recording.of([])
    return {name: tick.columns[name] for name in empty.columns}


def spent(app_ns: dict[str, int], busy_s: float, wall_s: float) -> Spent:
    return Spent(_NOTHING, 0, app_ns, MachineTime(busy_s, 0.0, wall_s))


def test_the_kernel_has_counted():
    driven = Driven(
        {"ok": 1}, spent({"a": 5_000_000, "b": 0}, 1.0, 0.0), spent({"a": 9_000_000, "b": 1_000_000}, 1.1, 0.2), 300.0
    )
    assert driven.figures(recording(), 0.2)["probe_us"] == 300.0
    assert driven.used_us(recording()) == pytest.approx(5_000)
    # 0.1 s of work in 0.2 s, 5 ms of it ours.
    assert driven.figures(recording(), 0.2)["disturbance"]["foreign_cores"] == pytest.approx(0.475)
    assert driven.figures(recording(), 0.2)["disturbed"]
    # A batch has no client; what starts its containers is not counted against it.
    assert not replace(driven, done={}).figures(recording(), 0.2)["disturbed"]


@pytest.mark.parametrize("after", [{"a": 1_000_000, "b": 1_000_000}, {"b": 1_000_000}])
def test_a_container_that_was_killed_begins_anew_or_is_gone(after: dict[str, int]):
    driven = Driven({"ok": 1}, spent({"a": 5_000_000, "b": 0}, 1.0, 0.0), spent(after, 1.1, 0.2), 300.0)
    assert driven.used_us(recording()) == 20_000

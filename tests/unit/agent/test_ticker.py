"""Ticks of all hosts coincide; looks between two of them only where they are wanted."""

import itertools

import pytest

from services.agent.sampling.ticker import PERIOD_S, Ticker


class OverError(Exception):
    """Enough was seen."""


class SleepersClock:
    """Time passes only while somebody sleeps, or says that something took long."""

    def __init__(self, end_s):
        self.now_s, self.end_s = 1_000.037, 1_000.037 + end_s

    def monotonic(self):
        return self.now_s

    def time_ns(self):
        return round(self.now_s * 1e9) + 1_700_000_000_000_000_000

    async def sleep_until(self, deadline):
        self.now_s = max(self.now_s, deadline)
        if self.now_s > self.end_s:
            raise OverError


async def run_for(periods, *, wanted=True, polls=4, stall_s=0.0):
    """What happened, and when, in periods of the wall clock; each tick takes ``stall_s``."""
    clock, seen = SleepersClock(periods * PERIOD_S), []
    ticks = Ticker(clock)

    def note(what):
        seen.append((what, round(clock.time_ns() % 10**12 / 1e9 / PERIOD_S, 3)))

    def tick():
        note("tick")
        clock.now_s += stall_s
        return wanted

    with pytest.raises(OverError):
        await ticks.run(tick, lambda: note("look"), polls)
    return seen, ticks.skipped


async def test_looks_are_spread_evenly_between_two_ticks() -> None:
    seen, skipped = await run_for(2.5)
    first = seen[0][1]

    assert first == round(first), "at a multiple of the period"
    assert seen[:7] == [("look" if number % 5 else "tick", round(first + number / 5, 3)) for number in range(7)]
    assert skipped == 0


@pytest.mark.parametrize(("wanted", "polls"), [(False, 4), (True, 0)])
async def test_nothing_wakes_up_between_ticks_where_nothing_is_looked_for(wanted, polls) -> None:
    seen, _ = await run_for(3, wanted=wanted, polls=polls)

    assert [what for what, _ in seen] == ["tick"] * 3


@pytest.mark.parametrize(("stall_periods", "between", "late_per_tick"), [(0.5, 2, 0), (0.95, 0, 0), (1.5, 0, 1)])
async def test_looks_that_are_late_are_left_out(stall_periods, between, late_per_tick) -> None:
    seen, skipped = await run_for(6.5, stall_s=stall_periods * PERIOD_S)
    whats = [what for what, _ in seen]
    ticks = [number for number, what in enumerate(whats) if what == "tick"]

    assert {after - before - 1 for before, after in itertools.pairwise(ticks)} == {between}
    assert all(at == round(at) for what, at in seen if what == "tick")
    assert abs(skipped - late_per_tick * (len(ticks) - 1)) <= 1

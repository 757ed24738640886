"""Times of one call out of blocks of calls, by a clock that is computed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.collector.layers.block_times import LEAST_US, Repetitions, calls_of_block, extra_us, spread_of, timed
from services.collector.layers.quota import LEAST_BLOCK_S, PERIOD_US

PERIOD_S = PERIOD_US / 1e6


@dataclass
class Processor:
    """Calls that take so many seconds of it, under a quota of a share of each period."""

    call_s: float
    share: float = 1.0
    used_s: float = 0.0
    blocks: int = 0

    def run(self, calls: int) -> None:
        self.used_s += calls * self.call_s
        self.blocks += 1

    def clock(self) -> float:
        """It has computed for its share of each period that is over, and then waited."""
        slice_s = self.share * PERIOD_S
        return self.used_s // slice_s * PERIOD_S + self.used_s % slice_s


@given(
    call_s=st.floats(1e-6, 10), least_block_s=st.floats(0, 0.2), warm_up=st.integers(1, 4), counted=st.integers(2, 20)
)
def test_a_steady_call_takes_what_it_takes(call_s: float, least_block_s: float, warm_up: int, counted: int) -> None:
    processor = Processor(call_s)
    spread = timed(processor.run, processor.clock, Repetitions(warm_up, counted, least_block_s))

    assert processor.blocks == warm_up + counted
    for us in (spread.p10_us, spread.median_us, spread.p90_us):
        assert us == pytest.approx(call_s * 1e6, rel=1e-3)


@given(call_s=st.floats(1e-5, 0.3), share=st.floats(0.1, 1), before_s=st.floats(0, 1))
def test_a_quota_is_seen_by_calls_of_any_length(call_s: float, share: float, before_s: float) -> None:
    """A block of ten periods is too short or too long by one pause at most, which is less than a period."""
    processor = Processor(call_s, share, before_s)
    spread = timed(processor.run, processor.clock, Repetitions(least_block_s=LEAST_BLOCK_S))

    assert spread.median_us == pytest.approx(call_s / share * 1e6, rel=0.15)


@given(part_s=st.floats(1e-5, 1), call_s=st.floats(1e-5, 1))
def test_what_a_call_takes_beside_its_part(part_s: float, call_s: float) -> None:
    """Nothing where it takes less, which noise may have measured."""
    processor = Processor(part_s)

    def run(calls: int) -> None:
        processor.used_s += calls * call_s

    found_us = extra_us(run, processor.run, processor.clock, Repetitions(least_block_s=LEAST_BLOCK_S))

    assert found_us == pytest.approx(max(0.0, call_s - part_s) * 1e6, rel=1e-3, abs=1)


def test_a_single_call_would_not_see_it() -> None:
    """1 ms of work in half of each 10 ms: nine of ten calls meet no pause, the blocks of 0.1 s meet ten."""
    single, blocks = Processor(1e-3, 0.5), Processor(1e-3, 0.5)

    assert timed(single.run, single.clock, Repetitions(least_block_s=0)).median_us == pytest.approx(1_000)
    assert timed(blocks.run, blocks.clock, Repetitions(least_block_s=0.1)).median_us == pytest.approx(2_000, rel=0.1)


@given(call_s=st.floats(0, 10), least_block_s=st.floats(0, 1), most_calls=st.integers(1, 10_000))
def test_a_block_has_as_few_calls_as_last_long_enough(call_s: float, least_block_s: float, most_calls: int) -> None:
    calls = calls_of_block(call_s, Repetitions(least_block_s=least_block_s, most_calls=most_calls))

    assert 1 <= calls <= most_calls
    assert calls == most_calls or calls * call_s >= least_block_s * (1 - 1e-9)
    assert calls == 1 or (calls - 1) * call_s <= least_block_s * (1 + 1e-9)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_deciles_lie_in_order_within_what_was_seen(calls_s: list[float]) -> None:
    spread = spread_of(calls_s)
    least, most = (max(LEAST_US, 1e6 * limit) for limit in (min(calls_s), max(calls_s)))
    near = 1 + 1e-9

    assert spread == spread_of(sorted(calls_s, reverse=True))
    assert least / near <= spread.p10_us <= spread.median_us * near
    assert spread.median_us <= spread.p90_us * near <= most * near * near


def test_deciles_of_fifteen() -> None:
    """Of 0 to 14 us: at 10 % and 90 % of the 14 steps between them. A time of zero is the least that there is."""
    spread = spread_of([us * 1e-6 for us in (14, 0, 13, 1, 12, 2, 11, 3, 10, 4, 9, 5, 8, 6, 7)])

    assert (spread.p10_us, spread.median_us, spread.p90_us) == pytest.approx((1.4, 7, 12.6))
    assert spread_of([0.0, 0.0]).median_us == LEAST_US

"""Memory limits: grow, reclaim, share, fit. Thesis 2.4.3 by hand; sizes in MiB where a name says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.reasons import Reason
from services.allocator.arrays.array_types import Ints
from services.allocator.arrays.limit_values import MARGIN_BYTES, PAGE_BYTES
from services.allocator.memory.policy import CACHE_STEP_BYTES, GREW_STEPS, MemoryState, MemoryView, urgent_reclaim
from tests.support.examples import examples
from tests.support.memory_policy import decide_memory

MIB = 1 << 20


def view(
    usage: list[int], limit: list[int], total: int, before: list[int] | None = None, withheld: int = 0
) -> MemoryView:
    """One application with delta 50 MiB; arguments in MiB; without `before` nothing grew."""
    count = len(usage)
    return MemoryView(
        app=np.zeros(count, np.int32),
        fresh=np.ones(count, np.bool_),
        usage_bytes=np.array(usage, np.int64) * MIB,
        previous_usage_bytes=np.array(before or usage, np.int64) * MIB,
        reclaimable_bytes=np.zeros(count, np.int64),
        ordered_bytes=np.array(limit, np.int64) * MIB,
        min_bytes=np.full(count, 4 * MIB),
        max_bytes=np.full(count, 4096 * MIB),
        share_bytes=np.array([total // count * MIB]),
        limit_bytes=np.array([total * MIB]),
        withheld_bytes=np.array([withheld * MIB]),
        delta_bytes=np.array([50 * MIB]),
        node_short=np.zeros(count, np.bool_),
    )


def settled_state(given_view: MemoryView) -> MemoryState:
    """A state in which no usage has grown for more than a second."""
    state = MemoryState(len(given_view.app))
    for _ in range(GREW_STEPS + 1):
        decide_memory(state, given_view, np.arange(len(given_view.app)), reclaim=False)
    return state


def decide(given_view: MemoryView, *, reclaim: bool = False) -> tuple[list[float], list[int]]:
    targets = decide_memory(settled_state(given_view), given_view, np.arange(len(given_view.app)), reclaim=reclaim)
    return (targets.target_bytes / MIB).tolist(), targets.reason.tolist()


def test_reclaim_by_the_thesis_formula() -> None:
    """Limit 300 > usage 100 + delta 50: 150 (psi = 150). 140 is not above 100 + 50. Usage 0: delta."""
    assert decide(view([100, 100, 0], [300, 140, 90], 1000), reclaim=True) == (
        [150, 140, 50],
        [Reason.MEMORY_RECLAIM, Reason.NONE, Reason.MEMORY_RECLAIM],
    )


def test_nothing_is_reclaimed_when_it_is_not_due() -> None:
    assert decide(view([100], [300], 1000)) == ([300], [Reason.NONE])


def test_reclaim_spares_the_minimum_and_containers_that_grew_in_the_last_second() -> None:
    small = replace(view([1], [300], 1000), min_bytes=np.array([128 * MIB]))
    assert decide(small, reclaim=True)[0] == [128]
    growing, state = view([100], [300], 1000, before=[90]), MemoryState(1)
    for _ in range(GREW_STEPS):
        assert decide_memory(state, growing, np.arange(1), reclaim=True).target_bytes[0] == 300 * MIB
    assert decide_memory(state, growing, np.arange(1), reclaim=True).target_bytes[0] < 300 * MIB


def test_slow_growth_is_due_at_half_of_delta() -> None:
    """26 MiB are left: nothing. 24 are left (below 25): usage + 50."""
    assert decide(view([274], [300], 1000)) == ([300], [Reason.NONE])
    assert decide(view([276], [300], 1000)) == ([326], [Reason.MEMORY_GROWTH])


def test_fast_growth_gets_nine_times_the_rate() -> None:
    """20 in a period: 140 left is more than 6 * 20; 110 left is not: 190 + 9 * 20 = 370."""
    assert decide(view([160], [300], 1000, before=[140]))[0] == [300]
    assert decide(view([190], [300], 1000, before=[170]))[0] == [370]


def test_growth_stops_at_the_containers_maximum() -> None:
    assert decide(replace(view([290], [300], 1000), max_bytes=np.array([310 * MIB])))[0] == [310]


def test_a_short_pool_first_keeps_everybody_alive() -> None:
    """Both are due; 30 MiB free. A takes 5 a period, B does not grow; the fair share is 267.

    Survival: A 200 + 3 * 5 - 205 = 10, B 299 + 4 - 300 = 3: 13 of the 30. A's wish for 35 more stays within its share
    and comes before B's for 46: it gets the 17 that are left.
    """
    targets, reasons = decide(view([200, 299], [205, 300], 535, before=[195, 299]))
    assert reasons == [Reason.MEMORY_GROWTH] * 2
    assert targets == [205 + 10 + 17, 300 + 3]


def test_a_short_pool_reclaims_at_once() -> None:
    """A is at its limit, the pool is empty, B has 400 MiB of slack: thesis 2.4.4.2."""
    targets, reasons = decide(view([299, 100], [300, 500], 800))
    assert targets == [300, 150]
    assert reasons == [Reason.NONE, Reason.MEMORY_RECLAIM]


def test_terabytes_do_not_overflow() -> None:
    """Two want 512 GiB more each, 512 GiB are free: half of it each."""
    big = replace(
        view([600_000, 600_000], [600_000, 600_000], 1_200_000 + 524_288),
        delta_bytes=np.array([524_288 * MIB]),
        max_bytes=np.full(2, 1 << 50),
    )
    targets, reasons = decide(big)
    assert np.abs(np.array(targets) - (600_000 + 262_144)).max() < 1
    assert reasons == [Reason.MEMORY_GROWTH] * 2


def test_a_lowered_limit_takes_the_largest_slack_first() -> None:
    """Limits 300 + 300, application 440. Floors 204 and 104: slack 96 and 196; 132 may stay: 66 each."""
    targets, reasons = decide(view([200, 100], [300, 300], 440))
    assert targets == [270, 170]
    assert reasons == [Reason.OVER_LIMIT] * 2
    assert decide(view([200, 100], [300, 300], 560))[0] == [300, 260]


def test_what_is_in_use_is_never_taken() -> None:
    targets, _ = decide(view([200, 100], [300, 300], 100))
    assert targets == [204, 104]


def test_numbers_explain_the_decision() -> None:
    given_view = view([276, 100], [300, 300], 1000)
    targets = decide_memory(settled_state(given_view), given_view, np.arange(2), reclaim=True)
    assert (targets.measured / MIB).tolist() == [276, 200]
    assert (targets.threshold / MIB).tolist() == [25, 50]


def test_slack_on_a_node_that_is_short_of_memory_is_reclaimed_at_once() -> None:
    """Whichever application lacks it: the reclaim is not waited for, and nobody is cut below usage + delta."""
    quiet = view(usage=[100, 100], limit=[400, 400], total=2000)
    assert decide(quiet)[0] == [400, 400]
    assert decide(replace(quiet, node_short=np.array([True, False])))[0] == [150, 400]


@st.composite
def views(draw: st.DrawFn) -> MemoryView:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    app = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    random.shuffle(app)
    usage = random.integers(0, 2**30, len(app))
    limit = (usage + random.choice([0, MIB, 30 * MIB, 2**29], len(app))) // PAGE_BYTES * PAGE_BYTES
    held = np.bincount(app, limit, len(sizes)).astype(np.int64)
    return MemoryView(
        app=app,
        fresh=random.uniform(size=len(app)) < 0.8,
        usage_bytes=usage,
        previous_usage_bytes=np.maximum(usage - random.integers(-(2**26), 2**28, len(app)), 0),
        reclaimable_bytes=random.integers(0, 2, len(app)) * usage // 2,
        ordered_bytes=np.maximum(limit, 4 * MIB),
        min_bytes=np.full(len(app), 4 * MIB),
        max_bytes=np.full(len(app), 2**31),
        share_bytes=held // np.array(sizes) // PAGE_BYTES * PAGE_BYTES,
        limit_bytes=(held * draw(st.sampled_from([0.7, 1.0, 1.1, 3.0]))).astype(np.int64) + 4 * MIB,
        withheld_bytes=(held * draw(st.sampled_from([0, 0.2]))).astype(np.int64),
        delta_bytes=np.full(len(sizes), 50 * MIB),
        node_short=random.uniform(size=len(app)) < 0.3,
    )


@settings(deadline=None, max_examples=examples(150))
@given(views(), st.booleans())
def test_memory_invariants(given_view: MemoryView, reclaim: bool) -> None:
    count, apps = len(given_view.app), len(given_view.limit_bytes)
    rows = np.arange(count)
    state = settled_state(given_view)
    targets = decide_memory(state.copy(), given_view, rows, reclaim=reclaim).target_bytes
    before = np.bincount(given_view.app, given_view.ordered_bytes, apps)
    after = np.bincount(given_view.app, targets, apps)
    assert (after <= np.maximum(before, given_view.limit_bytes)).all()
    assert (targets <= np.maximum(given_view.max_bytes, given_view.ordered_bytes)).all()
    lowered = targets < given_view.ordered_bytes
    assert (targets >= given_view.usage_bytes + MARGIN_BYTES)[lowered].all()
    assert (targets >= given_view.min_bytes)[lowered].all()
    assert (targets[targets != given_view.ordered_bytes] % PAGE_BYTES == 0).all()
    per_app = {"share_bytes", "limit_bytes", "withheld_bytes", "delta_bytes"}
    for app in range(apps):
        mine = np.flatnonzero(given_view.app == app)[::-1]
        alone = MemoryView(
            **{name: getattr(given_view, name)[mine] for name in MemoryView.__slots__ if name not in per_app},
            **{name: getattr(given_view, name) for name in per_app},
        )
        assert (decide_memory(state.copy(), alone, mine, reclaim=reclaim).target_bytes == targets[mine]).all()


@settings(deadline=None, max_examples=examples(150))
@given(views(), st.data())
def test_what_is_taken_back_is_slack_of_others(given_view: MemoryView, data: st.DataObject) -> None:
    count, apps = len(given_view.app), len(given_view.limit_bytes)
    exempt = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_)
    missing = np.array(data.draw(st.lists(st.sampled_from([0, 5 * MIB, 1 << 31]), min_size=apps, max_size=apps)))
    state, rows = settled_state(given_view), np.arange(count)
    result = urgent_reclaim(state, given_view, rows, missing, exempt)
    targets, ordered = result.target_bytes, given_view.ordered_bytes
    assert (targets <= ordered).all()
    cut = targets < ordered
    assert not (cut & (exempt | (missing[given_view.app] == 0))).any()
    dropped = np.minimum(given_view.reclaimable_bytes, CACHE_STEP_BYTES)
    assert (targets >= given_view.usage_bytes - dropped + 2 * MARGIN_BYTES - PAGE_BYTES)[cut].all()
    assert (targets >= given_view.min_bytes)[cut].all()
    assert ((result.reason == Reason.MEMORY_RECLAIM) == cut).all()
    # One page more was wanted nowhere: either all is there, or nobody has any left.
    freed = np.bincount(given_view.app, ordered - targets, apps)
    everything = urgent_reclaim(state, given_view, rows, np.where(missing > 0, 1 << 40, 0), exempt).target_bytes
    possible = np.bincount(given_view.app, ordered - everything, apps)
    assert (freed + count * PAGE_BYTES >= np.minimum(missing, possible)).all()


def test_slack_above_delta_goes_first_then_the_largest_of_the_rest() -> None:
    """Usage 100, limits 200, 140, 110; 50 is free above delta in the first, then 42, 32 and 2 above two margins."""
    comfortable = view([100, 100, 100], [200, 140, 110], total=1000)
    assert take_back_mib(comfortable, 20) == [150, 140, 110]
    assert take_back_mib(comfortable, 60) == [140, 140, 110]
    assert take_back_mib(comfortable, 1000) == [108, 108, 108]


def test_page_cache_that_can_be_dropped_is_taken_in_steps() -> None:
    reader = replace(view([300], [304], total=304), reclaimable_bytes=np.array([200 * MIB]))
    assert take_back_mib(reader, 500) == [244]


def take_back_mib(given_view: MemoryView, missing_mib: int, state: MemoryState | None = None) -> list[int]:
    """Limits in whole MiB; without a state, of containers whose usage has been the same for long."""
    count = len(given_view.app)
    state = settled_state(given_view) if state is None else state
    missing, nobody = np.array([missing_mib * MIB]), np.zeros(count, np.bool_)
    return (urgent_reclaim(state, given_view, np.arange(count), missing, nobody).target_bytes // MIB).tolist()


def peaked(usage: list[int], peak: list[int]) -> MemoryState:
    """Containers whose usage was at a peak three seconds ago and has been low since; MiB."""
    state, rows = MemoryState(len(usage)), np.arange(len(usage))
    ample = [4000] * len(usage)
    decide_memory(state, view(peak, ample, 100_000), rows, reclaim=False)
    for _ in range(3 * GREW_STEPS):
        decide_memory(state, view(usage, ample, 100_000), rows, reclaim=False)
    return state


def test_a_periodic_reclaim_leaves_the_peak_of_the_last_seconds() -> None:
    """Usage 2, peak 80: 84 instead of 52; at the next reclaim, 5 s later, it is forgotten."""
    state, rows, idle = peaked([2], [80]), np.arange(1), view([2], [300], 1000)
    limits = [decide_memory(state, idle, rows, reclaim=True).target_bytes[0] / MIB for _ in range(2)]
    assert limits == [84, 52]


def test_a_limit_below_the_peak_of_the_last_seconds_is_brought_back_where_there_is_room() -> None:
    state, rows = peaked([2, 2], [80, 20]), np.arange(2)
    assert (decide_memory(state, view([2, 2], [52, 52], 200), rows, reclaim=False).target_bytes // MIB).tolist() == [
        84,
        52,
    ]
    full = decide_memory(state, view([2, 2], [52, 52], 104), rows, reclaim=False)
    assert (full.target_bytes // MIB).tolist() == [52, 52]


def test_a_container_at_its_limit_comes_before_the_peaks_of_others() -> None:
    """10 MiB are free: the first needs 4 to survive, the second is 40 below its recall and gets the 6 that are left."""
    state = peaked([100, 2], [100, 88])
    targets = decide_memory(state, view([100, 2], [100, 52], 162), np.arange(2), reclaim=False).target_bytes
    assert (targets // MIB).tolist() == [104, 58]


def test_what_the_reserves_lack_is_taken_from_the_largest_slack_above_the_peaks() -> None:
    """Limits 120 + 30 + 30 of 200; 40 are to be withheld, 20 are missing: the first is 96 above its peak."""
    state, rows = peaked([2, 2, 2], [20, 20, 20]), np.arange(3)
    assert targets_mib(state, view([2, 2, 2], [120, 30, 30], 200, withheld=40), rows) == [100, 30, 30]
    assert targets_mib(state, view([2, 2, 2], [105, 30, 30], 200, withheld=40), rows) == [105, 30, 30]  # a trifle
    assert targets_mib(state, view([2, 2, 2], [70, 70, 60], 200, withheld=190), rows) == [24, 24, 24]


def targets_mib(state: MemoryState, given_view: MemoryView, rows: Ints) -> list[int]:
    """One step without a periodic reclaim; whole MiB."""
    return (decide_memory(state.copy(), given_view, rows, reclaim=False).target_bytes // MIB).tolist()


def test_what_is_wanted_back_at_once_spares_peaks_as_long_as_there_is_other_slack() -> None:
    """Usage 2, peaks 80 and 20, both limits 90: first the second's, down to 24; then all above two margins."""
    state, both = peaked([2, 2], [80, 20]), view([2, 2], [90, 90], 180)
    assert take_back_mib(both, 60, state) == [84, 36]
    assert take_back_mib(both, 70, state) == [84, 26]
    assert take_back_mib(both, 80, state) == [76, 24]
    assert take_back_mib(both, 1000, state) == [10, 10]


def test_growth_of_160_mib_per_second_from_rest_never_reaches_the_limit() -> None:
    """16 MiB a period from usage + delta, each order in force two periods after its sample; then it doubles."""
    usage, limits, state = 20, [70, 70], MemoryState(1)
    for period in range(40):
        previous, usage = usage, usage + (16 if period < 20 else 32)
        assert usage < limits[0]
        now = view([usage], [limits[-1]], 100_000, before=[previous])
        target = decide_memory(state, now, np.arange(1), reclaim=False).target_bytes[0]
        limits = [*limits[1:], int(target) // MIB]
    assert limits[-1] > usage

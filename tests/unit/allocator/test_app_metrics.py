"""Metrics per application: totals of its samples, what holds now, and of how many applications."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import AppSpec
from schemas.cfs import SampleFlag
from services.allocator.app_metrics import NAMES, app_metrics, largest_apps
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from services.allocator.state.usage_totals import TOTALS, AppUsage, PreviousSample
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch
from tests.support.lossy_cluster import owning

MIB = 1 << 20


def step(allocation: AllocationCycle, tick: int, *rows: Row, at_periods: float | None = None) -> None:
    """One batch, taken at its tick, or at another time in periods."""
    taken_ns = START_NS + int((tick if at_periods is None else at_periods) * PERIOD_NS)
    allocation.step([batch(tick, rows, time_ns=taken_ns)], StepTime(tick * PERIOD_NS, taken_ns))


def read(allocation: AllocationCycle, app: str = "shop", count: int = 50) -> dict[str, float]:
    return dict(zip(NAMES, app_metrics(allocation, count)[app], strict=True))


@pytest.fixture
def allocation() -> AllocationCycle:
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=2.0, memory_limit=1 << 30))
    return allocation


def test_totals_are_the_sums_of_all_samples(allocation):
    for tick in range(3):
        step(allocation, tick, Row("a-1", used_us=10_000, quota_us=30_000, throttled=1), Row("b-1", used_us=5_000))

    found = read(allocation)

    # 3 x (10 + 5) ms used; 3 x (20 + 15) ms of quota left over; 3 x 2 periods, in 3 x 1 of them throttled
    assert found["turnbuckle_app_cpu_usage_seconds_total"] == pytest.approx(0.045)
    assert found["turnbuckle_app_cpu_unused_seconds_total"] == pytest.approx(0.105)
    assert found["turnbuckle_app_cpu_periods_total"] == 6
    assert found["turnbuckle_app_cpu_throttled_periods_total"] == 3


def test_a_sample_of_several_periods_counts_each_of_them(allocation):
    step(allocation, 0, Row(periods=4, used_us=10_000, throttled=2))

    assert read(allocation)["turnbuckle_app_cpu_usage_seconds_total"] == pytest.approx(0.04)
    assert read(allocation)["turnbuckle_app_cpu_periods_total"] == 4


def test_an_early_sample_counts_its_throttled_period_and_no_usage(allocation):
    """The period is not over: the next sample counts its usage, and not its being throttled."""
    step(allocation, 0, Row())
    step(allocation, 1, Row(used_us=20_000, throttled=1, flags=SampleFlag.EARLY), at_periods=0.5)
    step(allocation, 2, Row(), at_periods=1)

    found = read(allocation)

    assert found["turnbuckle_app_cpu_usage_seconds_total"] == pytest.approx(0.02)
    assert found["turnbuckle_app_cpu_periods_total"] == 2
    assert found["turnbuckle_app_cpu_throttled_periods_total"] == 1


def test_usage_counts_by_the_time_between_samples_however_many_periods_ended_meanwhile(allocation):
    """A period that ends near the sample is counted by this one or by the next: two, and none (told as one)."""
    for tick, periods in enumerate((1, 2, 1, 2, 1)):
        step(allocation, tick, Row(periods=periods, used_us=10_000, quota_us=30_000))
    step(allocation, 5, Row(periods=1, used_us=10_000), at_periods=7)  # late; the container idled for two of them

    # 8 periods of 10 ms: the first sample's own, then 4 and 3 of elapsed time
    assert read(allocation)["turnbuckle_app_cpu_usage_seconds_total"] == pytest.approx(0.08)


def test_a_clock_that_was_set_counts_nothing_twice(allocation):
    for tick, at_periods in enumerate((0, -500, -499, 90_000)):
        step(allocation, tick, Row(), at_periods=at_periods)

    assert read(allocation)["turnbuckle_app_cpu_usage_seconds_total"] == pytest.approx(0.04)


def test_kills_are_counted_once_and_none_of_an_earlier_owners(allocation):
    for tick, kills in enumerate((2, 2, 3, 3, 0, 1)):  # the agent was restarted before the fifth: it counts anew
        step(allocation, tick, Row(oom_kills=kills))

    assert read(allocation)["turnbuckle_app_oom_kills_total"] == 2


def test_what_holds_now(allocation):
    step(allocation, 0, Row("a-1", memory_usage_bytes=50 * MIB), Row("b-1", memory_usage_bytes=30 * MIB))

    found = read(allocation)

    assert found["turnbuckle_app_containers"] == 2
    assert found["turnbuckle_app_refused_containers"] == 0
    assert found["turnbuckle_app_cpu_limit_cores"] == 2
    assert found["turnbuckle_app_memory_limit_bytes"] == 1 << 30
    assert found["turnbuckle_app_memory_usage_bytes"] == 80 * MIB
    pools = allocation.pools()
    assert found["turnbuckle_app_cpu_allocated_cores"] == pools.quota_committed_us[0] / 100_000 > 0
    assert found["turnbuckle_app_memory_allocated_bytes"] == pools.limit_committed_bytes[0] > 0


def test_baseline_and_held_are_counted_over_time(allocation):
    """0.5 cores and 100 MiB that a container came with; observed, so that 0.1 cores of use are above no limit."""
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=2.0, memory_limit=1 << 30, mode="observe"))
    for tick in range(12):
        came_with = {"configured_cpu_us": 50_000, "configured_memory_bytes": 100 * MIB}
        now_ns = tick * PERIOD_NS
        samples = batch(tick, [Row(quota_us=50_000, used_us=10_000)], **came_with)
        allocation.step([samples], StepTime(now_ns, START_NS + now_ns))

    found = read(allocation)

    # From the second step on: 10 periods of 0.1 s
    assert found["turnbuckle_app_savings_covered_seconds_total"] == pytest.approx(1.0)
    assert found["turnbuckle_app_cpu_baseline_seconds_total"] == pytest.approx(0.5)
    assert 0.1 < found["turnbuckle_app_cpu_held_seconds_total"] < 0.5
    assert found["turnbuckle_app_memory_baseline_byte_seconds_total"] == pytest.approx(100 * MIB)
    assert found["turnbuckle_app_memory_held_byte_seconds_total"] > 100 * MIB, "with what is withheld"
    assert found["turnbuckle_app_cpu_excess_seconds_total"] == 0


def test_an_application_that_is_released_has_none_and_begins_anew(allocation):
    step(allocation, 0, Row())
    allocation.release("shop")
    assert app_metrics(allocation, 50) == {}

    allocation.acquire("shop", 2, PERIOD_NS)
    step(allocation, 1, Row())

    assert read(allocation)["turnbuckle_app_cpu_periods_total"] == 1


def test_only_the_applications_with_the_largest_limits_have_metrics():
    allocation = owning("small")
    for name, cores in (("small", 1.0), ("large", 8.0), ("middle", 2.0)):
        allocation.acquire(name, 1, 0)
        allocation.set_spec(name, AppSpec(name=name, cpu_limit=cores, memory_limit=1 << 30))

    assert list(app_metrics(allocation, 2)) == ["large", "middle"]
    assert app_metrics(allocation, 0) == {}


def test_which_applications_have_metrics_does_not_depend_on_the_order_of_their_names():
    assert (
        largest_apps({"b": 1.0, "a": 1.0, "c": 2.0}, 2) == largest_apps({"a": 1.0, "c": 2.0, "b": 1.0}, 2) == ["c", "a"]
    )


COLUMNS = ("periods", "throttled", "used_us", "unused_us", "throttled_us", "oom_kills", "flags")
SAMPLES = st.lists(
    st.tuples(st.integers(0, 4), *(st.integers(0, limit) for limit in (5, 5, 10**6, 10**6, 10**6, 9, 7))),
    min_size=1,
    max_size=12,
)


@given(st.lists(SAMPLES, min_size=1, max_size=4))
def test_totals_equal_a_sum_by_hand(steps):
    usage, expected = AppUsage(), np.zeros((5, len(TOTALS)), dtype=np.int64)
    for rows in steps:
        app = np.array([row[0] for row in rows])
        reported = {name: np.array([row[at + 1] for row in rows]) for at, name in enumerate(COLUMNS)}
        none, decided = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), 500_000)
        usage.add(app, reported, none, PreviousSample(none, none, decided))
        for owner, periods, throttled, used, unused, held, kills, flags in rows:
            whole = 0 if flags & SampleFlag.EARLY else periods
            excess = max(used - 500_000, 0)
            above = (whole if excess else 0, excess * whole)
            expected[owner] += (whole, throttled, used * whole, unused * whole, held * whole, kills, *above)

    for app in range(5):
        assert usage.of(app) == dict(zip(TOTALS, expected[app].tolist(), strict=True))

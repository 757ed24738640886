"""Mode `observe`: the limits that containers would have, beside those in their kernels, and why."""

from __future__ import annotations

import pytest

from schemas.apps import PERIOD_US, AppSpec
from schemas.queries import Explanation
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle, Outcome
from services.allocator.explain import explanations
from tests.support.cfs_batches import PERIOD_NS, START_NS, Row, batch
from tests.support.lossy_cluster import owning

MIB = 1 << 20
NAMES = [f"web-{number}" for number in range(3)]


@pytest.fixture
def allocation() -> AllocationCycle:
    allocation = owning("shop")
    allocation.set_spec("shop", AppSpec(name="shop", cpu_limit=2.0, memory_limit=1 << 30, mode="observe"))
    return allocation


def period(allocation: AllocationCycle, tick: int, quota_us: int, limit_bytes: int) -> Outcome:
    """One period in which every container uses 0.2 cores; the limits in the kernel stay what they are."""
    rows = [Row(name, quota_us=quota_us, memory_limit_bytes=limit_bytes, used_us=20_000) for name in NAMES]
    return allocation.step([batch(tick, rows)], StepTime(tick * PERIOD_NS, START_NS + tick * PERIOD_NS))


def told(outcome: Outcome) -> list[Explanation]:
    return [explanation for decisions in outcome.decisions for explanation in explanations(decisions)]


def test_the_first_decision_for_containers_without_limits_says_why(allocation):
    first = told(period(allocation, 0, -1, -1))

    assert [(each.container, each.resource) for each in first] == [
        (name, resource) for name in NAMES for resource in ("cpu", "memory")
    ]
    assert {each.reason for each in first} == {"admitted"}
    assert first[0].sentence == (
        "would cut unlimited -> 0.67 cores, admitted: requested 0.67 cores, 2.00 cores were free, pool 0.00 cores"
    )


def test_containers_without_limits_would_never_hold_more_than_their_application_may(allocation):
    for tick in range(3):
        period(allocation, tick, -1, -1)
        pools = allocation.pools()
        assert 0 < pools.quota_committed_us[0] <= 2 * PERIOD_US
        assert 0 < pools.limit_committed_bytes[0] <= 1 << 30


def test_containers_without_limits_are_decided_for_once_not_in_every_period(allocation):
    changed = [sorted({each.reason for each in told(period(allocation, tick, -1, -1))}) for tick in range(30)]

    assert changed[0] == ["admitted"]
    assert not any("admitted" in reasons for reasons in changed[1:])
    assert allocation.pools().quota_committed_us[0] < PERIOD_US, "what the containers leave was taken back"


def test_limits_of_their_own_are_no_reason_to_begin_anew(allocation):
    """The kernel differs from what would be ordered for good; of an enforced limit that is an external change."""
    later = [told(period(allocation, tick, 60_000, 200 * MIB)) for tick in range(20)][3:]

    assert allocation.pools().quota_committed_us[0] < PERIOD_US
    assert later == [[]] * len(later)


def test_containers_without_limits_get_what_those_with_limits_leave(allocation):
    rows = [Row("a", quota_us=-1, memory_limit_bytes=-1), Row("b", quota_us=150_000, memory_limit_bytes=900 * MIB)]
    allocation.step([batch(0, rows)], StepTime(0, START_NS))

    pools = allocation.pools()
    assert pools.quota_committed_us[0] == 2 * PERIOD_US
    assert pools.limit_committed_bytes[0] == 1 << 30


def test_what_is_in_use_is_counted_even_where_nothing_is_free(allocation):
    rows = [Row("a", quota_us=-1, memory_limit_bytes=-1), Row("b", quota_us=200_000, memory_limit_bytes=1 << 30)]
    allocation.step([batch(0, rows)], StepTime(0, START_NS))

    rows = allocation.cluster.rows
    assert rows.admitted.all()
    assert rows.limit_ordered_bytes[0] >= rows.memory_usage_bytes[0]

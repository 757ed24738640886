"""Two applications that together may use more cores than their node's ratio allows: who gets what, who asks in vain."""

import pytest
from pydantic import ValidationError

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from services.agent.limits.accepted_updates import CpuBudget
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.budget.node_headroom import node_headrooms
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_state import NodeState
from tests.support.shared_node import SharedNode

GIB = 1 << 30
APPS = tuple(AppSpec(name=name, cpu_limit=2, memory_limit=GIB) for name in ("shop", "cache"))


def busy_node(ratio):
    """Two cores, and a container of each application that uses all it may."""
    shared = SharedNode(APPS, None, None if ratio is None else CpuBudget(2, ratio), busy=True)
    for spec in APPS:
        shared.start_container(spec.name)
    return shared


def periods(shared, count):
    for _ in range(count):
        shared.run([0] * len(shared.found))
        shared.deliver_all()


def test_both_grow_up_to_what_their_node_allows():
    """1.5 x 2 cores are 300 ms per period."""
    shared = busy_node(1.5)
    periods(shared, 30)
    assert 290_000 < shared.quotas_us() <= 300_000


def test_without_a_ratio_they_may_use_more_cores_than_there_are():
    """What the test above would show without a bound."""
    shared = busy_node(None)
    periods(shared, 30)
    assert shared.quotas_us() == 400_000


def test_an_owner_does_not_ask_in_vain_each_period():
    """It knows what the node has left: no order goes out that would be refused again."""
    shared = busy_node(1.5)
    periods(shared, 30)
    before = shared.node.limits.cpu_budget.rejections
    periods(shared, 50)
    assert shared.node.limits.cpu_budget.rejections == before


def test_what_one_gives_back_the_other_gets():
    shared = busy_node(1.0)
    periods(shared, 30)
    first, second = shared.containers()
    assert (first.quota_us, second.quota_us) == (100_000, 100_000)  # what the scheduler gave them before
    shared.stop_container(0)
    assert first.gone
    periods(shared, 30)
    assert second.quota_us > 190_000


def test_a_busy_node_cuts_slack_where_another_application_lacks_it():
    """Decision 40 keeps quotas on a node without idle time; with a budget that is used up a cut is worth its write."""
    shared = busy_node(1.0)
    shared.host.idle_us = 0
    periods(shared, 30)
    first, second = shared.containers()
    shared.at_rest.add(0)
    periods(shared, 30)
    assert first.quota_us < 20_000
    assert second.quota_us > 180_000


def test_raises_in_flight_count_against_what_a_node_has_left():
    """One row without a quota that uses 20 ms and is given 50, one raised from 40 to 60, one cut."""
    cluster = ClusterState(nodes=[NodeState("n1", 1, cpu_headroom_us=80_000), NodeState("n2", 1)])
    rows = cluster.rows
    rows.append(3)
    rows.quota_us[:], rows.used_us[:], rows.quota_inflight_us[:] = (
        [-1, 40_000, 90_000],
        20_000,
        [50_000, 60_000, 10_000],
    )
    rows.node[:] = [0, 0, 1]
    _, left = node_headrooms(cluster)
    assert left.tolist() == [80_000 - 30_000 - 20_000, NO_BOUND]


@pytest.mark.parametrize("absurd_us", [-2, 1 << 62, 1 << 70])
def test_a_host_cannot_say_more_than_sums_can_hold(absurd_us):
    """One host's key in wrong hands: what it sends must not overflow an allocator's sums."""
    batch = busy_node(1.0).node.empty_batch("shop", 1)
    with pytest.raises(ValidationError):
        CfsBatch.model_validate(batch.model_dump() | {"node_cpu_headroom_us": absurd_us})

"""The limit holds while owners take turns and agents freeze, die and come back; their registrations are old."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from schemas.apps import PERIOD_US, AppSpec
from schemas.codec import decode
from tests.support.examples import examples
from tests.support.late_sources import SOURCES
from tests.support.replica_cluster import ReplicaCluster
from tests.unit.allocator.test_late_sources import LateSourcesMachine
from tests.unit.allocator.test_protocol import MIB

pytestmark = pytest.mark.timeout(900)
SPEC = AppSpec(name="shop", cpu_limit=0.4, memory_limit=512 * MIB)
STALE_PERIODS = 21
"""Longer than `StepTime.stale_after_ns`: containers of a node that is silent for so long are not decided about."""
BUSY, CALM = [(2 * PERIOD_US, 20 * MIB)] * 6, [(2_000, 20 * MIB)] * 6


class OwnersInTurnMachine(LateSourcesMachine):
    """As `LateSourcesMachine`, with what `ReplicaCluster` adds."""

    cluster_type = ReplicaCluster

    @rule(which=st.integers(0, 1))
    def takes_over(self, which):
        self.cluster.take_over(which)

    @rule(machine=st.integers(0, 1))
    def heartbeat(self, machine):
        self.cluster.heartbeat(self.cluster.machines[machine])

    @rule(machine=st.integers(0, 1))
    def agent_dies(self, machine):
        self.cluster.kill_agent(self.cluster.machines[machine])

    @rule(machine=st.integers(0, 1))
    def agent_freezes(self, machine):
        self.cluster.freeze_agent(self.cluster.machines[machine])

    @rule(machine=st.integers(0, 1))
    def agent_thaws(self, machine):
        self.cluster.thaw_agent(self.cluster.machines[machine])


TestOwnersInTurn = OwnersInTurnMachine.TestCase
TestOwnersInTurn.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_an_agent_restores_a_floor_that_other_hands_lowered_although_its_new_owner_knows_of_none() -> None:
    """Three containers of 20 MiB hold their floors of 24 MiB in an application of 64 MiB."""
    machine = OwnersInTurnMachine()
    machine.start(policy="waterfill", cores=0.1, memory=64 * MIB, containers=[0, 0, 0], announced=0)
    machine.periods_pass(busy=[False] * 6, periods=2)
    machine.limit_holds()
    machine.allocator_restarts()
    cluster = machine.cluster
    cluster.other_hands(cluster.machines[0], 0, 1_000, 4 * MIB)
    machine.limit_holds()
    assert cluster.memory_sum_bytes() == 68 * MIB

    cluster.touch(cluster.machines[0], 0, MIB)

    assert cluster.memory_sum_bytes() == 72 * MIB
    machine.limit_holds()


@dataclass(frozen=True)
class Change:
    """Of owner, while an agent is frozen that has told of throttled containers and has not heard of their raise."""

    machine: int
    which: int
    """The next owner."""
    speaks: bool
    """Whether it says something to the new owner, and freezes again."""
    long: bool
    """Whether it is frozen for longer than is decided about it."""
    overtakes: str
    """When it wakes up for good it tells what holds, then does what was ordered: what of it comes first."""


def change_owner(cluster: ReplicaCluster, change: Change) -> None:
    """See `Change`; the limit holds all the time."""
    first, second = cluster.machines[change.machine], cluster.machines[1 - change.machine]
    periods(cluster, 30, CALM, CALM)
    cluster.run(first, BUSY)
    cluster.freeze_agent(first)
    settle(cluster)
    cluster.take_over(change.which)
    if change.speaks:
        cluster.thaw_agent(first)
        cluster.run(first, BUSY)
        deliver(cluster, "batch")
        cluster.freeze_agent(first)
    for _ in range(2 * STALE_PERIODS if change.long else 3):
        cluster.run(second, BUSY)
        settle(cluster)
    cluster.thaw_agent(first)
    cluster.run(first, BUSY)
    for kind in ("update", change.overtakes, "batch"):
        deliver(cluster, kind)
    cluster.run(second, BUSY)
    settle(cluster)


@given(
    spec=st.builds(
        AppSpec,
        name=st.just("shop"),
        cpu_limit=st.sampled_from([0.2, 0.4, 1.0]),
        memory_limit=st.just(512 * MIB),
        policy=st.sampled_from(["waterfill", "escra"]),
    ),
    containers=st.lists(st.integers(0, 1), min_size=2, max_size=5),
    changes=st.lists(
        st.builds(
            Change,
            machine=st.integers(0, 1),
            which=st.integers(0, 1),
            speaks=st.booleans(),
            long=st.booleans(),
            overtakes=st.sampled_from(["batch", "reply"]),
        ),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
def test_the_limit_holds_while_the_owner_changes_and_an_agent_is_frozen(spec, containers, changes):
    cluster = ReplicaCluster(spec)
    for machine in containers:
        cluster.start_container(cluster.machines[machine])
    for change in changes:
        change_owner(cluster, change)


@pytest.fixture
def cluster() -> ReplicaCluster:
    """Two nodes with two containers each, which began after the latest heartbeat. Both replicas have been the owner."""
    cluster = ReplicaCluster(SPEC)
    for machine in cluster.machines * 2:
        cluster.start_container(machine)
    periods(cluster, 10, CALM, CALM)
    cluster.take_over(1)
    periods(cluster, 400, CALM, CALM)
    assert cluster.quota_sum_us() < 0.5 * SPEC.cpu_limit_us
    return cluster


def periods(cluster: ReplicaCluster, count: int, *usages: list[tuple[int, int]]) -> None:
    """Let periods pass; what is sent arrives at once. The limit must hold at every moment."""
    for _ in range(count):
        for machine, usage in zip(cluster.machines, usages, strict=True):
            cluster.run(machine, usage)
        settle(cluster)


def settle(cluster: ReplicaCluster) -> None:
    """Deliver everything, but to those who are frozen."""
    for _ in range(len(cluster.network) + 20):
        if cluster.network:
            cluster.deliver(0)
        limit_holds(cluster)


def deliver(cluster: ReplicaCluster, kind: str) -> None:
    """Deliver the messages of one kind that are under way."""
    for item in [item for item in cluster.network if item[0] == kind]:
        cluster.deliver(next(index for index, other in enumerate(cluster.network) if other is item))
        limit_holds(cluster)


def held_us(cluster: ReplicaCluster, machine: int) -> int:
    """Sum of one node's quotas."""
    found = cluster.machines[machine].found
    return sum(cluster.machines[machine].host.containers[each.container_id].quota_us for each in found)


def limit_holds(cluster: ReplicaCluster) -> None:
    assert cluster.quota_sum_us() <= cluster.spec.cpu_limit_us
    assert cluster.memory_sum_bytes() <= cluster.spec.memory_limit


def test_a_dead_node_keeps_its_share_although_its_registration_is_older_than_its_containers(cluster):
    periods(cluster, 40, BUSY, CALM)
    assert held_us(cluster, 0) > 0.7 * SPEC.cpu_limit_us
    cluster.kill_agent(cluster.machines[0])
    cluster.take_over(0)

    periods(cluster, 50, CALM, BUSY)
    assert cluster.allocation.inventory.not_reported == {SPEC.name: {"n1"}}

    cluster.start_agent(cluster.machines[0])
    for source in SOURCES:
        cluster.source_answers(cluster.machines[0], source)
    periods(cluster, 100, CALM, BUSY)
    assert held_us(cluster, 1) > 0.7 * SPEC.cpu_limit_us


def freeze_with_a_raise_under_way(cluster: ReplicaCluster) -> None:
    """The first node's agent freezes after it has told of throttled containers; the raise waits for it."""
    first = cluster.machines[0]
    cluster.run(first, BUSY)
    cluster.freeze_agent(first)
    settle(cluster)
    raises = [decode(item[1]) for item in cluster.network]
    assert [(order.node, int(order.column("quota_us").sum()) > 15_000) for order in raises] == [("n1", True)]


def test_a_report_before_the_acknowledgement_of_a_new_owner_does_not_count(cluster):
    """A frozen agent wakes up: it reports its limits, applies a raise of the old owner, then acknowledges the new one.

    Its acknowledgement comes first, then what it said before.
    """
    first, second = cluster.machines
    freeze_with_a_raise_under_way(cluster)
    cluster.take_over(0)
    for _ in range(3):
        cluster.run(second, BUSY)
        settle(cluster)
    cluster.thaw_agent(first)
    cluster.run(first, BUSY)
    deliver(cluster, "update")
    deliver(cluster, "reply")
    deliver(cluster, "batch")
    cluster.run(second, BUSY)
    settle(cluster)
    periods(cluster, 10, BUSY, BUSY)


def test_a_node_that_goes_silent_before_it_acknowledges_a_new_owner_is_waited_for(cluster):
    """An order of the old owner waits there, and raises what the new one has heard."""
    first, second = cluster.machines
    freeze_with_a_raise_under_way(cluster)
    cluster.take_over(0)
    cluster.thaw_agent(first)
    cluster.run(first, BUSY)
    deliver(cluster, "batch")
    cluster.freeze_agent(first)
    for _ in range(2 * STALE_PERIODS):
        cluster.run(first, BUSY)
        cluster.run(second, BUSY)
        settle(cluster)

    cluster.thaw_agent(first)
    deliver(cluster, "update")
    periods(cluster, 10, BUSY, BUSY)

"""The limit holds while a restarted agent waits for its sources; what they no longer have is given back."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from schemas.apps import PERIOD_US, AppSpec
from schemas.codec import decode
from schemas.containers import ContainerSource
from services.agent.ports import FoundContainer
from tests.support.examples import examples
from tests.support.fake_host import PAGE_BYTES
from tests.support.late_sources import SOURCES, LateCluster, LateMachine
from tests.unit.allocator.test_protocol import MIB, USAGE, ProtocolMachine

pytestmark = pytest.mark.timeout(900)
EARLY, *LATE = SOURCES
SPEC = AppSpec(name="shop", cpu_limit=0.6, memory_limit=512 * MIB)
BUSY = [(100_000, 20 * MIB)] * 6


class LateSourcesMachine(ProtocolMachine):
    """As `ProtocolMachine`, with sources that come late, in any order, or never."""

    cluster_type = LateCluster

    @invariant()
    def limit_holds(self):
        """Waking a task that waits at its memory limit takes a page for a moment, longer where the task fills it."""
        if hasattr(self, "cluster"):
            pages = PAGE_BYTES * len(self.cluster.containers())
            self.cluster.limit_holds(pages)

    @rule(machine=st.integers(0, 1), source=st.sampled_from(SOURCES))
    def source_answers(self, machine, source):
        self.cluster.source_answers(self.cluster.machines[machine], source)

    @rule()
    def sources_time_out(self):
        """Where the state directory is lost as well, what a silent source has is not known any more."""
        self.cluster.sources_time_out(self.cluster.machines[0])

    @rule(periods=st.integers(1, 10), busy=st.lists(st.booleans(), min_size=6, max_size=6))
    def periods_pass(self, periods, busy):
        """What is told and ordered arrives; by position, containers are busy or idle."""
        usage = [(2 * PERIOD_US if wants else 0, 20 * MIB) for wants in busy]
        for _ in range(periods):
            for machine in self.cluster.machines:
                self.cluster.run(machine, usage)
                self.deliver_all_in_order(reclaim=False)

    @rule(machine=st.integers(0, 1), source=st.sampled_from(SOURCES))
    def agent_restarts_and_one_source_answers(self, machine, source):
        """The others' containers hold what they held."""
        self.cluster.start_agent(self.cluster.machines[machine])
        self.cluster.source_answers(self.cluster.machines[machine], source)

    @rule(machine=st.integers(0, 1), usage=USAGE, source=st.sampled_from(SOURCES))
    def agent_dies_with_orders_under_way(self, machine, usage, source):
        """They are carried out, and nobody is told."""
        each = self.cluster.machines[machine]
        self.cluster.run(each, usage)
        self.one_kind_overtakes_the_others("batch")
        self.one_kind_overtakes_the_others("update")
        self.cluster.network = [item for item in self.cluster.network if item[0] != "reply"]
        self.agent_restarts_and_one_source_answers(machine, source)


TestLateSources = LateSourcesMachine.TestCase
TestLateSources.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def busy_cluster() -> LateCluster:
    """Busy containers that share all there is, two of each source, on a host whose state directory is lost."""
    cluster = LateCluster(SPEC)
    for _ in range(2 * len(SOURCES)):
        cluster.start_container(cluster.machines[1])
    run(cluster, 40)
    assert cluster.quota_sum_us() > 0.9 * SPEC.cpu_limit_us
    return cluster


def of_late_sources(machine: LateMachine) -> list[FoundContainer]:
    """What runs on a host and is named by a source that does not answer first."""
    return [found for found in machine.found if found.source in LATE]


def late_sources_answer(cluster: LateCluster, machine: LateMachine) -> None:
    for source in LATE:
        cluster.source_answers(machine, source)


def run(cluster: LateCluster, periods: int) -> int:
    """Let periods pass on a network that loses nothing; the largest sum of quotas meanwhile."""
    highest_us = 0
    for _ in range(periods):
        for machine in cluster.machines:
            cluster.run(machine, BUSY)
        while cluster.network:
            cluster.deliver(0)
            highest_us = max(highest_us, cluster.quota_sum_us())
    return highest_us


@pytest.mark.parametrize("order", [*permutations(SOURCES)])
def test_containers_of_a_source_that_is_silent_keep_their_share(order: tuple[ContainerSource, ...]) -> None:
    cluster = busy_cluster()
    machine = cluster.machines[1]
    cluster.start_agent(machine)
    # Two containers of each source: six, less two with each answer.
    for source, unreported in zip(order, (4, 2, 0), strict=True):
        cluster.source_answers(machine, source)

        assert run(cluster, 40) <= SPEC.cpu_limit_us
        assert cluster.allocation.cluster.rows.unreported.sum() == unreported


def test_what_the_silent_source_no_longer_has_is_given_back_once_it_answers() -> None:
    cluster = busy_cluster()
    machine = cluster.machines[1]
    for found in of_late_sources(machine):
        cluster.stop_container(machine, machine.found.index(found))
    cluster.start_agent(machine)
    cluster.source_answers(machine, EARLY)
    run(cluster, 20)
    held_us = cluster.quota_sum_us()
    assert held_us < 0.6 * SPEC.cpu_limit_us

    late_sources_answer(cluster, machine)
    run(cluster, 40)
    assert cluster.quota_sum_us() > 1.4 * held_us


def test_an_application_that_no_batch_names_any_more_keeps_its_share_until_the_inventory_is_complete() -> None:
    cluster = busy_cluster()
    machine = cluster.machines[1]
    held_us = cluster.quota_sum_us()
    cluster.start_agent(machine)
    run(cluster, 20)
    assert int(cluster.allocation.pools().quota_committed_us[0]) >= held_us

    machine.found.clear()
    for source in SOURCES:
        cluster.source_answers(machine, source)
    newcomer = cluster.start_container(machine)
    run(cluster, 40)
    assert int(cluster.allocation.pools().quota_committed_us[0]) == newcomer.quota_us


def test_a_new_owner_waits_for_a_restarted_agents_sources() -> None:
    cluster = busy_cluster()
    machine = cluster.machines[1]
    cluster.start_agent(machine)
    cluster.source_answers(machine, EARLY)
    cluster.start_allocator()

    assert run(cluster, 40) <= SPEC.cpu_limit_us
    assert cluster.allocation.inventory.not_reported == {SPEC.name: {machine.name}}
    late_sources_answer(cluster, machine)
    assert run(cluster, 40) <= SPEC.cpu_limit_us
    assert not cluster.allocation.inventory.not_reported


def test_no_order_names_what_is_absent() -> None:
    """The others become idle: what a throttled container would get of it, it gets once its agent names it."""
    cluster = busy_cluster()
    machine = cluster.machines[1]
    late = of_late_sources(machine)
    cluster.start_agent(machine)
    cluster.source_answers(machine, EARLY)
    machine.found.sort(key=lambda found: found in late)

    named, largest_us = set(), max(container.quota_us for container in cluster.containers())
    for _ in range(40):
        cluster.run(machine, [(0, 20 * MIB)] * 2 + BUSY[2:])
        while cluster.network:
            if cluster.network[0][0] == "update":
                named.update(decode(cluster.network[0][1]).keys)
            cluster.deliver(0)
    assert named == {found.key for found in machine.found if found not in late}

    late_sources_answer(cluster, machine)
    run(cluster, 40)
    assert max(container.quota_us for container in cluster.containers()) > largest_us


def test_a_grant_of_the_dead_agent_is_not_counted_as_given_back() -> None:
    """It moved memory from the reserve to a container's limit, and nobody has said by how much that one rose."""
    cluster = busy_cluster()
    machine = cluster.machines[1]
    position = machine.found.index(of_late_sources(machine)[0])
    container = machine.host.containers[machine.found[position].container_id]
    before_bytes = container.limit_bytes
    cluster.touch(machine, position, before_bytes - container.usage_bytes + MIB)
    assert container.limit_bytes > before_bytes
    cluster.network.clear()
    cluster.start_agent(machine)
    cluster.source_answers(machine, EARLY)

    for _ in range(5):
        run(cluster, 1)
        assert int(cluster.allocation.pools().limit_committed_bytes[0]) >= cluster.memory_sum_bytes()
    late_sources_answer(cluster, machine)
    run(cluster, 40)
    assert cluster.memory_sum_bytes() <= int(SPEC.memory_limit)


def test_a_report_from_before_the_agent_died_is_no_upper_bound() -> None:
    """The old owner has raised it since, and the agent that carried that out is dead."""
    cluster = busy_cluster()
    machine = cluster.machines[1]
    late = of_late_sources(machine)
    machine.found.sort(key=lambda found: found in late)
    for _ in range(40):
        cluster.run(machine, BUSY[:2] + [(1_000, 20 * MIB)] * 4)
        while cluster.network:
            cluster.deliver(0)
    cluster.run(machine, BUSY[:2] + [(1_000, 20 * MIB)] * 4)
    [before] = cluster.network
    cluster.network.clear()
    for _ in range(40):
        cluster.run(machine, [(1_000, 20 * MIB)] * 2 + BUSY[2:])
        while cluster.network:
            cluster.deliver(0)
    assert sum(machine.host.containers[found.container_id].quota_us for found in late) > SPEC.cpu_limit_us // 2

    cluster.start_allocator()
    cluster.network.append(before)
    cluster.deliver(0)
    cluster.start_agent(machine)
    cluster.source_answers(machine, EARLY)

    assert run(cluster, 40) <= SPEC.cpu_limit_us
    late_sources_answer(cluster, machine)
    assert run(cluster, 40) <= SPEC.cpu_limit_us
    assert not cluster.allocation.inventory.not_reported

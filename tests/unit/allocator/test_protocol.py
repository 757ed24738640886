"""The limit holds whatever the network and the processes do: the real allocator and agents, a hostile network."""

from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.apps import MIN_QUOTA_US, PERIOD_US, AppSpec
from tests.support.examples import examples
from tests.support.lossy_cluster import LossyCluster

MIB = 1 << 20
USAGE = st.lists(st.tuples(st.integers(0, 2 * PERIOD_US), st.integers(0, 200 * MIB)), min_size=6, max_size=6)


class ProtocolMachine(RuleBasedStateMachine):
    """Design 4.3: sum of quotas <= limit under loss, duplicates, reordering, late acknowledgements, restarts."""

    cluster_type = LossyCluster

    @initialize(
        policy=st.sampled_from(["waterfill", "escra"]),
        cores=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
        memory=st.sampled_from([64 * MIB, 512 * MIB]),
        containers=st.lists(st.integers(0, 1), max_size=5),
        announced=st.integers(0, 3),
    )
    def start(self, policy, cores, memory, containers, announced):
        self.spec = AppSpec(
            name="shop", cpu_limit=cores, memory_limit=memory, policy=policy, announced_containers=announced
        )
        self.cluster = self.cluster_type(self.spec)
        for machine in containers:
            self.cluster.start_container(self.cluster.machines[machine])

    @rule(machine=st.integers(0, 1), usage=USAGE)
    def period(self, machine, usage):
        self.cluster.run(self.cluster.machines[machine], usage)

    @precondition(lambda self: self.cluster.network)
    @rule(data=st.data(), doubled=st.booleans(), reclaim=st.booleans())
    def deliver(self, data, doubled, reclaim):
        position = data.draw(st.integers(0, len(self.cluster.network) - 1))
        self.cluster.deliver(position, keep=doubled, reclaim=reclaim)

    @rule(reclaim=st.booleans())
    def deliver_all_in_order(self, reclaim):
        for _ in range(len(self.cluster.network) + 20):
            if self.cluster.network:
                self.cluster.deliver(0, reclaim=reclaim)
                self.limit_holds()

    @rule(usages=st.lists(USAGE, min_size=1, max_size=8), lost=st.booleans())
    def orders_are_late(self, usages, lost):
        """Periods pass in which batches arrive at once and orders do not; their sender may give up waiting."""
        for usage in usages:
            for machine in self.cluster.machines:
                self.cluster.run(machine, usage)
                self.one_kind_overtakes_the_others("batch")
            if lost:
                for position in range(len(self.cluster.network)):
                    self.cluster.give_up_waiting(position)

    @rule(kind=st.sampled_from(["batch", "update", "reply", "ask", "answer"]))
    def one_kind_overtakes_the_others(self, kind):
        """For example: all batches arrive while the orders are still under way."""
        for item in [item for item in self.cluster.network if item[0] == kind]:
            position = next(index for index, other in enumerate(self.cluster.network) if other is item)
            self.cluster.deliver(position)
            self.limit_holds()

    @precondition(lambda self: self.cluster.network)
    @rule(data=st.data())
    def drop(self, data):
        self.cluster.drop(data.draw(st.integers(0, len(self.cluster.network) - 1)))

    @precondition(lambda self: self.cluster.network)
    @rule(data=st.data())
    def deadline_passes(self, data):
        self.cluster.give_up_waiting(data.draw(st.integers(0, len(self.cluster.network) - 1)))

    @rule(machine=st.integers(0, 1), data=st.data(), added_mib=st.integers(1, 200))
    def container_grows(self, machine, data, added_mib):
        found = self.cluster.machines[machine].found
        if found:
            position = data.draw(st.integers(0, len(found) - 1))
            self.cluster.touch(self.cluster.machines[machine], position, added_mib * MIB)

    @rule(machine=st.integers(0, 1), spent_mib=st.integers(1, 50))
    def agent_dies_while_granting(self, machine, spent_mib):
        self.cluster.agent_dies_while_granting(self.cluster.machines[machine], spent_mib * MIB)

    @rule(machine=st.integers(0, 1), data=st.data(), quota_us=st.integers(1_000, 50_000), limit_mib=st.integers(4, 64))
    def other_hands_lower_limits(self, machine, data, quota_us, limit_mib):
        found = self.cluster.machines[machine].found
        if found:
            position = data.draw(st.integers(0, len(found) - 1))
            self.cluster.other_hands(self.cluster.machines[machine], position, quota_us, limit_mib * MIB)

    @rule(machine=st.integers(0, 1))
    def agent_restarts(self, machine):
        self.cluster.start_agent(self.cluster.machines[machine])

    @rule()
    def allocator_restarts(self):
        self.cluster.start_allocator()

    @precondition(lambda self: len(self.cluster.containers()) < 6)
    @rule(machine=st.integers(0, 1))
    def container_starts(self, machine):
        self.cluster.start_container(self.cluster.machines[machine])

    @rule(machine=st.integers(0, 1), data=st.data())
    def container_exits(self, machine, data):
        found = self.cluster.machines[machine].found
        if found:
            self.cluster.stop_container(self.cluster.machines[machine], data.draw(st.integers(0, len(found) - 1)))

    @invariant()
    def limit_holds(self):
        if not hasattr(self, "cluster"):
            return
        self.cluster.limit_holds()

    @invariant()
    def quotas_stay_within_their_bounds(self):
        if hasattr(self, "cluster"):
            for container in self.cluster.containers():
                assert container.quota_us == -1 or MIN_QUOTA_US <= container.quota_us <= 2 * PERIOD_US

    @invariant()
    def nothing_is_written_that_holds_already(self):
        if hasattr(self, "cluster"):
            for container in self.cluster.containers():
                for kind in ("quota", "memory"):
                    values = [value for what, value in container.writes if what == kind]
                    assert all(before != after for before, after in pairwise(values))


TestProtocol = ProtocolMachine.TestCase
TestProtocol.settings = settings(
    max_examples=examples(120), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)

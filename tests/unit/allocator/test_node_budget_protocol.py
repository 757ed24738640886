"""A node promises its memory and cores once: two owners, an agent, a network that reorders and loses messages."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.apps import AppSpec
from services.agent.limits.accepted_updates import CpuBudget
from services.agent.memory.node_budget import MemoryBudget
from services.allocator.budget.committed import committed_limits
from tests.support.examples import examples
from tests.support.lossy_cluster import floors
from tests.support.shared_node import SharedNode

MIB = 1 << 20
APPS = ("shop", "cache")
USAGE = st.lists(st.integers(0, 300 * MIB), min_size=6, max_size=6)


class SharedNodeMachine(RuleBasedStateMachine):
    """Sums of limits and reserves, and of quotas, <= allocatable, under loss, duplicates, reordering, restarts."""

    @initialize(
        allocatable=st.sampled_from([64 * MIB, 256 * MIB, 1024 * MIB, 8192 * MIB]),
        limits=st.tuples(*[st.sampled_from([64 * MIB, 512 * MIB, 4096 * MIB])] * 2),
        containers=st.lists(st.sampled_from(APPS), max_size=5),
        bystander=st.sampled_from([None, 50 * MIB, 2000 * MIB]),
        cpu=st.tuples(st.sampled_from([None, 0.05, 0.6, 1.0, 1.5]), st.booleans()),
    )
    def start(self, allocatable, limits, containers, bystander, cpu):
        ratio, busy = cpu
        self.sums = {}
        self.specs = tuple(
            AppSpec(name=name, cpu_limit=2, memory_limit=limit) for name, limit in zip(APPS, limits, strict=True)
        )
        memory = MemoryBudget(allocatable + 100 * MIB, 100 * MIB, 100 * MIB)
        self.shared = SharedNode(self.specs, memory, None if ratio is None else CpuBudget(2, ratio), busy)
        if bystander is not None:  # no allocator owns it; it came with limits of its own
            self.shared.start_container("other", limit_bytes=bystander, quota_us=90_000)
        for app in containers:
            self.shared.start_container(app)

    @rule(usage=USAGE)
    def period(self, usage):
        self.shared.run(usage)

    @precondition(lambda self: self.shared.network)
    @rule(data=st.data(), doubled=st.booleans(), reclaim=st.booleans())
    def deliver(self, data, doubled, reclaim):
        self.shared.deliver(data.draw(st.integers(0, len(self.shared.network) - 1)), keep=doubled, reclaim=reclaim)

    @rule(usages=st.lists(USAGE, min_size=1, max_size=5), reclaim=st.booleans())
    def periods_in_order(self, usages, reclaim):
        for usage in usages:
            self.shared.run(usage)
            self.shared.deliver_all(reclaim=reclaim)

    @rule(kind=st.sampled_from(["batch", "update", "reply", "ask", "answer"]))
    def one_kind_overtakes_the_others(self, kind):
        for item in [item for item in self.shared.network if item[0] == kind]:
            self.shared.deliver(next(index for index, other in enumerate(self.shared.network) if other is item))

    @precondition(lambda self: self.shared.network)
    @rule(data=st.data())
    def drop(self, data):
        self.shared.drop(data.draw(st.integers(0, len(self.shared.network) - 1)))

    @precondition(lambda self: self.shared.found)
    @rule(data=st.data(), added_mib=st.integers(1, 300))
    def container_grows(self, data, added_mib):
        self.shared.touch(data.draw(st.integers(0, len(self.shared.found) - 1)), added_mib * MIB)

    @rule(available_mib=st.sampled_from([None, 50, 5000]))
    def memory_available_changes(self, available_mib):
        self.shared.host.available_bytes = None if available_mib is None else available_mib * MIB

    @rule()
    def poll(self):
        self.shared.poll()

    @rule()
    def agent_restarts(self):
        self.shared.start_agent()

    @rule(position=st.integers(0, 1))
    def owner_restarts(self, position):
        self.shared.start_owner(self.specs[position])

    @precondition(lambda self: len(self.shared.found) < 6)
    @rule(app=st.sampled_from(APPS))
    def container_starts(self, app):
        self.shared.start_container(app)

    @precondition(lambda self: self.shared.found)
    @rule(data=st.data())
    def container_exits(self, data):
        self.shared.stop_container(data.draw(st.integers(0, len(self.shared.found) - 1)))

    @invariant()
    def applications_keep_their_own_limits(self):
        if hasattr(self, "shared"):
            for spec in self.specs:
                floor_bytes, before = floors(self.shared.owners[spec.name])[1], self.sums.get(spec.name, 0)
                self.sums[spec.name] = self.shared.limits_bytes(spec.name)
                assert self.sums[spec.name] <= max(spec.memory_limit + floor_bytes, before)

    def teardown(self):
        """When everything arrives again, owners know what was refused: nothing is counted that is not there."""
        if not hasattr(self, "shared"):
            return
        shared = self.shared
        shared.host.available_bytes = None
        for _ in range(30):
            shared.run([container.usage_bytes for container in shared.containers()])
            shared.deliver_all()
        for app, owner in shared.owners.items():
            rows = owner.cluster.rows
            assert (rows.limit_inflight_bytes == 0).all()
            held_us, held = committed_limits(rows, owner.table.observe_only[rows.app])
            quotas = [max(container.quota_us, 0) for container in shared.containers(app)]
            assert sorted(held_us.tolist()) == sorted(quotas)
            limits = [max(container.limit_bytes, 0) for container in shared.containers(app)]
            assert sorted(held.tolist()) == sorted(limits)
            assert int(owner.cluster.reserves.committed_bytes.sum()) == shared.reserves_bytes(app)


TestSharedNode = SharedNodeMachine.TestCase
TestSharedNode.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)

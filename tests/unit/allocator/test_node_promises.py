"""A machine with processes that nobody manages, and observed and enforced containers: what it has is promised once."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.apps import AppSpec
from services.agent.memory.node_budget import MemoryBudget
from services.agent.memory.policy import DECREASE_MARGIN_BYTES, decrease_is_unsafe
from tests.support.examples import examples
from tests.support.fake_host import FakeHost
from tests.support.shared_node import SharedNode, is_enforced

MIB = 1 << 20
MACHINE_BYTES, RESERVED_BYTES, MIN_AVAILABLE_BYTES = 2048 * MIB, 256 * MIB, 100 * MIB
APPS = ("shop", "cache")
NOTHING_BYTES = 2 * MIB
"""So little is left where a container is killed: memory comes in whole pages, and no raise is below a MiB."""


@dataclass
class Machine(FakeHost):
    """Its memory is used by containers and by processes that nobody manages."""

    unmanaged_bytes: int = 0
    lowest_bytes: int = MACHINE_BYTES
    """Of MemAvailable, ever. Negative: the kernel's global out-of-memory killer would have come."""

    def read_available(self):
        used = sum(container.usage_bytes for container in self.containers.values() if not container.gone)
        available = MACHINE_BYTES - self.unmanaged_bytes - used
        self.lowest_bytes = min(self.lowest_bytes, available)
        return max(available, 0)


class Promises(RuleBasedStateMachine):
    """What is not enforced grows by less than MIN_AVAILABLE_BYTES between two moments at which the promises fit."""

    @initialize(
        unmanaged_mib=st.sampled_from([200, 700, 1200]),
        observed=st.lists(st.integers(10, 100), max_size=4),
        enforced=st.lists(st.tuples(st.sampled_from(APPS), st.sampled_from([-1, 1024 * MIB])), min_size=1, max_size=4),
    )
    def start(self, unmanaged_mib, observed, enforced):
        self.host = Machine(unmanaged_bytes=unmanaged_mib * MIB)
        budget = MemoryBudget(MACHINE_BYTES, RESERVED_BYTES, MIN_AVAILABLE_BYTES)
        specs = tuple(AppSpec(name=name, cpu_limit=2, memory_limit=8 * MACHINE_BYTES) for name in APPS)
        self.shared = SharedNode(specs, budget, host=self.host)
        self.grown_bytes = 0
        for used_mib in observed:  # together they came with more than there is
            self.shared.start_container("old", limit_bytes=1024 * MIB).run(0, memory_bytes=used_mib * MIB)
        for app, limit_bytes in enforced:
            self.shared.start_container(app, limit_bytes=limit_bytes).run(0, memory_bytes=40 * MIB)
        self.look()

    @property
    def positions(self):
        """Of enforced containers; before its first limit is written one is like any other."""
        containers = enumerate(self.shared.containers())
        return [position for position, container in containers if is_enforced(container, "memory")]

    def unused_bytes(self):
        """Of what agents have set."""
        containers = self.shared.containers()
        limits = [containers[position].limit_bytes - containers[position].usage_bytes for position in self.positions]
        return sum(limits) + self.shared.reserves_bytes()

    def app_of(self, container):
        return next(found.app for found in self.shared.found if self.host.containers[found.container_id] is container)

    def look(self, *, reclaim=False):
        usage = [container.usage_bytes for container in self.shared.containers()]
        self.act(lambda: self.shared.run(usage))
        self.act(lambda: self.shared.deliver_all(reclaim=reclaim))
        if self.unused_bytes() + MIN_AVAILABLE_BYTES <= self.host.read_available():
            self.grown_bytes = 0

    def act(self, action):
        """No limit is cut below what is used; nobody is killed while there is memory that nobody else was promised."""
        before = [(container, container.limit_bytes, container.oom_kills) for container in self.shared.containers()]
        free = {id(container): self.free_bytes(container) for container, _, _ in before}
        action()
        for container, limit_bytes, kills in before:
            if container.limit_bytes < limit_bytes:
                assert not decrease_is_unsafe(container.limit_bytes, container.usage_bytes, 0)
            if container.oom_kills > kills:
                assert free[id(container)] <= NOTHING_BYTES, self.shared.told[-3:]

    def free_bytes(self, container):
        """What it could be given: out of its application's reserve, or anew."""
        reserve_bytes = self.shared.reserves_bytes(self.app_of(container))
        left = self.host.read_available() - MIN_AVAILABLE_BYTES - self.unused_bytes()
        return reserve_bytes + min(left, self.shared.budget.allocatable_bytes - self.shared.promised_bytes())

    @rule(periods=st.integers(1, 12), reclaim=st.booleans())
    def time_passes(self, periods, reclaim):
        for _ in range(periods):
            self.act(self.shared.poll)
            self.look(reclaim=reclaim)

    @rule(data=st.data(), periods=st.integers(1, 20), step_mib=st.integers(1, 40))
    def an_enforced_container_grows(self, data, periods, step_mib):
        position = data.draw(st.sampled_from(self.positions or [None]))
        for _ in range(periods if position is not None else 0):
            self.act(lambda: self.shared.touch(position, step_mib * MIB))
            self.act(self.shared.deliver_all)
            self.act(self.shared.poll)
            self.look()

    @rule()
    def all_that_is_promised_is_used(self):
        for position in self.positions:
            container = self.shared.containers()[position]
            if not container.paused:
                container.run(0, memory_bytes=container.limit_bytes)
        self.host.read_available()
        self.look()

    @rule(data=st.data(), freed_mib=st.integers(1, 500))
    def an_enforced_container_frees_memory(self, data, freed_mib):
        position = data.draw(st.sampled_from(self.positions or [None]))
        if position is not None and not self.shared.containers()[position].paused:
            self.shared.containers()[position].free(freed_mib * MIB)
        self.look()

    @rule(periods=st.integers(1, 20), step_mib=st.integers(1, 60), data=st.data())
    def others_grow(self, periods, step_mib, data):
        """Processes, or an observed container within its limit."""
        observed = [each for each in self.shared.containers() if not is_enforced(each, "memory")]
        who = data.draw(st.sampled_from([None, *range(len(observed))]))
        for _ in range(periods):
            # First limits leave DECREASE_MARGIN_BYTES above what is in use, whatever is available.
            most = MIN_AVAILABLE_BYTES - len(self.positions) * DECREASE_MARGIN_BYTES
            step = max(min(step_mib * MIB, most - self.grown_bytes), 0)
            if who is None:
                self.host.unmanaged_bytes += step
            else:
                step = max(min(step, observed[who].limit_bytes - observed[who].usage_bytes), 0)
                observed[who].run(0, memory_bytes=observed[who].usage_bytes + step)
            self.grown_bytes += step
            self.look()

    @rule()
    def others_leave(self):
        self.host.unmanaged_bytes = 200 * MIB
        self.look()

    @rule()
    def agent_restarts(self):
        self.shared.start_agent()
        self.look()

    @precondition(lambda self: hasattr(self, "host"))
    @invariant()
    def the_machine_never_runs_out(self):
        assert self.host.lowest_bytes >= 0


TestPromises = Promises.TestCase
TestPromises.settings = settings(
    max_examples=examples(100), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)

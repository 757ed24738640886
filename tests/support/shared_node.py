"""Two applications with an owner each on one node, all real code, joined by a network that loses, doubles, reorders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from schemas.apps import PERIOD_US, AppSpec
from schemas.codec import decode, encode
from schemas.oom import MemoryRequest
from services.agent.limits.accepted_updates import CpuBudget
from services.agent.memory.node_budget import MemoryBudget, least_limit_bytes
from services.agent.memory.records import RequestOutcome
from services.agent.node import NodeOptions
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from tests.support.agent_node import Node
from tests.support.fake_host import FakeContainer, FakeHost
from tests.support.lossy_cluster import PERIOD_NS, end_warm_up


@dataclass
class SharedNode:
    """What is in flight stands in `network` until a test delivers or drops it; `told` is what the agent told."""

    specs: tuple[AppSpec, ...]
    budget: MemoryBudget | None
    cpu_budget: CpuBudget | None = None
    busy: bool = False
    """Containers use all of their quota and are throttled, or without one use a core."""
    at_rest: set[int] = field(default_factory=set)
    """Positions of those that are not."""
    host: FakeHost = field(default_factory=FakeHost)
    now_ns: int = 10 * PERIOD_NS
    network: list[tuple] = field(default_factory=list)
    owners: dict[str, AllocationCycle] = field(default_factory=dict)
    found: list = field(default_factory=list)
    told: list = field(default_factory=list)
    epoch: int = 0
    incarnation: int = 0
    names: int = 0
    highest_bytes: int = 0

    def __post_init__(self):
        self.start_agent()
        for spec in self.specs:
            self.start_owner(spec)

    # -- faults --

    def start_owner(self, spec):
        """A new owner of one application with a higher epoch; orders of the old one may still be under way."""
        self.epoch += 1
        owner = self.owners[spec.name] = AllocationCycle(warm_up_ns=1 << 60)
        owner.acquire(spec.name, self.epoch, self.now_ns)
        owner.set_spec(spec.name, spec)

    def start_agent(self):
        """A new incarnation over the same containers and the same book of reserves."""
        self.incarnation += 1
        options = NodeOptions(memory_budget=self.budget, cpu_budget=self.cpu_budget)
        self.node = Node("n1", self.incarnation, self.host, self.host.reserve_store, options)
        for found in self.found:
            self.node.found(found)

    def start_container(self, app, **values) -> FakeContainer:
        self.names += 1
        found = self.host.add(f"c{self.names}", app, **values)
        self.found.append(found)
        self.node.found(found)
        return self.host.containers[found.container_id]

    def stop_container(self, position):
        self.host.containers[self.found.pop(position).container_id].gone = True

    # -- time --

    def run(self, usage_bytes=()):
        """One period: containers use what they want and may; the batches go out."""
        for position, (found, wanted_bytes) in enumerate(zip(self.found, usage_bytes, strict=False)):
            container = self.host.containers[found.container_id]
            if not container.paused:
                allowed = wanted_bytes if container.limit_bytes < 0 else min(wanted_bytes, container.limit_bytes)
                busy, limited = self.busy and position not in self.at_rest, container.quota_us > 0
                used_us = (container.quota_us if limited else PERIOD_US) if busy else 1000
                container.run(used_us, throttled=int(busy and limited), memory_bytes=allowed)
        self.now_ns += PERIOD_NS
        for container in self.host.containers.values():
            container.now_ns = self.now_ns
        self.act_of_agent(lambda: self.node.poll_decreases(self.now_ns))
        with_batches = self.act_of_agent(lambda: self.node.sample(self.now_ns, self.now_ns)[0])
        here = {batch.app for batch in with_batches}
        empty = [self.node.empty_batch(app, self.now_ns) for app in self.owners if app not in here]
        self.network += [("batch", encode(batch)) for batch in [*with_batches, *empty]]

    def touch(self, position, added_bytes):
        """A container uses more; the agent hears the alarm, grants, asks."""
        self.host.containers[self.found[position].container_id].touch(added_bytes)
        self.act_of_agent(lambda: self.node.memory.take_notifications(self.host.take_notifications(), self.now_ns))

    def poll(self):
        self.act_of_agent(lambda: self.node.memory.poll(self.now_ns))

    def step_time(self, *, reclaim=False):
        return StepTime(self.now_ns, self.now_ns, reclaim_memory=reclaim, stale_after_ns=1 << 62)

    # -- messages --

    def deliver(self, position, *, keep=False, reclaim=False):
        item = self.network[position] if keep else self.network.pop(position)
        kind, data = item[0], item[1]
        if kind == "batch":
            self._deliver_batch(decode(data), reclaim=reclaim)
        elif kind == "update":
            update, owner = decode(data), item[2]
            answer = partial(self._answer, owner, update)
            self.act_of_agent(lambda: self.node.apply(update, self.now_ns, answer))
        elif kind == "ask":
            request, node, asked = item[1:]
            owner = self.owners[asked.app]
            reply, outcome = owner.request_memory(decode(request), self.step_time())
            self.send(owner, outcome.updates)
            self.network.append(("answer", encode(reply), node, asked))
        elif kind == "answer":
            _, reply, node, asked = item
            if self.node is node:
                answer = node.budget.outcome(decode(reply), asked.wanted_bytes)
                self.act_of_agent(lambda: node.memory.answered(asked, answer, self.now_ns))
        else:
            reply, owner, update = decode(data), item[2], item[3]
            if owner in self.owners.values():
                owner.replies.record(reply, update, self.step_time().now_ns)
                self.send(owner, owner.redistribute(self.step_time()).updates)

    def _answer(self, owner, update, reply):
        """At once, or at the end of a period that a decrease waits for."""
        self.network.append(("reply", encode(reply), owner, update))

    def _deliver_batch(self, batch, *, reclaim):
        owner = self.owners.get(batch.app)
        if owner is None:
            return
        end_warm_up(owner, batch.app)
        self.send(owner, owner.step([batch], self.step_time(reclaim=reclaim)).updates)
        self.send(owner, owner.fences_due(self.step_time()))

    def send(self, owner, updates):
        self.network += [("update", encode(update), owner) for update in updates]

    def drop(self, position):
        item = self.network.pop(position)
        if item[0] == "update":
            item[2].replies.record_timeout(decode(item[1]))
        elif item[0] == "reply":
            item[2].replies.record_timeout(item[3])
        elif item[0] in {"ask", "answer"} and item[2] is self.node:
            self.act_of_agent(lambda: item[2].memory.answered(item[3], RequestOutcome(timeout="lost"), self.now_ns))

    def deliver_all(self, *, reclaim=False):
        """In order, and what follows from it."""
        for _ in range(500):
            if not self.network:
                return
            self.deliver(0, reclaim=reclaim)
        raise AssertionError("messages do not come to an end")

    # -- what is true --

    def act_of_agent(self, action: Callable[[], object]):
        """Whatever the agent does, it leads no sum beyond the budget, nor further beyond it than it was found."""
        before_bytes, before_us = self.promised_bytes(), self.node.limits.cpu_budget.committed_us()
        result = action()
        self.told += self.node.events.take_events()
        for asked in self.node.events.take_requests():
            request = MemoryRequest(
                app=asked.app,
                node="n1",
                incarnation=self.node.incarnation,
                container=asked.key,
                wanted_bytes=asked.wanted_bytes,
                usage_bytes=asked.usage_bytes,
                limit_bytes=asked.limit_bytes,
                tasks_blocked=asked.paused,
                time_ns=self.now_ns,
            )
            if (why := self.node.budget.grant_refusal()) is not None:
                self.node.memory.answered(asked, RequestOutcome(denial=why.sentence("n1")), self.now_ns)
            else:
                self.network.append(("ask", encode(request), self.node, asked))
        self.highest_bytes = max(self.highest_bytes, self.limits_bytes())
        if self.budget is not None:
            assert self.promised_bytes() <= max(self.budget.allocatable_bytes, before_bytes)
        if self.cpu_budget is not None:
            assert self.quotas_us(enforced=True) <= max(self.cpu_budget.allocatable_us, before_us)
        return result

    def containers(self, app=None) -> list[FakeContainer]:
        return [self.host.containers[found.container_id] for found in self.found if app in {None, found.app}]

    def reserves_bytes(self, app=None):
        return sum(
            reserve.left_bytes for name, reserve in self.host.reserve_store.read().items() if app in {None, name}
        )

    def limits_bytes(self, app=None):
        """Limits, and what the node may still grant by itself."""
        limits = sum(container.limit_bytes for container in self.containers(app) if container.limit_bytes > 0)
        return limits + self.reserves_bytes(app)

    def quotas_us(self, *, enforced=False):
        """Of all containers, as the kernel holds them; or only of those that an agent has set."""
        return sum(
            container.quota_us
            for container in self.containers()
            if container.quota_us > 0 and (not enforced or is_enforced(container, "quota"))
        )

    def promised_bytes(self):
        """Limits that an agent has set, what the node may still grant, and what all others use and need at first."""
        return self.reserves_bytes() + sum(
            container.limit_bytes if is_enforced(container, "memory") else least_limit_bytes(container.usage_bytes)
            for container in self.containers()
        )


def is_enforced(container, limit):
    """Whether an agent has ever set this limit."""
    return any(kind == limit for kind, _ in container.writes)

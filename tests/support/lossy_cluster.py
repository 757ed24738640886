"""An allocator and two agents, all real code, joined by a network that loses, doubles, delays and reorders."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from schemas.apps import AppSpec
from schemas.codec import decode, encode
from schemas.oom import MemoryRequest
from services.agent.memory.records import RequestOutcome
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from tests.support.agent_node import Node
from tests.support.fake_host import FakeContainer, FakeHost

MS = 1_000_000
PERIOD_NS = 100 * MS


def owning(app: str, epoch: int = 1) -> AllocationCycle:
    """An allocation that owns an application from the start of time."""
    allocation = AllocationCycle()
    allocation.acquire(app, epoch, 0)
    return allocation


def end_warm_up(allocation: AllocationCycle, app: str) -> None:
    """As if its time had passed and all nodes of the application had reported."""
    allocation.owned.warm_up_ends_ns[app] = 0
    allocation.inventory.release(app)


@dataclass
class Machine:
    """A host that outlives its agent."""

    name: str
    host: FakeHost = field(default_factory=FakeHost)
    node: Node | None = None
    found: list = field(default_factory=list)


@dataclass
class LossyCluster:
    """Everything that is in flight stands in `network` until a test delivers or drops it."""

    spec: AppSpec
    now_ns: int = 10 * PERIOD_NS
    network: list[tuple] = field(default_factory=list)
    epoch: int = 0
    incarnation: int = 0
    names: int = 0
    _sums: tuple[int, int] = (0, 0)
    """Of quotas and memory limits, when they were last compared, with those that other hands lowered as before that."""
    _lowered: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """By container and what was lowered: the value before, and the number of writes of it since the beginning."""

    def __post_init__(self):
        self.machines = [Machine("n1"), Machine("n2")]
        for machine in self.machines:
            self.start_agent(machine)
        self.start_allocator()

    # -- faults --

    def start_allocator(self):
        """A new owner with a higher epoch; orders of the old one may still be under way."""
        self.epoch += 1
        self.allocation = AllocationCycle(warm_up_ns=1 << 60)
        self.allocation.acquire(self.spec.name, self.epoch, self.now_ns)
        self.allocation.set_spec(self.spec.name, self.spec)
        self.heard = set()

    def start_agent(self, machine):
        """A new incarnation over the same containers; what it knew is lost."""
        self.incarnation += 1
        machine.node = Node(machine.name, self.incarnation, machine.host, machine.host.reserve_store)
        for found in machine.found:
            machine.node.found(found)

    def start_container(self, machine, **values):
        self.names += 1
        found = machine.host.add(f"c{self.names}", self.spec.name, **values)
        machine.found.append(found)
        machine.node.found(found)
        return machine.host.containers[found.container_id]

    def stop_container(self, machine, position):
        found = machine.found.pop(position)
        machine.host.containers[found.container_id].gone = True

    def agent_dies_while_granting(self, machine, spent_bytes):
        """Between writing down what is spent and raising the limit; nobody knows of it but the book."""
        machine.host.reserve_store.spend(self.spec.name, spent_bytes)
        self.start_agent(machine)

    def other_hands(self, machine, position, quota_us, limit_bytes):
        """Write lower limits past the agent."""
        container = machine.host.containers[machine.found[position].container_id]
        before_us, before_bytes = self._held(container, "quota"), self._held(container, "memory")
        if quota_us < container.quota_us:
            container.quota_us = quota_us
            container.writes.append(("quota", quota_us))
            self._lowered[container.key, "quota"] = before_us, _writes(container, "quota")
        if max(limit_bytes, container.usage_bytes) < container.limit_bytes:
            container.limit_bytes = max(limit_bytes, container.usage_bytes)
            container.writes.append(("memory", container.limit_bytes))
            self._lowered[container.key, "memory"] = before_bytes, _writes(container, "memory")

    def _held(self, container, what):
        """A limit as it was before other hands lowered it, until the agent has written it again."""
        before, writes = self._lowered.get((container.key, what), (0, -1))
        if writes == _writes(container, what):
            return before
        return container.quota_us if what == "quota" else container.limit_bytes

    # -- memory --

    def touch(self, machine, position, added_bytes):
        """A container uses more; the agent hears the alarm, grants, asks."""
        machine.host.containers[machine.found[position].container_id].touch(added_bytes)
        machine.node.memory.take_notifications(machine.host.take_notifications(), self.now_ns)
        self.collect_requests(machine)

    def collect_requests(self, machine):
        for asked in machine.node.events.take_requests():
            request = MemoryRequest(
                app=asked.app,
                node=machine.name,
                incarnation=machine.node.incarnation,
                container=asked.key,
                wanted_bytes=asked.wanted_bytes,
                usage_bytes=asked.usage_bytes,
                limit_bytes=asked.limit_bytes,
                tasks_blocked=asked.paused,
                time_ns=self.now_ns,
            )
            self.network.append(("ask", encode(request), machine, machine.node, asked))

    def silence(self, item):
        """Neither the request nor its answer will come."""
        if item[0] in {"ask", "answer"} and item[2].node is item[3]:
            item[3].memory.answered(item[4], RequestOutcome(timeout="lost"), self.now_ns)

    # -- time --

    def run(self, machine, usage):
        """One period on a machine: containers use what they want and may; the batch goes out."""
        for found, (demand_us, memory_bytes) in zip(machine.found, usage, strict=False):
            container = machine.host.containers[found.container_id]
            allowed_us = demand_us if container.quota_us < 0 else min(demand_us, container.quota_us)
            container.run(allowed_us, throttled=int(allowed_us < demand_us), memory_bytes=memory_bytes)
        self.now_ns += PERIOD_NS // len(self.machines)
        machine.node.poll_decreases(self.now_ns)
        machine.node.memory.poll(self.now_ns)
        batches, vanished = machine.node.sample(self.now_ns, self.now_ns)
        self.collect_requests(machine)
        for batch in self.told(machine, batches, vanished):
            self.network.append(("batch", encode(batch)))

    def told(self, machine, batches, vanished):
        """What an agent sends after a sample."""
        return batches or [machine.node.empty_batch(self.spec.name, self.now_ns)]

    def hear(self, batch):
        """The service warms up for so long that every living node is heard."""
        self.heard.add(batch.node)
        if len(self.heard) == len(self.machines):
            end_warm_up(self.allocation, self.spec.name)

    def step_time(self, *, reclaim=False):
        return StepTime(self.now_ns, self.now_ns, reclaim_memory=reclaim, stale_after_ns=1 << 62)

    # -- messages --

    def deliver(self, position, *, keep=False, reclaim=False):
        item = self.network[position] if keep else self.network.pop(position)
        kind, data = item[0], item[1]
        if kind == "batch":
            batch = decode(data)
            self.hear(batch)
            self.act(self.allocation.step([batch], self.step_time(reclaim=reclaim)))
            for fence in self.allocation.fences_due(self.step_time()):
                self.network.append(("update", encode(fence), self.allocation))
        elif kind == "update":
            update = decode(data)
            machine = next(machine for machine in self.machines if machine.name == update.node)
            machine.node.apply(
                update, self.now_ns, lambda reply: self.network.append(("reply", encode(reply), item[2], update))
            )
            self.collect_requests(machine)
        elif kind == "ask":
            reply, outcome = self.allocation.request_memory(decode(data), self.step_time())
            self.act(outcome)
            self.network.append(("answer", encode(reply), *item[2:]))
        elif kind == "answer":
            machine, node, asked = item[2:]
            if machine.node is node:
                node.memory.answered(asked, RequestOutcome(denial=decode(data).denial), self.now_ns)
                self.collect_requests(machine)
        else:
            reply, sender = decode(data), item[2]
            if sender is self.allocation:
                self.allocation.replies.record(reply, item[3], self.step_time().now_ns)
                self.act(self.allocation.redistribute(self.step_time()))

    def drop(self, position):
        item = self.network.pop(position)
        if item[0] == "update" and item[2] is self.allocation:
            self.allocation.replies.record_timeout(decode(item[1]))
        elif item[0] == "reply" and item[2] is self.allocation:
            self.allocation.replies.record_timeout(item[3])
        self.silence(item)

    def give_up_waiting(self, position):
        """The allocator's deadline passes although the order is still under way and may act later."""
        item = self.network[position]
        if item[0] == "update" and item[2] is self.allocation:
            self.allocation.replies.record_timeout(decode(item[1]))

    def act(self, outcome):
        for update in outcome.updates:
            self.network.append(("update", encode(update), self.allocation))

    # -- what is true --

    def containers(self) -> list[FakeContainer]:
        return [machine.host.containers[found.container_id] for machine in self.machines for found in machine.found]

    def quota_sum_us(self):
        return sum(container.quota_us for container in self.containers() if container.quota_us > 0)

    def memory_sum_bytes(self):
        """Limits, and what the nodes may still grant by themselves."""
        books = [machine.host.reserve_store.read() for machine in self.machines]
        reserves = sum(reserve.left_bytes for book in books for reserve in book.values())
        return reserves + sum(container.limit_bytes for container in self.containers() if container.limit_bytes > 0)

    def limit_holds(self, spare_bytes=0):
        """Fails where limits add up to more than the application's and the floors of those that had no room.

        Where they do for another reason, because a floor's owner was replaced, they do not rise; what other hands
        lowered an agent may raise to what it was.
        """
        floor_us, floor_bytes = floors(self.allocation)
        sums = self.quota_sum_us(), self.memory_sum_bytes()
        assert sums[0] <= max(self.spec.cpu_limit_us + floor_us, self._sums[0])
        assert sums[1] <= max(self.spec.memory_limit + floor_bytes + spare_bytes, self._sums[1])
        held = [sum(max(self._held(each, what), 0) for each in self.containers()) for what in ("quota", "memory")]
        limits_bytes = sum(each.limit_bytes for each in self.containers() if each.limit_bytes > 0)
        self._sums = held[0], sums[1] - limits_bytes + held[1]


def _writes(container, what):
    return sum(kind == what for kind, _ in container.writes)


def floors(allocation):
    """Quotas and memory limits of containers that hold, or are about to, their floor because there was no room."""
    rows = allocation.cluster.rows
    quota_us, limit_bytes = (
        np.maximum(held, inflight)[short].sum()
        for held, inflight, short in (
            (rows.quota_us, rows.quota_inflight_us, rows.short_of_cpu),
            (rows.limit_bytes, rows.limit_inflight_bytes, rows.short_of_memory),
        )
    )
    return int(quota_us), int(limit_bytes)

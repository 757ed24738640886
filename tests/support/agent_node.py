"""A node's parts as the agent wires them, with the calls of a test in one place and a clock that only moves forward."""

from __future__ import annotations

from services.agent.containers.incarnation import Incarnation
from services.agent.node import NodeOptions, assemble


class Node:
    """The parts, and what the agent's service does with them."""

    def __init__(self, name, incarnation, host, reserve_store, options=None):
        self.parts = assemble(Incarnation(name, incarnation), host, reserve_store, options or NodeOptions())
        self.name, self.incarnation, self.host = name, incarnation, host
        self.containers = self.parts.containers
        self.memory, self.events, self.budget = self.parts.memory, self.parts.memory.events, self.parts.budget
        self.reserves, self.update_log = self.budget.reserves, self.parts.limits.log
        self.sampler, self.limits, self.lifecycle = self.parts.sampler, self.parts.limits, self.parts.lifecycle
        self.decreases, self.poll_decreases = self.limits.decreases, self.limits.poll_decreases
        self.inventory, self.writes = self.containers.inventory, self.containers.kernel.writes
        self.key_of, self.empty_batch = self.containers.key_of, self.sampler.empty_batch
        self.poll, self.read_back = self.sampler.poll, self.sampler.read_back
        self.now_ns = 0

    @property
    def polls_between_samples(self):
        return self.sampler.polls_between_samples

    def found(self, container):
        self.lifecycle.remove_restarted(container.container_id, self.now_ns)
        return self.lifecycle.found(container, self.now_ns)

    def recorded(self, container):
        return self.lifecycle.recorded(container, self.now_ns)

    def source_answered(self, answer):
        return [removed.found for removed in self.lifecycle.source_answered(answer, self.now_ns)]

    def vanished(self, container_id):
        removed = self.lifecycle.remove(container_id, self.now_ns)
        return removed and removed.found

    def sample(self, now_ns, wall_ns):
        """Batches, and the containers that have vanished."""
        self.now_ns = now_ns
        snapshot, vanished = self.sampler.read(now_ns)
        gone = [found for container_id in vanished if (found := self.vanished(container_id)) is not None]
        return self.sampler.sample(snapshot, now_ns, wall_ns), gone

    def apply(self, update, now_ns, on_settled):
        self.now_ns = max(self.now_ns, now_ns)
        self.limits.apply(update, now_ns, on_settled)

    def take_notifications(self, now_ns):
        self.memory.take_notifications(self.host.take_notifications(), now_ns)

    def take_reports(self, reports, now_ns):
        self.memory.adopt_reports(list(reports), now_ns)

    def void_orphans(self):
        return self.reserves.void_orphans(self.containers.apps)

    def release_all(self):
        return [removed.found for removed in self.lifecycle.release_all(self.now_ns)]

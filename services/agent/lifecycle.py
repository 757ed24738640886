"""Containers that begin and end to be managed: found, recorded, gone, released. No bus, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from services.agent.containers.container_set import ContainerSet
from services.agent.limits.update_executor import LimitExecutor
from services.agent.memory.controller import MemoryController
from services.agent.memory.node_budget import NodeBudget
from services.agent.ports import FoundContainer, SourceAnswered


@dataclass(frozen=True, slots=True)
class Removed:
    """A container that is not managed any more."""

    found: FoundContainer
    oom_kills: int
    """By the kernel since it was found."""


class ContainerLifecycle:
    """Adds containers to a node's set and removes them from all that keeps state of them. Times are monotonic ns."""

    def __init__(
        self, containers: ContainerSet, memory: MemoryController, limits: LimitExecutor, budget: NodeBudget
    ) -> None:
        self._containers = containers
        self._inventory = containers.inventory
        self._memory = memory
        self._limits = limits
        self._budget = budget

    def found(self, container: FoundContainer, now_ns: int) -> str | None:
        """Start to sample a container; returns its key, or None if it is known already or has vanished."""
        self._inventory.confirm(container.container_id)
        member = self._containers.open(container)
        if member is None:
            return None
        if member.handle.oom_controlled:  # by a previous agent: its tasks may be waiting
            self._memory.control(container.key, now_ns)
            self._memory.inspect_soon(container.key, now_ns)
        return container.key

    def recorded(self, container: FoundContainer, now_ns: int) -> str | None:
        """Like `found`, for a container that the state directory names and its source has not named yet."""
        key = self.found(container, now_ns)
        if key is not None:
            self._inventory.recorded(container.container_id, container.source)
        return key

    def source_answered(self, answer: SourceAnswered, now_ns: int) -> list[Removed]:
        """A source has named all that it knows; removes and returns what was only recorded and is gone."""
        gone = self._inventory.answered(answer.source, exists=answer.exists)
        return [removed for container_id in gone if (removed := self.remove(container_id, now_ns)) is not None]

    def remove_restarted(self, container_id: str, now_ns: int) -> Removed | None:
        """Before `found`: one that was restarted has new control groups; forget the old ones, if they are known."""
        key = self._containers.key_of(container_id)
        if key is None or self._containers.managed[key].handle.read() is not None:
            return None
        return self.remove(container_id, now_ns)

    def remove(self, container_id: str, now_ns: int) -> Removed | None:
        """Forget a container; returns it if it was managed."""
        self._inventory.confirm(container_id)
        key = self._containers.key_of(container_id)
        if key is None:
            return None
        member = self._containers.managed[key]
        self._memory.count_kills(key, member.handle.read_oom_kills())
        self._memory.forget(member, now_ns)
        self._containers.forget(container_id)
        self._limits.forget(key, member.found.app)
        self._budget.forget(key)
        if not self._containers.of_app(member.found.app):
            self._budget.reserves.void(member.found.app)
        return Removed(member.found, member.kills)

    def release_all(self, now_ns: int) -> list[Removed]:
        """Restore every container's original limits and forget it; returns what was released."""
        self._memory.release_all(now_ns)
        released = []
        for member in list(self._containers.managed.values()):
            member.handle.restore()
            if (removed := self.remove(member.found.container_id, now_ns)) is not None:
                released.append(removed)
        return released

"""OOM wait timestamps: one deadline from when tasks began to wait, across agents and their watchdogs.

An agent may die or be stopped while tasks wait. Its watchdog goes on, and the next agent, or the same one once it runs
again. Each records since when tasks wait, and loads what the one before it recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.agent.containers import ContainerSet
from services.agent.memory.policy import ContainerMemory

GAP_NS: Final = 190_000_000
"""A longer gap between inspections means that the process was stopped or starved; a watchdog acts after more.
"""
WATCHDOG_GAP_NS: Final = 700_000_000
"""After a longer gap the watchdog has acted, and has recorded which tasks wait (by its usual setting)."""


class OomWaitTimes:
    """Recorded OOM waits of one node's controlled containers."""

    def __init__(self, containers: ContainerSet) -> None:
        self._containers = containers
        self._recorded: dict[str, int] = {}
        """By container, as far as its tasks wait."""
        self._last_ns: int | None = None

    def load(self, container: ContainerMemory) -> int | None:
        """Load what was recorded of a container during a gap."""
        since_ns = self._containers.managed[container.key].handle.oom_wait_since_ns
        if since_ns is not None:
            self._recorded[container.key] = since_ns
        container.recorded_wait_ns = since_ns
        return since_ns

    def record(self, container: ContainerMemory) -> None:
        """After an inspection: record whether tasks wait, where that has changed."""
        since_ns, container.recorded_wait_ns = container.oom_wait_since_ns, None
        if since_ns == self._recorded.get(container.key):
            return
        if since_ns is None:
            del self._recorded[container.key]
        else:
            self._recorded[container.key] = since_ns
        self._containers.managed[container.key].handle.record_oom_wait(since_ns)

    def forget(self, key: str) -> None:
        """The container is gone."""
        self._recorded.pop(key, None)

    def after_gap(self, containers: Iterable[ContainerMemory], now_ns: int) -> list[ContainerMemory]:
        """Called before any inspection: containers to inspect first after a gap, with their recorded waits loaded."""
        before_ns, self._last_ns = self._last_ns, now_ns
        if before_ns is None or now_ns - before_ns < GAP_NS:
            return []
        found = [
            container for container in containers if container.oom_wait_since_ns is None and not container.killer_reason
        ]
        for container in found:
            if self.load(container) is None and now_ns - before_ns < WATCHDOG_GAP_NS:
                container.recorded_wait_ns = before_ns
        return found

"""The containers of one node with their control files: opened, read back, written. No bus, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from schemas.limits import RowStatus
from services.agent.limits.update_log import ContainerLimits, UpdateLog
from services.agent.memory.growth import PAGE_BYTES
from services.agent.ports import ContainerHandle, FoundContainer, Host, Limits, WriteOutcome
from services.agent.sampling.counters import IntArray
from services.agent.sampling.sample_state import SampleState

ROUNDING_BYTES: Final = 1 << 16
"""The kernel rounds memory limits down to whole pages; pages are at most 64 KiB."""


@dataclass(slots=True)
class ManagedContainer:
    """One container. `ContainerSet.update_log.containers[key]` holds its limits."""

    found: FoundContainer
    handle: ContainerHandle
    oom_kills: int = 0
    first_oom_kills: int = 0

    @property
    def kills(self) -> int:
        """By the kernel since the container was found."""
        return self.oom_kills - self.first_oom_kills


@dataclass(slots=True)
class WriteCounters:
    """What was written to the kernel."""

    quota_writes: int = 0
    memory_writes: int = 0
    refused_writes: int = 0


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """All containers, sorted by application, then key: the order of batches."""

    keys: list[str]
    managed: list[ManagedContainer]
    handles: list[ContainerHandle]
    limits: list[ContainerLimits]
    first_kills: IntArray
    """Kills by the kernel before each was found, shape (N,)."""
    apps: list[tuple[str, slice]]
    """Applications, and which rows are theirs."""


class ContainerSet:
    """All containers that are sampled."""

    def __init__(self, host: Host, update_log: UpdateLog) -> None:
        self.host = host
        self.update_log = update_log
        self.writes = WriteCounters()
        self.managed: dict[str, ManagedContainer] = {}
        self.samples = SampleState()
        self._order: BatchOrder | None = None
        self._key_by_id: dict[str, str] = {}

    @property
    def order(self) -> BatchOrder:
        """The same object as long as no container is added or removed."""
        if self._order is None:
            keys = sorted(self.managed, key=lambda key: (self.managed[key].found.app, key))
            managed = [self.managed[key] for key in keys]
            apps, start = [], 0
            for app, group in groupby(managed, key=lambda member: member.found.app):
                end = start + sum(1 for _ in group)
                apps.append((app, slice(start, end)))
                start = end
            limits = [self.update_log.containers[key] for key in keys]
            first_kills = np.array([member.first_oom_kills for member in managed], dtype=np.int64)
            self._order = BatchOrder(keys, managed, [member.handle for member in managed], limits, first_kills, apps)
        return self._order

    def key_of(self, container_id: str) -> str | None:
        """Key of a managed container."""
        return self._key_by_id.get(container_id)

    def of_app(self, app: str) -> list[str]:
        """Keys of an application."""
        return self.update_log.of_apps({app})

    def open(self, container: FoundContainer) -> ManagedContainer | None:
        """Begin with a container; None if it is known already or has vanished."""
        if container.container_id in self._key_by_id or container.key in self.managed:
            return None
        handle = self.host.open(container)
        if handle is None:
            return None
        limits = handle.read_limits()
        if limits is None:
            handle.close()
            return None
        kills = handle.read_oom_kills()
        member = ManagedContainer(container, handle, oom_kills=kills, first_oom_kills=kills)
        self.managed[container.key] = member
        self._key_by_id[container.container_id] = container.key
        self.update_log.add(container.key, container.app, limits.quota_us, limits.memory_bytes)
        self.samples.reset(container.key)
        self._order = None
        return member

    def forget(self, container_id: str) -> ManagedContainer | None:
        """It is gone; its handle is closed, its limit updates are forgotten."""
        key = self._key_by_id.pop(container_id, None)
        if key is None:
            return None
        member = self.managed.pop(key)
        member.handle.close()
        self.update_log.remove(key)
        self._order = None
        return member

    def refresh(self, key: str) -> Limits | None:
        """Read the limits that the kernel holds. None: vanished."""
        limits = self.managed[key].handle.read_limits()
        if limits is not None:
            update_log = self.update_log.containers[key]
            update_log.quota_us, update_log.limit_bytes = limits.quota_us, limits.memory_bytes
        return limits

    def write_quota(self, key: str, quota_us: int) -> RowStatus:
        """Write a quota unless it holds already."""
        update_log = self.update_log.containers[key]
        if quota_us == update_log.quota_us:
            return RowStatus.UNCHANGED
        outcome = self.managed[key].handle.write_quota(quota_us)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.quota_writes += 1
            update_log.quota_us = quota_us
        return self._status(key, outcome)

    def write_memory(self, key: str, limit_bytes: int) -> RowStatus:
        """Write a memory limit."""
        outcome = self.managed[key].handle.write_memory(limit_bytes)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.memory_writes += 1
            self.update_log.containers[key].limit_bytes = limit_bytes
        return self._status(key, outcome)

    def wake_tasks(self, key: str, limit_bytes: int) -> None:
        """Make tasks that wait below the memory limit try again: the kernel wakes them when the limit is raised.

        It is lowered by a page for it first: raised by one, what they take of that page could never be taken back.
        """
        if self.write_memory(key, limit_bytes - PAGE_BYTES) is RowStatus.APPLIED:
            self.write_memory(key, limit_bytes)

    def _status(self, key: str, outcome: WriteOutcome) -> RowStatus:
        if outcome is WriteOutcome.WRITTEN:
            return RowStatus.APPLIED
        if outcome is WriteOutcome.VANISHED:
            return RowStatus.UNKNOWN_CONTAINER
        self.writes.refused_writes += 1
        self.refresh(key)
        return RowStatus.FAILED


def same_memory(held_bytes: int, known_bytes: int) -> bool:
    """Whether the kernel holds the known limit, but for its rounding to pages."""
    if held_bytes < 0 or known_bytes < 0:
        return held_bytes == known_bytes
    return 0 <= known_bytes - held_bytes < ROUNDING_BYTES

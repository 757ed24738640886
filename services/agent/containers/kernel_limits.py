"""Limits in the kernel: read back, and written; what is written where the kernel refuses, and why it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.apps import MIN_QUOTA_US
from schemas.limits import RowStatus
from schemas.reasons import Resource, quantity
from services._host.cgroup_snapshot import Limits, RefusedQuota, WriteOutcome
from services.agent.containers.container import ContainerLimits, ManagedContainer

_PAGE_BYTES: Final = 4096
_HALVINGS: Final = 4
"""Of a first quota that a group which is not seen from here refuses: down to a sixteenth."""


@dataclass(slots=True)
class WriteCounters:
    """What was written to the kernel."""

    quota_writes: int = 0
    memory_writes: int = 0
    refused_writes: int = 0


class KernelLimits:
    """Control files of the containers, through their handles; what they hold afterwards is recorded."""

    def __init__(self, managed: Mapping[str, ManagedContainer], limits: Mapping[str, ContainerLimits]) -> None:
        """Of these containers, by key, as they come and go."""
        self._managed = managed
        self._limits = limits
        self.writes = WriteCounters()
        self.refusal = ""
        """Why the kernel refused the latest limit that it refused, and what holds instead."""

    def refresh(self, key: str) -> Limits | None:
        """Read the limits that the kernel holds. None: vanished."""
        limits = self._managed[key].handle.read_limits()
        if limits is not None:
            known = self._limits[key]
            known.quota_us, known.limit_bytes = limits.quota_us, limits.memory_bytes
        return limits

    def write_quota(self, key: str, quota_us: int) -> RowStatus:
        """Write a quota unless it holds already; FAILED: the nearest one that the kernel accepts, as far as known."""
        known = self._limits[key]
        if quota_us == known.quota_us:
            return RowStatus.UNCHANGED
        status = self._try_quota(key, quota_us)
        if status is RowStatus.FAILED:
            why = self._managed[key].handle.why_quota_refused(quota_us)
            self._write_nearest_quota(key, quota_us, why)
            self.refusal = _refusal("cpu", quota_us, known.quota_us, why.cause)
        return status

    def _write_nearest_quota(self, key: str, refused_us: int, why: RefusedQuota) -> None:
        held_us, nearest_us = self._limits[key].quota_us, why.nearest_us
        if nearest_us:
            # Another write of what holds would refill the bandwidth.
            if held_us < 0 or held_us < nearest_us < refused_us or refused_us < nearest_us < held_us:
                self._try_quota(key, nearest_us)
        elif held_us < 0 and why.may_accept_less:
            for halvings in range(1, _HALVINGS + 1):
                if self._try_quota(key, max(refused_us >> halvings, MIN_QUOTA_US)) is not RowStatus.FAILED:
                    return

    def _try_quota(self, key: str, quota_us: int) -> RowStatus:
        known = self._limits[key]
        outcome = self._managed[key].handle.write_quota(quota_us)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.quota_writes += 1
            known.quota_us = quota_us
        return self._status(key, outcome)

    def write_memory(self, key: str, limit_bytes: int) -> RowStatus:
        """Write a memory limit."""
        outcome = self._managed[key].handle.write_memory(limit_bytes)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.memory_writes += 1
            self._limits[key].limit_bytes, self._limits[key].limit_promised = limit_bytes, True
        status = self._status(key, outcome)
        if status is RowStatus.FAILED:
            cause = self._managed[key].handle.why_memory_refused()
            self.refusal = _refusal("memory", limit_bytes, self._limits[key].limit_bytes, cause)
        return status

    def wake_tasks(self, key: str, limit_bytes: int) -> None:
        """Make tasks that wait below the memory limit try again: the kernel wakes them when the limit is raised.

        It is lowered by a page for it first: raised by one, what they take of that page could never be taken back.
        """
        if self.write_memory(key, limit_bytes - _PAGE_BYTES) is RowStatus.APPLIED:
            self.write_memory(key, limit_bytes)

    def _status(self, key: str, outcome: WriteOutcome) -> RowStatus:
        if outcome is WriteOutcome.WRITTEN:
            return RowStatus.APPLIED
        if outcome is WriteOutcome.VANISHED:
            return RowStatus.UNKNOWN_CONTAINER
        self.writes.refused_writes += 1
        self.refresh(key)
        return RowStatus.FAILED


def _refusal(resource: Resource, ordered: int, held: int, cause: str) -> str:
    if held < 0:
        return f"the kernel refuses any {'CPU' if resource == 'cpu' else 'memory'} limit: {cause}"
    return f"the kernel refuses {'less' if ordered < held else 'more'} than {quantity(resource, held)}: {cause}"

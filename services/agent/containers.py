"""The containers of one node with their control files: opened, read back, written; whether all are known. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import numpy as np

from schemas.apps import MIN_QUOTA_US
from schemas.containers import ContainerSource
from schemas.limits import RowStatus
from schemas.reasons import Resource, quantity
from services._host.cgroup_snapshot import (
    COUNTER_COLUMNS,
    UNLIMITED,
    BoolArray,
    IntArray,
    Limits,
    RefusedQuota,
    WriteOutcome,
)
from services.agent.ports import ContainerHandle, FoundContainer, Host

_PAGE_BYTES: Final = 4096
_MOST: Final = Limits(1 << 40, 1 << 60)
"""What a batch can carry."""
_HALVINGS: Final = 4
"""Of a first quota that a group which is not seen from here refuses: down to a sixteenth."""
ROUNDING_BYTES: Final = 1 << 16
"""The kernel rounds memory limits down to whole pages; pages are at most 64 KiB."""


NOTHING_REPORTED = -1
NEVER = -1
LONG_AGO_NS = -(1 << 62)
_FILLS = {
    "counters": 0,
    "memory_bytes": 0,
    "read_ns": NEVER,
    "idle": 0,
    "reclaimable_bytes": 0,
    "tracked_bytes": 0,
    "boundary_ns": 0,
    "reported": (NOTHING_REPORTED, NOTHING_REPORTED, 0),
    "used_us": 0,
    "budget_usage_us": 0,
    "budget_quota_us": -1,
    "throttled_ns": LONG_AGO_NS,
    "may_burst": 0,
}
"""Columns, and what a new container begins with."""


class SampleState:
    """Columns of shape (N,); `counters` of shape (N, 5), `reported` of shape (N, 3)."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._row_of: dict[str, int] = {}
        self._new: set[str] = set()
        self.counters: IntArray = np.zeros((0, COUNTER_COLUMNS), dtype=np.int64)
        """As they were read last."""
        self.memory_bytes: IntArray = np.zeros(0, dtype=np.int64)
        """Memory usage as it was read last, by a sample or an inspection between two."""
        self.read_ns: IntArray = np.zeros(0, dtype=np.int64)
        """When, monotonic; `NEVER`."""
        self.idle: BoolArray = np.zeros(0, dtype=np.bool_)
        self.reclaimable_bytes: IntArray = np.zeros(0, dtype=np.int64)
        self.tracked_bytes: IntArray = np.zeros(0, dtype=np.int64)
        """Usage when the thresholds last followed it."""
        self.boundary_ns: IntArray = np.zeros(0, dtype=np.int64)
        """A boundary of its CFS periods, as read from the kernel; 0: not known."""
        self.reported: IntArray = np.zeros((0, 3), dtype=np.int64)
        """Throttled periods that were reported before they ended (`services.agent.sampling.sampler`)."""
        self.used_us: IntArray = np.zeros(0, dtype=np.int64)
        """Per period, by the last sample."""
        self.budget_usage_us: IntArray = np.zeros(0, dtype=np.int64)
        """Cumulative usage that the next usage is compared with (`services.agent.sampling.sampler`)."""
        self.budget_quota_us: IntArray = np.zeros(0, dtype=np.int64)
        """The quota at that time; negative: none."""
        self.throttled_ns: IntArray = np.zeros(0, dtype=np.int64)
        """Sample in which, or after which, it was throttled last; monotonic."""
        self.may_burst: BoolArray = np.zeros(0, dtype=np.bool_)
        """Its usage is read between two samples (`services.agent.sampling.sampler`)."""

    def reset(self, key: str) -> None:
        """A container was found: whatever is remembered under its key belongs to another one."""
        self._new.add(key)

    def reorder(self, keys: list[str]) -> None:
        """Bring the columns into this order."""
        if keys is self.keys:
            return
        known = [-1 if key in self._new else self._row_of.get(key, -1) for key in keys]
        source = np.array(known, dtype=np.int64)
        for name, fill in _FILLS.items():
            old: np.ndarray[Any, Any] = getattr(self, name)
            new = np.full((len(keys), *old.shape[1:]), fill, dtype=old.dtype)
            new[source >= 0] = old[source[source >= 0]]
            setattr(self, name, new)
        self.keys, self._row_of = keys, {key: row for row, key in enumerate(keys)}
        self._new.clear()

    def row_of(self, key: str) -> int | None:
        """Its row; None: it has not been sampled since it was found."""
        return None if key in self._new else self._row_of.get(key)

    def memory_in_use(self) -> dict[str, int]:
        """By container, bytes that the kernel cannot drop, as far as is known; not of those that were never sampled."""
        used = np.maximum(self.memory_bytes - self.reclaimable_bytes, 0).tolist()
        by_key: dict[str, int] = dict(zip(self.keys, used, strict=True))
        for key in self._new:
            by_key.pop(key, None)
        return by_key

    def note_memory(self, key: str, usage_bytes: int) -> None:
        """Its usage was read between two samples."""
        if (row := self.row_of(key)) is not None:
            self.memory_bytes[row] = usage_bytes

    def is_idle(self, key: str) -> bool:
        """Whether it did nothing in the last period."""
        row = self.row_of(key)
        return row is not None and bool(self.idle[row])

    def boundary_of(self, key: str) -> int:
        """A boundary of its periods, monotonic ns; 0: not known."""
        row = self.row_of(key)
        return 0 if row is None else int(self.boundary_ns[row])


@dataclass(slots=True)
class ContainerLimits:
    """What the agent knows of one container's limits. Quota per period; -1: unlimited."""

    app: str
    quota_us: int
    limit_bytes: int
    epoch: int = 0
    seq: int = 0
    pending_decrease_us: int | None = None
    """A lower quota that waits for the container's period boundary."""
    pending_update: tuple[int, int] | None = None
    quota_ordered: bool = False
    """Whether the quota was ever updated: if not, the agent never restores it."""
    limit_ordered: bool = False
    """Whether the agent controls its memory: any update shows that the application is enforced."""
    quota_inherited: bool = False
    """Whether a previous agent has set the quota."""
    limit_promised: bool = False
    """Whether this agent or a previous one has set the memory limit: one that it came with promises nothing."""

    @property
    def quota_promised(self) -> bool:
        """The same of the quota."""
        return self.quota_ordered or self.quota_inherited


@dataclass(slots=True)
class ManagedContainer:
    """One container. `ContainerSet.limits[key]` holds its limits."""

    found: FoundContainer
    handle: ContainerHandle
    configured: Limits
    """That it has without an agent."""
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


@dataclass(slots=True)
class Incarnation:
    """One run of a node's agent, as its batches, replies and events name it."""

    node: str
    number: int
    """A later run has a larger one."""
    report_seq: int = 0
    """Of the latest batch or reply."""

    def next_report_seq(self) -> int:
        """For a batch or a reply."""
        self.report_seq += 1
        return self.report_seq


class Inventory:
    """Whether the list of containers is complete: which discovery sources have not answered since the agent's start.

    An agent that starts again samples at once, while the Docker Engine or the container runtime may answer late. Until
    each source has named all that it knows, or its timeout has passed, a container that the agent does not name is not
    known to be gone (decision 0034). Containers that are recorded in the state directory are sampled from the start;
    the first full answer of their source says which of them still exist.
    """

    def __init__(self, deadlines_ns: Mapping[ContainerSource, int]) -> None:
        """Begin with all sources pending.

        Args:
            deadlines_ns: by source, monotonic: from then on its silence no longer counts.
        """
        self._pending = dict(deadlines_ns)
        self._unconfirmed: dict[str, ContainerSource] = {}

    @property
    def pending(self) -> tuple[ContainerSource, ...]:
        """Sources that have neither answered nor timed out."""
        return tuple(sorted(self._pending))

    @property
    def complete(self) -> bool:
        """Whether no source is pending."""
        return not self._pending

    def expire(self, now_ns: int) -> tuple[ContainerSource, ...]:
        """Stop waiting for sources whose deadline has passed; returns them, once each. ``now_ns``: monotonic."""
        expired = tuple(source for source in self.pending if now_ns >= self._pending[source])
        for source in expired:
            del self._pending[source]
        return expired

    def recorded(self, container_id: str, source: ContainerSource) -> None:
        """A container is sampled because the state directory names it."""
        self._unconfirmed[container_id] = source

    def confirm(self, container_id: str) -> bool:
        """Its source has named it, or it is gone. Returns whether it was only recorded before."""
        return self._unconfirmed.pop(container_id, None) is not None

    def answered(self, source: ContainerSource, *, exists: bool) -> list[str]:
        """The source has named all that it knows; returns recorded containers (ids) that it no longer has.

        Args:
            source: it.
            exists: False: there is no such engine on this host now, which says nothing about its containers.
        """
        self._pending.pop(source, None)
        if not exists:
            return []
        gone = [container_id for container_id, owner in self._unconfirmed.items() if owner == source]
        for container_id in gone:
            del self._unconfirmed[container_id]
        return gone


class ContainerSet:
    """All containers that are sampled."""

    def __init__(self, incarnation: Incarnation, host: Host, inventory: Inventory) -> None:
        self.incarnation = incarnation
        self.node = incarnation.node
        """Name of the host."""
        self.host = host
        self.inventory = inventory
        self.limits: dict[str, ContainerLimits] = {}
        self.writes = WriteCounters()
        self.refusal = ""
        """Why the kernel refused the latest limit that it refused, and what holds instead."""
        self.managed: dict[str, ManagedContainer] = {}
        self.samples = SampleState()
        self._key_by_id: dict[str, str] = {}

    @cached_property
    def order(self) -> BatchOrder:
        """The same object as long as no container is added or removed."""
        keys = sorted(self.managed, key=lambda key: (self.managed[key].found.app, key))
        managed = [self.managed[key] for key in keys]
        apps, start = [], 0
        for app, group in groupby(managed, key=lambda member: member.found.app):
            end = start + sum(1 for _ in group)
            apps.append((app, slice(start, end)))
            start = end
        limits = [self.limits[key] for key in keys]
        first_kills = np.array([member.first_oom_kills for member in managed], dtype=np.int64)
        return BatchOrder(keys, managed, [member.handle for member in managed], limits, first_kills, apps)

    @cached_property
    def configured(self) -> dict[str, Limits]:
        """By application, the sums of what its containers came with; `UNLIMITED`: one of them came without a limit."""
        order = self.order
        return {app: _sum_of([member.configured for member in order.managed[part]]) for app, part in order.apps}

    def refresh_configured(self, key: str) -> None:
        """After its limits were read: others may have changed what no agent did."""
        member = self.managed[key]
        before, member.configured = member.configured, member.handle.configured
        if member.configured != before:
            self.__dict__.pop("configured", None)

    def _forget_order(self) -> None:
        """A container was added or removed: the order is made anew when it is next asked for."""
        self.__dict__.pop("order", None)
        self.__dict__.pop("configured", None)

    def key_of(self, container_id: str) -> str | None:
        """Key of a managed container."""
        return self._key_by_id.get(container_id)

    @property
    def apps(self) -> set[str]:
        """Applications that have a container here."""
        return {member.found.app for member in self.managed.values()}

    def of_app(self, app: str) -> list[str]:
        """Keys of an application."""
        return self.of_apps({app})

    def of_apps(self, apps: Collection[str]) -> list[str]:
        """Keys of these applications."""
        return [key for key, limits in self.limits.items() if limits.app in apps]

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
        kills, configured = handle.read_oom_kills(), handle.configured
        member = ManagedContainer(container, handle, configured, oom_kills=kills, first_oom_kills=kills)
        self.managed[container.key] = member
        self._key_by_id[container.container_id] = container.key
        self.limits[container.key] = ContainerLimits(
            container.app,
            limits.quota_us,
            limits.memory_bytes,
            quota_inherited=limits.quota_us != configured.quota_us,
            limit_promised=not same_memory(limits.memory_bytes, configured.memory_bytes),
        )
        self.samples.reset(container.key)
        self._forget_order()
        return member

    def forget(self, container_id: str) -> ManagedContainer | None:
        """It is gone; its handle is closed, its limit updates are forgotten."""
        key = self._key_by_id.pop(container_id, None)
        if key is None:
            return None
        member = self.managed.pop(key)
        member.handle.close()
        del self.limits[key]
        self._forget_order()
        return member

    def refresh(self, key: str) -> Limits | None:
        """Read the limits that the kernel holds. None: vanished."""
        limits = self.managed[key].handle.read_limits()
        if limits is not None:
            known = self.limits[key]
            known.quota_us, known.limit_bytes = limits.quota_us, limits.memory_bytes
        return limits

    def write_quota(self, key: str, quota_us: int) -> RowStatus:
        """Write a quota unless it holds already; FAILED: the nearest one that the kernel accepts, as far as known."""
        known = self.limits[key]
        if quota_us == known.quota_us:
            return RowStatus.UNCHANGED
        status = self._try_quota(key, quota_us)
        if status is RowStatus.FAILED:
            why = self.managed[key].handle.why_quota_refused(quota_us)
            self._write_nearest_quota(key, quota_us, why)
            self.refusal = _refusal("cpu", quota_us, known.quota_us, why.cause)
        return status

    def _write_nearest_quota(self, key: str, refused_us: int, why: RefusedQuota) -> None:
        held_us, nearest_us = self.limits[key].quota_us, why.nearest_us
        if nearest_us:
            # Another write of what holds would refill the bandwidth.
            if held_us < 0 or held_us < nearest_us < refused_us or refused_us < nearest_us < held_us:
                self._try_quota(key, nearest_us)
        elif held_us < 0 and why.may_accept_less:
            for halvings in range(1, _HALVINGS + 1):
                if self._try_quota(key, max(refused_us >> halvings, MIN_QUOTA_US)) is not RowStatus.FAILED:
                    return

    def _try_quota(self, key: str, quota_us: int) -> RowStatus:
        known = self.limits[key]
        outcome = self.managed[key].handle.write_quota(quota_us)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.quota_writes += 1
            known.quota_us = quota_us
        return self._status(key, outcome)

    def write_memory(self, key: str, limit_bytes: int) -> RowStatus:
        """Write a memory limit."""
        outcome = self.managed[key].handle.write_memory(limit_bytes)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.memory_writes += 1
            self.limits[key].limit_bytes, self.limits[key].limit_promised = limit_bytes, True
        status = self._status(key, outcome)
        if status is RowStatus.FAILED:
            cause = self.managed[key].handle.why_memory_refused()
            self.refusal = _refusal("memory", limit_bytes, self.limits[key].limit_bytes, cause)
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


def _sum_of(limits: list[Limits]) -> Limits:
    return Limits(
        *(
            UNLIMITED if UNLIMITED in values else min(sum(values), most)
            for values, most in zip(zip(*limits, strict=True), _MOST, strict=True)
        )
    )


def same_memory(held_bytes: int, known_bytes: int) -> bool:
    """Whether the kernel holds the known limit, but for its rounding to pages."""
    if held_bytes < 0 or known_bytes < 0:
        return held_bytes == known_bytes
    return 0 <= known_bytes - held_bytes < ROUNDING_BYTES

"""The containers of one node: read every period, limits carried out. No bus, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from schemas.limits import LimitReply, LimitUpdate, RowStatus
from services.agent.core.boundaries import BoundaryQueue
from services.agent.core.orders import OrderBook, RowPlan
from services.agent.core.sampling import COUNTER_COLUMNS, PeriodSample, per_period
from services.agent.ports import ContainerHandle, FoundContainer, Host, WriteOutcome

RECHECK_TICKS = 10
"""Each container's limits are read back from the kernel once in so many ticks, a share of them per tick."""


@dataclass(slots=True)
class _Member:
    """One container. `order_book.containers[key]` holds its limits."""

    found: FoundContainer
    handle: ContainerHandle
    counters: tuple[int, ...] = (0,) * COUNTER_COLUMNS
    read_ns: int | None = None
    idle: bool = False
    oom_kills: int = 0
    first_oom_kills: int = 0


@dataclass(slots=True, eq=False)
class PendingReply:
    """A reply that waits for its cuts."""

    update: LimitUpdate
    keys: list[str]
    statuses: list[RowStatus]
    waiting: dict[str, int] = field(default_factory=dict)
    """Row by container, for cuts that are not written yet."""
    refusal: str | None = None
    stale_apps: tuple[str, ...] = ()
    on_settled: Callable[[LimitReply], None] | None = None


@dataclass(slots=True)
class WriteCounters:
    """What was written to the kernel."""

    quota_writes: int = 0
    memory_writes: int = 0
    refused_writes: int = 0


class Node:
    """Reads counters and writes limits of all managed containers of a host."""

    def __init__(self, name: str, incarnation: int, host: Host) -> None:
        self.name = name
        self.incarnation = incarnation
        self.host = host
        self.book = OrderBook(name, incarnation)
        self.cuts = BoundaryQueue()
        self.writes = WriteCounters()
        self._members: dict[str, _Member] = {}
        self._order: list[str] = []
        self._before: np.ndarray[Any, Any] | None = None
        """Counters of the last tick in `_order`; None once that has changed."""
        self._report_seq = 0
        self.ticks = 0
        """Samples taken of all containers."""
        self._pending: list[PendingReply] = []
        self._joined: dict[str, str] = {}

    @property
    def container_count(self) -> int:
        """Containers that are sampled."""
        return len(self._members)

    def key_of(self, container_id: str) -> str | None:
        """Key of a managed container."""
        return self._joined.get(container_id)

    def found(self, container: FoundContainer) -> str | None:
        """Start to sample a container; returns its key, or None if it is known already or has vanished."""
        if container.container_id in self._joined or container.key in self._members:
            return None
        handle = self.host.open(container)
        if handle is None:
            return None
        limits = handle.read_limits()
        if limits is None:
            handle.close()
            return None
        kills = handle.read_oom_kills()
        self._members[container.key] = _Member(container, handle, oom_kills=kills, first_oom_kills=kills)
        self._joined[container.container_id] = container.key
        self.book.add(container.key, container.app, limits.quota_us, limits.memory_bytes)
        self._reorder()
        return container.key

    def gone(self, container_id: str) -> FoundContainer | None:
        """Forget a container; returns it if it was managed."""
        key = self._joined.pop(container_id, None)
        if key is None:
            return None
        member = self._members.pop(key)
        member.handle.close()
        waiting = self.cuts.waiting.get(key)
        self.cuts.forget(key)
        self.book.remove(key)
        if waiting is not None:
            self._settle_row(key, waiting.order, RowStatus.UNKNOWN_CONTAINER)
        self._reorder()
        return member.found

    def sample(self, now_ns: int, wall_ns: int) -> tuple[list[CfsBatch], list[FoundContainer]]:
        """Read all containers; returns one batch per application and the containers that have vanished.

        Args:
            now_ns: monotonic time.
            wall_ns: time since the epoch, for the messages.
        """
        self.ticks += 1
        readings = [self._members[key].handle.read() for key in self._order]
        vanished: list[FoundContainer] = []
        if None in readings:
            lost = [key for key, reading in zip(self._order, readings, strict=True) if reading is None]
            vanished = [
                found for key in lost if (found := self.gone(self._members[key].found.container_id)) is not None
            ]
            readings = [reading for reading in readings if reading is not None]
        self._recheck_limits()
        batches = self._batches(readings, now_ns, wall_ns) if readings else []
        return batches, vanished

    def empty_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """Says that the node holds no container of the application (any more)."""
        columns: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
        return CfsBatch.build([], columns, **self._head(app, wall_ns))

    def carry_out(self, update: LimitUpdate, now_ns: int, on_settled: Callable[[LimitReply], None]) -> None:
        """Carry out an update: raises and memory now, cuts at each container's boundary.

        ``on_settled`` is called with the reply once every row is settled, possibly before this returns.
        """
        plan = self.book.accept(update)
        keys = [row.container for row in plan.rows]
        if not keys and plan.refusal is None:
            keys = self.book.of_apps(set(update.apps) - set(plan.stale_apps))
        statuses = [row.status for row in plan.rows] or [RowStatus.UNCHANGED] * len(keys)
        pending = PendingReply(update, keys, statuses, {}, plan.refusal, plan.stale_apps, on_settled)
        for container, _ in plan.superseded:
            self.cuts.discard(container)
        self._pending.append(pending)
        for row, planned in enumerate(plan.rows):
            pending.statuses[row] = self._start_row(planned, pending, row, now_ns)
        # Replies only now: one that names this order as seen must tell what it has raised.
        for container, order in plan.superseded:
            self._settle_row(container, order, RowStatus.SUPERSEDED)
        self._finish(pending)

    def poll_cuts(self, now_ns: int) -> None:
        """Read the containers whose boundary is due and write the cuts that may be written."""
        for cut in self.cuts.due(now_ns):
            member = self._members.get(cut.container)
            nr_periods = member.handle.read_periods() if member else None
            if nr_periods is None:
                self.cuts.discard(cut.container)
                self._settle_row(cut.container, cut.order, RowStatus.UNKNOWN_CONTAINER)
            elif self.cuts.read(cut, nr_periods, now_ns):
                quota_us = self.book.settle_cut(cut.container, cut.order)
                status = self._write_quota(cut.container, quota_us) if quota_us else RowStatus.SUPERSEDED
                self._settle_row(cut.container, cut.order, status)

    def release_all(self) -> list[FoundContainer]:
        """Restore every container's original limits and forget it; returns what was released."""
        released = []
        for member in list(self._members.values()):
            member.handle.restore()
            self.gone(member.found.container_id)
            released.append(member.found)
        return released

    # -- sampling ----------------------------------------------------------------------------------------------

    def _reorder(self) -> None:
        self._before = None
        self._order = sorted(self._members, key=lambda key: (self._members[key].found.app, key))

    def _recheck_limits(self) -> None:
        """Read back a share of the limits: other hands write the same files."""
        for key in self._order[self.ticks % RECHECK_TICKS :: RECHECK_TICKS]:
            member = self._members[key]
            limits = member.handle.read_limits()
            if limits is not None:
                book = self.book.containers[key]
                book.quota_us, book.limit_bytes = limits.quota_us, limits.memory_bytes
            member.oom_kills = max(member.oom_kills, member.handle.read_oom_kills())

    def _batches(self, readings: list[Any], now_ns: int, wall_ns: int) -> list[CfsBatch]:
        members = [self._members[key] for key in self._order]
        limits = [self.book.containers[key] for key in self._order]
        after = np.array(readings, dtype=np.int64)
        quota_us = np.array([entry.quota_us for entry in limits], dtype=np.int64)
        elapsed_us = np.array(
            [0 if member.read_ns is None else (now_ns - member.read_ns) // 1000 for member in members], dtype=np.int64
        )
        if self._before is None:
            self._before = np.array([member.counters for member in members], dtype=np.int64)
        sample = per_period(self._before, after, elapsed_us, quota_us)
        self._before = after
        idle = (sample.flags & int(SampleFlag.IDLE)).tolist()
        for member, reading, is_idle in zip(members, readings, idle, strict=True):
            member.counters, member.read_ns, member.idle = reading, now_ns, bool(is_idle)
        columns = _columns(sample) | {
            "quota_us": quota_us,
            "memory_limit_bytes": np.array([entry.limit_bytes for entry in limits], dtype=np.int64),
            "order_seq": np.array([self.book.order_seq(key) for key in self._order], dtype=np.int64),
            "oom_kills": np.array([member.oom_kills - member.first_oom_kills for member in members]),
        }
        return self._split(columns, wall_ns)

    def _split(self, columns: dict[str, np.ndarray[Any, Any]], wall_ns: int) -> list[CfsBatch]:
        batches, start = [], 0
        for app, group in groupby(self._order, key=lambda key: self._members[key].found.app):
            keys = list(group)
            rows = slice(start, start + len(keys))
            start += len(keys)
            part = {name: column[rows] for name, column in columns.items()}
            batches.append(CfsBatch.build(keys, part, **self._head(app, wall_ns)))
        return batches

    def _head(self, app: str, wall_ns: int) -> dict[str, Any]:
        return {
            "app": app,
            "node": self.name,
            "incarnation": self.incarnation,
            "report_seq": self._next_report(),
            "time_ns": wall_ns,
            "period_us": PERIOD_US,
            "host_cpus": self.host.cpu_count,
        }

    def _next_report(self) -> int:
        self._report_seq += 1
        return self._report_seq

    # -- limits ------------------------------------------------------------------------------------------------

    def _start_row(self, planned: RowPlan, pending: PendingReply, row: int, now_ns: int) -> RowStatus:
        status = planned.status
        if planned.limit_bytes:
            status = self._write_memory(planned.container, planned.limit_bytes)
        if planned.raise_quota_us:
            return max(status, self._write_quota(planned.container, planned.raise_quota_us))
        if planned.cut_quota_us:
            member = self._members[planned.container]
            order = (pending.update.epoch, pending.update.seq)
            nr_periods = None if member.idle else member.handle.read_periods()
            if nr_periods is None:  # idle: nothing to refill; vanished: the write finds out
                quota_us = self.book.settle_cut(planned.container, order)
                return max(status, self._write_quota(planned.container, quota_us)) if quota_us else status
            pending.waiting[planned.container] = row
            self.cuts.add(planned.container, order, nr_periods, now_ns)
        return status

    def _write_quota(self, key: str, quota_us: int) -> RowStatus:
        book = self.book.containers[key]
        if quota_us == book.quota_us:
            return RowStatus.UNCHANGED
        outcome = self._members[key].handle.write_quota(quota_us)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.quota_writes += 1
            book.quota_us = quota_us
        return self._status(key, outcome)

    def _write_memory(self, key: str, limit_bytes: int) -> RowStatus:
        outcome = self._members[key].handle.write_memory(limit_bytes)
        if outcome is WriteOutcome.WRITTEN:
            self.writes.memory_writes += 1
            self.book.containers[key].limit_bytes = limit_bytes
        return self._status(key, outcome)

    def _status(self, key: str, outcome: WriteOutcome) -> RowStatus:
        if outcome is WriteOutcome.WRITTEN:
            return RowStatus.APPLIED
        if outcome is WriteOutcome.VANISHED:
            return RowStatus.UNKNOWN_CONTAINER
        self.writes.refused_writes += 1
        limits = self._members[key].handle.read_limits()
        if limits is not None:
            book = self.book.containers[key]
            book.quota_us, book.limit_bytes = limits.quota_us, limits.memory_bytes
        return RowStatus.FAILED

    def _settle_row(self, container: str, order: tuple[int, int], status: RowStatus) -> None:
        for pending in self._pending:
            if (pending.update.epoch, pending.update.seq) == order and container in pending.waiting:
                row = pending.waiting.pop(container)
                pending.statuses[row] = max(pending.statuses[row], status)
                self._finish(pending)
                return

    def _finish(self, pending: PendingReply) -> None:
        if pending.waiting:
            return
        self._pending.remove(pending)
        if pending.on_settled is not None:
            pending.on_settled(self._reply(pending))

    def _reply(self, pending: PendingReply) -> LimitReply:
        known = [self.book.containers.get(key) for key in pending.keys]
        columns: dict[str, Iterable[int]] = {
            "quota_us": [entry.quota_us if entry else 0 for entry in known],
            "limit_bytes": [entry.limit_bytes if entry else 0 for entry in known],
            "order_seq": [
                self.book.order_seq(key) if entry else 0 for key, entry in zip(pending.keys, known, strict=True)
            ],
            "status": [int(status) for status in pending.statuses],
        }
        return LimitReply.build(
            pending.keys,
            {name: list(values) for name, values in columns.items()},
            node=self.name,
            incarnation=self.incarnation,
            report_seq=self._next_report(),
            epoch=pending.update.epoch,
            seq=pending.update.seq,
            refusal=pending.refusal,
            stale_apps=pending.stale_apps,
        )


def _columns(sample: PeriodSample) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "periods": sample.periods,
        "used_us": sample.used_us,
        "unused_us": sample.unused_us,
        "throttled": sample.throttled,
        "throttled_us": sample.throttled_us,
        "memory_usage_bytes": sample.memory_usage_bytes,
        "memory_reclaimable_bytes": np.zeros_like(sample.memory_usage_bytes),
        "flags": sample.flags,
    }

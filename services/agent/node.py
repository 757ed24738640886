"""The containers of one node: read every period, limits carried out, memory guarded. No bus, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from schemas.limits import LimitReply, LimitUpdate
from services.agent.containers import Containers
from services.agent.core.bounds import Bounds
from services.agent.core.orders import OrderBook
from services.agent.core.sampling import PeriodSample, per_period
from services.agent.drift import DriftWatch
from services.agent.limit_orders import LimitOrders
from services.agent.memory import MemoryGuard
from services.agent.occurrences import Journal, of_watchdog
from services.agent.ports import FoundContainer, Host, ReserveBook, WatchdogReport
from services.agent.reserves import Reserves

RECHECK_TICKS = 5
"""Each container's limits are read back from the kernel once in so many ticks, a share of them per tick."""
RECLAIMABLE_TICKS = 50
"""The same for the page cache that the kernel could drop: 20 us a container."""
_MEMORY_COLUMN = 4


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node treats its containers."""

    pause_deadline_ns: int = 2_000_000_000
    """No task waits longer at its memory limit."""
    reassert: bool = True
    """Limits that other hands have changed: put back what was ordered, or else take over what is found."""


class Node:
    """Reads counters and writes limits of all managed containers of a host.

    What happened to memory, what has to be asked, and what other hands did waits in `journal`.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        host: Host,
        reserve_book: ReserveBook,
        options: NodeOptions = NodeOptions(),
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.host = host
        self.book = OrderBook(name, incarnation)
        self.journal = Journal()
        self.reserves = Reserves(reserve_book)
        self._containers = Containers(host, self.book)
        self._drift = DriftWatch(self._containers, self.reserves, self.journal, reassert=options.reassert)
        self.guard = MemoryGuard(self._containers, self.reserves, self._drift, options.pause_deadline_ns)
        self._orders = LimitOrders(self._containers, self.reserves, self.guard, self._next_report)
        self.cuts = self._orders.cuts
        self.writes = self._containers.writes
        self._before: np.ndarray[Any, Any] | None = None
        """Counters of the last tick in the order of batches; None once that has changed."""
        self._report_seq = 0
        self.ticks = 0
        """Samples taken of all containers."""
        self._now_ns = 0
        self._kills_of_gone: dict[str, int] = {}

    @property
    def container_count(self) -> int:
        """Containers that are sampled."""
        return len(self._containers.members)

    @property
    def containers(self) -> list[FoundContainer]:
        """All that are sampled."""
        return [member.found for member in self._containers.members.values()]

    def key_of(self, container_id: str) -> str | None:
        """Key of a managed container."""
        return self._containers.key_of(container_id)

    def kills_of(self, key: str) -> int:
        """Kills by the kernel since the container was found, also of one that has just gone."""
        member = self._containers.members.get(key)
        return member.kills if member else self._kills_of_gone.pop(key, 0)

    def found(self, container: FoundContainer) -> str | None:
        """Start to sample a container; returns its key, or None if it is known already or has vanished."""
        member = self._containers.open(container)
        if member is None:
            return None
        self._before = None
        if member.handle.armed:  # by an agent before us: its tasks may be waiting
            self.guard.guard(container.key, self._now_ns)
            self.guard.look_soon(container.key, self._now_ns)
        return container.key

    def gone(self, container_id: str) -> FoundContainer | None:
        """Forget a container; returns it if it was managed."""
        key = self._containers.key_of(container_id)
        if key is None:
            return None
        member = self._containers.members[key]
        self.guard.kills_read(key, member.handle.read_oom_kills())
        self.guard.forget(member, self._now_ns)
        self._kills_of_gone[key] = member.kills
        self._containers.forget(container_id)
        self._orders.forget(key)
        if not self._containers.of_app(member.found.app):
            self.reserves.void(member.found.app)
        self._before = None
        return member.found

    def sample(self, now_ns: int, wall_ns: int) -> tuple[list[CfsBatch], list[FoundContainer]]:
        """Read all containers; returns one batch per application and the containers that have vanished.

        Args:
            now_ns: monotonic time.
            wall_ns: time since the epoch, for the messages.
        """
        self.ticks += 1
        self._now_ns = now_ns
        self._kills_of_gone.clear()
        order, members = self._containers.order, self._containers.members
        readings = [members[key].handle.read() for key in order]
        vanished: list[FoundContainer] = []
        if None in readings:
            lost = [key for key, reading in zip(order, readings, strict=True) if reading is None]
            vanished = [found for key in lost if (found := self.gone(members[key].found.container_id)) is not None]
            readings = [reading for reading in readings if reading is not None]
        self._follow_the_book()
        self._recheck(now_ns)
        batches = self._batches(readings, now_ns, wall_ns) if readings else []
        return batches, vanished

    def empty_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """Says that the node holds no container of the application (any more)."""
        columns: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
        return CfsBatch.build([], columns, **self._head(app, wall_ns))

    def carry_out(self, update: LimitUpdate, now_ns: int, on_settled: Callable[[LimitReply], None]) -> None:
        """Carry out an update: raises, memory and reserves now, cuts of CPU at each container's boundary.

        ``on_settled`` is called with the reply once every row is settled, possibly before this returns.
        """
        self._now_ns = max(self._now_ns, now_ns)
        self._orders.carry_out(update, now_ns, on_settled)

    def compare_orders_with(self, bounds: Bounds) -> None:
        """From now on no order goes beyond these."""
        self._orders.bounds = bounds

    def take_beyond(self) -> set[str]:
        """Applications that an order since the last call would have taken beyond their bounds."""
        beyond, self._orders.beyond = self._orders.beyond, set()
        return beyond

    def poll_cuts(self, now_ns: int) -> None:
        """Read the containers whose boundary is due and write the cuts that may be written."""
        self._orders.poll_cuts(now_ns)

    def take_alarms(self, now_ns: int) -> None:
        """Look at the containers that the host has alarms for."""
        self.guard.take_alarms(self.host.take_alarms(), now_ns)

    def take_reports(self, reports: Iterable[WatchdogReport], now_ns: int) -> None:
        """What the watchdog did in our absence: told, and taken over where the containers are still here."""
        for report, occurrence in zip(reports := list(reports), of_watchdog(reports), strict=True):
            self.journal.tell(occurrence)
            if report.key in self._containers.members:
                self._containers.refresh(report.key)
                if not report.granted:
                    self.guard.released_by_others(report.key, occurrence.reason, now_ns)

    def void_orphans(self) -> list[str]:
        """Give up what is held for applications without a container here; returns them."""
        here = {member.found.app for member in self._containers.members.values()}
        orphans = [app for app in self.reserves.apps if app not in here and self.reserves.left_of(app)]
        for app in orphans:
            self.reserves.void(app)
        return orphans

    def release_all(self) -> list[FoundContainer]:
        """Restore every container's original limits and forget it; returns what was released."""
        self.guard.release_all(self._now_ns)
        released = []
        for member in list(self._containers.members.values()):
            member.handle.restore()
            self.gone(member.found.container_id)
            released.append(member.found)
        return released

    # -- sampling ----------------------------------------------------------------------------------------------

    def _follow_the_book(self) -> None:
        """What the watchdog has spent is reported together with the limits that it raised."""
        for app in self.reserves.look():
            for key in self._containers.of_app(app):
                self._containers.refresh(key)
            self.reserves.confirm(app)

    def _recheck(self, now_ns: int) -> None:
        """Read a share of the limits back, the guard's included: other hands write the same files."""
        order = self._containers.order
        for key in order[self.ticks % RECHECK_TICKS :: RECHECK_TICKS]:
            self._drift.check(key)
            self.guard.kills_read(key, self._containers.members[key].handle.read_oom_kills())
            if self.guard.arm_again(key, now_ns):
                self._drift.guard_was_undone(key)
        for key in order[self.ticks % RECLAIMABLE_TICKS :: RECLAIMABLE_TICKS]:
            member = self._containers.members[key]
            member.reclaimable_bytes = member.handle.read_reclaimable()

    def _batches(self, readings: list[Any], now_ns: int, wall_ns: int) -> list[CfsBatch]:
        order = self._containers.order
        members = [self._containers.members[key] for key in order]
        after = np.array(readings, dtype=np.int64)
        elapsed_us = np.array(
            [0 if member.read_ns is None else (now_ns - member.read_ns) // 1000 for member in members], dtype=np.int64
        )
        if self._before is None:
            self._before = np.array([member.counters for member in members], dtype=np.int64)
        usage_bytes = after[:, _MEMORY_COLUMN]
        grown = np.where(elapsed_us > 0, usage_bytes - self._before[:, _MEMORY_COLUMN], 0)
        self.guard.tick(order, usage_bytes, np.maximum(grown, 0) * 1e6 / np.maximum(elapsed_us, 1), now_ns)
        limits = [self.book.containers[key] for key in order]  # after the grants of this tick
        quota_us = np.array([entry.quota_us for entry in limits], dtype=np.int64)
        sample = per_period(self._before, after, elapsed_us, quota_us)
        self._before = after
        idle = (sample.flags & int(SampleFlag.IDLE)).tolist()
        for member, reading, is_idle in zip(members, readings, idle, strict=True):
            member.counters, member.read_ns, member.idle = reading, now_ns, bool(is_idle)
        columns = _columns(sample) | {
            "quota_us": quota_us,
            "memory_reclaimable_bytes": np.array([member.reclaimable_bytes for member in members], dtype=np.int64),
            "memory_limit_bytes": np.array([entry.limit_bytes for entry in limits], dtype=np.int64),
            "order_seq": np.array([self.book.order_seq(key) for key in order], dtype=np.int64),
            "oom_kills": np.array([member.kills for member in members]),
        }
        return self._split(columns, wall_ns)

    def _split(self, columns: dict[str, np.ndarray[Any, Any]], wall_ns: int) -> list[CfsBatch]:
        batches, start = [], 0
        members = self._containers.members
        for app, group in groupby(self._containers.order, key=lambda key: members[key].found.app):
            keys = list(group)
            rows = slice(start, start + len(keys))
            start += len(keys)
            part = {name: column[rows] for name, column in columns.items()}
            batches.append(CfsBatch.build(keys, part, **self._head(app, wall_ns)))
        return batches

    def _head(self, app: str, wall_ns: int) -> dict[str, Any]:
        reserve = self.reserves.report(app)
        return {
            "app": app,
            "node": self.name,
            "incarnation": self.incarnation,
            "report_seq": self._next_report(),
            "time_ns": wall_ns,
            "period_us": PERIOD_US,
            "host_cpus": self.host.cpu_count,
            "reserve_given_bytes": reserve.given_bytes,
            "reserve_used_bytes": reserve.used_bytes,
            "reserve_order_seq": self.book.reserve_seq(app),
        }

    def _next_report(self) -> int:
        self._report_seq += 1
        return self._report_seq


def _columns(sample: PeriodSample) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "periods": sample.periods,
        "used_us": sample.used_us,
        "unused_us": sample.unused_us,
        "throttled": sample.throttled,
        "throttled_us": sample.throttled_us,
        "memory_usage_bytes": sample.memory_usage_bytes,
        "flags": sample.flags,
    }

"""The containers of one node: read every period, limits carried out, memory guarded. No bus, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from schemas.containers import ContainerSource
from schemas.limits import LimitReply, LimitUpdate
from services.agent.containers import BatchOrder, Containers
from services.agent.discovery.inventory import Inventory
from services.agent.limits.drift import DriftWatch
from services.agent.limits.node_budget import MemoryBudget
from services.agent.limits.node_budget_keeper import NodeBudget
from services.agent.limits.update_executor import LimitOrders, Reporting
from services.agent.limits.update_log import OrderBook
from services.agent.memory.controller import MemoryGuard
from services.agent.memory.records import Journal, of_watchdog
from services.agent.memory.reserve import Reserves
from services.agent.ports import FoundContainer, Host, ReserveBook, SourceAnswered, WatchdogReport
from services.agent.sampling.cfs_periods import with_exact
from services.agent.sampling.counters import BoolArray, IntArray, Known, Readings, to_check
from services.agent.sampling.node_load import NodeLoad
from services.agent.sampling.quota_watch import QuotaWatch
from services.agent.sampling.sample_state import NEVER
from services.agent.sampling.throttling import Look, remember, unfinished, with_unfinished
from services.agent.sampling.usage import MEMORY_COLUMN, PeriodSample, per_period

RECHECK_TICKS = 5
"""Each container's limits are read back from the kernel once in so many ticks, a share of them per tick."""
RECLAIMABLE_TICKS = 50
"""The same for the page cache that the kernel could drop (20 us a container), and for limits that readings show."""
WATCHED_TICKS = 100
"""A node is looked at between samples for this long after a container was throttled: 10 s."""

_QUOTA, _LIMIT, _KILLS, _ARMED, _ORDER_SEQ = range(5)
"""Columns of `Node._believed`; the first three as `Held.limits` has them."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node treats its containers."""

    pause_deadline_ns: int = 2_000_000_000
    """No task waits longer at its memory limit."""
    reassert: bool = True
    """Limits that other hands have changed: put back what was ordered, or else take over what is found."""
    source_deadlines_ns: Mapping[ContainerSource, int] = field(default_factory=dict)
    """Sources of containers, and when (monotonic) their silence no longer leaves the inventory incomplete."""
    memory_budget: MemoryBudget | None = None
    """What memory limits and reserves of all containers may add up to; None: nothing is refused for it."""


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
        self._quota_watch = QuotaWatch(host, self._containers)
        self._load = NodeLoad(host)
        self._drift = DriftWatch(self._containers, self.reserves, self.journal, reassert=options.reassert)
        self.guard = MemoryGuard(self._containers, self.reserves, self._drift, options.pause_deadline_ns)
        self.inventory = Inventory(options.source_deadlines_ns)
        self.budget = NodeBudget(options.memory_budget, self._containers, self.reserves, self.journal)
        report = Reporting(self._next_report, lambda: self.inventory.complete)
        self.orders = LimitOrders(self._containers, self.budget, self.guard, self._drift, report)
        self.cuts = self.orders.cuts
        self.writes = self._containers.writes
        self._report_seq = 0
        self.ticks = 0
        """Samples taken of all containers."""
        self._throttled_at_tick: int | None = None
        """When any container was, latest."""
        self._one_by_one = False
        self._now_ns = 0
        self._kills_of_gone: dict[str, int] = {}

    @property
    def is_watched(self) -> bool:
        """Whether throttling is told of between two samples: any was within WATCHED_TICKS, or it costs little."""
        lately = self._throttled_at_tick is not None and self.ticks - self._throttled_at_tick <= WATCHED_TICKS
        return lately or self._quota_watch.is_cheap

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
        if self.inventory.confirm(container.container_id):
            self._drop_restarted(container.container_id)
        member = self._containers.open(container)
        if member is None:
            return None
        if member.handle.armed:  # by an agent before us: its tasks may be waiting
            self.guard.guard(container.key, self._now_ns)
            self.guard.look_soon(container.key, self._now_ns)
        return container.key

    def recorded(self, container: FoundContainer) -> str | None:
        """Like `found`, for a container that the state directory names and its source has not named yet."""
        key = self.found(container)
        if key is not None:
            self.inventory.recorded(container.container_id, container.source)
        return key

    def source_answered(self, answer: SourceAnswered) -> list[FoundContainer]:
        """A source has named all that it knows; returns what was only recorded and is gone, forgotten now."""
        lost = self.inventory.answered(answer.source, exists=answer.exists)
        return [found for container_id in lost if (found := self.gone(container_id)) is not None]

    def _drop_restarted(self, container_id: str) -> None:
        """It was only recorded. If it was restarted before its source named it, it has new control groups."""
        key = self._containers.key_of(container_id)
        if key is not None and self._containers.members[key].handle.read() is None:
            self.gone(container_id)

    def gone(self, container_id: str) -> FoundContainer | None:
        """Forget a container; returns it if it was managed."""
        self.inventory.confirm(container_id)
        key = self._containers.key_of(container_id)
        if key is None:
            return None
        member = self._containers.members[key]
        self.guard.kills_read(key, member.handle.read_oom_kills())
        self.guard.forget(member, self._now_ns)
        self._kills_of_gone[key] = member.kills
        self._containers.forget(container_id)
        self.orders.forget(key)
        self.budget.forget(key)
        if not self._containers.of_app(member.found.app):
            self.reserves.void(member.found.app)
        return member.found

    def sample(self, now_ns: int, wall_ns: int) -> tuple[list[CfsBatch], list[FoundContainer]]:
        """Read all containers; returns one batch per application and the containers that have vanished.

        Args:
            now_ns: monotonic time.
            wall_ns: time since the epoch, for the messages.
        """
        self.ticks += 1
        self._now_ns = now_ns
        self._load.sample(now_ns)
        self._kills_of_gone.clear()
        order = self._containers.order
        readings = self.host.read(order.handles)
        vanished: list[FoundContainer] = []
        if readings.gone:
            lost = [order.members[row].found.container_id for row in readings.gone]
            vanished = [found for container_id in lost if (found := self.gone(container_id)) is not None]
            readings = readings.without_gone()
        self._follow_the_book()
        if not self._containers.members:
            return [], vanished
        self._containers.rows.follow(self._containers.order.keys)
        self._check_what_differs(readings, now_ns)
        return self._batches(readings, now_ns, wall_ns), vanished

    def look(self, wall_ns: int) -> list[CfsBatch]:
        """Between two samples: batches that tell of containers that have been throttled since; mostly none."""
        order, rows = self._containers.order, self._containers.rows
        seen = self._quota_watch.look()
        if seen is None:
            return []
        new = unfinished(seen, rows.told)
        if not new.any():
            return []
        rows.told = remember(seen, new, rows.told)
        self._quota_watch.reported(new)
        nothing = np.zeros(len(new), dtype=np.int64)
        sample = PeriodSample(
            periods=new.astype(np.int64),
            used_us=np.where(new, seen.quota_us, 0),
            unused_us=nothing,
            throttled=new.astype(np.int64),
            throttled_us=nothing,
            memory_usage_bytes=rows.counters[:, MEMORY_COLUMN],
            flags=new * int(SampleFlag.EARLY),
        )
        apps = [(app, part) for app, part in order.apps if new[part].any()]
        return self._build(sample, self._believed(order), apps, wall_ns)

    def empty_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """Says that the node holds no container of the application (any more)."""
        columns: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
        return CfsBatch.build([], columns, **self._head(app, wall_ns, self.budget.headroom_bytes))

    def carry_out(self, update: LimitUpdate, now_ns: int, on_settled: Callable[[LimitReply], None]) -> None:
        """Carry out an update: raises, memory and reserves now, cuts of CPU at each container's boundary.

        ``on_settled`` is called with the reply once every row is settled, possibly before this returns.
        """
        self._now_ns = max(self._now_ns, now_ns)
        self.orders.carry_out(update, now_ns, on_settled)

    def poll_cuts(self, now_ns: int) -> None:
        """Read the containers whose boundary is due and write the cuts that may be written."""
        self.orders.poll_cuts(now_ns)

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

    def read_back(self, now_ns: int) -> None:
        """After a sample: read limits back, the guard's included, of a share of all: other hands write the same files.

        Where readings show what the kernel holds, a small share, to be certain of the readings.
        """
        order, rows = self._containers.order, self._containers.rows
        if rows.keys is not order.keys:
            return
        turns = RECHECK_TICKS if self._one_by_one else RECLAIMABLE_TICKS
        for row in range(self.ticks % turns, len(order.keys), turns):
            self._check(row, now_ns)
        for row in range(self.ticks % RECLAIMABLE_TICKS, len(order.keys), RECLAIMABLE_TICKS):
            rows.reclaimable_bytes[row] = order.handles[row].read_reclaimable()

    def _check_what_differs(self, readings: Readings, now_ns: int) -> None:
        """Read those back of which the readings show something else than is believed."""
        order, rows = self._containers.order, self._containers.rows
        wrong: list[int] = []
        if readings.held is not None:
            believed = self._believed(order)
            known = Known(believed[:, : _KILLS + 1], believed[:, _ARMED].astype(np.bool_), rows.followed_bytes)
            wrong = to_check(readings, readings.held, known)
        for row in sorted({*wrong, *readings.oom_rows}):
            self._check(row, now_ns)
            rows.followed_bytes[row] = readings.counters[row, MEMORY_COLUMN]

    def _check(self, row: int, now_ns: int) -> None:
        order, rows = self._containers.order, self._containers.rows
        key, member = order.keys[row], order.members[row]
        self._drift.check(key)
        self.guard.kills_read(key, member.handle.read_oom_kills())
        if self.guard.arm_again(key, now_ns):
            self._drift.guard_was_undone(key)
        rows.followed_bytes[row] = rows.counters[row, MEMORY_COLUMN]

    def _believed(self, order: BatchOrder) -> IntArray:
        """What the agent knows of each container, shape (N, 5)."""
        epochs = self.book.epochs
        return np.array(
            [
                (
                    entry.quota_us,
                    entry.limit_bytes,
                    member.oom_kills,
                    member.handle.armed,
                    entry.seq if entry.epoch == epochs.get(entry.app) else 0,
                )
                for entry, member in zip(order.limits, order.members, strict=True)
            ],
            dtype=np.int64,
        )

    def _batches(self, readings: Readings, now_ns: int, wall_ns: int) -> list[CfsBatch]:
        order, rows, after = self._containers.order, self._containers.rows, readings.counters
        elapsed_us = np.where(rows.read_ns != NEVER, (now_ns - rows.read_ns) // 1000, 0)
        usage_bytes = after[:, MEMORY_COLUMN]
        grown = np.where(elapsed_us > 0, usage_bytes - rows.counters[:, MEMORY_COLUMN], 0)
        self.guard.tick(order.keys, usage_bytes, np.maximum(grown, 0) * 1e6 / np.maximum(elapsed_us, 1), now_ns)
        believed = self._believed(order)  # after the grants of this tick
        sample = per_period(rows.counters, after, elapsed_us, believed[:, _QUOTA])
        if readings.exact is not None:
            sample = with_exact(sample, readings.exact, _ordered_rows(order))
        if readings.held is not None:
            look: Look | None = Look(readings.held.throttled, after[:, 0], readings.held.limits[:, 0])
        else:
            look = self._quota_watch.at_sample(after, believed[:, _QUOTA])
        if look is not None:
            sample, rows.told = with_unfinished(sample, look, rows.told)
        self._quota_watch.sampled(after, believed[:, _QUOTA], sample, now_ns)
        self._one_by_one = readings.held is None
        if sample.throttled.any():
            self._throttled_at_tick = self.ticks
        rows.counters = after
        rows.read_ns[:] = now_ns
        rows.idle = (sample.flags & int(SampleFlag.IDLE)).astype(np.bool_)
        if readings.held is None:
            rows.boundary_ns[:] = 0  # nobody names them any more: they are looked for
        else:  # an idle group keeps its phase
            rows.boundary_ns = np.where(readings.held.boundary_ns > 0, readings.held.boundary_ns, rows.boundary_ns)
        return self._build(sample, believed, order.apps, wall_ns)

    def _build(
        self, sample: PeriodSample, believed: IntArray, apps: Iterable[tuple[str, slice]], wall_ns: int
    ) -> list[CfsBatch]:
        order = self._containers.order
        columns = sample.columns() | {
            "quota_us": believed[:, _QUOTA],
            "memory_reclaimable_bytes": self._containers.rows.reclaimable_bytes,
            "memory_limit_bytes": believed[:, _LIMIT],
            "order_seq": believed[:, _ORDER_SEQ],
            "oom_kills": believed[:, _KILLS] - order.first_kills,
        }
        headroom_bytes = self.budget.headroom_bytes
        return [
            CfsBatch.build(
                order.keys[part],
                {name: column[part] for name, column in columns.items()},
                **self._head(app, wall_ns, headroom_bytes),
            )
            for app, part in apps
        ]

    def _head(self, app: str, wall_ns: int, headroom_bytes: int) -> dict[str, Any]:
        reserve = self.reserves.report(app)
        return {
            "app": app,
            "node": self.name,
            "incarnation": self.incarnation,
            "report_seq": self._next_report(),
            "time_ns": wall_ns,
            "period_us": PERIOD_US,
            "host_cpus": self.host.cpu_count,
            "inventory_complete": self.inventory.complete,
            "reserve_given_bytes": reserve.given_bytes,
            "reserve_used_bytes": reserve.used_bytes,
            "reserve_order_seq": self.book.reserve_seq(app),
            "node_headroom_bytes": headroom_bytes,
            "node_idle_percent": self._load.idle_percent,
        }

    def _next_report(self) -> int:
        self._report_seq += 1
        return self._report_seq


def _ordered_rows(order: BatchOrder) -> BoolArray:
    """Those whose quota is ours: only theirs is per period of `PERIOD_US`."""
    return np.array([entry.quota_ordered for entry in order.limits], dtype=np.bool_)

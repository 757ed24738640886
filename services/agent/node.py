"""The containers of one node: samples, limits, memory control. No bus, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from schemas.containers import ContainerSource
from schemas.limits import LimitReply, LimitUpdate
from services.agent.containers import BatchOrder, ContainerSet
from services.agent.discovery.inventory import Inventory
from services.agent.limits.drift import DriftDetector
from services.agent.limits.node_budget import MemoryBudget
from services.agent.limits.node_budget_keeper import NodeBudget
from services.agent.limits.update_executor import LimitExecutor, ReportNumbers
from services.agent.limits.update_log import UpdateLog
from services.agent.memory.controller import MemoryController
from services.agent.memory.records import EventBuffer, events_of_reports
from services.agent.memory.reserve import Reserves
from services.agent.ports import FoundContainer, Host, ReserveStore, SourceAnswered, WatchdogReport
from services.agent.sampling.cfs_periods import with_exact_periods
from services.agent.sampling.counters import BoolArray, CounterSnapshot, ExpectedState, IntArray, rows_to_check
from services.agent.sampling.node_load import NodeLoad
from services.agent.sampling.quota_watch import QuotaWatch
from services.agent.sampling.sample_state import NEVER
from services.agent.sampling.throttling import ThrottleSnapshot, in_progress, mark_reported, with_in_progress
from services.agent.sampling.usage import MEMORY_COLUMN, PeriodSample, per_period

RECHECK_SAMPLES = 5
"""Each container's limits are read back from the kernel once in so many samples, a share of them per sample."""
RECLAIMABLE_SAMPLES = 50
"""The same for the page cache that the kernel could drop (20 us a container), and for limits that readings show."""
POLL_AFTER_THROTTLE_SAMPLES = 100
"""A node is polled between samples for this long after a container was throttled: 10 s."""

_QUOTA, _LIMIT, _KILLS, _ARMED, _ORDER_SEQ = range(5)
"""Columns of `Node._expected`; the first three as `KernelState.limits` has them."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node treats its containers."""

    oom_wait_timeout_ns: int = 2_000_000_000
    """No task waits longer at its memory limit."""
    reassert: bool = True
    """Limits that were modified externally: revert them, or else adopt the new ones."""
    source_deadlines_ns: Mapping[ContainerSource, int] = field(default_factory=dict)
    """Sources of containers, and when (monotonic) their silence no longer leaves the inventory incomplete."""
    memory_budget: MemoryBudget | None = None
    """What memory limits and reserves of all containers may add up to; None: nothing is refused for it."""


class Node:
    """Reads counters and writes limits of all managed containers of a host.

    Memory events, requests and external modifications wait in `events`.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        host: Host,
        reserve_store: ReserveStore,
        options: NodeOptions = NodeOptions(),
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.host = host
        self.update_log = UpdateLog(name, incarnation)
        self.events = EventBuffer()
        self.reserves = Reserves(reserve_store)
        self._containers = ContainerSet(host, self.update_log)
        self._quota_watch = QuotaWatch(host, self._containers)
        self._load = NodeLoad(host)
        self._drift = DriftDetector(self._containers, self.reserves, self.events, reassert=options.reassert)
        self.memory = MemoryController(self._containers, self.reserves, self._drift, options.oom_wait_timeout_ns)
        self.inventory = Inventory(options.source_deadlines_ns)
        self.budget = NodeBudget(options.memory_budget, self._containers, self.reserves, self.events)
        report = ReportNumbers(self._next_report, lambda: self.inventory.complete)
        self.orders = LimitExecutor(self._containers, self.budget, self.memory, self._drift, report)
        self.decreases = self.orders.decreases
        self.writes = self._containers.writes
        self._report_seq = 0
        self.samples_taken = 0
        """Samples taken of all containers."""
        self._throttled_at_sample: int | None = None
        """When any container was, latest."""
        self._files_only = False
        self._now_ns = 0
        self._kills_of_vanished: dict[str, int] = {}

    @property
    def polls_between_samples(self) -> bool:
        """Whether to poll between two samples: a container was throttled lately, or polling costs little."""
        lately = (
            self._throttled_at_sample is not None
            and self.samples_taken - self._throttled_at_sample <= POLL_AFTER_THROTTLE_SAMPLES
        )
        return lately or self._quota_watch.is_cheap

    @property
    def container_count(self) -> int:
        """Containers that are sampled."""
        return len(self._containers.managed)

    @property
    def containers(self) -> list[FoundContainer]:
        """All that are sampled."""
        return [member.found for member in self._containers.managed.values()]

    def key_of(self, container_id: str) -> str | None:
        """Key of a managed container."""
        return self._containers.key_of(container_id)

    def kills_of(self, key: str) -> int:
        """Kills by the kernel since the container was found, also of one that has just gone."""
        member = self._containers.managed.get(key)
        return member.kills if member else self._kills_of_vanished.pop(key, 0)

    def found(self, container: FoundContainer) -> str | None:
        """Start to sample a container; returns its key, or None if it is known already or has vanished."""
        if self.inventory.confirm(container.container_id):
            self._drop_restarted(container.container_id)
        member = self._containers.open(container)
        if member is None:
            return None
        if member.handle.oom_controlled:  # by a previous agent: its tasks may be waiting
            self.memory.control(container.key, self._now_ns)
            self.memory.inspect_soon(container.key, self._now_ns)
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
        return [found for container_id in lost if (found := self.vanished(container_id)) is not None]

    def _drop_restarted(self, container_id: str) -> None:
        """It was only recorded. If it was restarted before its source named it, it has new control groups."""
        key = self._containers.key_of(container_id)
        if key is not None and self._containers.managed[key].handle.read() is None:
            self.vanished(container_id)

    def vanished(self, container_id: str) -> FoundContainer | None:
        """Forget a container; returns it if it was managed."""
        self.inventory.confirm(container_id)
        key = self._containers.key_of(container_id)
        if key is None:
            return None
        member = self._containers.managed[key]
        self.memory.count_kills(key, member.handle.read_oom_kills())
        self.memory.forget(member, self._now_ns)
        self._kills_of_vanished[key] = member.kills
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
        self.samples_taken += 1
        self._now_ns = now_ns
        self._load.sample(now_ns)
        self._kills_of_vanished.clear()
        order = self._containers.order
        readings = self.host.read(order.handles)
        vanished: list[FoundContainer] = []
        if readings.vanished:
            lost = [order.managed[row].found.container_id for row in readings.vanished]
            vanished = [found for container_id in lost if (found := self.vanished(container_id)) is not None]
            readings = readings.without_vanished()
        self._reconcile_reserves()
        if not self._containers.managed:
            return [], vanished
        self._containers.samples.reorder(self._containers.order.keys)
        self._check_differences(readings, now_ns)
        return self._batches(readings, now_ns, wall_ns), vanished

    def poll(self, wall_ns: int) -> list[CfsBatch]:
        """Between two samples: batches of containers that have been throttled since; mostly none."""
        order, samples = self._containers.order, self._containers.samples
        snapshot = self._quota_watch.poll()
        if snapshot is None:
            return []
        new = in_progress(snapshot, samples.reported)
        if not new.any():
            return []
        samples.reported = mark_reported(snapshot, new, samples.reported)
        self._quota_watch.reported(new)
        nothing = np.zeros(len(new), dtype=np.int64)
        sample = PeriodSample(
            periods=new.astype(np.int64),
            used_us=np.where(new, snapshot.quota_us, 0),
            unused_us=nothing,
            throttled=new.astype(np.int64),
            throttled_us=nothing,
            memory_usage_bytes=samples.counters[:, MEMORY_COLUMN],
            flags=new * int(SampleFlag.EARLY),
        )
        apps = [(app, part) for app, part in order.apps if new[part].any()]
        return self._build(sample, self._expected(order), apps, wall_ns)

    def empty_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """A batch that shows that the node holds no container of the application (any more)."""
        columns: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
        return CfsBatch.build([], columns, **self._head(app, wall_ns, self.budget.headroom_bytes))

    def apply(self, update: LimitUpdate, now_ns: int, on_settled: Callable[[LimitReply], None]) -> None:
        """Apply an update: raises, memory and reserves now, lower quotas at each container's boundary.

        ``on_settled`` is called with the reply once every row is settled, possibly before this returns.
        """
        self._now_ns = max(self._now_ns, now_ns)
        self.orders.apply(update, now_ns, on_settled)

    def poll_decreases(self, now_ns: int) -> None:
        """Read the containers whose boundary is due and write the decreases that may be written."""
        self.orders.poll_decreases(now_ns)

    def take_notifications(self, now_ns: int) -> None:
        """Inspect the containers that the host has notifications for."""
        self.memory.take_notifications(self.host.take_notifications(), now_ns)

    def take_reports(self, reports: Iterable[WatchdogReport], now_ns: int) -> None:
        """Publish what the watchdog did while the agent did not run; adopt it where the containers are still here."""
        for report, occurrence in zip(reports := list(reports), events_of_reports(reports), strict=True):
            self.events.add(occurrence)
            if report.key in self._containers.managed:
                self._containers.refresh(report.key)
                if not report.granted:
                    self.memory.killer_enabled_by_watchdog(report.key, occurrence.reason, now_ns)

    def void_orphans(self) -> list[str]:
        """Void the reserves of applications without a container here; returns them."""
        here = {member.found.app for member in self._containers.managed.values()}
        orphans = [app for app in self.reserves.apps if app not in here and self.reserves.left_of(app)]
        for app in orphans:
            self.reserves.void(app)
        return orphans

    def release_all(self) -> list[FoundContainer]:
        """Restore every container's original limits and forget it; returns what was released."""
        self.memory.release_all(self._now_ns)
        released = []
        for member in list(self._containers.managed.values()):
            member.handle.restore()
            self.vanished(member.found.container_id)
            released.append(member.found)
        return released

    # -- sampling ----------------------------------------------------------------------------------------------

    def _reconcile_reserves(self) -> None:
        """What the watchdog has spent is reported together with the limits that it raised."""
        for app in self.reserves.poll():
            for key in self._containers.of_app(app):
                self._containers.refresh(key)
            self.reserves.reconcile(app)

    def read_back(self, now_ns: int) -> None:
        """After a sample: read limits and OOM control back of a share of all containers, for external modifications.

        Where readings show what the kernel holds, a small share, to be certain of the readings.
        """
        order, samples = self._containers.order, self._containers.samples
        if samples.keys is not order.keys:
            return
        turns = RECHECK_SAMPLES if self._files_only else RECLAIMABLE_SAMPLES
        for row in range(self.samples_taken % turns, len(order.keys), turns):
            self._check(row, now_ns)
        for row in range(self.samples_taken % RECLAIMABLE_SAMPLES, len(order.keys), RECLAIMABLE_SAMPLES):
            samples.reclaimable_bytes[row] = order.handles[row].read_reclaimable()

    def _check_differences(self, readings: CounterSnapshot, now_ns: int) -> None:
        """Read those back of which the readings show something else than is believed."""
        order, samples = self._containers.order, self._containers.samples
        wrong: list[int] = []
        if readings.kernel is not None:
            expected = self._expected(order)
            known = ExpectedState(
                expected[:, : _KILLS + 1], expected[:, _ARMED].astype(np.bool_), samples.tracked_bytes
            )
            wrong = rows_to_check(readings, readings.kernel, known)
        for row in sorted({*wrong, *readings.oom_rows}):
            self._check(row, now_ns)
            samples.tracked_bytes[row] = readings.counters[row, MEMORY_COLUMN]

    def _check(self, row: int, now_ns: int) -> None:
        order, samples = self._containers.order, self._containers.samples
        key, member = order.keys[row], order.managed[row]
        self._drift.check(key)
        self.memory.count_kills(key, member.handle.read_oom_kills())
        if self.memory.renew(key, now_ns):
            self._drift.oom_control_was_undone(key)
        samples.tracked_bytes[row] = samples.counters[row, MEMORY_COLUMN]

    def _expected(self, order: BatchOrder) -> IntArray:
        """What the agent knows of each container, shape (N, 5)."""
        epochs = self.update_log.epochs
        return np.array(
            [
                (
                    entry.quota_us,
                    entry.limit_bytes,
                    member.oom_kills,
                    member.handle.oom_controlled,
                    entry.seq if entry.epoch == epochs.get(entry.app) else 0,
                )
                for entry, member in zip(order.limits, order.managed, strict=True)
            ],
            dtype=np.int64,
        )

    def _batches(self, readings: CounterSnapshot, now_ns: int, wall_ns: int) -> list[CfsBatch]:
        order, samples, after = self._containers.order, self._containers.samples, readings.counters
        elapsed_us = np.where(samples.read_ns != NEVER, (now_ns - samples.read_ns) // 1000, 0)
        usage_bytes = after[:, MEMORY_COLUMN]
        grown = np.where(elapsed_us > 0, usage_bytes - samples.counters[:, MEMORY_COLUMN], 0)
        self.memory.take_sample(order.keys, usage_bytes, np.maximum(grown, 0) * 1e6 / np.maximum(elapsed_us, 1), now_ns)
        expected = self._expected(order)  # after the grants of this tick
        sample = per_period(samples.counters, after, elapsed_us, expected[:, _QUOTA])
        if readings.exact is not None:
            sample = with_exact_periods(sample, readings.exact, _ordered_rows(order))
        if readings.kernel is not None:
            poll: ThrottleSnapshot | None = ThrottleSnapshot(
                readings.kernel.throttled, after[:, 0], readings.kernel.limits[:, 0]
            )
        else:
            poll = self._quota_watch.at_sample(after, expected[:, _QUOTA])
        if poll is not None:
            sample, samples.reported = with_in_progress(sample, poll, samples.reported)
        self._quota_watch.sampled(after, expected[:, _QUOTA], sample, now_ns)
        self._files_only = readings.kernel is None
        if sample.throttled.any():
            self._throttled_at_sample = self.samples_taken
        samples.counters = after
        samples.read_ns[:] = now_ns
        samples.idle = (sample.flags & int(SampleFlag.IDLE)).astype(np.bool_)
        if readings.kernel is None:
            samples.boundary_ns[:] = 0  # files do not show boundaries: they are searched
        else:  # an idle group keeps its phase
            samples.boundary_ns = np.where(
                readings.kernel.boundary_ns > 0, readings.kernel.boundary_ns, samples.boundary_ns
            )
        return self._build(sample, expected, order.apps, wall_ns)

    def _build(
        self, sample: PeriodSample, expected: IntArray, apps: Iterable[tuple[str, slice]], wall_ns: int
    ) -> list[CfsBatch]:
        order = self._containers.order
        columns = sample.columns() | {
            "quota_us": expected[:, _QUOTA],
            "memory_reclaimable_bytes": self._containers.samples.reclaimable_bytes,
            "memory_limit_bytes": expected[:, _LIMIT],
            "order_seq": expected[:, _ORDER_SEQ],
            "oom_kills": expected[:, _KILLS] - order.first_kills,
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
            "reserve_order_seq": self.update_log.reserve_seq(app),
            "node_headroom_bytes": headroom_bytes,
            "node_idle_percent": self._load.idle_percent,
        }

    def _next_report(self) -> int:
        self._report_seq += 1
        return self._report_seq


def _ordered_rows(order: BatchOrder) -> BoolArray:
    """Containers whose quota the agent has set: only those are per period of `PERIOD_US`."""
    return np.array([entry.quota_ordered for entry in order.limits], dtype=np.bool_)

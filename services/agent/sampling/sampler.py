"""Samples all containers of a node once per period, and polls between two samples. No bus, no clock of its own.

Usage per period: the kernel counts a period only while a cgroup runs (measured: +2 in an idle second), a sample never
falls exactly on a boundary, and without a quota nothing is counted. So usage is scaled by the time that really passed;
only where the container was throttled, its bursts belong to counted periods and the larger of both divisors holds: two
periods may end 110 ms apart around one late sample, and none in 99 ms.

Throttled periods in progress: the kernel counts a throttled period when it ends, and the next sample is on average half
a period after that. Where the table of control groups shows that a group is throttled *now*, its period is reported at
once, as one in which all of the quota was used, and not again when the kernel counts it. A raise then reaches waiting
tasks, instead of the period after the next one: every quota write refills the pool and lets them go
(kernel/sched/core.c, ``tg_set_cfs_bandwidth``).

Quotas used up, from usage alone, for hosts that offer nothing but files: ``nr_throttled`` of cpu.stat rises when a
throttled period ends, and ``throttled_time`` when its tasks run again (Documentation/scheduler/sched-bwc.rst), so files
do not show that a container is throttled now. Its usage does: one that has used a whole quota within less than a period
is throttled, or about to be. Two bursts around a boundary of the period can add up to a quota as well, without any
throttling. So only those are watched whose demand has changed:

    sudden    = used at most LOW_USE_SHARE of the quota in the last sampled period, or was throttled within RECENT_NS
    spent_us  = usage now - usage at the last sample, or at the last report: a raise refills the bandwidth
    used up   = sudden and spent_us >= quota - min(SLACK_SHARE * quota, SLICE_US)

A container that works steadily near its limit is left to the kernel's own count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from services._host.cgroup_snapshot import (
    COUNTER_COLUMNS,
    MEMORY_COLUMN,
    BoolArray,
    CounterSnapshot,
    ExactPeriods,
    IntArray,
    KernelState,
    Limits,
    ThrottleSnapshot,
)
from services.agent.containers.batch_order import BatchOrder
from services.agent.containers.container_set import ContainerSet
from services.agent.containers.sample_state import NEVER, NOTHING_REPORTED
from services.agent.limits.drift import DriftDetector
from services.agent.limits.update_executor import LimitExecutor
from services.agent.memory.controller import MemoryController
from services.agent.memory.node_budget import NodeBudget
from services.agent.ports import Host

RECHECK_SAMPLES = 5
"""Each container's limits are read back from the kernel once in so many samples, a share of them per sample."""
RECLAIMABLE_SAMPLES = 50
"""The same for the page cache that the kernel could drop (20 us a container), and for limits that snapshots show."""
POLL_AFTER_THROTTLE_SAMPLES = 100
"""A node is polled between samples for this long after a container was throttled: 10 s."""

_QUOTA, _LIMIT, _KILLS, _ARMED, _LIMIT_UPDATE_SEQ = range(5)
"""Columns of `Sampler._expected`; the first three as `KernelState.limits` has them."""
IDLE_WEIGHT: Final = 0.3
"""Weight of a new period: the kernel counts idle time in hundredths of a second, a tenth of a period."""
UNKNOWN_IDLE: Final = -1
NO_LIMITS: Final = Limits(0, 0)
"""Sums over no container."""
MOVED_BYTES: Final = 8 << 20
"""Usage that has moved by so much since the thresholds last followed it: they are this far apart."""


class NodeLoad:
    """Idle time of all processors, smoothed over some three periods: on a full machine lower quotas free nothing."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._idle_us: int | None = None
        self._read_ns = 0
        self._share: float | None = None

    def sample(self, now_ns: int) -> None:
        """Once a period.

        Args:
            now_ns: monotonic.
        """
        idle_us = self._host.read_idle()
        elapsed_us = (now_ns - self._read_ns) // 1000
        if idle_us is not None and self._idle_us is not None and elapsed_us > 0:
            share = min(max(idle_us - self._idle_us, 0) / (elapsed_us * self._host.cpu_count), 1.0)
            self._share = share if self._share is None else self._share + IDLE_WEIGHT * (share - self._share)
        self._idle_us, self._read_ns = idle_us, now_ns

    @property
    def idle_percent(self) -> int:
        """Of all processors' time, 0 to 100; `UNKNOWN_IDLE`: not read yet, or not available."""
        return UNKNOWN_IDLE if self._share is None or self._idle_us is None else round(100 * self._share)


class Sampler:
    """Reads all containers, compares limits with what is expected, and builds one batch per application."""

    def __init__(
        self,
        containers: ContainerSet,
        limits: LimitExecutor,
        memory: MemoryController,
        drift: DriftDetector,
        budget: NodeBudget,
    ) -> None:
        self.samples_taken = 0
        """Of all containers."""
        self._containers = containers
        self._host = containers.host
        self._log = limits.log
        self._cpu_budget = limits.cpu_budget
        self._memory = memory
        self._drift = drift
        self._budget = budget
        self._reserves = budget.reserves
        self._quota_watch = QuotaWatch(containers.host, containers)
        self._load = NodeLoad(containers.host)
        self._throttled_at_sample: int | None = None
        """When any container was, latest."""
        self._files_only = False

    @property
    def polls_between_samples(self) -> bool:
        """Whether to poll between two samples: a container was throttled lately, or polling costs little."""
        lately = (
            self._throttled_at_sample is not None
            and self.samples_taken - self._throttled_at_sample <= POLL_AFTER_THROTTLE_SAMPLES
        )
        return lately or self._quota_watch.is_cheap

    def read(self, now_ns: int) -> tuple[CounterSnapshot, list[str]]:
        """Read all containers: those that exist, and the ids of those that have vanished, to be removed first.

        Args:
            now_ns: monotonic time.
        """
        self.samples_taken += 1
        self._load.sample(now_ns)
        order = self._containers.order
        snapshot = self._host.read(order.handles)
        if not snapshot.vanished:
            return snapshot, []
        vanished = [order.managed[row].found.container_id for row in snapshot.vanished]
        return snapshot.without_vanished(), vanished

    def sample(self, snapshot: CounterSnapshot, now_ns: int, wall_ns: int) -> list[CfsBatch]:
        """One batch per application.

        Args:
            snapshot: of all containers.
            now_ns: monotonic time when they were read.
            wall_ns: time since the epoch, for the messages.
        """
        self._reconcile_reserves()
        if not self._containers.managed:
            return []
        order = self._containers.order
        self._containers.samples.reorder(order.keys)
        self._check_differences(order, snapshot, now_ns)
        return self._batches(order, snapshot, now_ns, wall_ns)

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
        return self._build(order, sample, self._expected(order), apps, wall_ns)

    def first_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """Between two samples: the limits and the memory of an application with new containers, and no usage of CPU."""
        order, samples = self._containers.order, self._containers.samples
        samples.reorder(order.keys)
        memory_bytes = samples.memory_bytes.copy()
        for row in np.flatnonzero(samples.read_ns == NEVER).tolist():
            state = order.handles[row].read_memory()
            memory_bytes[row] = 0 if state is None else state.usage_bytes
        nothing = np.zeros(len(order.keys), dtype=np.int64)
        sample = PeriodSample(nothing, nothing, nothing, nothing, nothing, memory_bytes, nothing)
        [part] = [part for name, part in order.apps if name == app]
        return self._build(order, sample, self._expected(order), [(app, part)], wall_ns)[0]

    def empty_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """A batch that shows that the node holds no container of the application (any more)."""
        columns: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
        return CfsBatch.build([], columns, **self._head(app, wall_ns, self._headroom()))

    def _reconcile_reserves(self) -> None:
        """What the watchdog has spent is reported together with the limits that it raised."""
        for app in self._reserves.poll():
            for key in self._containers.of_app(app):
                self._containers.kernel.refresh(key)
            self._reserves.reconcile(app)

    def read_back(self, now_ns: int) -> None:
        """After a sample: read limits and OOM control back of a share of all containers, for external modifications.

        Where snapshots show what the kernel holds, a small share, to be certain of the snapshot.
        """
        order, samples = self._containers.order, self._containers.samples
        if samples.keys is not order.keys:
            return
        turns = RECHECK_SAMPLES if self._files_only else RECLAIMABLE_SAMPLES
        for row in range(self.samples_taken % turns, len(order.keys), turns):
            self._check(order, row, now_ns)
        for row in range(self.samples_taken % RECLAIMABLE_SAMPLES, len(order.keys), RECLAIMABLE_SAMPLES):
            samples.reclaimable_bytes[row] = order.handles[row].read_reclaimable()

    def _check_differences(self, order: BatchOrder, snapshot: CounterSnapshot, now_ns: int) -> None:
        """Read those back of which the snapshot shows something else than is expected."""
        samples = self._containers.samples
        wrong: list[int] = []
        if snapshot.kernel is not None:
            expected = self._expected(order)
            known = ExpectedState(
                expected[:, : _KILLS + 1], expected[:, _ARMED].astype(np.bool_), samples.tracked_bytes
            )
            wrong = rows_to_check(snapshot, snapshot.kernel, known)
        for row in sorted({*wrong, *snapshot.oom_rows}):
            self._check(order, row, now_ns)
            samples.tracked_bytes[row] = snapshot.counters[row, MEMORY_COLUMN]

    def _check(self, order: BatchOrder, row: int, now_ns: int) -> None:
        samples = self._containers.samples
        key, member = order.keys[row], order.managed[row]
        self._drift.check(key)
        self._containers.refresh_configured(key)
        self._memory.count_kills(key, member.handle.read_oom_kills())
        if self._memory.renew(key, now_ns):
            self._drift.oom_control_was_undone(key)
        samples.tracked_bytes[row] = samples.counters[row, MEMORY_COLUMN]

    def _expected(self, order: BatchOrder) -> IntArray:
        """What the agent knows of each container, shape (N, 5)."""
        epochs = self._log.epochs
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

    def _batches(self, order: BatchOrder, snapshot: CounterSnapshot, now_ns: int, wall_ns: int) -> list[CfsBatch]:
        samples, after = self._containers.samples, snapshot.counters
        elapsed_us = np.where(samples.read_ns != NEVER, (now_ns - samples.read_ns) // 1000, 0)
        usage_bytes = after[:, MEMORY_COLUMN]
        samples.memory_bytes = usage_bytes.copy()
        self._budget.take_sample()
        grown = np.where(elapsed_us > 0, usage_bytes - samples.counters[:, MEMORY_COLUMN], 0)
        self._memory.take_sample(
            order.keys, usage_bytes, np.maximum(grown, 0) * 1e6 / np.maximum(elapsed_us, 1), now_ns
        )
        expected = self._expected(order)  # after the grants of this sample
        sample = per_period(samples.counters, after, elapsed_us, expected[:, _QUOTA])
        if snapshot.exact is not None:
            sample = with_exact_periods(sample, snapshot.exact, _ordered_rows(order))
        if snapshot.kernel is not None:
            throttling: ThrottleSnapshot | None = ThrottleSnapshot(
                snapshot.kernel.throttled, after[:, 0], snapshot.kernel.limits[:, 0]
            )
        else:
            throttling = self._quota_watch.at_sample(after, expected[:, _QUOTA])
        if throttling is not None:
            sample, samples.reported = with_in_progress(sample, throttling, samples.reported)
        self._quota_watch.sampled(after, expected[:, _QUOTA], sample, now_ns)
        self._files_only = snapshot.kernel is None
        if sample.throttled.any():
            self._throttled_at_sample = self.samples_taken
        samples.counters = after
        samples.read_ns[:] = now_ns
        samples.used_us = sample.used_us
        samples.idle = (sample.flags & int(SampleFlag.IDLE)).astype(np.bool_)
        if snapshot.kernel is None:
            samples.boundary_ns[:] = 0  # files do not show boundaries: they are searched
        else:  # an idle group keeps its phase
            samples.boundary_ns = np.where(
                snapshot.kernel.boundary_ns > 0, snapshot.kernel.boundary_ns, samples.boundary_ns
            )
        return self._build(order, sample, expected, order.apps, wall_ns)

    def _build(
        self,
        order: BatchOrder,
        sample: PeriodSample,
        expected: IntArray,
        apps: Iterable[tuple[str, slice]],
        wall_ns: int,
    ) -> list[CfsBatch]:
        own = np.array([not entry.limit_promised for entry in order.limits], dtype=np.bool_)
        columns = sample.columns() | {
            "quota_us": expected[:, _QUOTA],
            "memory_reclaimable_bytes": self._containers.samples.reclaimable_bytes,
            "memory_limit_bytes": expected[:, _LIMIT],
            "limit_update_seq": expected[:, _LIMIT_UPDATE_SEQ],
            "oom_kills": expected[:, _KILLS] - order.first_kills,
            "flags": sample.flags | own * int(SampleFlag.OWN_MEMORY_LIMIT),
        }
        headroom = self._headroom()
        return [
            CfsBatch.build(
                order.keys[part],
                {name: column[part] for name, column in columns.items()},
                **self._head(app, wall_ns, headroom),
            )
            for app, part in apps
        ]

    def _headroom(self) -> dict[str, int]:
        return {
            "node_headroom_bytes": self._budget.headroom_bytes,
            "node_cpu_headroom_us": self._cpu_budget.headroom_us,
        }

    def _head(self, app: str, wall_ns: int, headroom: dict[str, int]) -> dict[str, Any]:
        idle_percent, reserve = self._load.idle_percent, self._reserves.report(app)
        configured = self._containers.configured.get(app, NO_LIMITS)
        return {
            "app": app,
            "node": self._containers.node,
            "incarnation": self._containers.incarnation.number,
            "report_seq": self._containers.incarnation.next_report_seq(),
            "time_ns": wall_ns,
            "period_us": PERIOD_US,
            "host_cpus": self._host.cpu_count,
            "inventory_complete": self._containers.inventory.complete,
            "reserve_given_bytes": reserve.given_bytes,
            "reserve_used_bytes": reserve.used_bytes,
            "reserve_update_seq": self._log.reserve_seq(app),
            "node_idle_percent": idle_percent,
            "configured_cpu_us": configured.quota_us,
            "configured_memory_bytes": configured.memory_bytes,
        } | headroom


def _ordered_rows(order: BatchOrder) -> BoolArray:
    """Containers whose quota the agent has set: only those are per period of `PERIOD_US`."""
    return np.array([entry.quota_ordered for entry in order.limits], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """What the agent believes."""

    limits: IntArray
    """As `KernelState.limits`."""
    controlled: BoolArray
    """Shape (N,): the container is under OOM control."""
    tracked_bytes: IntArray
    """Shape (N,): usage that the thresholds last followed."""


def rows_to_check(readings: CounterSnapshot, kernel: KernelState, expected: ExpectedState) -> list[int]:
    """Rows whose state in the kernel differs from what is expected, or whose usage has moved off its thresholds."""
    moved = np.abs(readings.counters[:, MEMORY_COLUMN] - expected.tracked_bytes) >= MOVED_BYTES
    wrong = (kernel.limits != expected.limits).any(axis=1) | (expected.controlled & (moved | ~kernel.guarded))
    rows: list[int] = np.flatnonzero(wrong).tolist()
    return rows


_NR_PERIODS, _NR_THROTTLED, _THROTTLED_US, _USAGE_US, _ = range(COUNTER_COLUMNS)


@dataclass(frozen=True, slots=True)
class PeriodSample:
    """Columns over containers, each of shape (N,), as `schemas.cfs.CfsBatch` names them."""

    periods: IntArray
    used_us: IntArray
    unused_us: IntArray
    throttled: IntArray
    throttled_us: IntArray
    memory_usage_bytes: IntArray
    flags: IntArray

    def columns(self) -> dict[str, IntArray]:
        """All of them by name."""
        return {column.name: getattr(self, column.name) for column in fields(self)}


def per_period(before: IntArray, after: IntArray, elapsed_us: IntArray, quota_us: IntArray) -> PeriodSample:
    """What happened per period between two readings.

    Args:
        before: counters of the previous reading, shape (N, 5).
        after: counters now, shape (N, 5).
        elapsed_us: time between them, shape (N,); 0 marks a container read for the first time.
        quota_us: quota in force, shape (N,); negative: unlimited.

    Returns:
        Columns of shape (N,). ``periods`` is 0 where this is the first reading.
    """
    delta = np.maximum(after - before, 0)  # a counter that went back belongs to a recreated cgroup
    first = elapsed_us <= 0
    counted = delta[:, _NR_PERIODS]
    wall_periods = np.where(first, 1.0, elapsed_us / PERIOD_US)
    throttled = np.where(first, 0, delta[:, _NR_THROTTLED])
    divisor = np.where(throttled > 0, np.maximum(counted, wall_periods), wall_periods)
    used_us = np.where(first, 0, np.rint(delta[:, _USAGE_US] / divisor)).astype(np.int64)
    throttled_us = np.where(first, 0, np.rint(delta[:, _THROTTLED_US] / divisor)).astype(np.int64)
    limited = quota_us >= 0
    whole_periods = np.maximum(np.where(counted > 0, counted, np.rint(wall_periods)), 1).astype(np.int64)
    idle = ~first & (counted == 0) & (delta[:, _USAGE_US] == 0)
    return PeriodSample(
        periods=np.where(first, 0, whole_periods),
        used_us=used_us,
        unused_us=np.where(limited & ~first, np.maximum(quota_us - used_us, 0), 0),
        throttled=throttled,
        throttled_us=throttled_us,
        memory_usage_bytes=after[:, MEMORY_COLUMN],
        flags=idle * int(SampleFlag.IDLE) + (~limited & ~first) * int(SampleFlag.WALL_CLOCK),
    )


def with_exact_periods(sample: PeriodSample, exact: ExactPeriods, rows: BoolArray) -> PeriodSample:
    """The kernel's own account of the periods that ended, in place of an estimate from two readings.

    Args:
        sample: from two readings, shape (N,).
        exact: from the kernel, shape (N,).
        rows: where its periods are of `PERIOD_US`, shape (N,).
    """
    recorded = rows & (exact.periods > 0) & (sample.periods > 0)
    return PeriodSample(
        periods=np.where(recorded, exact.periods, sample.periods),
        used_us=np.where(recorded, exact.used_us, sample.used_us),
        unused_us=np.where(recorded, exact.unused_us, sample.unused_us),
        throttled=np.where(recorded, exact.throttled, sample.throttled),
        throttled_us=np.where(recorded, exact.throttled_us, sample.throttled_us),
        memory_usage_bytes=sample.memory_usage_bytes,
        flags=np.where(recorded, 0, sample.flags),
    )


LOW_USE_SHARE: Final = 0.5
RECENT_NS: Final = 300_000_000
"""Three periods: a container that grows is raised in several steps."""
SLACK_SHARE: Final = 0.1
SLICE_US: Final = 5_000
"""``sched_cfs_bandwidth_slice_us``: what another CPU may still hold of the quota when the group is throttled."""
VANISHED: Final = -1
"""In a column of usage: not read, or the container is gone."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What each container's usage is compared with, shape (N,) each."""

    usage_us: IntArray
    """Cumulative usage when the budget began."""
    quota_us: IntArray
    """Quota then; negative: none."""

    def where_lowered(self, usage_us: IntArray, quota_us: IntArray) -> Budget:
        """Begins anew where the quota was lowered: what was used before belongs to the larger one."""
        lowered = ((quota_us < self.quota_us) | (self.quota_us < 0)) & (usage_us >= 0)
        return Budget(np.where(lowered, usage_us, self.usage_us), np.where(lowered, quota_us, self.quota_us))


def may_burst(used_us: IntArray, quota_us: IntArray, throttled_ns: IntArray, now_ns: int) -> BoolArray:
    """Containers whose demand may change between two samples, shape (N,).

    Args:
        used_us: in the last sampled period, shape (N,).
        quota_us: in force, shape (N,); negative: none.
        throttled_ns: when each was throttled last, monotonic, shape (N,).
        now_ns: monotonic.
    """
    recent = now_ns - throttled_ns < RECENT_NS
    watched: BoolArray = (quota_us >= 0) & ((used_us <= LOW_USE_SHARE * quota_us) | recent)
    return watched


def used_up(usage_us: IntArray, quota_us: IntArray, budget: Budget) -> BoolArray:
    """Containers that have used their quota since the budget began, shape (N,); False where usage is `VANISHED`."""
    slack_us = np.minimum(SLACK_SHARE * quota_us, SLICE_US)
    spent: BoolArray = (quota_us >= 0) & (usage_us >= 0) & (usage_us - budget.usage_us >= quota_us - slack_us)
    return spent


CHEAP_READS: Final = 256
"""Usage of so many containers is polled between two samples also while none was throttled lately: at 2 to 5 us, four
times a period, that is 2 to 5 per cent of a processor. With more, only for a while after one was throttled."""


class QuotaWatch:
    """Which containers have used up their quota between two samples, from the kernel's table or from their usage.

    What each container's usage is compared with is kept in the columns of `SampleState`.
    """

    def __init__(self, host: Host, containers: ContainerSet) -> None:
        self._host = host
        self._containers = containers
        self._usage_us: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def is_cheap(self) -> bool:
        """Whether polling usage costs little enough to be done all the time."""
        samples = self._containers.samples
        return self._host.shows_usage and 0 < int(np.count_nonzero(samples.may_burst)) <= CHEAP_READS

    def poll(self) -> ThrottleSnapshot | None:
        """Between two samples, of the containers sampled last. None: nothing shows it."""
        order, samples = self._containers.order, self._containers.samples
        if samples.keys is not order.keys:
            return None
        snapshot = self._host.throttle_snapshot(order.handles)
        if snapshot is not None or not self._host.shows_usage:
            return snapshot
        usage_us = np.full(len(order.handles), VANISHED, dtype=np.int64)
        for row in np.flatnonzero(samples.may_burst).tolist():
            read_us = order.handles[row].read_usage()
            usage_us[row] = VANISHED if read_us is None else read_us
        quota_us = np.array([limits.quota_us for limits in order.limits], dtype=np.int64)
        spent = self._used_up(usage_us, quota_us)
        nr_periods = samples.counters[:, _NR_PERIODS].copy()
        for row in np.flatnonzero(spent).tolist():
            ended = order.handles[row].read_periods()
            spent[row] = ended is not None
            nr_periods[row] = ended or 0
        return ThrottleSnapshot(spent, nr_periods, quota_us)

    def at_sample(self, counters: IntArray, quota_us: IntArray) -> ThrottleSnapshot | None:
        """The same at the moment of a sample, from its counters, shape (N, 5)."""
        if not self._host.shows_usage:
            return None
        watched = self._containers.samples.may_burst
        spent = self._used_up(np.where(watched, counters[:, _USAGE_US], VANISHED), quota_us)
        return ThrottleSnapshot(spent, counters[:, _NR_PERIODS], quota_us)

    def reported(self, new: BoolArray) -> None:
        """The throttling of these was published: a raise follows, which refills their bandwidth."""
        samples = self._containers.samples
        if len(self._usage_us) == len(new):
            samples.budget_usage_us = np.where(new & (self._usage_us >= 0), self._usage_us, samples.budget_usage_us)
        samples.throttled_ns = np.where(new, samples.read_ns, samples.throttled_ns)

    def sampled(self, counters: IntArray, quota_us: IntArray, sample: PeriodSample, now_ns: int) -> None:
        """Begin the next interval: usage is compared with this sample's from now on."""
        if not self._host.shows_usage:
            return
        samples = self._containers.samples
        samples.budget_usage_us, samples.budget_quota_us = counters[:, _USAGE_US].copy(), quota_us.copy()
        samples.throttled_ns = np.where(sample.throttled > 0, now_ns, samples.throttled_ns)
        samples.may_burst = may_burst(sample.used_us, quota_us, samples.throttled_ns, now_ns) & (sample.periods > 0)

    def _used_up(self, usage_us: IntArray, quota_us: IntArray) -> BoolArray:
        samples = self._containers.samples
        budget = Budget(samples.budget_usage_us, samples.budget_quota_us).where_lowered(usage_us, quota_us)
        samples.budget_usage_us, samples.budget_quota_us = budget.usage_us, budget.quota_us
        self._usage_us = usage_us
        return used_up(usage_us, quota_us, budget)


_REPORTED_PERIOD, _REPORTED_QUOTA, _REPORTED_BEFORE = range(3)


def in_progress(snapshot: ThrottleSnapshot, reported: IntArray) -> BoolArray:
    """Which containers are throttled in a period that has not been reported, shape (N,).

    Args:
        snapshot: what the kernel shows.
        reported: shape (N, 3): the period reported last, by `ThrottleSnapshot.nr_periods`; its quota (a new one has
            refilled the pool: a group that has used that up too is throttled anew); periods reported before that, and
            counted since the last sample.
    """
    same = (reported[:, _REPORTED_PERIOD] == snapshot.nr_periods) & (reported[:, _REPORTED_QUOTA] == snapshot.quota_us)
    new: BoolArray = snapshot.throttled & (snapshot.quota_us >= 0) & ~same
    return new


def mark_reported(snapshot: ThrottleSnapshot, new: BoolArray, reported: IntArray) -> IntArray:
    """``reported`` after the periods of ``new`` were reported."""
    now = np.column_stack(
        (snapshot.nr_periods, snapshot.quota_us, reported[:, _REPORTED_BEFORE] + _has_been_counted(snapshot, reported))
    )
    return np.where(new[:, None], now, reported)


def with_in_progress(
    sample: PeriodSample, snapshot: ThrottleSnapshot, reported: IntArray
) -> tuple[PeriodSample, IntArray]:
    """A sample with the throttled periods in progress, and without those reported before; the new ``reported``.

    A period during which the quota was written is counted only if the group was throttled once more: then it is
    reported again, with the new quota.
    """
    again = np.minimum(reported[:, _REPORTED_BEFORE] + _has_been_counted(snapshot, reported), sample.throttled)
    new = in_progress(snapshot, reported) & (sample.periods > 0)  # a first reading has no CPU usage
    used_us = np.where(new, np.maximum(sample.used_us, snapshot.quota_us), sample.used_us)
    unused_us = np.where(new, 0, sample.unused_us)
    after = replace(sample, throttled=sample.throttled - again + new, used_us=used_us, unused_us=unused_us)
    left = np.where((snapshot.nr_periods > reported[:, _REPORTED_PERIOD])[:, None], NOTHING_REPORTED, reported)
    left[:, _REPORTED_BEFORE] = 0
    return after, mark_reported(snapshot, new, left)


def _has_been_counted(snapshot: ThrottleSnapshot, reported: IntArray) -> BoolArray:
    """Whether the period reported last has ended, throttled as it was reported."""
    period = reported[:, _REPORTED_PERIOD]
    counted: BoolArray = (
        (period != NOTHING_REPORTED)
        & (snapshot.nr_periods > period)
        & (reported[:, _REPORTED_QUOTA] == snapshot.quota_us)
    )
    return counted

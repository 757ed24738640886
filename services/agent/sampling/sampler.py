"""Samples all containers of a node once per period, and polls between two samples. No bus, no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch, SampleFlag
from services._host.cgroup_snapshot import (
    MEMORY_COLUMN,
    BoolArray,
    CounterSnapshot,
    IntArray,
    ThrottleSnapshot,
)
from services.agent.containers import NEVER, BatchOrder, ContainerSet
from services.agent.limits.drift import DriftDetector
from services.agent.limits.update_executor import LimitExecutor
from services.agent.memory.controller import MemoryController
from services.agent.memory.node_budget import NodeBudget
from services.agent.ports import Host
from services.agent.sampling.expected_state import ExpectedState, rows_to_check
from services.agent.sampling.usage import (
    PeriodSample,
    QuotaWatch,
    in_progress,
    mark_reported,
    per_period,
    with_exact_periods,
    with_in_progress,
)

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

    def empty_batch(self, app: str, wall_ns: int) -> CfsBatch:
        """A batch that shows that the node holds no container of the application (any more)."""
        columns: dict[str, list[int]] = {name: [] for name in CfsBatch.column_types}
        return CfsBatch.build([], columns, **self._head(app, wall_ns, self._headroom()))

    def _reconcile_reserves(self) -> None:
        """What the watchdog has spent is reported together with the limits that it raised."""
        for app in self._reserves.poll():
            for key in self._containers.of_app(app):
                self._containers.refresh(key)
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
        columns = sample.columns() | {
            "quota_us": expected[:, _QUOTA],
            "memory_reclaimable_bytes": self._containers.samples.reclaimable_bytes,
            "memory_limit_bytes": expected[:, _LIMIT],
            "limit_update_seq": expected[:, _LIMIT_UPDATE_SEQ],
            "oom_kills": expected[:, _KILLS] - order.first_kills,
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
        } | headroom


def _ordered_rows(order: BatchOrder) -> BoolArray:
    """Containers whose quota the agent has set: only those are per period of `PERIOD_US`."""
    return np.array([entry.quota_ordered for entry in order.limits], dtype=np.bool_)

"""Records each container over time: a fold over the bus's messages. No clock, no I/O.

Memory is bounded: when a series is full, every second sample is dropped and from then on every second one is kept.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from schemas.cfs import CfsBatch, SampleFlag
from schemas.containers import ContainerChange, ContainerEvent
from schemas.limits import LimitDecisions
from schemas.oom import OomEvent
from services.cli.apps.memory_events import MemoryCounters, container_name

TIMELINE_SAMPLES: Final = 4_096
SLACK_SAMPLES: Final = 65_536


@dataclass(slots=True)
class DecimatedSeries:
    """Rows of floats, equally spaced in the order of arrival, at most ``capacity`` of them."""

    width: int
    capacity: int
    values: array[float] = field(default_factory=lambda: array("d"))
    stride: int = 1
    sample_count: int = 0

    def append(self, *row: float) -> None:
        """Add one row of ``width`` numbers."""
        if self.sample_count % self.stride == 0:
            if len(self.values) >= self.capacity * self.width:
                self._halve()
            if self.sample_count % self.stride == 0:
                self.values.extend(row)
        self.sample_count += 1

    def column(self, position: int) -> list[float]:
        """One of the ``width`` columns."""
        return list(self.values[position :: self.width])

    def _halve(self) -> None:
        rows = range(0, len(self.values), 2 * self.width)
        self.values = array("d", [value for row in rows for value in self.values[row : row + self.width]])
        self.stride *= 2


@dataclass(slots=True)
class Timeline:
    """One container over time; a restarted one continues under its name."""

    series: DecimatedSeries = field(default_factory=lambda: DecimatedSeries(5, TIMELINE_SAMPLES))

    @property
    def time_ns(self) -> list[float]:
        """Nanoseconds since the recording's first sample."""
        return self.series.column(0)

    @property
    def used_us(self) -> list[float]:
        """CPU time used per period."""
        return self.series.column(1)

    @property
    def quota_us(self) -> list[float]:
        """Quota per period; -1: unlimited."""
        return self.series.column(2)

    @property
    def memory_usage_bytes(self) -> list[float]:
        """Memory used."""
        return self.series.column(3)

    @property
    def memory_limit_bytes(self) -> list[float]:
        """Memory limit; -1: unlimited."""
        return self.series.column(4)


@dataclass(slots=True)
class AppRecording:
    """One application's sums and series."""

    app: str
    mode: str = ""
    policy: str = ""
    period_us: int = 100_000
    batches: int = 0
    periods: int = 0
    """CFS periods that passed while the application was sampled, of the node that saw most."""
    container_periods: int = 0
    throttled_periods: int = 0
    decisions: int = 0
    quota_changes: int = 0
    """Changes of the quota in the kernel, as the batches show them."""
    oom_kills: int = 0
    peak_memory_bytes: int = 0
    """The most that any of its containers was seen to use."""
    memory: MemoryCounters = field(default_factory=MemoryCounters)
    drifts: int = 0
    first_ns: int = 0
    last_ns: int = 0
    timelines: dict[str, Timeline] = field(default_factory=dict)
    cpu_slack_us: DecimatedSeries = field(default_factory=lambda: DecimatedSeries(1, SLACK_SAMPLES))
    memory_slack_bytes: DecimatedSeries = field(default_factory=lambda: DecimatedSeries(1, SLACK_SAMPLES))
    _quotas_us: dict[str, int] = field(default_factory=dict)
    _kills: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def throttled_share(self) -> float:
        """Throttled periods divided by all periods of all containers; an idle period is one that was not throttled."""
        return min(1.0, self.throttled_periods / self.container_periods) if self.container_periods else 0.0

    @property
    def median_cpu_slack_cores(self) -> float | None:
        """Median of quota minus usage over containers and periods, in cores; None: no limited container was seen."""
        values = self.cpu_slack_us.column(0)
        return median(values) / self.period_us if values else None

    @property
    def median_memory_slack_bytes(self) -> int | None:
        """Median of limit minus usage over containers and samples; None: no limited container was seen."""
        values = self.memory_slack_bytes.column(0)
        return int(median(values)) if values else None

    def take_row(self, row: dict[str, Any], since_start_ns: int) -> None:
        """Take in one container's row of a batch."""
        key, quota_us = row["container"], row["quota_us"]
        previous_us = self._quotas_us.get(key, quota_us)
        self.quota_changes += previous_us != quota_us
        self._quotas_us[key] = quota_us
        # A container that was restarted has a new cgroup, whose count starts again at 0.
        kills = row["oom_kills"] - self._kills.get(key, 0)
        self.oom_kills += kills if kills >= 0 else row["oom_kills"]
        self._kills[key] = row["oom_kills"]
        self.peak_memory_bytes = max(self.peak_memory_bytes, row["memory_usage_bytes"])
        if row["memory_limit_bytes"] >= 0:
            self.memory_slack_bytes.append(row["memory_limit_bytes"] - row["memory_usage_bytes"])
        if row["periods"] or row["flags"] & (SampleFlag.IDLE | SampleFlag.WALL_CLOCK):
            self._take_periods(row, previous_us)
        timeline = self.timelines.setdefault(container_name(key), Timeline())
        memory = row["memory_usage_bytes"], row["memory_limit_bytes"]
        timeline.series.append(since_start_ns, row["used_us"], quota_us, *memory)

    def _take_periods(self, row: dict[str, Any], quota_us: int) -> None:
        """The period that is reported ran under the quota of the previous report."""
        periods = max(1, row["periods"])
        self.container_periods += periods
        self.throttled_periods += row["throttled"]
        if quota_us >= 0:
            self.cpu_slack_us.append(max(0, quota_us - row["used_us"]))


class Recording:
    """All applications of a run, folded from the stream."""

    def __init__(self) -> None:
        self.apps: dict[str, AppRecording] = {}
        self.first_ns: int | None = None
        self.host_cpus = 0
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        self._node_ns: dict[tuple[str, str], int] = {}

    def add_batch(self, batch: CfsBatch) -> None:
        """Add one batch; duplicated and out-of-order ones are ignored."""
        source, order = (batch.app, batch.node), (batch.incarnation, batch.report_seq)
        if order <= self._newest.get(source, (0, -1)):
            return
        self._newest[source] = order
        self.first_ns = batch.time_ns if self.first_ns is None else self.first_ns
        self.host_cpus = max(self.host_cpus, batch.host_cpus)
        app = self.apps.setdefault(batch.app, AppRecording(batch.app, first_ns=batch.time_ns))
        if batch.is_early:
            app.throttled_periods += int(batch.column("throttled").sum())
            return
        app.batches += 1
        app.period_us = batch.period_us
        app.last_ns = max(app.last_ns, batch.time_ns)
        app.periods = max(app.periods, round((app.last_ns - app.first_ns) / (batch.period_us * 1_000)) + 1)
        for row in batch.rows():
            app.take_row(row, batch.time_ns - self.first_ns)

    def add_decisions(self, decisions: LimitDecisions) -> None:
        """Add one application's decisions."""
        app = self.apps.setdefault(decisions.app, AppRecording(decisions.app, first_ns=decisions.time_ns))
        app.mode, app.policy = decisions.mode, decisions.policy
        app.decisions += decisions.row_count

    def add_oom_event(self, event: OomEvent) -> None:
        """Count what happened to a container near or at its memory limit."""
        app = self.apps.setdefault(event.app, AppRecording(event.app, first_ns=event.time_ns))
        app.memory.add(event)

    def add_container_event(self, event: ContainerEvent) -> None:
        """Count externally modified limits."""
        if event.change is ContainerChange.DRIFTED:
            self.apps.setdefault(event.app, AppRecording(event.app, first_ns=event.time_ns)).drifts += 1

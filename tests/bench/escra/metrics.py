"""The thesis' metrics (2.6.1) of one recorded run. Pure; per container-period unless said otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from schemas.apps import PERIOD_US
from tests.bench.escra.measure import ABSENT, Ints, Recording

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One run. nan where a figure does not exist, such as the slack of no limits."""

    container_periods: int
    used_cores: float
    """Of all containers together, mean."""
    cpu_slack_p50: float
    """Quota in force - used, cores; burst is not used by the product, so quota + burst is the same."""
    cpu_slack_p99: float
    cpu_slack_per_used: float
    """All slack over all use."""
    memory_slack_p50: float
    """Limit - usage, MiB."""
    memory_slack_p99: float
    throttled_share: float
    """Container-periods in which the container was throttled."""
    unmet_share: float
    """Throttled time over used + throttled time, both over all CPUs: the kernel counts every runnable CPU's time, so
    this is more than what was missing; the same for every policy."""
    quota_writes: float
    """Quotas that changed per container-period."""
    cpu_limit_p50: float
    """Sum of quotas, cores, over batches."""
    cpu_limit_max: float
    memory_limit_p50: float
    """Sum of limits, MiB."""
    memory_limit_max: float
    over_limit_share: float
    """Batches in which the containers used more than the application's limit in one period."""
    over_limit_most: float
    """Largest use in one period over the application's limit."""
    beyond_limit: int
    """Batches in which the sum of quotas was beyond the application's limit; must be 0."""
    oom_kills: int

    def as_dict(self) -> dict[str, Any]:
        """For a JSON record."""
        return asdict(self)


def cpu_slack_us(recording: Recording) -> Ints:
    """Slack of each container-period that has a quota, us; flat."""
    limited = recording.told & (recording.columns["quota_us"] >= 0)
    return recording.columns["unused_us"][limited]


def memory_slack_bytes(recording: Recording) -> Ints:
    """Limit - usage of each container-period that has a limit, bytes; flat."""
    limit, usage = recording.columns["memory_limit_bytes"], recording.columns["memory_usage_bytes"]
    limited = recording.present & (limit >= 0)
    return np.asarray((limit - usage)[limited], dtype=np.int64)


def total_limits(recording: Recording, name: str) -> Ints:
    """Sum over the containers of a limit column per batch; -1 where one is unlimited or none is there."""
    values = recording.columns[name]
    present = recording.present
    total = np.where(present, values, 0).sum(axis=1)
    return np.where((present & (values < 0)).any(axis=1) | ~present.any(axis=1), -1, total).astype(np.int64)


def total_used_us(recording: Recording) -> Ints:
    """Use of all containers per batch, us per period."""
    return np.asarray(np.where(recording.present, np.maximum(recording.filled("used_us"), 0), 0).sum(axis=1))


def oom_kills(recording: Recording) -> int:
    """Kills while it was recorded: of containers that lived on, and of those that died of it.

    A container's count begins with it; one that was there from the first batch has had some before.
    """
    kills = 0
    for column, key in enumerate(recording.keys):
        seen = recording.columns["oom_kills"][:, column]
        seen = seen[seen != ABSENT]
        before = int(seen[0]) if len(seen) and recording.present[0, column] else 0
        most = max(int(seen.max(initial=0)), recording.told_kills.get(key, 0))
        kills += max(most - before, 0)
    unseen = set(recording.told_kills) - set(recording.keys)
    return kills + sum(recording.told_kills[key] for key in unseen)


def run_metrics(recording: Recording, cpu_limit_us: int, used_us: float | None = None) -> RunMetrics:
    """All metrics of a run.

    Args:
        recording: samples.
        cpu_limit_us: the application's limit, us per period.
        used_us: CPU time of all containers in the run where the kernel's counters were read: samples of containers that
            are throttled while they are looked at count all of the quota as used, which may be more.
    """
    told, columns = recording.told, recording.columns
    rows = int(np.count_nonzero(told))
    used = columns["used_us"][told].astype(np.float64)
    throttled_us = columns["throttled_us"][told].astype(np.float64)
    slack = cpu_slack_us(recording)
    memory = memory_slack_bytes(recording)
    totals = total_limits(recording, "quota_us"), total_limits(recording, "memory_limit_bytes")
    cpu_totals, memory_totals = (each[each >= 0] for each in totals)
    use = total_used_us(recording)
    wanted = used.sum() + throttled_us.sum()
    if used_us is None:
        used_us = float(use.sum())
    return RunMetrics(
        container_periods=rows,
        used_cores=used_us / len(use) / PERIOD_US if len(use) else np.nan,
        cpu_slack_p50=_percentile(slack, 50) / PERIOD_US,
        cpu_slack_p99=_percentile(slack, 99) / PERIOD_US,
        cpu_slack_per_used=float(slack.sum() / used_us) if len(slack) and used_us else np.nan,
        memory_slack_p50=_percentile(memory, 50) / MIB,
        memory_slack_p99=_percentile(memory, 99) / MIB,
        throttled_share=float(np.count_nonzero(columns["throttled"][told] > 0) / rows) if rows else np.nan,
        unmet_share=float(throttled_us.sum() / wanted) if wanted else np.nan,
        quota_writes=_writes(recording),
        cpu_limit_p50=_percentile(cpu_totals, 50) / PERIOD_US,
        cpu_limit_max=_percentile(cpu_totals, 100) / PERIOD_US,
        memory_limit_p50=_percentile(memory_totals, 50) / MIB,
        memory_limit_max=_percentile(memory_totals, 100) / MIB,
        over_limit_share=float(np.mean(use > cpu_limit_us)) if len(use) else np.nan,
        over_limit_most=float(use.max(initial=0) / cpu_limit_us),
        beyond_limit=int(np.count_nonzero(cpu_totals > cpu_limit_us)),
        oom_kills=oom_kills(recording),
    )


def _percentile(values: Ints, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else np.nan


def _writes(recording: Recording) -> float:
    quota, present = recording.columns["quota_us"], recording.present
    both = present[1:] & present[:-1]
    pairs = int(np.count_nonzero(both))
    return float(np.count_nonzero((quota[1:] != quota[:-1]) & both) / pairs) if pairs else float("nan")

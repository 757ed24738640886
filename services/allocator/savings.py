"""Savings: what is held beside what would be held without Turnbuckle, by application and UTC day. Pure.

Integrals over time:

    baseline = sum of the limits that the containers came with, or the application's limit where one came without
    held     = sum of the limits that are committed, or decided in mode `observe`; of memory also what is withheld for
               reserves, which no container gets
    saved    = baseline - held, negative where more is held

CPU and memory have a baseline each. A step counts the time since the step before with what holds at its beginning,
which the step before has ordered. It counts for an application that was *measured* at both steps: this replica owns it
and may raise its limits, every container of it has reported lately, and its limit is known (admitted, or it came with
both limits). The time between is bounded: a longer gap counts nothing. So no replica counts time of another one, and
none counts a second twice; time that no replica counted is missing from `covered_s`.

Nothing is kept between processes: a crash loses what was not published yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from schemas.apps import PERIOD_US, Mode
from schemas.savings import Baseline, Savings, SavingsPart
from services.allocator.arrays.array_types import BoolArray, Bools, Floats, Ints, padded
from services.allocator.arrays.grouping import any_per_app
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.usage_totals import COUNTS

DAY_NS: Final = 86_400_000_000_000
_EPOCH: Final = date(1970, 1, 1)
_GIB: Final = 1 << 30
_NEVER: Final = -NO_BOUND
_MODES: Final[tuple[Mode, ...]] = ("observe", "enforce")
_BASELINES: Final = (Baseline.APPLICATION_LIMIT, Baseline.CONFIGURED)


class Kind(NamedTuple):
    """What is summed up apart."""

    mode: Mode
    cpu_baseline: Baseline
    memory_baseline: Baseline


KINDS: Final = tuple(Kind(*each) for each in product(_MODES, _BASELINES, _BASELINES))
INTEGRALS: Final = (
    "covered_s",
    "cpu_baseline_core_s",
    "cpu_held_core_s",
    "memory_baseline_gib_s",
    "memory_held_gib_s",
)
SUMS: Final = (*INTEGRALS, *COUNTS)
"""Of each kind, application and day; fields of `schemas.savings.SavingsPart`."""
_WHOLE: Final = [name for name in COUNTS if name.endswith("periods")]


@dataclass(frozen=True, slots=True)
class Holding:
    """What applications hold at the beginning of a step; A: applications."""

    measured: Bools
    """A: whether all of it is known."""
    kind: Ints
    """A: index into `KINDS`."""
    amounts: Floats
    """Shape (4, A): CPU baseline and held in cores, memory baseline and held in GiB."""
    counts: Floats
    """Shape (5, A): `COUNTS` since this replica acquired the application."""


def held_beside_baseline(
    cluster: ClusterState, context: StepContext, budget: StepBudget, admitted: BoolArray
) -> Holding:
    """What applications hold at the beginning of a step, and what they would hold without Turnbuckle.

    Args:
        cluster: all rows; what was reported is still the same.
        context: of the step.
        budget: of the beginning.
        admitted: rows that were admitted then, shape (N,).
    """
    table, pools = context.table, budget.committed.pools
    configured = cluster.configured_limits()
    unknown = np.isnan(configured)
    limits = pools.limit_committed_bytes - pools.reserved_bytes
    amounts = np.array(
        [
            np.where(unknown[0], table.cpu_limit_us, configured[0]) / PERIOD_US,
            pools.quota_committed_us / PERIOD_US,
            np.where(unknown[1], table.memory_limit_bytes, configured[1]) / _GIB,
            (limits + np.maximum(pools.reserved_bytes, budget.withheld_bytes)) / _GIB,
        ]
    )
    kind = 4 * ~table.observe_only + 2 * ~unknown[0] + ~unknown[1]
    return Holding(_measured(cluster, context, admitted), kind, amounts, cluster.usage.counts(len(cluster.apps)))


def _measured(cluster: ClusterState, context: StepContext, admitted: BoolArray) -> BoolArray:
    """A: applications of which every container's limits are known now."""
    rows, count = cluster.rows, len(cluster.apps)
    limited = (rows.quota_us >= 0) & (rows.limit_bytes >= 0) & ~rows.observe_only
    missing = ~(admitted | limited) | rows.unreported | ~context.node_seen[rows.node]
    present = np.bincount(rows.app, minlength=count) > 0
    measured: BoolArray = context.table.known & context.eligible & present & ~any_per_app(rows.app, missing, count)
    return measured


class Account(NamedTuple):
    """One application's sums of one day, to be published."""

    app: int
    day: int
    """Since 1970-01-01, UTC."""
    serial: int
    """Of the day's sums, unique in this process: a clock that is set back begins a day anew."""
    parts: list[tuple[Kind, dict[str, float]]]

    def event(self, app: str, replica: str, time_ns: int, prices: Mapping[str, Any]) -> Savings:
        """The event of one application, day and replica: each replaces the last. ``prices``: fields of `Savings`."""
        parts = tuple(
            SavingsPart(**kind._asdict(), **sums | {name: round(sums[name]) for name in _WHOLE})
            for kind, sums in self.parts
        )
        day, record = _EPOCH + timedelta(days=self.day), f"{replica}-{self.serial}"
        return Savings(app=app, day=day, record=record, time_ns=time_ns, parts=parts, **prices)


@dataclass(slots=True)
class _Day:
    """Sums of one day."""

    number: int
    serial: int
    sums: Floats = field(default_factory=lambda: np.zeros((len(KINDS), len(SUMS), 0)))
    changed: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """A: since it was published."""
    published_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """A: monotonic; `_NEVER`."""

    def add(self, index: Ints, kind: Ints, values: Floats, count: int) -> None:
        """Add values of shape (len(SUMS), n) for the applications ``index``, of ``count`` in all."""
        self.sums, self.changed = padded(self.sums, count), padded(self.changed, count)
        self.published_ns = padded(self.published_ns, count, _NEVER)
        self.sums[kind, :, index] += values.T
        self.changed[index] = True

    def account(self, app: int) -> Account:
        """Sums of one application."""
        parts = [
            (kind, dict(zip(SUMS, sums[:, app].tolist(), strict=True)))
            for kind, sums in zip(KINDS, self.sums, strict=True)
            if sums[:, app].any()
        ]
        return Account(app, self.number, self.serial, parts)


class SavingsSums:
    """Integrals of all applications of this replica, by day."""

    def __init__(self) -> None:
        self._last: Holding | None = None
        self._last_ns = 0
        self._days: list[_Day] = []
        self._serial = 0
        self._since_acquired = np.zeros((len(INTEGRALS), 0))

    def add(self, holding: Holding, now_ns: int, wall_ns: int, max_gap_ns: int) -> None:
        """Count the time since the step before.

        Args:
            holding: what holds, and held in that time.
            now_ns: monotonic.
            wall_ns: since the epoch; says only which day it is.
            max_gap_ns: a longer time counts nothing.
        """
        last, elapsed_ns = self._last, now_ns - self._last_ns
        self._last, self._last_ns = holding, now_ns
        if last is None or not 0 < elapsed_ns <= max_gap_ns:
            return
        before = len(last.measured)  # applications are only ever added
        index = np.flatnonzero(holding.measured[:before] & last.measured)
        if not len(index):
            return
        rates = np.vstack([np.ones(len(index)), holding.amounts[:, index]])
        counts = np.maximum(holding.counts[:, index] - last.counts[:, index], 0)
        today = wall_ns // DAY_NS
        before_today_ns = min(max(today * DAY_NS - (wall_ns - elapsed_ns), 0), elapsed_ns)
        spans = [(today, elapsed_ns - before_today_ns, counts)]
        if before_today_ns:
            spans.insert(0, (today - 1, before_today_ns, np.zeros_like(counts)))
        for day, span_ns, counted in spans:
            self._add_to(day, holding, index, np.vstack([rates * (span_ns / 1e9), counted]))

    def _add_to(self, number: int, holding: Holding, index: Ints, values: Floats) -> None:
        """Add `SUMS`, shape (len(SUMS), n), of the applications ``index``."""
        if not self._days or self._days[-1].number != number:
            self._serial += 1
            self._days.append(_Day(number, self._serial))
        count = len(holding.measured)
        self._days[-1].add(index, holding.kind[index], values, count)
        self._since_acquired = padded(self._since_acquired, count)
        self._since_acquired[:, index] += values[: len(INTEGRALS)]

    def release(self, app: int) -> None:
        """The application is another replica's from now on; what was counted of it stays to be published."""
        if self._last is not None and app < len(self._last.measured):
            self._last.measured[app] = False
        self._since_acquired = padded(self._since_acquired, app + 1)
        self._since_acquired[:, app] = 0

    def since_acquired(self, app: int) -> dict[str, float]:
        """`INTEGRALS` of one application since this replica acquired it, over all days."""
        self._since_acquired = padded(self._since_acquired, app + 1)
        return dict(zip(INTEGRALS, self._since_acquired[:, app].tolist(), strict=True))

    def take_due(self, now_ns: int, every_ns: int, most: int) -> list[Account]:
        """Accounts that have changed and were not published for ``every_ns``, of ended days at once; ``most`` of them.

        They count as published at ``now_ns``, monotonic.
        """
        due: list[Account] = []
        for day in list(self._days):
            ended = day is not self._days[-1]
            waiting = np.flatnonzero(day.changed & (ended | (day.published_ns + every_ns <= now_ns)))
            for app in waiting[: most - len(due)].tolist():
                day.changed[app], day.published_ns[app] = False, now_ns
                due.append(day.account(app))
            if ended and not day.changed.any():
                self._days.remove(day)
        return due

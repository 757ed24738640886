"""Running totals of each owned application, since this replica acquired it, and per UTC day. Pure.

Usage (`AppUsage`) adds up the containers' samples. Savings (`SavingsSums`) are integrals over time of what is held
beside what would be held without Turnbuckle:

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
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from schemas.apps import PERIOD_US, Mode
from schemas.cfs import SampleFlag
from schemas.savings import Baseline, Savings, SavingsPart
from services.allocator.columns import NO_BOUND, AppIndex, Bools, Floats, IntArray, Ints

ArrayT = TypeVar("ArrayT", bound="np.ndarray[Any, Any]")

MAX_GAP_PERIODS: Final = 100
"""A longer gap is an agent that was away, or a clock that was set."""
TOTALS: Final = (
    *("periods", "throttled_periods", "used_us", "unused_us", "throttled_us", "oom_kills"),
    *("excess_periods", "excess_us"),
)
"""The last two: usage above quotas that were decided and not written, and the periods that had any."""
_THROTTLED_PERIODS, _OOM_KILLS = TOTALS.index("throttled_periods"), TOTALS.index("oom_kills")


@dataclass(frozen=True, slots=True)
class PreviousSample:
    """What a sample is counted from, shape (N,) each."""

    sampled_ns: Ints
    """When it was taken; 0: there was none."""
    oom_kills: Ints
    """Negative: there was none."""
    decided_us: Ints
    """Quota that was decided and not written (mode `observe`), us per period; `NO_BOUND`: it is enforced."""


class AppUsage:
    """`TOTALS` by application; counts and microseconds of CPU time.

    Of samples that one step received twice for a node, only the newest counts, as in the step itself.
    """

    def __init__(self) -> None:
        self._totals: IntArray = np.zeros((len(TOTALS), 0), dtype=np.int64)

    def add(self, app: AppIndex, reported: Mapping[str, Ints], sampled_ns: Ints, before: PreviousSample) -> Ints:
        """Add one sample of each container.

        Usage is told per period of elapsed time, and periods are those that the kernel counted meanwhile, which may be
        none or two in a tenth of a second. So times count by what has elapsed since the sample before.

        Args:
            app: application of each row, shape (N,).
            reported: columns of `schemas.cfs.CfsBatch`, shape (N,).
            sampled_ns: when, by the clock of each row's agent, shape (N,).
            before: the sample before, of each row.

        Returns:
            `PreviousSample.sampled_ns` for the next one, shape (N,).
        """
        # An early sample is of a period that the next one counts again, but for its being throttled.
        early = (reported["flags"] & int(SampleFlag.EARLY)) > 0
        kills = np.where(before.oom_kills < 0, 0, np.maximum(reported["oom_kills"] - before.oom_kills, 0))
        count = max(int(app.max(initial=-1)) + 1, self._totals.shape[1])
        self._totals = _padded(self._totals, count)
        if early.all():  # a poll between two samples, as most of what an allocator receives: all else of it is 0
            self._totals[_THROTTLED_PERIODS] += np.bincount(app, reported["throttled"], count).astype(np.int64)
            self._totals[_OOM_KILLS] += np.bincount(app, kills, count).astype(np.int64)
            return before.sampled_ns
        periods = np.where(early, 0, reported["periods"])
        elapsed = (sampled_ns - before.sampled_ns) / (PERIOD_US * 1_000)
        elapsed = np.where((before.sampled_ns > 0) & (elapsed > 0) & (elapsed < MAX_GAP_PERIODS), elapsed, periods)
        # Where throttled, the agent divides by what is more.
        elapsed = np.where(reported["throttled"] > 0, np.maximum(elapsed, periods), elapsed) * (periods > 0)
        excess_us = np.maximum(reported["used_us"] - before.decided_us, 0)
        sample = np.array(
            (
                periods,
                reported["throttled"],
                np.rint(reported["used_us"] * elapsed),
                np.rint(reported["unused_us"] * elapsed),
                np.rint(reported["throttled_us"] * elapsed),
                kills,
                np.where(excess_us > 0, periods, 0),
                np.rint(excess_us * elapsed),
            )
        )
        place = app + count * np.arange(len(TOTALS))[:, None]
        sums = np.bincount(place.ravel(), sample.ravel(), len(TOTALS) * count)
        self._totals += sums.astype(np.int64).reshape(len(TOTALS), count)
        return np.where(periods > 0, sampled_ns, before.sampled_ns)

    def counts(self, count: int) -> Floats:
        """`COUNTS` of the first ``count`` applications, shape (5, count)."""
        counts: Floats = self._first(count)[_COUNT_ROWS] * _COUNT_UNITS
        return counts

    def of(self, app: int) -> dict[str, int]:
        """Totals of one application."""
        return dict(zip(TOTALS, self._first(app + 1)[:, app].tolist(), strict=True))

    def forget(self, app: int) -> None:
        """Begin anew: the application is another replica's from now on."""
        self._first(app + 1)[:, app] = 0

    def _first(self, count: int) -> IntArray:
        """A view of the first ``count`` applications."""
        self._totals = _padded(self._totals, count)
        return self._totals[:, :count]


DAY_NS: Final = 86_400_000_000_000
_EPOCH: Final = date(1970, 1, 1)
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
COUNTS: Final = ("periods", "throttled_periods", "throttled_s", "excess_periods", "excess_core_s")
SUMS: Final = (*INTEGRALS, *COUNTS)
"""Of each kind, application and day; fields of `schemas.savings.SavingsPart`."""
_COUNT_ROWS: Final = [
    TOTALS.index(name) for name in ("periods", "throttled_periods", "throttled_us", "excess_periods", "excess_us")
]
_WHOLE: Final = [name for name in COUNTS if name.endswith("periods")]
_COUNT_UNITS: Final = np.array([1, 1, 1e-6, 1, 1e-6])[:, None]


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
        self.sums, self.changed = _padded(self.sums, count), _padded(self.changed, count)
        self.published_ns = _padded(self.published_ns, count, _NEVER)
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
        self._since_acquired = _padded(self._since_acquired, count)
        self._since_acquired[:, index] += values[: len(INTEGRALS)]

    def release(self, app: int) -> None:
        """The application is another replica's from now on; what was counted of it stays to be published."""
        if self._last is not None and app < len(self._last.measured):
            self._last.measured[app] = False
        self._since_acquired = _padded(self._since_acquired, app + 1)
        self._since_acquired[:, app] = 0

    def since_acquired(self, app: int) -> dict[str, float]:
        """`INTEGRALS` of one application since this replica acquired it, over all days."""
        self._since_acquired = _padded(self._since_acquired, app + 1)
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


def _padded(array: ArrayT, count: int, fill: int = 0) -> ArrayT:
    """The array with at least ``count`` applications, its last axis; new ones begin with ``fill``."""
    missing = count - array.shape[-1]
    if missing <= 0:
        return array
    return cast("ArrayT", np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)], constant_values=fill))

"""What the containers of each application have used, since this replica acquired it: sums of their samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import SampleFlag
from services.allocator.arrays.array_types import AppIndex, Floats, IntArray, Ints, padded

MAX_GAP_PERIODS: Final = 100
"""A longer gap is an agent that was away, or a clock that was set."""
TOTALS: Final = (
    *("periods", "throttled_periods", "used_us", "unused_us", "throttled_us", "oom_kills"),
    *("excess_periods", "excess_us"),
)
"""The last two: usage above quotas that were decided and not written, and the periods that had any."""
_THROTTLED_PERIODS, _OOM_KILLS = TOTALS.index("throttled_periods"), TOTALS.index("oom_kills")
COUNTS: Final = ("periods", "throttled_periods", "throttled_s", "excess_periods", "excess_core_s")
"""What is counted beside savings, in these units."""
_COUNT_ROWS: Final = [
    TOTALS.index(name) for name in ("periods", "throttled_periods", "throttled_us", "excess_periods", "excess_us")
]
_COUNT_UNITS: Final = np.array([1, 1, 1e-6, 1, 1e-6])[:, None]


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
        self._totals = padded(self._totals, count)
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
        self._totals = padded(self._totals, count)
        return self._totals[:, :count]

"""Running totals of each owned application, out of its containers' samples, since this replica acquired it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from schemas.cfs import SampleFlag
from services.allocator.columns import AppIndex, IntArray, Ints

TOTALS: Final = ("periods", "throttled_periods", "used_us", "unused_us", "throttled_us", "oom_kills")


class AppUsage:
    """`TOTALS` by application; counts and microseconds of CPU time.

    Of samples that one step received twice for a node, only the newest counts, as in the step itself.
    """

    def __init__(self) -> None:
        self._totals = np.zeros((len(TOTALS), 0), dtype=np.int64)

    def add(self, app: AppIndex, reported: Mapping[str, Ints], oom_kills_before: Ints) -> None:
        """Add one sample of each container.

        Args:
            app: application of each row, shape (N,).
            reported: columns of `schemas.cfs.CfsBatch`, shape (N,).
            oom_kills_before: as of the previous sample, shape (N,); negative: there was none.
        """
        # An early sample is of a period that the next one counts again, but for its being throttled.
        early = (reported["flags"] & int(SampleFlag.EARLY)) > 0
        periods = np.where(early, 0, reported["periods"])
        kills = np.where(oom_kills_before < 0, 0, np.maximum(reported["oom_kills"] - oom_kills_before, 0))
        sample = np.array(
            (
                periods,
                reported["throttled"],
                reported["used_us"] * periods,
                reported["unused_us"] * periods,
                reported["throttled_us"] * periods,
                kills,
            )
        )
        count = max(int(app.max(initial=-1)) + 1, self._totals.shape[1])
        self._grow(count)
        place = app + count * np.arange(len(TOTALS))[:, None]
        sums = np.bincount(place.ravel(), sample.ravel(), len(TOTALS) * count)
        self._totals += sums.astype(np.int64).reshape(len(TOTALS), count)

    def of(self, app: int) -> dict[str, int]:
        """Totals of one application."""
        self._grow(app + 1)
        return dict(zip(TOTALS, self._totals[:, app].tolist(), strict=True))

    def forget(self, app: int) -> None:
        """Begin anew: the application is another replica's from now on."""
        self._grow(app + 1)
        self._totals[:, app] = 0

    def _grow(self, count: int) -> None:
        missing = count - self._totals.shape[1]
        if missing > 0:
            grown: IntArray = np.pad(self._totals, ((0, 0), (0, missing)))
            self._totals = grown

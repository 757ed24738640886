"""Series of a local run: their making from counters, and periods in them. Arrays in, arrays out.

A series has one value per interval: the mean over that interval. Shape ``(samples,)`` throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from schemas.runs import SERIES, WorkerSeries

Series = np.ndarray[Any, np.dtype[np.float64]]
MIN_SAMPLES: Final = 10
"""A shorter run says nothing: mostly imports and the process group's start."""
_PERIOD_CORRELATION: Final = 0.35
"""From here on a repetition counts as one, where there are enough intervals."""
_PERIOD_DEVIATIONS: Final = 3.5
"""White noise's autocorrelation has a standard deviation of 1 / sqrt(terms): so many of them are no chance."""


class Counters(NamedTuple):
    """What a worker has used since its start; memory is what it holds now."""

    elapsed_s: float
    cpu_s: float
    memory_bytes: int
    rx_bytes: int
    tx_bytes: int


class Usage(NamedTuple):
    """One interval of one worker, in the order and units of `schemas.runs.SERIES`."""

    cpu_cores: float
    memory_bytes: float
    network_in_bytes_per_s: float
    network_out_bytes_per_s: float


def usage_between(before: Counters, after: Counters) -> Usage:
    """Mean rates over the time that has really passed; memory at its end.

    Counters that went back (a group that was made anew) count as no use.

    Raises:
        ValueError: no time has passed.
    """
    elapsed_s = after.elapsed_s - before.elapsed_s
    if elapsed_s <= 0:
        raise ValueError(f"no time between two samples ({elapsed_s} s)")
    return Usage(
        max(0.0, after.cpu_s - before.cpu_s) / elapsed_s,
        float(max(0, after.memory_bytes)),
        max(0, after.rx_bytes - before.rx_bytes) / elapsed_s,
        max(0, after.tx_bytes - before.tx_bytes) / elapsed_s,
    )


@dataclass(slots=True)
class Recording:
    """One worker's series in the making, on a grid of equal intervals."""

    worker: str
    interval_s: float
    rows: list[Usage] = field(default_factory=list)
    _first_s: float = 0.0
    _last: Counters | None = None

    def add(self, counters: Counters) -> Usage | None:
        """Take a sample; returns the usage since the last one that made a row (None: it makes none).

        Where sampling was held up over several intervals, each of them gets the mean over that time, so that row k
        still belongs to the time from k to k + 1 intervals after the start. The first sample makes no row, nor does one
        that comes so soon after a late one that its interval has a row already: what it measured counts with the next.
        """
        if self._last is None:
            self._first_s, self._last = counters.elapsed_s, counters
            return None
        passed = round((counters.elapsed_s - self._first_s) / self.interval_s) - len(self.rows)
        if passed <= 0:
            return None
        usage, self._last = usage_between(self._last, counters), counters
        self.rows.extend([usage] * passed)
        return usage

    def series(self, samples: int) -> WorkerSeries:
        """The first so many rows as a message."""
        table = np.asarray(self.rows[:samples], dtype="<f8").reshape(-1, len(SERIES))
        columns = {name: np.ascontiguousarray(table[:, index]).tobytes() for index, name in enumerate(SERIES)}
        return WorkerSeries(worker=self.worker, **columns)


def series_of(recordings: Sequence[Recording]) -> tuple[WorkerSeries, ...]:
    """All workers' series, cut to the same number of samples."""
    samples = min((len(recording.rows) for recording in recordings), default=0)
    return tuple(recording.series(samples) for recording in recordings)


def autocorrelation(values: Series, lag: int) -> float:
    """Correlation of the series with itself, `lag` intervals later; 0 for a constant or too short one."""
    data = np.asarray(values, dtype=np.float64)
    if not 0 < lag < len(data):
        return 0.0
    centred = data - data.mean()
    power = float(centred @ centred)
    # Rounding leaves a constant series a power of some 1e-32 times its square.
    if power <= 1e-18 * float(data @ data):
        return 0.0
    return float(centred[:-lag] @ centred[lag:]) / power


def period(values: Series, least: int = 2) -> float | None:
    """How many intervals a repetition takes, from `least` on, or None where there is none that counts.

    The first local maximum of the autocorrelation that is high enough, of a series without its linear trend; refined
    by a parabola through its neighbours. Two whole periods must be there.
    """
    data = np.asarray(values, dtype=np.float64)
    lags = len(data) // 2
    if lags < least + 1:
        return None
    straight = data - _slope(data) * np.arange(len(data))
    # The sum has fewer terms the longer the lag is: made up for, else a long period would never count.
    found = [autocorrelation(straight, lag) * len(data) / (len(data) - lag) for lag in range(1, lags + 1)]
    for lag in range(max(2, least), lags):
        before, here, after = found[lag - 2], found[lag - 1], found[lag]
        least_correlation = max(_PERIOD_CORRELATION, _PERIOD_DEVIATIONS / math.sqrt(len(data) - lag))
        if here >= least_correlation and before <= here > after:
            bend = before - 2 * here + after
            return lag + (0.5 * (before - after) / bend if bend < 0 else 0.0)
    return None


def _slope(data: Series) -> float:
    """Of the least-squares line, per interval."""
    if len(data) < 2:
        return 0.0
    steps = np.arange(len(data)) - (len(data) - 1) / 2
    return float(steps @ (data - data.mean()) / (steps @ steps))

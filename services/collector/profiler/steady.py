"""Where a training's warm-up ends, and when its steps were done: both by what was measured, no constant of seconds."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from services.collector.profiler.series import Series

_LEAST_DURATIONS: Final = 4
"""Of fewer the shortest end has no variance to speak of, and would always win."""
_MOST_UNITS: Final = 1_000
"""Steps are counted in groups where there are more, so that memory is bounded."""


def warm_up(durations: Series) -> int:
    """Return how many of the first steps' durations are warm-up: at most half of them.

    The marginal standard error rule (MSER; White 1997, "An effective truncation heuristic for bias reduction in
    simulation output"): what is left out is what makes the standard error of the mean of the rest smallest. Only a
    slower beginning is a warm-up, and it ends at the first step that is as fast as the later half's median: a long
    pause after fast steps, such as the first validation, is part of what varies.
    """
    values = np.asarray(durations, dtype=np.float64)
    if len(values) < _LEAST_DURATIONS:
        return 0
    centred = values - values.mean()
    left = np.arange(len(values), 0, -1)
    # Sums over the end of the series, from each element on.
    first, second = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    squared_error = np.maximum(second / left - (first / left) ** 2, 0.0) / left
    # Rounding leaves equal durations a variance of some 1e-32 times their square: then nothing is left out.
    squared_error[squared_error <= 1e-18 * float(values @ values)] = 0.0
    half = len(values) // 2
    as_fast = values[:half] <= float(np.median(values[half:])) * (1.0 + 1e-9)
    slow = int(np.argmax(as_fast)) if bool(as_fast.any()) else half
    found = int(np.argmin(squared_error[: slow + 1]))
    return found if found and values[:found].mean() > values[found:].mean() else 0


def completions(steps: Series, interval_s: float) -> tuple[Series, int]:
    """Return when steps were done, in seconds from the beginning, and how many steps each of them stands for.

    Args:
        steps: How many steps were made in each interval, with fractions.
        interval_s: Of the series.
    """
    done = np.concatenate([[0.0], np.cumsum(steps)])
    # Bytes are floats: what is short of a step by rounding is one.
    whole = math.floor(float(done[-1]) * (1.0 + 1e-9))
    group = max(1, math.ceil(whole / _MOST_UNITS))
    counts = np.arange(group, whole + 1, group, dtype=np.float64)
    # Where no step was made the sum stands still; `interp` wants it to grow, if by a billionth of an interval's share.
    growing = done + np.arange(len(done)) * (1e-9 * max(float(done[-1]), 1.0) / len(done))
    return np.asarray(np.interp(counts, growing, np.arange(len(done)) * interval_s)), group

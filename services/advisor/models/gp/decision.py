"""Which configuration to choose, and which to try next. All in logarithms: a factor counts the same wherever it is.

Choosing by the smallest expected *ratio* to the best was tried and left: where little is known, it flees the risk to
configurations that resemble the local run's, which are seldom good.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.special import ndtr

from services.advisor.core.arrays import FloatArray
from services.advisor.models.gp.process import Beliefs

DRAWS: Final = 512
_DENSITY: Final = float(1.0 / np.sqrt(2.0 * np.pi))


def expected_improvement(mean: FloatArray, deviation: FloatArray, best: float) -> FloatArray:
    """Return by how much each run is expected to lower the smallest logarithm, shape ``(rows,)``; not negative.

    Args:
        mean: Of the logarithm of each run, shape ``(rows,)``.
        deviation: Positive, shape ``(rows,)``.
        best: Logarithm of the smallest measured value.
    """
    distance = (best - mean) / deviation
    return np.asarray(deviation * np.maximum(distance * ndtr(distance) + _DENSITY * np.exp(-0.5 * distance**2), 0.0))


def best_together(beliefs: Beliefs, count: int, seed: int) -> list[tuple[int, float]]:
    """Return the runs of which the best is expected to be nearest to the optimum, one after the other.

    The first is the one of the smallest median; each next one is for where the former disappoint.

    Returns:
        Row, and how many times the optimum the best of all so far is expected to be (geometric mean).
    """
    draws = beliefs.draws(DRAWS, seed)
    over = draws - draws.min(axis=1, keepdims=True)
    best = np.full(len(over), np.inf)
    chosen: list[tuple[int, float]] = []
    for _ in range(min(count, over.shape[1])):
        expected = np.minimum(best[:, None], over).mean(axis=0)
        expected[[row for row, _ in chosen]] = np.inf
        row = int(np.argmin(expected))
        chosen.append((row, float(np.exp(expected[row]))))
        best = np.minimum(best, over[:, row])
    return chosen

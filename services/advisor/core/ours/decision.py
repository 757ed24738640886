"""Which configuration to choose, and which to try: the smallest expected regret, the largest expected improvement."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.special import ndtr

from services.advisor.core.arrays import FloatArray
from services.advisor.core.ours.process import Beliefs

DRAWS: Final = 512


def expected_regret(beliefs: Beliefs, seed: int) -> FloatArray:
    """Return the expectation of each row's value over the smallest value of all rows, shape ``(rows,)``: at least 1.

    It weighs the mean and the risk: of two configurations with the same median, that of the smaller spread is better.
    """
    draws = beliefs.draws(DRAWS, seed)
    return np.asarray(np.exp(draws - draws.min(axis=1, keepdims=True)).mean(axis=0))


def expected_improvement(beliefs: Beliefs, best: float) -> FloatArray:
    """Return how much a run is expected to save against the best value so far, as a part of that value.

    Args:
        beliefs: Of logarithms.
        best: Logarithm of the smallest measured value.
    """
    deviation = beliefs.deviation()
    distance = (best - beliefs.mean) / deviation
    saved = np.exp(np.minimum(beliefs.mean + deviation**2 / 2.0 - best, 50.0)) * ndtr(distance - deviation)
    return np.asarray(np.maximum(ndtr(distance) - saved, 0.0))

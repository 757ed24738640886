"""Acquisition: greedy joint selection of runs. All values are logarithms.

Choosing by the smallest expected *ratio* to the best was tried and dropped: with little data it prefers low-variance
configurations near the local run's, which are seldom good.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from services.advisor.models.gp.gaussian_process import Posterior

DRAWS: Final = 512


def select_jointly(posterior: Posterior, count: int, seed: int) -> list[tuple[int, float]]:
    """Return runs whose best has the smallest expected regret, selected greedily.

    The first has the smallest median; each next one covers the cases in which the former are bad.

    Returns:
        Row, and the expected ratio of the best so far to the optimum (geometric mean).
    """
    draws = posterior.samples(DRAWS, seed)
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

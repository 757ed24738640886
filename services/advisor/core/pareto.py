"""Pareto front of time and cost."""

from __future__ import annotations

import numpy as np

from services.advisor.core.arrays import BoolArray, FloatArray


def pareto_front(time_s: FloatArray, cost_usd: FloatArray) -> BoolArray:
    """Return which rows no other row dominates: faster at no higher cost, or cheaper in no longer time.

    Rows with NaN in either are never on the front. Equal rows are on it together.
    """
    front = np.zeros(len(time_s), dtype=bool)
    usable = np.flatnonzero(np.isfinite(time_s) & np.isfinite(cost_usd))
    order = usable[np.lexsort((cost_usd[usable], time_s[usable]))]
    cheapest, at_s = np.inf, -np.inf
    for row in order:
        if cost_usd[row] < cheapest or (cost_usd[row] == cheapest and time_s[row] == at_s):
            front[row] = True
            cheapest, at_s = cost_usd[row], time_s[row]
    return front

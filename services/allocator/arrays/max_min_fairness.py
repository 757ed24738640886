"""Max-min fair shares of an application's capacity, weighted. Integers, as in `proportional_share`. Pure."""

from __future__ import annotations

import numpy as np

from services.allocator.arrays.array_types import AppIndex, Ints
from services.allocator.arrays.grouping import per_app


def weighted_max_min(app: AppIndex, demand: Ints, weight: Ints, room: Ints) -> Ints:
    """Weighted max-min fair shares: min(demand_i, level_a * weight_i), with the level where the room is used up.

    One sort by (application, demand / weight) and segmented running sums; no loop. A row is satisfied when its
    demand is at most its share of what is left after all rows with a smaller demand per weight took theirs.

    Args:
        app: shape N.
        demand: shape N, what each row asks for, >= 0; the products demand * sum(weight) must stay below 2**63.
        weight: shape N, how fast a row fills, >= 1.
        room: shape A; negative counts as nothing.
    """
    if not len(app):
        return demand
    order = np.lexsort((demand / weight, app))
    app, demand, weight = app[order], demand[order], weight[order]
    start = np.flatnonzero(np.r_[True, app[1:] != app[:-1]])
    length = np.diff(np.r_[start, len(app)])
    served = np.cumsum(demand) - demand
    served -= np.repeat(served[start], length)
    ahead = np.cumsum(weight) - weight
    ahead -= np.repeat(ahead[start], length)
    total_weight = per_app(app, weight, len(room))
    left = np.maximum(room, 0)[app] - served
    satisfied = (left >= demand) & (demand * (total_weight[app] - ahead) <= weight * np.maximum(left, 0))
    remaining = np.maximum(np.maximum(room, 0) - per_app(app, np.where(satisfied, demand, 0), len(room)), 0)
    remaining_weight = np.maximum(per_app(app, np.where(satisfied, 0, weight), len(room)), 1)
    level_share = weight * remaining[app] // remaining_weight[app]
    share = np.empty_like(demand)
    share[order] = np.where(satisfied, demand, np.minimum(demand, level_share))
    return share

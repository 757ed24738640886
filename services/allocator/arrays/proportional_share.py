"""Proportional shares of an application's capacity, where needs exceed it. Pure.

Shares are integers, which makes the result independent of the order of rows and of other applications: no rounding of
floating-point sums leaks between applications. What rounding leaves (below one unit per row) stays free.
"""

from __future__ import annotations

import numpy as np

from services.allocator.arrays.array_types import AppIndex, Ints
from services.allocator.arrays.grouping import per_app


def scale_to_fit(app: AppIndex, need: Ints, room: Ints) -> Ints:
    """Proportional share: needs (shape N, >= 0) scaled down where they exceed the capacity (shape A).

    need * room / sum(need), rounded down; nothing where the room is negative. Where room < sum(need), the product
    need * room must stay below 2**63.
    """
    total = per_app(app, need, len(room))
    short = total > room
    if not short.any():
        return need
    scaled = need * np.maximum(room, 0)[app] // np.maximum(total, 1)[app]
    return np.where(short[app], scaled, need)

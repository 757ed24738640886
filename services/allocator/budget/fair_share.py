"""Integer sharing of a capacity: proportional and max-min, for all applications at once.

Integers make the result independent of the order of rows and of other applications: no rounding of floating-point sums
leaks between applications. What rounding leaves (below one unit per row) stays free.

Fair shares of an application's memory: what each container is guaranteed where memory is scarce (decision 0035).

    share      = application limit / containers, admitted or announced, whichever are more; whole pages
    guaranteed = min(share, usage - reclaimable page cache + sigma x share), for each container
    claims     = sum of max(guaranteed - limit, 0): what containers may still claim of free capacity or reserves

- Where targets exceed what is free, raises up to the share come before raises beyond it (`memory`: first what keeps
  containers alive, then their recent peak, then comfort).
- Beyond its share a container is granted nothing of what others may claim, neither by the allocator nor by an agent,
  and no other limit is decreased below what is guaranteed for its sake.
- Memory in use is never taken, but for page cache: a container above its share keeps it, and gets nothing more.

All containers of an application weigh the same. Claims sum up to at most sigma x limit, the withheld share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.columns import PAGE_BYTES, AppIndex, Ints, per_app


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


@dataclass(frozen=True, slots=True)
class FairShares:
    """Per application, shape (A,); bytes in whole pages."""

    share_bytes: Ints
    growth_bytes: Ints
    """Sigma x share: by so much above its usage every container may grow, up to its share, at any time."""

    @classmethod
    def of(cls, limit_bytes: Ints, withheld_bytes: Ints, containers: Ints) -> FairShares:
        """Equal shares; of one container where there is none."""
        count = np.maximum(containers, 1)
        return cls(limit_bytes // count // PAGE_BYTES * PAGE_BYTES, withheld_bytes // count // PAGE_BYTES * PAGE_BYTES)

    def guaranteed(self, app: AppIndex, used_bytes: Ints) -> Ints:
        """Guaranteed limit of each container, shape (N,); used: what cannot be reclaimed."""
        grown = -(-(used_bytes + self.growth_bytes[app]) // PAGE_BYTES) * PAGE_BYTES
        least: Ints = np.minimum(self.share_bytes[app], grown)
        return least


def claims(guaranteed_bytes: Ints, limit_bytes: Ints) -> Ints:
    """Guaranteed bytes above the limit of each container, shape (N,)."""
    above: Ints = np.maximum(guaranteed_bytes - limit_bytes, 0)
    return above


def within_share(app: AppIndex, limit_bytes: Ints, raise_bytes: Ints, shares_bytes: Ints) -> Ints:
    """The part of each requested raise that stays within the fair share, shape (N,)."""
    within: Ints = np.clip(shares_bytes[app] - limit_bytes, 0, raise_bytes)
    return within

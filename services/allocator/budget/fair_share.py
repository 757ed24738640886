"""Fair shares of an application's memory: who comes first where several ask and not all of it is free (decision 116).

    share      = application limit / containers, admitted or announced, whichever are more; whole pages
    asks       : usage grew by more than GREW_BYTES since the sample before, or the limit is used up but for a margin
    guaranteed = min(share, used + max(9 g, 2 x margin)) of one that asks, g what it grew by; 0 of all others
    claims     = sum of max(guaranteed - limit, 0): what is kept of free capacity and reserves

- Where targets exceed what is free, raises up to the share come before raises beyond it (`memory`: first what keeps
  containers alive, then their recent peak, then comfort).
- Beyond its share a container is granted nothing of what those below theirs ask for, neither by the allocator nor by an
  agent, and no limit is decreased below what is guaranteed for its sake. What nobody asks for it gets: free capacity,
  reserves of other nodes, and slack of containers that do not ask.
- Memory in use is never taken, but for page cache: a container above its share keeps it.

All containers of an application weigh the same. Pure.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from services.allocator.arrays.array_types import AppIndex, IntArray, Ints
from services.allocator.arrays.limit_values import MARGIN_BYTES, PAGE_BYTES
from services.allocator.state.rows import Rows

GREW_BYTES: Final = MARGIN_BYTES // 2
"""More than this between two samples is growth: 20 MB/s."""
NEAR_SHARE: Final = 8
"""Of a small limit the margin is 1/n."""
GROWTH_PERIODS: Final = 9
"""As many periods of growth as a raise covers (`services.allocator.memory.policy`)."""


def fair_shares(limit_bytes: Ints, containers: Ints) -> Ints:
    """Equal shares per application, shape (A,), whole pages; of one container where there is none."""
    shares: Ints = limit_bytes // np.maximum(containers, 1) // PAGE_BYTES * PAGE_BYTES
    return shares


def guaranteed(share_bytes: Ints, limit_bytes: Ints, used_bytes: Ints, grew_bytes: Ints) -> Ints:
    """Guaranteed limit of each container that asks, up to its share, and 0 of the others; shape (N,) each.

    Args:
        share_bytes: its fair share.
        limit_bytes: the most that its limit may be now.
        used_bytes: what cannot be reclaimed, by the newest sample.
        grew_bytes: by how much its usage grew since the sample before.
    """
    used_up = limit_bytes - used_bytes < np.minimum(MARGIN_BYTES, limit_bytes // NEAR_SHARE)
    wanted = used_bytes + np.maximum(GROWTH_PERIODS * grew_bytes, 2 * MARGIN_BYTES)
    least = np.minimum(share_bytes, -(-wanted // PAGE_BYTES) * PAGE_BYTES)
    asking: Ints = np.where((grew_bytes > GREW_BYTES) | used_up, least, 0)
    return asking


def claims(guaranteed_bytes: Ints, limit_bytes: Ints) -> Ints:
    """Guaranteed bytes above the limit of each container, shape (N,)."""
    above: Ints = np.maximum(guaranteed_bytes - limit_bytes, 0)
    return above


def within_share(app: AppIndex, limit_bytes: Ints, raise_bytes: Ints, shares_bytes: Ints) -> Ints:
    """The part of each requested raise that stays within the fair share, shape (N,)."""
    within: Ints = np.clip(shares_bytes[app] - limit_bytes, 0, raise_bytes)
    return within


def guaranteed_limits(rows: Rows, share_bytes: IntArray, limit_bytes: IntArray) -> IntArray:
    """`guaranteed` of all rows, shape (N,).

    Args:
        rows: all rows.
        share_bytes: fair shares by application, shape (A,).
        limit_bytes: committed limits, shape (N,).
    """
    usage_bytes, before_bytes = rows.memory_usage_bytes, rows.previous_memory_usage_bytes
    grew_bytes = np.where(before_bytes > 0, np.maximum(usage_bytes - before_bytes, 0), 0)
    used_bytes = np.maximum(usage_bytes - rows.memory_reclaimable_bytes, 0)
    return guaranteed(share_bytes[rows.app], limit_bytes, used_bytes, grew_bytes)

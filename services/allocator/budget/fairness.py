"""Fair shares of an application's memory: what each container is guaranteed where memory is scarce (decision 0035).

    share      = application limit / containers, joined or announced, whichever are more; whole pages
    guaranteed = min(share, usage - page cache that can be dropped + sigma x share), for each container
    kept       = sum of max(guaranteed - limit, 0): what containers may still claim of what is free or in reserves

- Where wishes exceed what is free, raises up to the share come before raises beyond it (`memory`: first what keeps
  containers alive, then what they had lately, then what is comfortable).
- Beyond its share a container is granted nothing of what is kept, neither by the allocator nor by an agent, and nobody
  else's limit is cut below what is guaranteed for its sake.
- What a container uses is never taken, but for page cache: who is above its share keeps it, and gets nothing more.

All containers of an application weigh the same. The sum of what is kept is at most sigma x limit, the withheld share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.allocator.cpu.policy_api import AppIndex, Ints

PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class FairShares:
    """Per application, shape (A,); bytes in whole pages."""

    share_bytes: Ints
    growth_bytes: Ints
    """Sigma x share: by so much more than it uses every container may grow, up to its share, at any time."""

    @classmethod
    def of(cls, limit_bytes: Ints, withheld_bytes: Ints, containers: Ints) -> FairShares:
        """Equal shares; without a container: of one."""
        count = np.maximum(containers, 1)
        return cls(limit_bytes // count // PAGE_BYTES * PAGE_BYTES, withheld_bytes // count // PAGE_BYTES * PAGE_BYTES)

    def guaranteed(self, app: AppIndex, used_bytes: Ints) -> Ints:
        """What each container may always have as its limit, shape (N,); used: what cannot be reclaimed."""
        grown = -(-(used_bytes + self.growth_bytes[app]) // PAGE_BYTES) * PAGE_BYTES
        least: Ints = np.minimum(self.share_bytes[app], grown)
        return least


def kept(guaranteed_bytes: Ints, limit_bytes: Ints) -> Ints:
    """What each container may still claim, shape (N,)."""
    claims: Ints = np.maximum(guaranteed_bytes - limit_bytes, 0)
    return claims


def within_share(app: AppIndex, limit_bytes: Ints, wish_bytes: Ints, shares_bytes: Ints) -> Ints:
    """The part of each wished raise that stays within the container's share, shape (N,)."""
    within: Ints = np.clip(shares_bytes[app] - limit_bytes, 0, wish_bytes)
    return within

"""Fair shares of an application's memory: what each container is guaranteed where memory is scarce (decision 0035).

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
from typing import Final

import numpy as np

from services.allocator.cpu.policy_api import AppIndex, Ints

PAGE_BYTES: Final = 4096


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

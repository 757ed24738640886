"""What a container above its fair share may be granted: not what others below theirs may still claim (decision 0035).

    guaranteed = min(share, used + growth), of each other container of the application on this node
    kept       = sum of max(guaranteed - limit, 0)
    granted    <= max(reserve - kept, share - limit)

The allocator sends share and growth; see `services.allocator.budget.fair_share`. Pure; bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class FairShare(NamedTuple):
    """Of an application's containers."""

    share_bytes: int
    """0: not known, so nothing is kept for other containers."""
    growth_bytes: int


UNKNOWN: Final = FairShare(0, 0)


class Holding(NamedTuple):
    """One container's memory."""

    used_bytes: int
    """What cannot be reclaimed."""
    limit_bytes: int


def claim_bytes(fair: FairShare, holding: Holding) -> int:
    """What a container may still claim beyond its limit; a negative limit is none."""
    if holding.limit_bytes < 0:
        return 0
    return max(min(fair.share_bytes, holding.used_bytes + fair.growth_bytes) - holding.limit_bytes, 0)


def is_above(fair: FairShare, limit_bytes: int) -> bool:
    """Whether a container has its share, or more."""
    return 0 < fair.share_bytes <= limit_bytes


def grantable_bytes(fair: FairShare, limit_bytes: int, reserve_bytes: int, others: Iterable[Holding]) -> int:
    """The most that a container with this limit may be granted out of a reserve."""
    if not fair.share_bytes:
        return reserve_bytes
    kept_bytes = sum(claim_bytes(fair, other) for other in others)
    return min(max(reserve_bytes - kept_bytes, fair.share_bytes - limit_bytes, 0), reserve_bytes)

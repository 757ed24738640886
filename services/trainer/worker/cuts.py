"""Who holds which part of a vector, and how a device's samples are divided. Pure: whole numbers only, no tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise


def cut(elements: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Sizes of the consecutive parts of a vector; they add up to it, and each differs from its share by 1 at most.

    Args:
        elements: of the vector.
        shares: of each rank, in any unit; 0: the rank holds nothing.

    Raises:
        ValueError: a share is negative or not finite, or all are 0.
    """
    whole = math.fsum(shares)
    if not math.isfinite(whole) or whole <= 0 or min(shares) < 0:
        raise ValueError(f"shares {tuple(shares)}: finite, none negative, not all 0")
    last = max(rank for rank, share in enumerate(shares) if share > 0)
    ends = [min(round(elements * part / whole), elements) for part in accumulate(shares)]
    # The sum of rounded floats may end short of the vector: the rest belongs to the last rank that holds anything.
    ends[last:] = [elements] * (len(ends) - last)
    return tuple(end - begin for begin, end in pairwise((0, *ends)))


def sample_range(samples: Sequence[int], rank: int) -> range:
    """Positions in the global batch that a rank computes: ranks take consecutive ones, in their order."""
    first = sum(samples[:rank])
    return range(first, first + samples[rank])

"""Which elements of a vector go from which rank to which, when ranks hold other parts of it than before. Pure.

Ranks hold consecutive parts, in their order. A rank that joins held nothing before, one that leaves holds nothing
after; an element whose rank stays the same does not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Move:
    """Consecutive elements that go from a rank to one; the same rank: they stay, at another place of its part."""

    source: int
    target: int
    first: int
    """Of the whole vector."""
    elements: int
    source_at: int
    """Where they begin in the source's part."""
    target_at: int
    """Where they begin in the target's part."""


def moves(old: Sequence[int], new: Sequence[int]) -> tuple[Move, ...]:
    """In the vector's order: all ranks send and receive in this one, so that no two wait for each other.

    Args:
        old: elements of each rank's part so far.
        new: of each rank's part from now on.

    Raises:
        ValueError: they are of vectors of different lengths or other ranks, or a size is negative.
    """
    if len(old) != len(new) or sum(old) != sum(new) or min(*old, *new, 0) < 0:
        raise ValueError(f"parts {tuple(old)} and {tuple(new)}: of the same ranks and vector, none negative")
    return tuple(_moves(old, new))


def _moves(old: Sequence[int], new: Sequence[int]) -> Iterator[Move]:
    old_ends, new_ends = list(accumulate(old)), list(accumulate(new))
    first = source = target = 0
    while first < sum(old):
        while old_ends[source] <= first:
            source += 1
        while new_ends[target] <= first:
            target += 1
        end = min(old_ends[source], new_ends[target])
        source_begin, target_begin = old_ends[source] - old[source], new_ends[target] - new[target]
        yield Move(source, target, first, end - first, first - source_begin, first - target_begin)
        first = end

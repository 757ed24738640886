"""Where a job's flat vector is cut into ranges: each is moved in one piece. Pure."""

from __future__ import annotations

from schemas.aggregations import MAX_RANGES


def cut(values: int, range_values: int) -> tuple[tuple[int, int], ...]:
    """Bounds [first, last) of ranges of so many values each; longer ones where there would be more than `MAX_RANGES`.

    Args:
        values: length of the vector, 1 at least.
        range_values: of a range at most, 1 at least.
    """
    length = max(range_values, -(-values // MAX_RANGES))
    return tuple((first, min(first + length, values)) for first in range(0, values, length))

"""What a job's values may take on an aggregator. Pure."""

from __future__ import annotations

from typing import Final

_VALUE_BYTES: Final = 4
"""Of fp32."""
CONNECTIONS_PER_RANK: Final = 2
"""One that is broken without the aggregator's knowledge, and the one after it."""


def most_bytes(ranks: int, vectors: int, values: int) -> int:
    """Memory that so many values of a job take at most, whatever its workers do.

    Each rank's content, what each of its connections has not read, the result, and three times parameters and moments:
    as they are sent, taken apart and copied.

    Args:
        ranks: of the job.
        vectors: moments of its optimizer, each as long as the values.
        values: fp32 values here.
    """
    per_rank = 1 + CONNECTIONS_PER_RANK
    return values * _VALUE_BYTES * (ranks * per_rank + 1 + 3 * (1 + vectors))

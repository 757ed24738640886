"""How many samples a step has, as the user's schedule says: it may grow during a training. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.plans import MAX_BATCH


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Batches, each from a step on, in ascending order; the first from step 0."""

    parts: tuple[tuple[int, int], ...]
    """First step and samples."""

    def batch(self, step: int) -> int:
        """Samples of this step, from 0, of all workers."""
        return next(batch for first, batch in reversed(self.parts) if first <= step)

    def runs(self, step: int, end: int) -> Iterator[tuple[int, int]]:
        """From this step to before the end: samples, and how many steps in a row have so many."""
        ends = [*(first for first, _ in self.parts[1:]), end]
        for (first, batch), until in zip(self.parts, ends, strict=True):
            steps = min(until, end) - max(first, step)
            if steps > 0:
                yield batch, steps

    def __str__(self) -> str:
        """As it is written."""
        return ",".join(f"{first}:{batch}" for first, batch in self.parts)


def parse_schedule(text: str) -> BatchSchedule:
    """``64``, or ``0:64,1000:128``: a step, and the samples of each step from it on.

    Raises:
        ValueError: says what is wrong with which part.
    """
    parts: list[tuple[int, int]] = []
    for part in text.split(","):
        first, _, batch = part.rpartition(":")
        if not batch.isdecimal() or not 1 <= int(batch) <= MAX_BATCH or not (first or "0").isdecimal():
            raise ValueError(f"{part!r} in {text!r} is no STEP:SAMPLES, with 1 to {MAX_BATCH} samples")
        if bool(parts) != (int(first or 0) > (parts[-1][0] if parts else 0)):
            raise ValueError(f"{text!r}: steps have to begin with 0 and to ascend")
        parts.append((int(first or 0), int(batch)))
    return BatchSchedule(tuple(parts))

"""Why targets are what they are: a reason with two numbers for each row. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from schemas.reasons import Reason
from services.allocator.arrays.array_types import Bools, Floats, IntArray, Ints


@dataclass(frozen=True, slots=True)
class Reasons:
    """Reasons of one resource's targets; columns of shape (N,) as in `schemas.limits.LimitDecisions`."""

    reason: NDArray[np.uint8]
    """`schemas.reasons.Reason`; NONE: unchanged."""
    measured: Floats
    threshold: Floats

    @classmethod
    def none(cls, count: int, *targets: Ints) -> Self:
        """No reasons, yet; a policy's targets are given to the class that has them."""
        return cls(np.zeros(count, np.uint8), np.zeros(count), np.zeros(count), *targets)

    def give(self, rows: Bools, reason: Reason, measured: Ints | Floats, threshold: Ints) -> None:
        """Set the reason of the flagged rows, in place; all arguments of shape N."""
        i = np.flatnonzero(rows)
        self.reason[i], self.measured[i], self.threshold[i] = reason, measured[i], threshold[i]

    def copy_from(self, index: IntArray, targets: Reasons) -> None:
        """Copy a policy's reasons for rows ``index`` where it gives one."""
        changed = targets.reason > 0
        rows = index[changed]
        self.reason[rows] = targets.reason[changed]
        self.measured[rows] = targets.measured[changed]
        self.threshold[rows] = targets.threshold[changed]

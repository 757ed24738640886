"""Histograms with exponentially growing buckets, as rows of a matrix: one per container.

Bucket b begins at first * (growth ** b - 1) / (growth - 1), so the first is ``first`` wide and each is ``growth`` times
as wide as the one before; the last has no end. A percentile is the *end* of the bucket in which it lies. That is how
the VPA recommender keeps its samples (growth 1.05; 0.01 core and 10 MB first).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.arrays.array_types import Floats, Ints


@dataclass(frozen=True, slots=True)
class Buckets:
    """Where buckets begin."""

    first: float
    """Width of the first, in the samples' unit."""
    growth: float
    count: int

    def index(self, values: Floats | Ints) -> Ints:
        """Bucket of each value, any shape."""
        found = np.floor(np.log1p(np.maximum(values, 0) * (self.growth - 1) / self.first) / np.log(self.growth))
        # Rounding may put a value that lies on a border into the bucket below it.
        index = np.minimum(found.astype(np.int64), self.count - 1)
        above = self.start(index + 1) <= values
        found_in: Ints = np.minimum(index + above, self.count - 1)
        return found_in

    def start(self, index: Ints) -> Floats:
        """Where buckets begin."""
        begins: Floats = self.first * (np.power(self.growth, index) - 1) / (self.growth - 1)
        return begins

    def percentile(self, weights: Floats, share: float) -> Floats:
        """End of the bucket that holds ``share`` of each row's weight, shape (K,); the last one's start.

        Args:
            weights: shape (K, count); rows without any weight give 0.
            share: 0..1.
        """
        total = weights.sum(axis=1)
        reached = np.cumsum(weights, axis=1) >= share * total[:, None] * (1 - 1e-12)
        index = np.argmax(reached, axis=1)
        value = self.start(np.minimum(index + 1, self.count - 1))
        return np.where(total > 0, value, 0.0)

"""Which samples each step has, and which of them a rank computes: the former does not depend on the plan. Pure.

An epoch's order is a permutation of the data set by seed and epoch. A step takes the next `batch` samples of all epochs
in a row, across their borders. A rank takes those that the plan gives it: another plan, or a device more, changes who
computes a sample, never when it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A permutation of 0 to samples - 1, the same on every machine and with every version of numpy.

    numpy keeps the raw numbers of a bit generator for ever (NEP 19), not what `Generator.permutation` makes of them.
    """
    drawn = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(samples)
    return np.argsort(drawn, kind="stable")


@dataclass(frozen=True)
class PlanSampler:
    """A BatchSampler for `torch.utils.data.DataLoader`: yields one rank's indices of each step, from a step on."""

    dataset_samples: int
    """Of the data set, at least 1."""
    batch: int
    """Samples of a step, of all ranks."""
    positions: Sequence[int]
    """In the batch, of those that the rank takes."""
    seed: int
    first_sample: int
    """Samples of all ranks before the first step: the steps done, times the batches that they had."""
    steps: int
    """So many steps are yielded."""

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        epoch, order = -1, np.empty(0, dtype=np.int64)
        for step in range(self.steps):
            first = self.first_sample + step * self.batch
            indices = []
            for position in self.positions:
                wanted, index = divmod(first + position, self.dataset_samples)
                if wanted != epoch:
                    epoch, order = wanted, epoch_order(self.dataset_samples, self.seed, wanted)
                indices.append(int(order[index]))
            yield indices

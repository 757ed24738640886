"""How much is measured of elastic trainings. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.trainer.core.batch_schedule import BatchSchedule
from services.trainer.core.worker_place import WorkerLimits
from tests.bench.unequal.cases import Box

GIB: Final = 1 << 30
LIMITS: Final = WorkerLimits(0.4, GIB)
"""Of each worker's sandbox: four of them leave a fifth of two cores."""
BOX: Final = Box(LIMITS.cpu_cores, 2 * GIB)
"""Of a hybrid plan's ranks."""
MOST: Final = 4
BATCHES: Final = (16, 32, 48, 64)
"""Samples of a step, in the four parts of the job."""
MICROBATCH: Final = 8
ROUND: Final = (2, 4, 2, 1)
"""Numbers of workers, again and again, from one on."""
USD_PER_HOUR: Final = 3.6
"""Of a worker: 0.001 USD a second. Ratios of samples per dollar do not depend on it."""
HYBRID_BATCH: Final = 12
HYBRID_MODEL: Final = "long"
"""Of `tests.bench.unequal.job`."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    rounds: int
    """Of `ROUND`: four changes each."""
    steps: int
    """Of each of the job's four parts."""
    fixed: tuple[int, ...]
    """Numbers of workers that the elastic job is compared with."""
    devices: int
    """Sandboxes that a hybrid plan may use."""
    turns: int
    """Of each hybrid plan."""
    profiled: int
    """Largest micro-batch of the layer profile."""

    @property
    def schedule(self) -> BatchSchedule:
        """Of the job."""
        return BatchSchedule(tuple((part * self.steps, batch) for part, batch in enumerate(BATCHES)))

    @property
    def all_steps(self) -> int:
        """Of the job."""
        return self.steps * len(BATCHES)

    @property
    def samples(self) -> int:
        """Of the job."""
        return self.steps * sum(BATCHES)


FULL: Final = Extent(5, 80, (1, 2, 4), 4, 5, 12)
QUICK: Final = Extent(1, 40, (4,), 2, 3, 6)

"""What the advisor needs of the outside world beside the bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.jobs import JobRecord
from schemas.runs import RunProfile


class TrainingFailedError(Exception):
    """No model came of it; the text says why. The records may be at fault, or the machine."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learned from, and how."""

    records: tuple[JobRecord, ...]
    profiles: tuple[RunProfile, ...]
    algorithm: str
    seed: int
    data_hash: str

    @property
    def version(self) -> str:
        """Of the model that comes of it: the same on every replica, because training is deterministic."""
        return f"{self.algorithm}-{self.data_hash[:12]}-s{self.seed}"


class Trainer(Protocol):
    """Trains models, one at a time, without keeping the event loop from its work."""

    async def train(self, lesson: Lesson) -> bytes:
        """Return a model file (`model_file`); cancelling it ends the training.

        Raises:
            TrainingFailedError: no model came of it.
        """

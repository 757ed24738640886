"""Ports of the advisor besides the bus: the trainer and its training set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schemas.jobs import JobRecord
from schemas.runs import RunProfile


class TrainingFailedError(Exception):
    """The training produced no model; the text gives the reason, in the records or on the machine."""


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Records, local runs and parameters of a training."""

    records: tuple[JobRecord, ...]
    profiles: tuple[RunProfile, ...]
    algorithm: str
    seed: int
    data_hash: str

    @property
    def version(self) -> str:
        """The trained model's version: the same on every replica, because training is deterministic."""
        return f"{self.algorithm}-{self.data_hash[:12]}-s{self.seed}"


class Trainer(Protocol):
    """Trains models, one at a time, outside of the event loop."""

    async def train(self, training_set: TrainingSet) -> bytes:
        """Return a model file (`model_file`); cancelling it ends the training.

        Raises:
            TrainingFailedError: the training produced no model.
        """

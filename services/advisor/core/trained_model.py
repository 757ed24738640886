"""Protocols of a trained model (predictions, contributions, neighbours, proposed runs) and of its algorithm.

An `Algorithm` fits a `TrainedModel` to records. Trained models are pickled and loaded by other processes: they hold
arrays, trees and plain values, and no closures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.jobs import JobRecord
from schemas.predictions import Contribution, Neighbour
from schemas.runs import RunProfile
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import Encoder
from services.advisor.core.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions for each row of a table."""

    time_s: FloatArray
    """Shape ``(rows, 3)``: low, median, high; all positive and in this order."""
    feasible: FloatArray
    """Shape ``(rows,)``: probability that the job runs at all."""
    cost_ratio: FloatArray
    """Shape ``(rows,)``: billed cost over price x machines x hours; 1 if unknown."""
    unknown: tuple[str, ...]
    """Per row: why the median is not usable, in a sentence; empty if it is usable."""
    extrapolated: tuple[tuple[str, ...], ...]
    """Per row: features outside the training range, such as ``workers 64 (measured: 1 to 8)``."""
    coverage: float | None = None
    """Empirical coverage of such intervals on left-out tasks with the same kind of local run (`LocalRunKind`);
    None: not measured."""


@dataclass(frozen=True, slots=True)
class ProposedRun:
    """A run to make next."""

    row: int
    reason: str


class TrainedModel(Protocol):
    """A trained model."""

    @property
    def level(self) -> float:
        """Nominal coverage of the intervals."""
        ...

    @property
    def encoder(self) -> Encoder:
        """Encodes the columns of the tables passed to `predict`."""
        ...

    def predict(self, table: Table) -> Predictions:
        """Return predictions; the table holds one task, without outcomes."""
        ...

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        """Return each row's features with their factor of the time against the training median, strongest first."""
        ...

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the known tasks nearest to the table's, nearest first."""
        ...

    def propose(self, table: Table, predictions: Predictions, values: FloatArray, count: int) -> list[ProposedRun]:
        """Return the runs that would improve the choice, or its certainty, most.

        Args:
            table: All candidates.
            predictions: Of `predict` for the same table.
            values: Seconds or dollars that are compared; NaN where a row cannot be chosen.
            count: At most so many.
        """
        ...


class Algorithm(Protocol):
    """Fits trained models."""

    @property
    def name(self) -> str:
        """Name in answers and in the model store."""
        ...

    def fit(self, records: Sequence[JobRecord], profiles: Mapping[str, RunProfile], *, seed: int) -> TrainedModel:
        """Return the model fitted to the records; deterministic by records, profiles and seed.

        Raises:
            ValueError: too few usable records; the text says what is missing.
        """
        ...

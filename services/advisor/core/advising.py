"""What the service needs of a trained model: predictions with intervals, reasons, neighbours and proposals.

An algorithm (ours, or any regression with `plain`) learns an `Adviser` from records. It is stored as a whole and
loaded by other processes, so it holds arrays, trees and plain values, and no function that is no module's own.
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
class Outlook:
    """What is to be expected of each row of a table."""

    time_s: FloatArray
    """Shape ``(rows, 3)``: low, median, high; all positive and in this order."""
    feasible: FloatArray
    """Shape ``(rows,)``: probability that it runs at all."""
    cost_ratio: FloatArray
    """Shape ``(rows,)``: what is billed, over price x machines x hours; 1 where nothing tells otherwise."""
    unknown: tuple[str, ...]
    """Per row: why the median is no answer, in a sentence; empty where it is one."""
    extrapolated: tuple[tuple[str, ...], ...]
    """Per row: what lies outside of all that was measured, such as ``workers 64 (measured: 1 to 8)``."""
    coverage: float | None = None
    """Share of outcomes that such intervals held where tasks were left out, asked about with a local run of the same
    kind (`anchor.AnchorKind`); None: that was not measured."""


@dataclass(frozen=True, slots=True)
class Worthwhile:
    """A run that is worth making next."""

    row: int
    reason: str


class Adviser(Protocol):
    """A trained model."""

    @property
    def level(self) -> float:
        """Nominal coverage of the intervals."""
        ...

    @property
    def encoder(self) -> Encoder:
        """Makes the columns of the tables that it is asked about."""
        ...

    def outlook(self, table: Table) -> Outlook:
        """Return predictions; the table holds one task, without outcomes."""
        ...

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        """Return what makes each of these rows slower or faster than the middle of the known ones, strongest first."""
        ...

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the known tasks that resemble the table's, nearest first."""
        ...

    def propose(self, table: Table, outlook: Outlook, values: FloatArray, count: int) -> list[Worthwhile]:
        """Return the runs that would change the choice, or its certainty, most.

        Args:
            table: All candidates.
            outlook: What `outlook` said of them.
            values: Seconds or dollars by which they are compared; NaN where a row cannot be chosen.
            count: At most so many.
        """
        ...


class Algorithm(Protocol):
    """Learns."""

    @property
    def name(self) -> str:
        """As shown and stored."""
        ...

    def fit(self, records: Sequence[JobRecord], profiles: Mapping[str, RunProfile], *, seed: int) -> Adviser:
        """Return what the records teach; the same records, profiles and seed give the same.

        Raises:
            ValueError: these records teach nothing; the text says what is missing.
        """
        ...

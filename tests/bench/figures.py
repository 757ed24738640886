"""Medians, ranges and percentiles, and the figures that the project expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range over repetitions."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """From repetitions; nan without any."""
        if not values:
            return cls(float("nan"), float("nan"), float("nan"), 0)
        return cls(float(np.median(values)), min(values), max(values), len(values))

    def text(self, digits: int = 1) -> str:
        """Such as ``12.3 (11.9-13.0)``."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.most:.{digits}f})"

    def brief(self) -> str:
        """Such as ``4.15 (3.98-4.3)``: three digits, and no range where there is none."""
        span = f" ({self.least:.3g}-{self.most:.3g})" if self.least != self.most else ""
        return f"{self.median:.3g}{span}"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and the maximum; nan without any."""
    if not values:
        return dict.fromkeys(("p50", "p90", "p99", "max"), float("nan"))
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99), "max": float(max(values))}


def expectation_lines(rows: Sequence[Expectation], what_width: int, digits: int) -> list[str]:
    """A table of them, with its head; empty where there are none."""
    return ["expected and measured: median (range)"] * bool(rows) + [
        f"  {row.what:<{what_width}} <= {row.at_most:<5g}{row.measured.text(digits):>24} {row.unit:<20}"
        f" {'met' if row.met else 'MISSED'}"
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Expectation:
    """A figure that the project has set itself, beside what was measured. Never asserted."""

    what: str
    at_most: float
    unit: str
    measured: Spread

    @property
    def met(self) -> bool:
        """Whether the median keeps it."""
        return self.measured.median <= self.at_most

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record."""
        return {
            "what": self.what,
            "at_most": self.at_most,
            "unit": self.unit,
            "median": self.measured.median,
            "least": self.measured.least,
            "most": self.measured.most,
            "met": self.met,
        }

"""The jobs of the benchmark, the two ways in which they are aggregated, and how much is measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from schemas.aggregations import AggregationOptimizer, OptimizerKind

RANKS: Final = 2
OPTIMIZER: Final = AggregationOptimizer(kind=OptimizerKind.ADAMW, lr=1e-4, weight_decay=0.01)
LOSS_LIMIT: Final = 0.1
"""The default of the service."""
REBALANCE_S: Final = 3.0
"""In place of its 60 s: how soon jobs come together is no figure of this benchmark."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A job: its ranks compute (sleep), push a gradient, and pull parameters."""

    name: str
    compute_s: float
    values: int
    """Of its flat fp32 vector."""


SHAPES: Final = tuple(
    Shape(f"job-{number}", compute_s, values)
    for number, (compute_s, values) in enumerate(
        [
            (0.50, 1 << 20),
            (0.70, 1 << 19),
            (0.90, 1 << 20),
            (0.60, 1 << 19),
            (0.80, 1 << 20),
            (0.55, 1 << 18),
            (1.00, 1 << 20),
            (0.75, 1 << 18),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class Way:
    """How jobs get their aggregators: settings of the service."""

    name: str
    settings: dict[str, Any]
    is_settled_by_moves: bool


DEDICATED: Final = Way("dedicated", {"loss_limit": 0.0, "rebalance_s": 1e9}, is_settled_by_moves=False)
"""A job that has not been measured counts as always busy: with no loss allowed, each has an aggregator of its own."""
SHARED: Final = Way("shared", {"loss_limit": LOSS_LIMIT, "rebalance_s": REBALANCE_S}, is_settled_by_moves=True)
WAYS: Final = (DEDICATED, SHARED)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    jobs: tuple[int, ...]
    turns: int
    window_s: float


FULL: Final = Extent((4, 8), 3, 60.0)
QUICK: Final = Extent((4, 8), 1, 20.0)

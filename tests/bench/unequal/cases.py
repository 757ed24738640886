"""The sets of unequal sandboxes, and what is trained on each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
RATE_BITS_PER_S: Final = 4_000_000_000
"""Of each sandbox's network device, in each direction."""
MEMORY_SHARE: Final = 0.9
"""That may be planned with: a sandbox's memory is its own."""
OURS: Final = "ours"
COLUMNS: Final = {"even": "even", "by-speed": "by_speed", OURS: "even,by_speed,whole,uneven"}
"""Strategies of `turnbuckle plan` by column: ours is what it chooses of all but pipelines."""
LONG, LARGE = "long", "large"
"""Of `tests.bench.unequal.job`."""
_AMPLE: Final = 4_096 * MIB
_SMALL: Final = 500 * MIB


@dataclass(frozen=True, slots=True)
class Box:
    """A sandbox that stands for a device."""

    cpu_cores: float
    memory_bytes: int = _AMPLE

    @property
    def kind(self) -> str:
        """As `turnbuckle layers` calls it."""
        return f"sandbox:{self.cpu_cores:g}"


@dataclass(frozen=True, slots=True)
class Case:
    """A set of sandboxes, and the batches that are trained on it."""

    name: str
    model: str
    boxes: tuple[Box, ...]
    batches: tuple[int, ...]
    """Samples of a step; of the first the columns are compared, the others are predicted and measured, too."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    cases: tuple[Case, ...]
    profiles: dict[str, dict[float, int]]
    """By model and cores: the largest micro-batch that is measured."""
    turns: int
    turns_of_others: int
    """For the batches after the first."""
    steps: int = 2
    """Whole steps in each turn of each column."""


CASES: Final = (
    Case("0.8 : 0.4 cores", LONG, (Box(0.8), Box(0.4)), (24, 12, 18)),
    Case("0.8 : 0.2 cores", LONG, (Box(0.8), Box(0.2)), (20, 10, 15)),
    Case("0.8 : 0.4 : 0.4 cores", LONG, (Box(0.8), Box(0.4), Box(0.4)), (24, 16, 20)),
    Case("0.8 : 0.4 cores, 4 GiB : 500 MiB", LARGE, (Box(0.8), Box(0.4, _SMALL)), (12, 9)),
    Case("0.4 : 0.4 cores, 4 GiB : 500 MiB", LARGE, (Box(0.4), Box(0.4, _SMALL)), (8, 6)),
    Case("0.4 : 0.8 cores, 4 GiB : 500 MiB", LARGE, (Box(0.4), Box(0.8, _SMALL)), (12, 9)),
)
FULL: Final = Extent(CASES, {LONG: {0.8: 16, 0.4: 12, 0.2: 10}, LARGE: {0.8: 10, 0.4: 8}}, 5, 3)
QUICK: Final = Extent(
    (
        Case(CASES[0].name, LONG, CASES[0].boxes, (12,)),
        Case(CASES[3].name, LARGE, CASES[3].boxes, (6,)),
    ),
    {LONG: {0.8: 8, 0.4: 6}, LARGE: {0.8: 5, 0.4: 4}},
    3,
    3,
)

"""What is run, in which order, for how long: pure, and the same for the same arguments, so that it can be resumed."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from schemas.apps import PERIOD_US
from tests.bench.escra.load.arrivals import LoadKind
from tests.bench.escra.profile import Profile

Limit = Literal["ample", "matched", "tight"]
LIMITS: Final[tuple[Limit, ...]] = ("ample", "matched", "tight")
BATCH_LOAD: Final = "batch"
"""In a cell's load: the application is run to its end instead."""
REFERENCE: Final = "none"
"""The policy that all others are compared with: no limits."""

LOAD_SHARES: Final[dict[Limit, float]] = {"ample": 1.0, "matched": 0.6, "tight": 1.0}
"""Of an application's base rate. At the full rate a limit that matches is 1.8 to 2 of a machine's two cores, on which
client and controller run as well: all would wait for the machine and not for limits (decision 29)."""

AMPLE_FACTOR: Final = 1.5
TIGHT_FACTOR: Final = 1.5
TIGHT_FLOOR: Final = 1.12
MEMORY_FACTOR: Final = 1.5
MEMORY_WITHHELD: Final = 0.2
"""`AppSpec.sigma`: what is withheld comes on top."""
MEMORY_MARGIN_BYTES: Final = 16 << 20
"""Per container, on top."""

CELL_VERSION: Final = 3
"""Of what a cell's record holds: cells of other versions are not mixed with these."""
TRACE_S: Final = 3600
"""Length of the traces."""
SETTLE_S: Final = 1.2
"""Load and policy run, nothing counts: peers are warm-started from the profile, ours finds its estimates."""
OVERHEAD_S: Final = 0.8
"""Of a cell, on top of settling and window: switch, backlog of the cell before, last answers, files. Measured."""
PROFILE_S: Final = 12.0
DEPLOY_S: Final = 8.0
BATCH_CELL_S: Final = 22.0
"""Of a batch with its start and end, as far as a plan can know."""
SPARE_SHARE: Final = 0.08
"""For cells that are measured again, and applications that are deployed again because one of them was killed."""
LEAST_WINDOW_S: Final = 2.0
FULL_LOADS: Final[tuple[LoadKind, ...]] = ("fixed", "exponential", "burst", "diurnal")
TUNING_LOADS: Final[tuple[LoadKind, ...]] = ("fixed", "exponential", "burst", "bursty")
TUNING_APPS: Final = ("shop", "cache")
"""Constants may be chosen on these applications and loads only; all else is held out (issue 8)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: one policy under one load and limit, once."""

    app: str
    load: str
    """A `LoadKind`, or `BATCH_LOAD`."""
    limit: Limit
    policy: str
    repetition: int

    @property
    def pair(self) -> str:
        """Application and load."""
        return f"{self.app}/{self.load}"

    @property
    def load_share(self) -> float:
        """Of the application's base rate; a batch is always whole."""
        return 1.0 if self.load == BATCH_LOAD else LOAD_SHARES[self.limit]

    @property
    def profile_name(self) -> str:
        """The same for cells whose limits come from the same run without any."""
        return f"{self.app}.{self.load}.{self.load_share:g}"

    @property
    def reference(self) -> Cell:
        """What it is compared with: no limits under the same load, measured once for all limits that have it."""
        ample = replace(self, policy=REFERENCE, limit="ample")
        return ample if ample.load_share == self.load_share else replace(self, policy=REFERENCE)

    @property
    def name(self) -> str:
        """For files: unique, and readable as far as a variant's constants allow."""
        policy = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in self.policy)
        if policy != self.policy:
            policy += "-" + hashlib.sha256(self.policy.encode()).hexdigest()[:8]
        return f"{self.app}.{self.load}.{self.limit}.{policy}.{self.repetition}"


@dataclass(frozen=True, slots=True)
class Block:
    """Cells that are all crossed with each other."""

    apps: tuple[str, ...]
    loads: tuple[str, ...]
    limits: tuple[Limit, ...]
    policies: tuple[str, ...]

    def cells(self, repetition: int) -> Iterator[Cell]:
        """All of one repetition."""
        for app in self.apps:
            for load in self.loads:
                for limit in self.limits:
                    for policy in self.policies:
                        cell = Cell(app, load, limit, policy, repetition)
                        yield cell.reference if policy == REFERENCE else cell


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    blocks: tuple[Block, ...]
    repetitions: int
    seed: int
    window_s: float
    """Measured, of each cell."""
    settle_s: float = SETTLE_S
    profile_s: float = PROFILE_S
    rate: float = 1.0
    """Of the applications' base rates, times `LOAD_SHARES`."""
    timeout_s: float = 5.0
    """After which a request counts as failed."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def cycle_s(self) -> float:
        """Of load `burst`: one quiet and one burst half per window; the thesis' 20 s compressed."""
        return min(self.window_s, 20.0)

    @property
    def mark(self) -> str:
        """The same for plans whose cells can be mixed."""
        fields = asdict(self)
        del fields["blocks"], fields["notes"], fields["repetitions"]
        fields["cell_version"] = CELL_VERSION
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]

    def order(self) -> list[Cell]:
        """All cells, a repetition after the other.

        In it one application after the other, as an application is started once; and of an application all loads,
        limits and policies mixed, by the seed.
        """
        cells: list[Cell] = []
        for repetition in range(self.repetitions):
            rng = random.Random(f"{self.seed}/{repetition}")
            mine = list(dict.fromkeys(cell for block in self.blocks for cell in block.cells(repetition)))
            apps = sorted({cell.app for cell in mine})
            rng.shuffle(apps)
            rng.shuffle(mine)
            cells += sorted(mine, key=lambda cell: apps.index(cell.app))
        return cells

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record."""
        return asdict(self) | {"cells": len(self.order()), "mark": self.mark, "cycle_s": self.cycle_s}


def may_tune_on(pair: str) -> bool:
    """Whether constants may have been chosen on this pair of application and load."""
    app, _, load = pair.partition("/")
    return app in TUNING_APPS and load in TUNING_LOADS


def cell_seed(plan: Plan, cell: Cell) -> int:
    """Of arrivals and requests: the same for all policies and limits of a pair in a repetition."""
    return _seed(f"{plan.seed}/{cell.app}/{cell.load}/{cell.repetition}")


def profile_seed(plan: Plan, app: str, load: str) -> int:
    """Of the run without limits from which static limits and warm starts come."""
    return _seed(f"{plan.seed}/{app}/{load}/profile")


def trace_start_s(plan: Plan, app: str, load: str) -> float:
    """Where in a trace the pair begins, in its profile and in every cell: the thesis too played one trace.

    Elsewhere in a trace the demand can be several times as high: a limit that was ample in the profile is none there.
    """
    return float(_seed(f"{plan.seed}/{app}/{load}/trace") % TRACE_S)


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def window_for(blocks: Sequence[Block], repetitions: int, minutes: float) -> float:
    """The window that fits into the minutes, seconds in steps of 0.1.

    Raises:
        ValueError: it would be shorter than `LEAST_WINDOW_S`; the message says how many minutes are needed.
    """
    whole_s = minutes * 60 * (1 - SPARE_SHARE)
    cells = {cell for block in blocks for cell in block.cells(0)}
    batches = sum(cell.load == BATCH_LOAD for cell in cells)
    apps = len({cell.app for cell in cells})
    profiles = len({cell.profile_name for cell in cells if cell.load != BATCH_LOAD})
    once_s = profiles * (PROFILE_S + SETTLE_S + OVERHEAD_S) + (BATCH_CELL_S if batches else 0)
    fixed_s = once_s + repetitions * (apps * DEPLOY_S + batches * BATCH_CELL_S)
    served = (len(cells) - batches) * repetitions
    if not served:
        return LEAST_WINDOW_S
    window_s = (whole_s - fixed_s) / served - SETTLE_S - OVERHEAD_S
    if window_s < LEAST_WINDOW_S:
        needed = (fixed_s + served * (LEAST_WINDOW_S + SETTLE_S + OVERHEAD_S)) / 60 / (1 - SPARE_SHARE)
        raise ValueError(f"{served} cells do not fit into {minutes:g} minutes: {needed:.1f} are needed, or fewer cells")
    return int(window_s * 10) / 10


def estimated_s(plan: Plan, cells: Sequence[Cell]) -> float:
    """What so many cells take, seconds, deployments left out."""
    batches = sum(cell.load == BATCH_LOAD for cell in cells)
    return (len(cells) - batches) * (plan.window_s + plan.settle_s + OVERHEAD_S) + batches * BATCH_CELL_S


@dataclass(frozen=True, slots=True)
class AppLimits:
    """An application's limits, and how tight they are."""

    cpu_cores: float
    memory_bytes: int
    demand_over_limit: float
    """Sum of the containers' demands (each one's largest 1-s mean without limits) over the limit."""
    peak_over_limit: float
    """The application's own largest 1-s mean over the limit."""


def app_limits(profile: Profile, limit: Limit) -> AppLimits:
    """Limits of an application from its run without any (issue 8, measured/policy.md section 1).

    S is the sum of the containers' demands, each the largest mean of its use over one second. Ample: 1.5 S. Matched: S,
    demands are 1.0 times the limit. Tight: S / 1.5, demands are 1.5 times the limit; but never below 1.12 times the
    application's largest 10-s mean, which policy.md calls tight: below its mean use any queue grows without end, and
    latency tells only how long the run was. Memory is ample in all cases.
    """
    demand_us = profile.sum_of_second_maxima_us
    limit_us = {
        "ample": AMPLE_FACTOR * demand_us,
        "matched": float(demand_us),
        "tight": max(demand_us / TIGHT_FACTOR, TIGHT_FLOOR * profile.max_total_used_us(10)),
    }[limit]
    limit_us = max(limit_us, len(profile.containers) * 2_000.0)
    maxima = MEMORY_FACTOR * profile.sum_of_memory_maxima_bytes / (1 - MEMORY_WITHHELD)
    memory = int(maxima) + len(profile.containers) * MEMORY_MARGIN_BYTES
    return AppLimits(
        limit_us / PERIOD_US, memory // 4096 * 4096, demand_us / limit_us, profile.max_total_used_us(1) / limit_us
    )

"""Shared aggregation beside dedicated aggregators: cores held, processor time, iterations; the trace. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from tests.bench.aggregation.measuring import Measured
from tests.bench.aggregation.trace import Held
from tests.bench.figures import Spread
from tests.bench.machine import Machine

ASKED_HELD: Final = 0.40
ASKED_CPU: Final = 1.1
ASKED_ITERATION: Final = 1.10
ASKED_STALL: Final = 2.0
"""Times a usual iteration: a move stalls a job for less than one."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both ways with the same jobs, one after the other."""

    dedicated: Measured
    shared: Measured

    @property
    def jobs(self) -> int:
        """How many."""
        return len(self.dedicated.shapes)

    @property
    def held(self) -> float:
        """Cores that are held once jobs have come together, as a share of one for each job."""
        return self.shared.settled_cores / self.dedicated.settled_cores

    @property
    def held_since_begin(self) -> float:
        """The same with the time until they have."""
        shared = self.shared.held_cores(self.shared.began_s, self.shared.window_s[1])
        return shared / self.dedicated.held_cores(self.dedicated.began_s, self.dedicated.window_s[1])

    @property
    def cpu(self) -> float:
        """Processor time per step, shared by dedicated."""
        return self.shared.cpu_ms_per_step / self.dedicated.cpu_ms_per_step

    @property
    def iteration(self) -> float:
        """Iterations, shared by dedicated: mean over the jobs."""
        return fmean(self.iterations.values())

    @property
    def iterations(self) -> dict[str, float]:
        """By job."""
        return {
            shape.name: self.shared.iteration_s(shape.name) / self.dedicated.iteration_s(shape.name)
            for shape in self.shared.shapes
        }


def by_jobs(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    """Turns with the same number of jobs."""
    found: dict[int, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.jobs, []).append(pair)
    return found


def ns_per_value(pairs: Sequence[Pair]) -> float:
    """Processor time of dedicated aggregators for each value that a rank pushes, over all turns."""
    cpu_s = sum(pair.dedicated.cpu_s for pair in pairs)
    return 1e9 * cpu_s / sum(pair.dedicated.pushed_values for pair in pairs)


COMPARISON_COLUMNS: Final = [
    "jobs",
    "cores held, dedicated",
    "shared",
    "shared / dedicated",
    "from the first step on",
    "CPU of a step, dedicated",
    "shared / dedicated",
    "iteration, shared / dedicated",
    "longest step while jobs moved",
]


def comparison(pairs: Sequence[Pair]) -> list[list[str]]:
    """A row for each number of jobs: medians and ranges over the turns."""
    return [
        [
            str(jobs),
            Spread.of([pair.dedicated.settled_cores for pair in turns]).brief(),
            Spread.of([pair.shared.settled_cores for pair in turns]).brief(),
            Spread.of([pair.held for pair in turns]).text(2),
            Spread.of([pair.held_since_begin for pair in turns]).text(2),
            f"{Spread.of([pair.dedicated.cpu_ms_per_step for pair in turns]).text()} ms",
            Spread.of([pair.cpu for pair in turns]).text(2),
            Spread.of([pair.iteration for pair in turns]).text(2),
            f"{Spread.of([pair.shared.longest_while_moving for pair in turns]).text(2)} usual ones",
        ]
        for jobs, turns in by_jobs(pairs).items()
    ]


TRACE_COLUMNS: Final = ["loss limit", "CPU of a pushed value", "cores saved", "iterations longer, predicted", "moves"]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The trace with each loss limit, for one cost of a value."""

    ns_per_value: float
    jobs: int
    mean_jobs: float
    """At the same time, while there is one at all."""
    held: Sequence[Held]

    @property
    def is_monotone(self) -> bool:
        """Whether no larger limit saves less."""
        return all(later.saving >= earlier.saving for earlier, later in pairwise(self.held))


def trace_rows(simulated: Sequence[Simulated]) -> list[list[str]]:
    """A row for each loss limit and cost."""
    return [
        [
            f"{held.loss_limit:g}",
            f"{one.ns_per_value:.2f} ns",
            f"{held.saving:.1%}",
            f"{held.slowdown:.2%}",
            f"{held.moves:,}",
        ]
        for one in simulated
        for held in one.held
    ]


def table(machine: Machine, pairs: Sequence[Pair], simulated: Sequence[Simulated]) -> str:
    """For people."""
    lines = [machine.line, "", *_aligned([COMPARISON_COLUMNS, *comparison(pairs)])]
    lines += ["", "median (range) of turns", "", *_asked(pairs), ""]
    lines += _aligned([TRACE_COLUMNS, *trace_rows(simulated)])
    for one in simulated:
        said = "rises" if one.is_monotone else "does not rise"
        lines.append(
            f"trace: {one.jobs} jobs, {one.mean_jobs:.1f} at a time; {one.ns_per_value:.2f} ns a value: what is saved "
            f"{said} with the loss limit"
        )
    return "\n".join(lines)


def _asked(pairs: Sequence[Pair]) -> list[str]:
    most = max(pair.jobs for pair in pairs)
    held = Spread.of([pair.held for pair in pairs if pair.jobs == most]).median
    cpu = max(Spread.of([pair.cpu for pair in turns]).median for turns in by_jobs(pairs).values())
    iteration = max(Spread.of([pair.iteration for pair in turns]).median for turns in by_jobs(pairs).values())
    stall = max(pair.shared.longest_while_moving for pair in pairs)
    return [
        f"asked: cores held <= {ASKED_HELD:.0%} of dedicated ones with {most} jobs; measured {held:.0%}",
        f"asked: CPU <= {ASKED_CPU:g} times that of dedicated ones; measured {cpu:.2f}",
        f"asked: iterations <= {ASKED_ITERATION:.2f} times those with dedicated ones; measured {iteration:.2f}",
        f"asked: a step during which a job moves < {ASKED_STALL:g} usual ones; longest {stall:.2f}",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def record(machine: Machine, pairs: Sequence[Pair], simulated: Sequence[Simulated]) -> dict[str, Any]:
    """Everything, and the tables that pages show."""
    return {
        "machine": machine.as_dict(),
        "tables": {
            "comparison": {"machine": machine.line, "columns": COMPARISON_COLUMNS, "rows": comparison(pairs)},
            "trace": {"machine": machine.line, "columns": TRACE_COLUMNS, "rows": trace_rows(simulated)},
        },
        "turns": [_as_dict(pair) for pair in pairs],
        "trace": [asdict(one) for one in simulated],
    }


def _as_dict(pair: Pair) -> dict[str, Any]:
    return {
        "jobs": pair.jobs,
        "held": pair.held,
        "held_since_begin": pair.held_since_begin,
        "cpu": pair.cpu,
        "iterations": pair.iterations,
        "ways": [_way(measured) for measured in (pair.dedicated, pair.shared)],
    }


def _way(measured: Measured) -> dict[str, Any]:
    return {
        "way": measured.way,
        "cores": [(at_s - measured.began_s, count) for at_s, count in measured.cores],
        "window_s": [at_s - measured.began_s for at_s in measured.window_s],
        "cpu_s": measured.cpu_s,
        "control_cpu_s": measured.control_cpu_s,
        "steps": measured.steps,
        "iteration_s": {shape.name: measured.iteration_s(shape.name) for shape in measured.shapes},
        "longest_while_moving": measured.longest_while_moving,
    }

"""What was measured beside what was asked: tables for people and pages, the record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from services.trainer.core.pauses import summary
from tests.bench.elastic.cases import LIMITS, USD_PER_HOUR, Extent
from tests.bench.elastic.hybrid_plans import Measured, chosen, fastest
from tests.bench.elastic.trainings import Change, Run
from tests.bench.figures import Spread
from tests.bench.machine import Machine

ASKED_P50_US: Final = 500_000
ASKED_P95_US: Final = 1_500_000
ASKED_RATIO: Final = 1.3
"""Of the elastic job's samples per dollar to those of the most workers, fixed."""
ASKED_WITHIN: Final = 0.10
"""Of the best plan that was measured."""
ELASTIC: Final = "elastic"
_PARTS: Final = {"parted_us": "leave", "met_us": "meet", "connected_us": "connect", "moved_us": "move"}


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured; what was not asked for is empty."""

    extent: Extent
    changes: Sequence[Change]
    runs: Sequence[Run]
    plans: Sequence[Measured]


def pause_rows(changes: Sequence[Change]) -> list[list[str]]:
    """By kind of change, and all: number, quantiles, median of each part."""
    kinds = dict.fromkeys((one.before, one.after) for one in changes)
    groups = {f"{before} to {after}": [one for one in changes if (one.before, one.after) == (before, after)]
              for before, after in kinds}  # fmt: skip
    return [_pause_row(name, group) for name, group in (groups | {"all": list(changes)}).items() if group]


def _pause_row(name: str, changes: Sequence[Change]) -> list[str]:
    found = summary([one.pause_us for one in changes])
    parts = [Spread.of([one.took_us.get(part, 0) / 1e3 for one in changes]) for part in _PARTS]
    assert found.p50_us is not None
    assert found.p95_us is not None
    most = max(one.pause_us for one in changes)
    times = [f"{us / 1e3:,.0f} ms" for us in (found.p50_us, found.p95_us, most)]
    return [name, str(found.count), *times, *(f"{part.median:,.0f} ms" for part in parts)]


PAUSE_COLUMNS: Final = ["workers", "changes", "p50", "p95", "most", *(f"{part}, p50" for part in _PARTS.values())]


def elastic_run(runs: Sequence[Run]) -> Run | None:
    """The one whose number of workers the policy decides."""
    return next((run for run in runs if run.name == ELASTIC), None)


def ratio(runs: Sequence[Run], other: Run, *, is_stepping: bool = False) -> float | None:
    """The elastic job's samples per dollar by those of another run."""
    elastic = elastic_run(runs)
    if elastic is None:
        return None
    if is_stepping:
        return elastic.samples_per_stepping_usd / other.samples_per_stepping_usd
    return elastic.samples_per_usd / other.samples_per_usd


def run_rows(runs: Sequence[Run]) -> list[list[str]]:
    """One run a row."""
    return [
        [
            run.name,
            " ".join(map(str, run.workers)),
            f"{run.wall_s:,.0f} s",
            f"{run.samples / run.wall_s:,.0f}",
            f"{run.paid_s:,} s",
            f"{run.samples_per_usd:,.0f}",
            f"{run.samples_per_stepping_usd:,.0f}",
            _ratio_text(ratio(runs, run)),
            _ratio_text(ratio(runs, run, is_stepping=True)),
        ]
        for run in runs
    ]


def _ratio_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


RUN_COLUMNS: Final = [
    "job",
    "workers, in turn",
    "took",
    "samples/s",
    "worker seconds paid",
    "samples/$",
    "samples/$ of steps",
    "elastic / this",
    "elastic / this, of steps",
]


def plan_rows(plans: Sequence[Measured]) -> list[list[str]]:
    """One number of stages and replicas a row."""
    if not plans:
        return []
    marks = {chosen(plans).name: "least cost", fastest(plans).name: "fastest"}
    if chosen(plans) is fastest(plans):
        marks = {chosen(plans).name: "least cost, fastest"}
    return [
        [
            one.name,
            str(one.plan.layout.microbatch),
            f"{one.plan.step_ms:,.0f} ms",
            f"{Spread.of([us / 1e3 for us in one.took_us]).text(0)} ms",
            f"{one.predicted_device_us / 1e6:.2f} s",
            f"{one.device_us / 1e6:.2f} s",
            marks.get(one.name, ""),
        ]
        for one in plans
    ]


PLAN_COLUMNS: Final = [
    "stages x replicas",
    "micro-batch",
    "step, predicted",
    "step, measured",
    "time of all devices, predicted",
    "measured",
    "chosen as",
]


def asked(results: Results) -> list[str]:
    """What the specification asks for, and what was found."""
    lines = []
    if results.changes:
        found = summary([one.pause_us for one in results.changes])
        lines.append(
            f"asked: a change pauses for <= {ASKED_P50_US / 1e6:g} s (p50), {ASKED_P95_US / 1e6:g} s (p95); "
            f"{(found.p50_us or 0) / 1e6:.2f} s, {(found.p95_us or 0) / 1e6:.2f} s of {found.count}"
        )
    most = max((run for run in results.runs if run.name != ELASTIC), key=lambda run: run.workers, default=None)
    if most is not None and (by_bill := ratio(results.runs, most)) is not None:
        by_steps = _ratio_text(ratio(results.runs, most, is_stepping=True))
        lines.append(
            f"asked: samples per dollar >= {ASKED_RATIO} x those of {most.name}; {by_bill:.2f} x, {by_steps} x of steps"
        )
    if results.plans:
        cost = chosen(results.plans).device_us / min(one.device_us for one in results.plans) - 1
        time = fastest(results.plans).median_us / min(one.median_us for one in results.plans) - 1
        lines.append(
            f"asked: the hybrid plan within {ASKED_WITHIN:.0%} of the best that was measured; "
            f"{cost:.0%} above it by cost, {time:.0%} by time"
        )
    return lines


def table(machine: Machine, results: Results) -> str:
    """For people."""
    place = f"each worker: {LIMITS.cpu_cores:g} cores, {LIMITS.memory_bytes >> 20} MiB, {USD_PER_HOUR:g} USD an hour"
    lines = [machine.line, place]
    for columns, rows in _tables(results).values():
        if rows:
            lines += ["", *_aligned([columns, *rows])]
    return "\n".join([*lines, "", *asked(results)])


def _tables(results: Results) -> dict[str, tuple[list[str], list[list[str]]]]:
    return {
        "pauses": (PAUSE_COLUMNS, pause_rows(results.changes)),
        "dollars": (RUN_COLUMNS, run_rows(results.runs)),
        "hybrid": (PLAN_COLUMNS, plan_rows(results.plans)),
    }


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def record(machine: Machine, results: Results) -> dict[str, Any]:
    """Everything, and the tables that pages show."""
    return {
        "machine": machine.as_dict(),
        "tables": {
            name: {"machine": machine.line, "columns": columns, "rows": rows}
            for name, (columns, rows) in _tables(results).items()
            if rows
        },
        "extent": asdict(results.extent),
        "asked": asked(results),
        "changes": [asdict(one) for one in results.changes],
        "runs": [asdict(one) for one in results.runs],
        "plans": [
            {
                "stages": one.plan.layout.stages,
                "replicas": one.plan.layout.replicas,
                "microbatch": one.plan.layout.microbatch,
                "last_layers": one.plan.last_layers,
                "predicted_us": one.plan.step_ms * 1_000,
                "took_us": one.took_us,
            }
            for one in results.plans
        ],
    }

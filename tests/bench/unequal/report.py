"""What was measured beside what was planned: ratios, errors of prediction, a table, the record. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemas.measured_runs import MeasuredRun
from schemas.plans import Plan, Strategy
from services.planner.core.correction import learned
from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.unequal.cases import COLUMNS, MIB, OURS, Case

EVEN: Final = "even"
WITHIN: Final = 0.10
"""Of the measured step time, that a prediction is asked to meet."""
ASKED_SHARE: Final = 0.80
"""Of runs, for which it is asked."""
ASKED_RATIO: Final = 1.2
"""Of the even split's step time to ours, where the even split runs."""


@dataclass(frozen=True, slots=True)
class Result:
    """One column of one set with one batch."""

    case: Case
    batch: int
    column: str
    plan: Plan
    refused: str
    """By the planner: it ran all the same, planned as if memory had no end."""
    killed: str
    """Which rank ran out of memory; empty: none."""
    took_us: Sequence[float]
    """Median step of each turn."""
    peak_bytes: dict[int, int]

    @property
    def median_us(self) -> float:
        """Of the turns."""
        return statistics.median(self.took_us)

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured; negative: too short."""
        return self.plan.step_us / self.median_us - 1

    @property
    def is_inside(self) -> bool:
        """Whether the plan's interval has the median."""
        return self.plan.step_low_us <= self.median_us <= self.plan.step_high_us

    @property
    def text(self) -> str:
        """Seconds of a step, or the kill."""
        return self.killed or f"{Spread.of([us / 1e6 for us in self.took_us]).text(2)} s"

    @property
    def predicted_text(self) -> str:
        """What the plan says."""
        return f"{self.plan.step_us / 1e6:.2f} s{f', refused: {self.refused}' if self.refused else ''}"


class Corrected(NamedTuple):
    """What the product predicts of a run once it knows those before it."""

    run: Result
    low_us: float
    median_us: float
    high_us: float

    @property
    def error(self) -> float:
        """As `Result.error`."""
        return self.median_us / self.run.median_us - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval has the median."""
        return self.low_us <= self.run.median_us <= self.high_us


def corrected(runs: Sequence[Result]) -> list[Corrected]:
    """Of each run, in order, of which earlier ones say something: by the planner's own rules of which do."""
    found: list[Corrected] = []
    before: list[MeasuredRun] = []
    for run in runs:
        plan = learned(run.plan, before)
        if plan.measured_runs:
            found.append(Corrected(run, plan.step_low_us, plan.step_us, plan.step_high_us))
        before.append(_as_measured(run, len(before)))
    return found


def _as_measured(run: Result, place: int) -> MeasuredRun:
    """As `turnbuckle train` would record it, but of turns, which are few, in place of single steps."""
    return MeasuredRun(
        plan=run.plan.plan,
        job=run.plan.job,
        engine=run.plan.engine,
        kinds=tuple(sorted({box.kind for box in run.case.boxes})),
        profiles=run.plan.profiles,
        predicted_step_us=run.plan.profiled_step_us or run.plan.step_us,
        step_us=run.median_us,
        step_p10_us=min(run.took_us),
        step_p90_us=max(run.took_us),
        steps=len(run.took_us),
        ended_ns=place,
    )


def timed(results: Sequence[Result]) -> list[Result]:
    """Those that ran, and that the planner had a prediction for."""
    return [one for one in results if one.took_us and not one.refused]


def compared(results: Sequence[Result]) -> dict[str, dict[str, Result]]:
    """By set, with its first batch: the columns."""
    found: dict[str, dict[str, Result]] = {}
    for one in results:
        if one.batch == one.case.batches[0]:
            found.setdefault(one.case.name, {})[one.column] = one
    return found


def ratio(columns: dict[str, Result]) -> Spread | None:
    """The even split's step time by ours, turn by turn; None: it did not run."""
    even, ours = columns[EVEN].took_us, columns[OURS].took_us
    return Spread.of([one / other for one, other in zip(even, ours, strict=True)]) if even and ours else None


def pipeline_text(ours: Result) -> str:
    """The planner's prediction: this benchmark runs none."""
    for one in ours.plan.alternatives:
        if one.strategy is Strategy.PIPELINE:
            return "does not fit" if one.step_us is None else f"{one.step_us / 1e6:.2f} s predicted"
    return "-"


def comparison(results: Sequence[Result]) -> list[list[str]]:
    """Rows: a set, its batch, the columns, the pipeline, even by ours."""
    rows = []
    for name, columns in compared(results).items():
        found = ratio(columns)
        rows.append(
            [
                f"{name}, {columns[OURS].batch} samples",
                *(columns[column].text for column in COLUMNS),
                pipeline_text(columns[OURS]),
                "-" if found is None else f"{found.text(2)}",
            ]
        )
    return rows


COMPARISON_COLUMNS: Final = ["set", "even", "by speed", "ours", "pipeline, not run", "even / ours"]
PREDICTION_COLUMNS: Final = ["predicted against measured", ""]


def prediction(results: Sequence[Result]) -> list[list[str]]:
    """Rows: how many runs, how many within what, the worst, memory."""
    runs = timed(results)
    errors = [one.error for one in runs]
    if not errors:
        return [["runs", "0"]]
    peaks = [
        one.plan.devices[rank].planned_bytes / peak
        for one in runs
        for rank, peak in one.peak_bytes.items()
        if one.took_us
    ]
    close = sum(abs(error) <= WITHIN for error in errors)
    twice = sum(abs(error) <= 2 * WITHIN for error in errors)
    inside = sum(one.is_inside for one in runs)
    later = corrected(runs)
    later_close = sum(abs(one.error) <= WITHIN for one in later)
    later_inside = sum(one.is_inside for one in later)
    return [
        ["runs", str(len(runs))],
        [f"step time within {WITHIN:.0%}", f"{close} of {len(runs)} runs"],
        [f"step time within {2 * WITHIN:.0%}", f"{twice} of {len(runs)} runs"],
        ["measured inside of the plan's interval", f"{inside} of {len(runs)} runs"],
        ["predicted / measured, step time", Spread.of([1 + error for error in errors]).text(2)],
        [f"corrected by the runs before it, within {WITHIN:.0%}", f"{later_close} of {len(later)} runs"],
        ["measured inside of the interval after those runs", f"{later_inside} of {len(later)} runs"],
        ["planned / measured, resident memory of a rank at most", Spread.of(peaks).text(2)],
    ]


def table(machine: Machine, results: Sequence[Result]) -> str:
    """For people."""
    lines = [machine.line, ""]
    lines += _aligned([COMPARISON_COLUMNS, *comparison(results)])
    lines += ["", "seconds of a step: median (range) of turns; even / ours: turn by turn", ""]
    lines += _aligned([[*row] for row in prediction(results)])
    heads = ["run", "engine", "samples", "state", "predicted", "measured", "error"]
    lines += ["", *_aligned([heads, *map(_run_row, results)])]
    return "\n".join([*lines, "", *_asked(results)])


def _run_row(one: Result) -> list[str]:
    devices = one.plan.devices
    return [
        f"{one.case.name}, {one.batch}, {one.column}",
        one.plan.engine.value,
        " ".join(f"{device.microbatches}x{device.microbatch}" for device in devices),
        " ".join(f"{device.state_share:.0%}" for device in devices),
        one.predicted_text.partition(", refused")[0],
        one.text,
        f"{one.error:+.1%}" if one.took_us else "-",
    ]


def _asked(results: Sequence[Result]) -> list[str]:
    ratios = [found for columns in compared(results).values() if (found := ratio(columns)) is not None]
    runs = timed(results)
    lines = []
    if ratios:
        least = min(one.median for one in ratios)
        lines.append(f"asked: even / ours >= {ASKED_RATIO} where even runs; least median {least:.2f}")
    if runs:
        share = sum(abs(one.error) <= WITHIN for one in runs) / len(runs)
        lines.append(f"asked: within {WITHIN:.0%} in {ASKED_SHARE:.0%} of runs; {share:.0%} of {len(runs)}")
    return lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def record(machine: Machine, results: Sequence[Result]) -> dict[str, Any]:
    """Everything, and the tables that pages show."""
    return {
        "machine": machine.as_dict(),
        "tables": {
            "comparison": {
                "machine": machine.line,
                "columns": COMPARISON_COLUMNS,
                "rows": comparison(results),
            },
            "prediction": {
                "machine": machine.line,
                "columns": PREDICTION_COLUMNS,
                "rows": prediction(results),
            },
        },
        "runs": [_as_dict(one) for one in results],
    }


def _as_dict(one: Result) -> dict[str, Any]:
    return {
        "set": one.case.name,
        "model": one.case.model,
        "batch": one.batch,
        "column": one.column,
        "boxes": [{"cpu_cores": box.cpu_cores, "memory_mib": box.memory_bytes // MIB} for box in one.case.boxes],
        "refused": one.refused,
        "killed": one.killed,
        "took_us": list(one.took_us),
        "peak_bytes": one.peak_bytes,
        "plan": one.plan.model_dump(mode="json"),
    }

"""Left-out tasks asked about with a local run that was cut: ``python -m tests.bench.advisor_cut``.

It is what people do: ten minutes of a job of hours. The shipped data set holds, beside each finished local run, what it
would have told, had it been stopped at a third and at a tenth. Each task is left out with its longer variants, the
model learns from the others as the service does, and is asked four times: with the whole run, with both cut ones, and
with the cut one without its rate. The estimator of the rate was chosen on half of the applications (decision 45): the
others have a table of their own. The tables replace those between the markers of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from scipy import stats

from schemas.jobs import Attributes, JobRecord
from schemas.predictions import Objective
from schemas.runs import RunEnd, RunProfile
from services._jobs.record_files import read_job_file
from services.advisor.core.arrays import BoolArray, FloatArray
from services.advisor.core.table import build
from services.advisor.models.gp.algorithm import GpAlgorithm, GpModel
from services.collector.emulator.tasks import base_task
from services.collector.profiler.cutting import PARTS, cut_name, cut_short
from tests.bench.evaluation import metrics
from tests.bench.machine import this_machine
from tests.bench.outcome import say

PAGE: Final = Path("docs/benchmarks.md")
BEGIN: Final = "<!-- advisor cut: written by `python -m tests.bench.advisor_cut` -->"
END: Final = "<!-- end of advisor cut -->"
WHOLE: Final = "to its end"
NO_RATE: Final = "a third, its rate not known"
EXACT: Final = "a third, told the whole's length"
"""What is left of the error if the rate were known exactly: the series' features are those of the cut run."""
NAMES: Final = {3: "a third", 10: "a tenth"}
CHOSEN_ON: Final = frozenset({"audio-conv", "image-digits", "recommendation", "tagging-lstm", "text-transformer"})
"""The applications whose local runs decided between estimators of the rate: every second one by name."""
SPREAD: Final = "12 cuts, a quarter to two fifths"
SPREAD_OVER: Final = tuple(float(share) for share in np.linspace(0.25, 0.4, 12))
"""Where within a step a run is cut is chance: the mean over many cuts has less of it."""
ROWS: Final = (NAMES[3], SPREAD, NAMES[10], EXACT, NO_RATE, WHOLE)
RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, eq=False)
class Answered:
    """One task's rows under one kind of local run."""

    task: str
    kind: str
    actual: FloatArray
    ends: FloatArray
    """Shape ``(rows, 3)``: low, median, high."""
    known: BoolArray
    told_coverage: float

    @property
    def errors(self) -> FloatArray:
        """Relative, of what is known."""
        return np.asarray(np.abs(self.ends[:, 1] / self.actual - 1.0)[self.known])


def local_runs(profiles: Mapping[str, RunProfile], whole: RunProfile) -> list[tuple[str, RunProfile]]:
    """The whole run, its cut variants that are there, and the shortest thing people bring: a cut run without a rate."""
    cuts = {part: run for part in PARTS if (run := profiles.get(cut_name(whole.run, part))) is not None}
    found = [(WHOLE, whole), *((NAMES[part], run) for part, run in cuts.items())]
    if (third := cuts.get(3)) is None:
        return found
    told = third.configuration.attributes
    found.append((NO_RATE, _telling(third, {})))
    if "whole_run_s" in told:
        found.append((EXACT, _telling(third, told | {"whole_run_s": whole.duration_s})))
    return found + [(SPREAD, cut) for share in SPREAD_OVER if (cut := cut_short(whole, 1 / share)) is not None]


def _telling(run: RunProfile, told: Attributes) -> RunProfile:
    """The same run with other estimates."""
    return run.model_copy(update={"configuration": run.configuration.model_copy(update={"attributes": dict(told)})})


def answered(trained: GpModel, records: Sequence[JobRecord], kind: str, run: RunProfile) -> Answered | None:
    """What the model says of one task's completed rows; None where there is none."""
    asked = [one.model_copy(update={"local_run": run.run}) for one in records]
    table = build(asked, {run.run: run}, encoder=trained.encoder)[0].without_repeats()
    table = table.select(table.completed(Objective.TIME) & ~table.contended)
    if not len(table):
        return None
    predictions = trained.predict(table.without_outcomes())
    # A reference that is not there is answered by `answers.judge` with "not known", whatever the model guesses.
    known = np.array([not one for one in predictions.unknown]) & np.isfinite(table.reference_time_s)
    coverage = float("nan") if predictions.coverage is None else predictions.coverage
    return Answered(str(table.task[0]), kind, table.time_s, predictions.time_s, known, coverage)


def measured(records: Sequence[JobRecord], profiles: Mapping[str, RunProfile]) -> list[Answered]:
    """Leave each application out in turn."""
    found: list[Answered] = []
    applications = sorted({base_task(one.task.task)[0] for one in records})
    for application in applications:

        def mine(task: str, application: str = application) -> bool:
            return base_task(task)[0] == application

        others = {name: one for name, one in profiles.items() if not mine(one.task.task)}
        trained = GpAlgorithm().fit([one for one in records if not mine(one.task.task)], others, seed=0)
        for task in sorted({one.task.task for one in records if mine(one.task.task)}):
            rows = [one for one in records if one.task.task == task]
            for kind, run in local_runs(profiles, profiles[rows[0].local_run]):
                if (one := answered(trained, rows, kind, run)) is not None:
                    found.append(one)
        say(f"without {application}: {len(found)} answers so far")
    return found


def _median_error(answers: Sequence[Answered]) -> float:
    errors = np.concatenate([one.errors for one in answers] or [np.zeros(0)])
    return float(np.median(errors)) if len(errors) else float("nan")


def ratio_interval(known: Sequence[Answered], whole: Mapping[str, Answered]) -> tuple[float, float] | None:
    """Percentile bootstrap over applications of the ratio of median errors; None of a single application."""
    applications = sorted({base_task(one.task)[0] for one in known})
    if len(applications) < 2:
        return None
    mine = {name: [one for one in known if base_task(one.task)[0] == name] for name in applications}

    def ratio(drawn: FloatArray) -> float:
        chosen = [one for at in drawn for one in mine[applications[int(at)]]]
        return _median_error(chosen) / _median_error([whole[one.task] for one in chosen])

    found = stats.bootstrap(
        (np.arange(len(applications)),),
        ratio,
        n_resamples=RESAMPLES,
        vectorized=False,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=0,
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def line(kind: str, answers: Sequence[Answered], whole: Mapping[str, Answered]) -> str:
    """One kind's figures; the ratio is to the whole runs of the same tasks that are known."""
    mine = [one for one in answers if one.kind == kind]
    known = [one for one in mine if one.known.any()]
    rows, answered_rows = sum(len(one.known) for one in mine), sum(int(one.known.sum()) for one in mine)
    head = f"| {kind} | {len(known)} of {len(mine)} | {answered_rows} of {rows}"
    if not known:
        return f"{head} | - | - | - | - | - | - |"
    actual = np.concatenate([one.actual[one.known] for one in known])
    ends = np.concatenate([one.ends[one.known] for one in known])
    error, same = _median_error(known), _median_error([whole[one.task] for one in known])
    held = [metrics.coverage(*(values[one.known] for values in (one.actual, *one.ends[:, [0, 2]].T))) for one in known]
    told = float(np.mean([one.told_coverage for one in known]))
    regrets = [metrics.best_of(one.actual, -one.ends[:, 1], 1) for one in known]
    figures = metrics.error_figures(actual, ends[:, 1])
    interval = None if kind == WHOLE else ratio_interval(known, whole)
    within = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    width = float(np.median(ends[:, 2] / ends[:, 0]))
    return (
        f"{head} | {error:.1%} | {error / same:.3f}{within} | {figures['rmse_over_mean']:.2f} "
        f"| {np.mean(held):.0%} (told: {told:.0%}) | {width:.1f} | {np.mean(regrets):.3f} |"
    )


def table(answers: Sequence[Answered], about: str) -> str:
    """For docs/benchmarks.md."""
    parts = [
        ("", answers),
        (
            "Of these, applications on which the estimator of the rate was not chosen:",
            [one for one in answers if base_task(one.task)[0] not in CHOSEN_ON],
        ),
        (
            "Of these, jobs of minutes, which are left out together with their like of seconds:",
            [one for one in answers if base_task(one.task)[1] > 1],
        ),
    ]
    lines = [about]
    for title, rows in parts:
        lines += _part(title, rows) if rows else []
    return "\n".join(lines)


def _part(title: str, answers: Sequence[Answered]) -> list[str]:
    whole = {one.task: one for one in answers if one.kind == WHOLE}
    head = (
        "| local run | local runs answered | configurations answered | median error "
        "| over that of whole runs, same tasks [95 %, applications] | RMSE / mean "
        "| intervals of 90 % held, mean of tasks | width (high / low) | regret |"
    )
    lines = [*(["", title] if title else []), "", head, "|---|---|---|---|---|---|---|---|---|"]
    return lines + [line(kind, answers, whole) for kind in ROWS]


def replaced(page: str, content: str) -> str:
    """The page with the table between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no place for the table: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def main() -> int:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.advisor_cut", description=__doc__)
    parser.add_argument("--data", type=Path, help="a Parquet file of records (default: the shipped one)")
    parser.add_argument("--print-only", action="store_true", help=f"leave {PAGE} as it is")
    given = parser.parse_args()
    path: Path = given.data or max(Path("services/advisor/data").glob("*.parquet"))
    found = read_job_file(path)
    profiles = {one.run: one for one in found.profiles}
    finished = {name for name, one in profiles.items() if one.end is RunEnd.FINISHED}
    records = [one for one in found.records if one.local_run in finished]
    about = f"`{path.name}`, {len(records)} records; {this_machine().line}"
    content = table(measured(records, profiles), about)
    sys.stdout.write(content + "\n")
    if not given.print_only:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Predictions checked live: ``python -m tests.bench.advisor_live_check --data RECORDS.parquet --out DIR``. Needs root.

Our model learns from the file's records and local runs, and predicts configurations that the grid leaves out. The
predictions are in ``DIR/predictions.json``, and their digest is told, before any of these configurations has run. Then
the emulated cloud runs them; their records are in ``DIR/checks``, so that no model learns from what it was checked
with. Both stand side by side in ``DIR/live_check.md`` and ``DIR/live_check.json``. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from schemas.jobs import Configuration, JobRecord, JobState, TaskFeatures
from schemas.predictions import ConfigurationPrediction, Estimate, ModelName, PredictRequest
from services._jobs.record_files import JobFile, JobFileError, read_job_file
from services._runtime.command.errors import CommandError
from services.advisor.core.answers import FITS, ModelContext, predict
from services.advisor.core.catalogue import listing
from services.advisor.model_file import unpack
from services.advisor.ports import TrainingSet
from services.advisor.records import Records
from services.advisor.training import train
from services.collector.emulator.campaign import Campaign, campaign_name, job_record, machine_cores
from services.collector.emulator.fork_client import ForkServer
from services.collector.emulator.grid import SHIPPED, BadGridError, Grid, Row, draw_configurations, read
from services.collector.write_ahead_log import Journal, JournalError
from tests.bench.machine import this_machine
from tests.bench.outcome import UNAVAILABLE, say, tell, write_record

PREDICTIONS: Final = "predictions.json"
CHECKS: Final = "checks"
REPORT: Final = "live_check"


class CheckFailedError(Exception):
    """The check could not be made; the message says why."""


class Predicted(BaseModel):
    """One entry of the file of predictions."""

    model_config = ConfigDict(frozen=True)

    task: str
    prediction: ConfigurationPrediction


@dataclass(frozen=True, slots=True)
class Promise:
    """What was predicted, before anything ran."""

    model: ModelName
    level: float
    """Nominal coverage of the intervals."""
    predictions: tuple[Predicted, ...]
    digest: str = ""
    """SHA-256 of the file of predictions."""
    written: str = ""
    """When, in ISO 8601."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One estimate beside what was measured."""

    error: float | None
    """Predicted by measured, less 1; None where there is no such measurement."""
    inside: bool | None
    """Whether the interval holds it; of a run that was stopped only False can be told."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One configuration: predicted, then run."""

    task: str
    predicted: ConfigurationPrediction
    state: JobState
    time_s: float | None
    cost_usd: float | None

    @property
    def time(self) -> Comparison:
        """Of the duration."""
        return _judge(self.predicted.time_s, self.time_s, self.state)

    @property
    def cost(self) -> Comparison:
        """Of the cost."""
        return _judge(self.predicted.cost_usd, self.cost_usd, self.state)


def _judge(predicted: Estimate | None, measured: float | None, state: JobState) -> Comparison:
    if predicted is None or measured is None:
        return Comparison(None, None)
    if state is JobState.TIMED_OUT:  # what was measured is a lower bound
        return Comparison(None, False if predicted.high < measured else None)
    if state is not JobState.SUCCEEDED or measured <= 0:
        return Comparison(None, None)
    return Comparison(predicted.median / measured - 1, predicted.low <= measured <= predicted.high)


def _key(task: str, where: Configuration) -> tuple[str, str, int, int]:
    return task, where.instance_type, where.workers, where.batch_size


def joined(predictions: Sequence[Predicted], records: Iterable[JobRecord]) -> list[Checked]:
    """Each prediction with the record of its run, in the order of the predictions.

    Raises:
        CheckFailedError: one was not run.
    """
    measured = {_key(record.task.task, record.configuration): record for record in records}
    found = []
    for one in predictions:
        run = measured.get(_key(one.task, one.prediction.configuration))
        if run is None:
            raise CheckFailedError(f"{one.task} on {_place(one.prediction.configuration)} was predicted, but not run")
        found.append(Checked(one.task, one.prediction, run.state, run.duration_s, run.cost_usd))
    return found


def figures(scored: Iterable[Comparison]) -> dict[str, float | int | None]:
    """Coverage, and the median of the errors without their signs; None where there is nothing to count."""
    every = list(scored)
    errors = [abs(one.error) for one in every if one.error is not None]
    inside = [one.inside for one in every if one.inside is not None]
    return {
        "scored": len(inside),
        "inside": sum(inside),
        "coverage": sum(inside) / len(inside) if inside else None,
        "median_error": float(np.median(errors)) if errors else None,
        "largest_error": max(errors, default=None),
    }


def record(checked: Sequence[Checked], promise: Promise) -> dict[str, Any]:
    """Everything, for the JSON file."""
    return {
        "model": promise.model.model_dump(mode="json"),
        "level": promise.level,
        "predictions_sha256": promise.digest,
        "predictions_written": promise.written,
        "configurations": len(checked),
        "ended": sum(one.state is JobState.SUCCEEDED for one in checked),
        "not_known": sum(not one.predicted.known for one in checked),
        "time": figures(one.time for one in checked),
        "cost": figures(one.cost for one in checked),
        "rows": [
            {
                "task": one.task,
                "predicted": one.predicted.model_dump(mode="json"),
                "state": one.state.value,
                "measured_time_s": one.time_s,
                "measured_cost_usd": one.cost_usd,
                "time_error": one.time.error,
                "time_inside": one.time.inside,
                "cost_error": one.cost.error,
                "cost_inside": one.cost.inside,
            }
            for one in checked
        ],
    }


_HEAD: Final = (
    "| task | configuration | predicted s (interval) | measured s | error | inside "
    "| predicted $ (interval) | measured $ | error | inside |"
)


def markdown(checked: Sequence[Checked], promise: Promise) -> str:
    """A table with a line for each configuration, and one that sums up."""
    lines = [_HEAD, "|---" * (_HEAD.count("|") - 1) + "|"]
    lines += ["| " + " | ".join(_cells(one)) + " |" for one in checked]
    summed = record(checked, promise)
    lines += [
        "",
        (
            f"{promise.model.model} {promise.model.version} of {promise.model.records} records, intervals of "
            f"{promise.level:.0%}. {summed['ended']} of {len(checked)} configurations ended, {summed['not_known']} "
            f"were predicted as not known. Time: {_summed(summed['time'])}. Cost: {_summed(summed['cost'])}."
        ),
        f"Predictions written {promise.written}, SHA-256 {promise.digest}.",
    ]
    return "\n".join(lines)


def _cells(one: Checked) -> list[str]:
    cells = [one.task, _place(one.predicted.configuration)]
    ended = "" if one.state is JobState.SUCCEEDED else f"{one.state.value} "
    for estimate, measured, scored in (
        (one.predicted.time_s, one.time_s, one.time),
        (one.predicted.cost_usd, one.cost_usd, one.cost),
    ):
        cells.append("-" if estimate is None else f"{estimate.median:.3g} ({estimate.low:.3g} - {estimate.high:.3g})")
        cells.append(ended + ("-" if measured is None else f"{measured:.3g}"))
        cells.append("-" if scored.error is None else f"{scored.error:+.0%}")
        cells.append({None: "-", True: "yes", False: "no"}[scored.inside])
    if not one.predicted.known:
        cells[2] += ", not known"
    if one.predicted.feasible < FITS:
        cells[2] += ", will not fit"
    return cells


def _place(where: Configuration) -> str:
    return f"{where.workers} x {where.instance_type}, batch {where.batch_size}"


def _summed(found: Mapping[str, float | int | None]) -> str:
    error = "-" if found["median_error"] is None else f"{found['median_error']:.0%}"
    return f"{found['inside']} of {found['scored']} inside, median error {error}"


# -- learning, asking, running ------------------------------------------------------------------------------------


def promised(found: JobFile, asked: Sequence[tuple[str, Configuration]], seed: int) -> Promise:
    """Learn as the service does, and predict what is asked, a question for each task."""
    records = Records()
    rejected = [records.add_run(one) for one in found.profiles] + [records.add(one) for one in found.records]
    for reason in filter(None, rejected):
        say(f"left out: {reason}")
    training_set = TrainingSet(
        tuple(records.jobs[job] for job in sorted(records.jobs)),
        tuple(records.runs[run] for run in sorted(records.runs)),
        "gp",
        seed,
        records.data_hash(),
    )
    header, trained = unpack(train(training_set, int(datetime.now(UTC).timestamp() * 1e9)))
    advice = ModelContext(trained, header.name(), listing((), (), None, records.priced), records.measured())
    predictions = []
    for task in dict.fromkeys(task for task, _ in asked):
        wanted = tuple(where for one, where in asked if one == task)
        answered = predict(PredictRequest(task=TaskFeatures(task=task), configurations=wanted), advice).predictions
        predictions += [Predicted(task=task, prediction=one) for one in answered]
    return Promise(header.name(), trained.level, tuple(predictions))


def unmeasured(grid: Grid, cores: int, found: JobFile, count: int) -> list[Row]:
    """Configurations that the grid leaves out and the file has not, round robin over the tasks that the file holds.

    Raises:
        CheckFailedError: there is none.
    """
    measured = {_key(record.task.task, record.configuration) for record in found.records}
    tasks = {record.task.task for record in found.records}
    left = [draw_configurations(grid, task, cores)[1] for task in grid.tasks if task in tasks]
    in_turn = [row for rows in zip_longest(*left) for row in rows if row is not None]
    asked = [row for row in in_turn if _key(row.task, _configuration(row)) not in measured][:count]
    if not asked:
        raise CheckFailedError("the grid leaves out nothing of the tasks that the data holds")
    return asked


def _configuration(row: Row) -> Configuration:
    return row.instance.configuration(row.workers, row.batch_size)


def make_runs(grid: Grid, rows: Sequence[Row], found: JobFile, out: Path, trainer: ForkServer) -> list[JobRecord]:
    """Run each on the emulated cloud; their records are in the directory's journal, too."""
    features = {record.task.task: record.task for record in found.records}
    checked = grid.model_copy(update={"dataset": f"{grid.dataset}-check", "local_run": None})
    records = []
    with Journal(out) as journal:
        name = campaign_name(out, checked, rows)
        campaign = Campaign(checked, rows, name, journal, trainer, lambda *_: None)
        for row in rows:
            records.append(job_record(checked, name, row, features[row.task], campaign.make(row)))
            journal.append(records[-1])
            say(f"{row}: {records[-1].state}")
    return records


def write_predictions(promise: Promise, path: Path) -> Promise:
    """Fix the predictions: what was written once is not written over.

    Raises:
        CheckFailedError: there are some already.
    """
    text = json.dumps([one.model_dump(mode="json") for one in promise.predictions], indent=1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError as error:
        raise CheckFailedError(f"{path} was written by an earlier check: give another --out") from error
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return replace(promise, digest=digest, written=datetime.now(UTC).isoformat(timespec="seconds"))


def check(options: argparse.Namespace) -> tuple[list[Checked], Promise]:
    """All of it.

    Raises:
        CheckFailedError, JobFileError, JournalError, BadGridError, CommandError: with the reason.
    """
    found, grid = read_job_file(options.data), read(options.grid)
    rows = unmeasured(grid, machine_cores(), found, options.count)
    say(f"learning from {len(found.records)} records and {len(found.profiles)} local runs")
    path = options.out / PREDICTIONS
    path.parent.mkdir(parents=True, exist_ok=True)
    promise = write_predictions(promised(found, [(row.task, _configuration(row)) for row in rows], options.seed), path)
    say(f"{len(rows)} predictions in {path}, SHA-256 {promise.digest}; now they run")
    with ForkServer() as trainer:
        return joined(promise.predictions, make_runs(grid, rows, found, options.out / CHECKS, trainer)), promise


def main() -> int:
    """Predict, run, report; 69 where that cannot be done here."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.advisor_live_check", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Parquet file of records and local runs")
    parser.add_argument("--out", type=Path, required=True, help="directory of this check; a new one each time")
    parser.add_argument("--grid", type=Path, default=SHIPPED, help="that the data is of (default: the shipped one)")
    parser.add_argument("--count", type=int, default=10, help="configurations (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the training (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    machine = this_machine()
    try:
        checked, promise = check(options)
    except (CheckFailedError, JobFileError, JournalError, BadGridError, CommandError) as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    found = {"machine": machine.as_dict(), **record(checked, promise)}
    table = f"{markdown(checked, promise)}\nMachine: {machine.line}."
    written = [write_record(found, options.out / f"{REPORT}.json"), options.out / f"{REPORT}.md"]
    written[-1].write_text(table + "\n", encoding="utf-8")
    tell(table, found, written, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

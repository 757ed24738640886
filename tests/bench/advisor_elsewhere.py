"""Local runs on other machines than those of the records: ``make bench-advisor ARGS=--elsewhere`` (2 minutes).

Of the shipped data set each task is left out in turn. A question about it has a local run at the reference, as those of
the records; then, one after another, some of its own measured rows in the place of a local run on a machine that the
records do not name. All questions go the way of `turnbuckle advise`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from schemas.jobs import Configuration, JobRecord, JobState
from schemas.predictions import ModelName, PredictRequest
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.answers import ModelContext, predict
from services.advisor.core.catalogue import Listing
from services.advisor.core.encoder import configuration_key
from services.advisor.model_lineages import read_datasets
from services.advisor.models.gp.algorithm import GpAlgorithm
from services.advisor.records import Records
from services.advisor.settings import SHIPPED
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, say, tell, text_table, write_record

PLACES: Final = 8
"""Rows of each task that stand for its local run."""
_MODEL: Final = ModelName(model="gp", version="bench", data_hash="", records=0, tasks=0, trained_ns=0)


@dataclass(frozen=True, slots=True)
class AnswerError:
    """One configuration's answer beside what was measured there."""

    place: str
    """``reference`` or ``elsewhere``."""
    task: str
    relative: float
    """Median over the measured duration, less 1."""
    inside: bool
    """The interval has the measured duration."""
    known: bool


def measured_elsewhere(row: JobRecord) -> RunProfile:
    """Return a finished local run on a machine of these sizes that has no name, without series."""
    assert row.duration_s is not None
    place = row.configuration.model_copy(update={"instance_type": "local", "provider": "local", "memory_gb": 24.0})
    return RunProfile(
        run="elsewhere", task=row.task, configuration=place, duration_s=row.duration_s, end=RunEnd.FINISHED, workers=()
    )


def questions(rows: Sequence[JobRecord], reference: RunProfile) -> Iterator[tuple[str, RunProfile, list[JobRecord]]]:
    """Yield place, local run and the rows that are asked about, which are not that run."""
    yield "reference", reference, list(rows)
    for at in np.unique(np.linspace(0, len(rows) - 1, PLACES).astype(int)).tolist():
        local = configuration_key(rows[at].configuration)
        yield (
            "elsewhere",
            measured_elsewhere(rows[at]),
            [one for one in rows if configuration_key(one.configuration) != local],
        )


def errors(records: Sequence[JobRecord], profiles: Sequence[RunProfile], task: str) -> list[AnswerError]:
    """Leave a task out and ask about each of its rows."""
    known = Records({task})
    for profile in profiles:
        if profile.task.task != task:
            known.add_run(profile)
    for one in records:
        known.add(one)
    trained = GpAlgorithm().fit(list(known.jobs.values()), dict(known.runs), seed=0)
    context = ModelContext(trained, _MODEL, Listing({}), known.measured())
    rows = [one for one in records if one.task.task == task and one.state is JobState.SUCCEEDED and one.duration_s]
    (reference,) = [one for one in profiles if one.task.task == task and one.end is RunEnd.FINISHED]
    found = []
    for place, profile, asked in questions(rows, reference):
        durations = defaultdict(list)
        for one in asked:
            durations[configuration_key(one.configuration)].append(float(one.duration_s or 0.0))
        where: dict[str, Configuration] = {configuration_key(one.configuration): one.configuration for one in asked}
        request = PredictRequest(task=rows[0].task, profile=profile, configurations=tuple(where.values()))
        for key, one in zip(where, predict(request, context).predictions, strict=True):
            true_s = float(np.exp(np.mean(np.log(durations[key]))))
            inside = one.time_s.low <= true_s <= one.time_s.high
            found.append(AnswerError(place, task, one.time_s.median / true_s - 1.0, inside, one.known))
    return found


def summary(found: Sequence[AnswerError]) -> dict[str, dict[str, float]]:
    """Return, by place: answers, median of the absolute error, share of intervals that held, share that is known."""
    rows = {}
    for place in dict.fromkeys(one.place for one in found):
        mine = [one for one in found if one.place == place]
        known = [one for one in mine if one.known]
        rows[place] = {
            "answers": len(mine),
            "known_share": len(known) / len(mine),
            "median_error": float(np.median([abs(one.relative) for one in known])),
            "p90_error": float(np.quantile([abs(one.relative) for one in known], 0.9)),
            "held_share": float(np.mean([one.inside for one in known])),
        }
    return rows


def page_table(rows: Mapping[str, Mapping[str, float]], machine: Machine) -> dict[str, Any]:
    """Return the rows as a table of docs/benchmarks.md."""
    columns = ["local run", "answers", "median error", "90th percentile", "intervals that held"]
    shares = ("median_error", "p90_error", "held_share")
    return {
        "machine": machine.as_dict(),
        "columns": columns,
        "rows": [
            [place, f"{one['answers']:,.0f}", *(f"{100 * one[name]:.0f}%" for name in shares)]
            for place, one in rows.items()
        ],
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.advisor --elsewhere")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    machine = this_machine()
    say(machine.line)
    data = read_datasets((SHIPPED,))
    found: list[AnswerError] = []
    for task in sorted({one.task.task for one in data.records}):
        found += errors(data.records, data.profiles, task)
        say(f"{task}: {json.dumps(summary([one for one in found if one.task == task]))}")
    rows = summary(found)
    table = page_table(rows, machine)
    record = {"by_place": rows, "tables": {"elsewhere": table}}
    written = [write_record(record, OUTPUT / "advisor-elsewhere.json")]
    tell("\n".join(text_table("left-out tasks", table)), record, written, as_json=given.json)
    return 0

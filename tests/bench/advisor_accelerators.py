"""Training steps on left-out models and left-out GPUs: ``make bench-advisor ARGS=--accelerators`` (10 minutes).

On the public GPU set that the advisor ships, as far as the work of its models is counted. Laws are compared on the same
questions: steps for which there is a device ratio; of a left-out GPU there is none.

- *run on another GPU*: the same step, batch and precision, was measured on one other device.
- *no run on a GPU*: only the step's operations and bytes are known, counted on a CPU.

Stated by others, of other models and devices: Habitat (Yu et al., USENIX ATC 2021), from a run on another GPU; AI Gauge
(IBM), from a history of the same kind of job.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from typing import Any, Final

import numpy as np

from schemas.jobs import JobRecord
from schemas.runs import RunEnd, RunProfile
from services._jobs.record_files import read_job_file
from services.advisor.core.accelerator_times import (
    APPLICATION,
    AcceleratorTimes,
    Estimate,
    Step,
    application_of,
)
from services.advisor.core.arrays import BoolArray
from services.advisor.core.roofline import precision_of, step_parts_s
from services.advisor.core.table import Table, build
from services.advisor.model_lineages import ACCELERATOR_DATA
from services.advisor.models.gp.predictor import GpPredictor
from tests.bench.outcome import OUTPUT, say, write_record

MODEL_RUN: Final = "left-out model, run on another GPU"
MODEL_ALONE: Final = "left-out model, no run on a GPU"
GPU_RUN: Final = "left-out GPU, run on another GPU"
BOTH_RUN: Final = "left-out model and GPU, run on a P100, V100 or L4"
_REFERENCES: Final = ("P100", "V100", "L4")
BOTH_ALONE: Final = "left-out model and GPU, no run on a GPU"
BATCH: Final = "run on the same GPU with half or twice the batch"
RATIO, ROOFLINE, LARGER, PROCESS = "device ratio", "roofline", "roofline, larger term only", "Gaussian process"
STATED: Final = (("Habitat, from a run on another GPU", "11.8%"), ("AI Gauge, from a history of the kind", "7 to 8%"))
"""Mean errors, as their authors state them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Absolute relative errors of one law in one scenario."""

    scenario: str
    law: str
    median: float
    p90: float
    questions: int
    inside: float | None
    """Share of questions inside of the interval; None: the law has none here."""


class Errors:
    """Errors of logarithms, and whether they were inside of the interval, by scenario and law."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, str], list[tuple[float, bool | None]]] = defaultdict(list)

    def add(self, scenario: str, law: str, error: float, half_width: float | None = None) -> None:
        """Add one question's error."""
        inside = None if half_width is None else abs(error) <= half_width
        self._found[scenario, law].append((error, inside))

    def summaries(self) -> list[Summary]:
        """Return one summary of each scenario and law."""
        found = []
        for (scenario, law), pairs in self._found.items():
            sizes = np.abs(np.expm1([error for error, _ in pairs]))
            inside = [one for _, one in pairs if one is not None]
            share = float(np.mean(inside)) if inside else None
            ends = float(np.median(sizes)), float(np.quantile(sizes, 0.9))
            found.append(Summary(scenario, law, *ends, len(pairs), share))
        return found


def public_records() -> list[JobRecord]:
    """Return the shipped public GPU set, as far as its work is counted."""
    return [one for one in read_job_file(ACCELERATOR_DATA).records if one.task.step_flops]


def with_kin(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the records with each size of a model as an application of its own: others of its kind stay known."""
    return [
        one.model_copy(
            update={"task": one.task.model_copy(update={"attributes": {APPLICATION: one.task.task.partition(" ")[0]}})}
        )
        for one in records
    ]


def evaluated(records: Sequence[JobRecord]) -> list[Summary]:
    """Return the errors of device ratio and roofline: each application, or each device, left out."""
    errors, times = Errors(), AcceleratorTimes.of(records)
    for name in sorted({application_of(one.task) for one in times.steps}):
        others = times.without(name)
        mine = tuple(one for one in times.steps if application_of(one.task) == name)
        for here, there in AcceleratorTimes(mine).pairs():
            if others.device_ratio(here.where, there.where) is not None:
                _add(errors, MODEL_RUN, RATIO, others.from_run(here, there.task, there.where), there)
                _add_rooflines(errors, MODEL_RUN, here, there)
        elsewhere = {device: _without_device(others, device) for device in {one.device for one in mine}}
        for here, there in AcceleratorTimes(mine).pairs():
            if here.device in _REFERENCES:
                known = elsewhere[there.device]
                _add(errors, BOTH_RUN, ROOFLINE, known.from_run(here, there.task, there.where), there)
        for here, there in permutations(mine, 2):
            if is_next_batch(here, there):
                _add(errors, BATCH, ROOFLINE, others.from_run(here, there.task, there.where), there)
        for one in mine:
            _add(errors, MODEL_ALONE, ROOFLINE, others.from_work(one.task, one.where), one)
            _add(errors, BOTH_ALONE, ROOFLINE, elsewhere[one.device].from_work(one.task, one.where), one)
    all_but = {device: _without_device(times, device) for device in {one.device for one in times.steps}}
    for here, there in times.pairs():
        _add(errors, GPU_RUN, ROOFLINE, all_but[there.device].from_run(here, there.task, there.where), there)
        _add_rooflines(errors, GPU_RUN, here, there)
    return errors.summaries()


def is_next_batch(here: Step, there: Step) -> bool:
    """Whether two steps differ by half or twice the batch alone."""
    same = (here.task, here.device, here.where.attributes) == (there.task, there.device, there.where.attributes)
    return same and there.where.batch_size / here.where.batch_size in (0.5, 2.0)


def _add(errors: Errors, scenario: str, law: str, answer: Estimate | None, truth: Step) -> None:
    """Add an answer as the advisor gives it, with its interval."""
    if answer is not None:
        errors.add(scenario, law, answer.log - math.log(truth.measured_s), answer.half_width)


def _add_rooflines(errors: Errors, scenario: str, here: Step, there: Step) -> None:
    """Add the ratios of both rooflines, the sum of their terms and the larger one, without intervals."""
    before, after = step_parts_s(here.task, here.where), step_parts_s(there.task, there.where)
    assert before is not None
    assert after is not None
    ratio = math.log(there.measured_s / here.measured_s)
    errors.add(scenario, LARGER, math.log(max(after) / max(before)) - ratio)
    if scenario == MODEL_RUN:
        errors.add(scenario, ROOFLINE, math.log(sum(after) / sum(before)) - ratio)


def _without_device(times: AcceleratorTimes, device: str) -> AcceleratorTimes:
    return replace(times, steps=tuple(one for one in times.steps if one.device != device))


# -- the Gaussian process on the same questions ---------------------------------------------------------------------


def process_evaluated(records: Sequence[JobRecord]) -> list[Summary]:
    """Return the errors of the advisor's process: fitted for each device of local runs, and all that is left out."""
    errors, times = Errors(), AcceleratorTimes.of(records)
    devices = sorted({one.device for one in times.steps})
    for device in devices:
        say(f"the Gaussian process, from runs on {device}")
        asked = Asked.of(records, device)
        there = {one: np.array([each.configuration.accelerator == one for each in asked.records]) for one in devices}
        del there[device]
        for name in sorted({application_of(one.task) for one in asked.records}):
            of_it = np.array([application_of(one.task) == name for one in asked.records])
            asked.add_errors(errors, MODEL_RUN, of_it & asked.has_ratio(times.without(name)), ~of_it)
            for other in there.values() if device in _REFERENCES else ():
                asked.add_errors(errors, BOTH_RUN, of_it & other, ~(of_it | other))
        for other in there.values():
            asked.add_errors(errors, GPU_RUN, other, ~other)
    return errors.summaries()


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Records of steps that were also run on one device, with that run as their local run."""

    records: list[JobRecord]
    runs: dict[str, RunProfile]
    table: Table

    @staticmethod
    def of(records: Sequence[JobRecord], device: str) -> Asked:
        """Return the records with local runs on a device."""
        runs = {_step_name(one): _local_run(one) for one in records if one.configuration.accelerator == device}
        kept = [one.model_copy(update={"local_run": name}) for one in records if (name := _step_name(one)) in runs]
        return Asked(kept, runs, build(kept, runs)[0])

    def has_ratio(self, others: AcceleratorTimes) -> BoolArray:
        """Return which records are on a device whose ratio to the local run's is known, shape ``(records,)``."""
        pairs = ((self.runs[one.local_run].configuration, one.configuration) for one in self.records)
        return np.array([others.device_ratio(here, there) is not None for here, there in pairs])

    def add_errors(self, errors: Errors, scenario: str, asked: BoolArray, known: BoolArray) -> None:
        """Fit to the known rows and add the errors on those asked, less the local runs' own."""
        questions = self.table.select(asked & ~self.table.is_reference)
        if not len(questions):
            return
        medians_s = GpPredictor.fit(self.table.select(known), seed=0).predict(questions.without_outcomes())
        for error in np.log(medians_s / questions.time_s):
            errors.add(scenario, PROCESS, float(error))


def _step_name(record: JobRecord) -> str:
    return f"{record.task.task} x{record.configuration.batch_size} {precision_of(record.configuration)}"


def _local_run(record: JobRecord) -> RunProfile:
    return RunProfile(
        run=_step_name(record),
        task=record.task,
        configuration=record.configuration,
        duration_s=record.duration_s or 0.0,
        end=RunEnd.FINISHED,
        workers=(),
    )


# -- report ---------------------------------------------------------------------------------------------------------


def report(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the table for docs: a row for each scenario and law, the best one first."""
    rows = [
        [
            one.scenario,
            one.law,
            f"{one.median:.1%}",
            f"{one.p90:.0%}",
            "" if one.inside is None else f"{one.inside:.0%}",
            f"{one.questions:,}",
        ]
        for one in sorted(summaries, key=lambda each: (each.scenario, each.median))
    ]
    rows += [["stated by its authors, of other models and devices", *one, "", "", ""] for one in STATED]
    columns = ["", "by", "median error", "90th percentile", "in the interval", "questions"]
    return {"machine": "of shipped measurements: the same on every machine", "columns": columns, "rows": rows}


def main() -> int:
    """Measure and report."""
    records = public_records()
    strict = evaluated(records) + process_evaluated(records)
    kin = [one for one in evaluated(with_kin(records)) if one.scenario in (MODEL_RUN, MODEL_ALONE)]
    summaries = strict + [replace(one, scenario=f"{one.scenario}, others of its kind known") for one in kin]
    table = report(summaries)
    print("\n".join(" | ".join(row) for row in [table["columns"], *table["rows"]]))
    record = {"summaries": [asdict(one) for one in summaries], "tables": {"laws": table}}
    say(f"written: {write_record(record, OUTPUT / 'advisor-accelerators.json')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

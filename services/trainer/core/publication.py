"""What is published of a training, out of what its ranks report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.measured_runs import MeasuredRun
from schemas.plans import Plan
from schemas.trainings import MAX_STEP_ROWS, STEP_COLUMNS, StepBatch

MOST_PLAN_BYTES: Final = 24 << 10
"""As JSON, which is longer than msgpack: some 150 devices. The stream takes 32 KiB of an event."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the command."""

    job: str
    node: str
    training: str
    """Drawn anew by each start."""


def step_batches(start: Start, report: Mapping[str, Any], time_ns: int) -> Iterator[StepBatch]:
    """A rank's report (`services/trainer/worker/report.py` has its form) as messages of at most `MAX_STEP_ROWS`."""
    for first in range(0, len(report["step"]), MAX_STEP_ROWS):
        rows = slice(first, first + MAX_STEP_ROWS)
        columns = {name: tuple(report[name][rows]) for name in STEP_COLUMNS}
        yield StepBatch(
            job=start.job,
            node=start.node,
            training=start.training,
            rank=report["rank"],
            time_ns=time_ns,
            **columns,
        )


def published_plan(plan: Plan) -> Plan | None:
    """The plan as an event has it: without what was not chosen, and what is run; None: it is still too large."""
    short = plan.model_copy(update={"alternatives": (), "launch": (), "reasons": ()})
    return short if len(short.model_dump_json().encode()) <= MOST_PLAN_BYTES else None


def published_run(run: MeasuredRun | None) -> MeasuredRun | None:
    """The run as an event has it; None: there is none, or it is too large, of hundreds of kinds of devices."""
    return run if run is not None and len(run.model_dump_json().encode()) <= MOST_PLAN_BYTES else None

"""A trace of jobs, from CSV or from records of one's own: what was submitted when, for how many slots, for how long.

Of an elastic job slots and duration are those of the number of workers that it asks for; each worker has one slot.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from schemas.jobs import Configuration, JobRecord, JobState
from schemas.scheduling import CLUSTER, MAX_WORKERS
from services.scheduler.core.jobs import Elastic, Job
from services.scheduler.core.policies import HOLD_COSTS
from services.scheduler.core.speedup import speedups

MOST_JOBS: Final = 1_000_000
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "job": ("job", "job_id", "name"),
    "slots": ("slots", "num_gpu", "gpus"),
    "submitted": ("submitted_s", "submit_time"),
    "duration": ("duration_s", "duration"),
}
"""What is read, and the names that a column may have: ours, then those of Tiresias' and Gavel's traces."""
_MODEL: Final = ("model", "model_name")
_LEAST, _MOST, _DEADLINE, _BUDGET = "min_workers", "max_workers", "deadline_s", "budget_slot_hours"
PAUSE_S: Final = 10.0
"""Of a change of the number of workers, where nothing else is said."""


class TraceError(ValueError):
    """The file is no trace. The message names file, line and column."""


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How jobs of a trace become elastic that have no numbers of workers of their own there."""

    least_workers: int = 0
    most_workers: int = 0
    """0: they do not."""
    pause_s: float = PAUSE_S
    """Of all elastic jobs: without progress at a change of the number of workers."""

    def of(self, slots: int, submitted_s: float, row: _Range) -> Elastic | None:
        """A job's numbers of workers: as many as it asks for are always possible; None: only so many are.

        So it is, too, with a job that asks for more than `MAX_WORKERS`.
        """
        if not (row.least or row.most or self.most_workers) or max(slots, row.most) > MAX_WORKERS:
            return None
        its_own = bool(row.least or row.most)
        least = (row.least or slots) if its_own else min(self.least_workers, slots)
        most = (row.most or slots) if its_own else max(self.most_workers, slots)
        return Elastic(
            least,
            most,
            speedups(row.model, most),
            pause_s=self.pause_s,
            hold_s=HOLD_COSTS * self.pause_s,
            deadline_s=submitted_s + row.deadline_s if row.deadline_s else None,
            budget_slot_s=3_600 * row.budget_slot_hours if row.budget_slot_hours else None,
        )


@dataclass(frozen=True, slots=True)
class _Range:
    """What a row says of a job's numbers of workers; 0: nothing."""

    model: str = ""
    least: int = 0
    most: int = 0
    deadline_s: float = 0.0
    """Since its submission."""
    budget_slot_hours: float = 0.0


RIGID: Final = Elasticity()


def read_trace(path: Path, elasticity: Elasticity = RIGID) -> list[Job]:
    """The jobs, by submission. Other columns are ignored; times are in seconds since any moment.

    Columns that may be there: the model (by which a speed-up is known), ``min_workers`` and ``max_workers`` (one of
    them makes a job elastic), and for elastic jobs ``deadline_s`` (since the submission) or ``budget_slot_hours``.

    Raises:
        TraceError: it cannot be read, or a row has no such job.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            names = _names(path, rows.fieldnames or ())
            jobs = [_job(f"{path}:{rows.line_num}", names, row, elasticity) for row in islice(rows, MOST_JOBS + 1)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    if not jobs:
        raise TraceError(f"{path}: no job in it")
    if len(jobs) > MOST_JOBS:
        raise TraceError(f"{path}: more than {MOST_JOBS} jobs")
    name, times = Counter(job.name for job in jobs).most_common(1)[0]
    if times > 1:
        raise TraceError(f"{path}: job {name!r} is there {times} times")
    return sorted(jobs, key=lambda job: job.submitted_s)


def trace_of(records: Iterable[JobRecord], since_s: float, elasticity: Elasticity = RIGID) -> tuple[list[Job], int]:
    """The jobs that were submitted since then, by submission; and how many records have no start or duration.

    Of the cluster's own jobs a record tells the submission and the slots. Of others it tells when a job began, not
    since when it had waited: that counts as its submission, and each worker as a slot.

    Args:
        records: of ended jobs; those that did not succeed ran as well, and count.
        since_s: Unix time.
        elasticity: of all of them; a speed-up is known by the name of the task.
    """
    known = [each for each in records if each.state is not JobState.CANCELLED]
    jobs = [
        Job(
            each.job,
            _slots(each.configuration),
            _submitted_s(each),
            duration_s=each.duration_s,
            elastic=elasticity.of(_slots(each.configuration), _submitted_s(each), _Range(each.task.task)),
        )
        for each in known
        if each.started_ns and each.duration_s and _submitted_s(each) >= since_s
    ]
    untold = sum(not (each.started_ns and each.duration_s) for each in known)
    return sorted(jobs, key=lambda job: job.submitted_s), untold


def _submitted_s(record: JobRecord) -> float:
    return (record.submitted_ns or record.started_ns) / 1e9


def _slots(configuration: Configuration) -> int:
    each = configuration.attributes.get("slots", 1.0) if configuration.provider == CLUSTER else 1.0
    return configuration.workers * (int(each) if isinstance(each, float) else 1)


def _names(path: Path, header: Iterable[str]) -> dict[str, str]:
    there = list(header)
    names = {}
    for what, choices in _COLUMNS.items():
        found = next((name for name in choices if name in there), None)
        if found is None:
            raise TraceError(f"{path}: no column {' or '.join(choices)}; there are {', '.join(there) or 'none'}")
        names[what] = found
    return names | {name: name for name in (*_MODEL, _LEAST, _MOST, _DEADLINE, _BUDGET) if name in there}


def _job(where: str, names: Mapping[str, str], row: Mapping[str, str | None], elasticity: Elasticity) -> Job:
    slots = _number(where, names["slots"], row, least=1)
    if slots != int(slots):
        raise TraceError(f"{where}: {names['slots']} {slots:g} is no whole number")
    submitted_s = _number(where, names["submitted"], row, least=0)
    asked = _range(where, names, row, int(slots))
    elastic = elasticity.of(int(slots), submitted_s, asked)
    if elastic is None and (asked.deadline_s or asked.budget_slot_hours):
        raise TraceError(
            f"{where}: a deadline or budget chooses among numbers of workers: give {_LEAST} or {_MOST}, too"
        )
    return Job(
        row.get(names["job"]) or where,
        int(slots),
        submitted_s,
        duration_s=_number(where, names["duration"], row, least=0),
        elastic=elastic,
    )


def _range(where: str, names: Mapping[str, str], row: Mapping[str, str | None], slots: int) -> _Range:
    model = next((row.get(name) for name in _MODEL if name in names), None) or ""
    least, most, deadline_s, budget = (
        _number(where, name, row, least=smallest) if name in names and row.get(name) else 0
        for name, smallest in ((_LEAST, 1), (_MOST, 1), (_DEADLINE, 1), (_BUDGET, 0.001))
    )
    for name, workers in ((_LEAST, least), (_MOST, most)):
        if workers != int(workers):
            raise TraceError(f"{where}: {name} {workers:g} is no whole number")
        if workers > MAX_WORKERS:
            raise TraceError(f"{where}: {name} {workers:g} is more than {MAX_WORKERS}")
    if (least or slots) > slots or (most or slots) < slots:
        raise TraceError(f"{where}: {names['slots']} {slots} is not between {_LEAST} {least:g} and {_MOST} {most:g}")
    if (least or most) and slots > MAX_WORKERS:
        raise TraceError(f"{where}: {names['slots']} {slots} of an elastic job is more than {MAX_WORKERS}")
    if deadline_s and budget:
        raise TraceError(f"{where}: {_DEADLINE} and {_BUDGET} are both there: keep one")
    return _Range(model, int(least), int(most), deadline_s, budget)


def _number(where: str, column: str, row: Mapping[str, str | None], least: float) -> float:
    text = row.get(column)
    try:
        value = float(text or "")
    except ValueError:
        raise TraceError(f"{where}: {column} {text!r} is no number") from None
    if not least <= value < math.inf:
        raise TraceError(f"{where}: {column} {text} is not between {least:g} and infinity")
    return int(value) if value == int(value) else value

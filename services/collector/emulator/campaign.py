"""A grid's runs, one after the other: what is done is in the journal, so that it goes on wherever it was stopped."""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from schemas.jobs import JobRecord, JobState, TaskFeatures
from schemas.runs import RunProfile
from services.collector.emulator.grid import Grid, Row, grid_digest
from services.collector.emulator.orders import Order, Outcome
from services.collector.emulator.records import job_name, job_record, local_profile, local_run_name
from services.collector.tool import BadDataError, UnavailableError
from services.collector.write_ahead_log import Journal

CAMPAIGN_FILE: Final = "campaign.json"
_FIRST_GUESS_S: Final = 8.0
"""Wall time of one run, before there is any."""


class Trainer(Protocol):
    """What makes the runs."""

    def features(self, task: str) -> TaskFeatures:
        """Of one task."""
        ...

    def run(self, order: Order) -> Outcome:
        """Make a run."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    done: int
    """Of all, those of earlier starts included."""
    total: int
    elapsed_s: float
    """Since this start."""
    left_s: float


Told = Callable[[JobRecord | RunProfile, Outcome, Progress], None]


def campaign_name(directory: Path, grid: Grid, rows: Sequence[Row]) -> str:
    """The directory's own name, which begins the names of its jobs; made at its first use.

    Raises:
        BadDataError: it was begun with another grid, or cannot be read or written.
    """
    path = directory / CAMPAIGN_FILE
    expected = grid_digest(rows, grid)
    try:
        if path.exists():
            begun = json.loads(path.read_text(encoding="utf-8"))
            if begun["grid"] != expected:
                raise BadDataError(f"{directory} was begun with another grid: give another --out, or the grid it had")
            return str(begun["campaign"])
        name = f"{grid.dataset}-{secrets.token_hex(3)}"
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps({"campaign": name, "grid": expected}) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise BadDataError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadDataError(f"{path} is damaged: give another --out") from error
    return name


@dataclass(slots=True)
class Campaign:
    """One directory's runs."""

    grid: Grid
    rows: Sequence[Row]
    name: str
    journal: Journal
    trainer: Trainer
    told: Told
    stop_after_s: float = math.inf
    """From the start of `go_on`: no run is begun later; what is left is made by a later start."""
    _features: dict[str, TaskFeatures] = field(default_factory=dict)
    _walls_s: list[float] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def pending(self) -> list[Row]:
        """Rows without a record, in their order."""
        return [row for row in self.rows if f"job:{job_name(self.name, row)}" not in self.journal]

    def pending_profiles(self) -> list[str]:
        """Tasks without a local run."""
        if self.grid.local_run is None:
            return []
        return [task for task in self.grid.tasks if f"run:{local_run_name(self.name, task)}" not in self.journal]

    def go_on(self) -> None:
        """Make every run that has no record yet, within the time that was given."""
        for task in self.pending_profiles():
            if self._is_late():
                return
            self._profile(task)
        for row in self.pending():
            if self._is_late():
                return
            outcome = self.make(row)
            self._keep(job_record(self.grid, self.name, row, self.features(row.task), outcome), outcome)

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > self.stop_after_s

    def make(self, row: Row) -> Outcome:
        """Make one run; once more where it failed for another reason than memory or time: a connection, say."""
        outcome = self.trainer.run(self.order(row))
        return self.trainer.run(self.order(row)) if outcome.state is JobState.FAILED else outcome

    def order(self, row: Row) -> Order:
        """The run's order; repeats differ in their seed."""
        draw = random.Random(f"{self.grid.seed}:{row.key}")  # noqa: S311 - reproducible, no secret
        seed = draw.randrange(2**31)
        return Order(row.task, row.instance, row.workers, row.batch_size, seed, self.grid.timeout_s)

    def features(self, task: str) -> TaskFeatures:
        """Of one task; asked for once."""
        if task not in self._features:
            self._features[task] = self.trainer.features(task)
        return self._features[task]

    def _profile(self, task: str) -> None:
        local = self.grid.local_run
        assert local is not None
        seed = random.Random(f"{self.grid.seed}:local:{task}").randrange(2**31)  # noqa: S311 - no secret
        order = Order(task, local.machine, local.workers, local.batch_size, seed, local.timeout_s, local.interval_s)
        outcome = self.trainer.run(order)
        if outcome.state not in (JobState.SUCCEEDED, JobState.TIMED_OUT):
            raise UnavailableError(f"the local run of {task} {outcome.state}: {outcome.reason}")
        self._keep(local_profile(self.grid, self.name, self.features(task), outcome), outcome)

    def _keep(self, record: JobRecord | RunProfile, outcome: Outcome) -> None:
        self.journal.append(record)
        self._walls_s.append(outcome.wall_s)
        self.told(record, outcome, self.progress())

    def progress(self) -> Progress:
        """What is left takes as long as what was done, on average."""
        left = len(self.pending()) + len(self.pending_profiles())
        total = len(self.rows) + (len(self.grid.tasks) if self.grid.local_run else 0)
        mean_s = sum(self._walls_s) / len(self._walls_s) if self._walls_s else _FIRST_GUESS_S
        return Progress(total - left, total, time.monotonic() - self._began, left * mean_s)


def machine_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))

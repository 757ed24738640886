"""Campaign: a grid's runs in sequence; finished ones are in the journal, so an interrupted campaign continues."""

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
from typing import Final

from schemas.jobs import CostKind, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import MachineSpeed, RunEnd, RunProfile
from services._runtime.atomic_file import write_atomically
from services._runtime.command.errors import UnavailableError
from services.collector.emulator.fork_client import ForkServer
from services.collector.emulator.grid import Grid, Row, grid_digest
from services.collector.emulator.instance_types import price, snapshot
from services.collector.emulator.run_request import RunOutcome, RunRequest
from services.collector.tool import BadDataError
from services.collector.write_ahead_log import Journal

CAMPAIGN_FILE: Final = "campaign.json"
_FIRST_GUESS_S: Final = 8.0
"""Wall time of one run, before there is any."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a campaign."""

    done: int
    """Including earlier starts."""
    total: int
    elapsed_s: float
    """Since this start."""
    left_s: float


OnRecord = Callable[[JobRecord | RunProfile, RunOutcome, Progress], None]


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
        write_atomically(path, json.dumps({"campaign": name, "grid": expected}) + "\n")
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
    trainer: ForkServer
    on_record: OnRecord
    stop_after_s: float = math.inf
    """Seconds from the start of `go_on` after which no run is started."""
    calibrate: Callable[[], MachineSpeed | None] = lambda: None
    """Measures this machine, once before the local runs."""
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
        tasks = self.pending_profiles()
        speed = self.calibrate() if tasks else None
        for task in tasks:
            if self._is_late():
                return
            self._profile(task, speed)
        for row in self.pending():
            if self._is_late():
                return
            outcome = self.make(row)
            self._keep(job_record(self.grid, self.name, row, self.features(row.task), outcome), outcome)

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > self.stop_after_s

    def make(self, row: Row) -> RunOutcome:
        """Make one run; repeat it once if it failed for another reason than memory or time, such as a connection."""
        outcome = self.trainer.run(self.request(row))
        return self.trainer.run(self.request(row)) if outcome.state is JobState.FAILED else outcome

    def request(self, row: Row) -> RunRequest:
        """The run's request; repeats differ in their seed."""
        draw = random.Random(f"{self.grid.seed}:{row.key}")  # noqa: S311 - reproducible, no secret
        seed = draw.randrange(2**31)
        return RunRequest(row.task, row.instance, row.workers, row.batch_size, seed, self.grid.timeout_s)

    def features(self, task: str) -> TaskFeatures:
        """Of one task, cached."""
        if task not in self._features:
            self._features[task] = self.trainer.features(task)
        return self._features[task]

    def _profile(self, task: str, speed: MachineSpeed | None) -> None:
        local = self.grid.local_run
        assert local is not None
        seed = random.Random(f"{self.grid.seed}:local:{task}").randrange(2**31)  # noqa: S311 - no secret
        request = RunRequest(
            task, local.machine, local.workers, local.batch_size, seed, local.timeout_s, local.interval_s
        )
        outcome = self.trainer.run(request)
        if outcome.state not in (JobState.SUCCEEDED, JobState.TIMED_OUT):
            raise UnavailableError(f"the local run of {task} {outcome.state}: {outcome.reason}")
        profile = local_profile(self.grid, self.name, self.features(task), outcome)
        self._keep(profile.model_copy(update={"speed": speed}), outcome)

    def _keep(self, record: JobRecord | RunProfile, outcome: RunOutcome) -> None:
        self.journal.append(record)
        self._walls_s.append(outcome.wall_s)
        self.on_record(record, outcome, self.progress())

    def progress(self) -> Progress:
        """Progress, with the remaining time by the mean of the finished runs."""
        left = len(self.pending()) + len(self.pending_profiles())
        total = len(self.rows) + (len(self.grid.tasks) if self.grid.local_run else 0)
        mean_s = sum(self._walls_s) / len(self._walls_s) if self._walls_s else _FIRST_GUESS_S
        return Progress(total - left, total, time.monotonic() - self._began, left * mean_s)


def machine_cores() -> int:
    """CPUs available to this process."""
    return len(os.sched_getaffinity(0))


_SECONDS_PER_HOUR = 3600
_ENDS = {
    JobState.SUCCEEDED: RunEnd.FINISHED,
    JobState.TIMED_OUT: RunEnd.TIMED_OUT,
    JobState.CANCELLED: RunEnd.INTERRUPTED,
}


def job_name(campaign: str, row: Row) -> str:
    """Unique: the campaign is one directory's, the key one run's."""
    return f"{campaign}-{row.key}"


def local_run_name(campaign: str, task: str) -> str:
    """Of a task's local run."""
    return f"{campaign}-local-{task}"


def derived_cost_usd(paid: Price, workers: int, duration_s: float) -> float:
    """Price times machines times duration; a censored duration gives a lower bound."""
    return paid.usd_per_hour * workers * duration_s / _SECONDS_PER_HOUR


def job_record(grid: Grid, campaign: str, row: Row, features: TaskFeatures, outcome: RunOutcome) -> JobRecord:
    """What is known of a run."""
    paid = price(row.instance, snapshot(grid.instance_types))
    cost_usd = None if outcome.duration_s is None else derived_cost_usd(paid, row.workers, outcome.duration_s)
    return JobRecord(
        job=job_name(campaign, row),
        dataset=grid.dataset,
        task=features,
        configuration=row.instance.configuration(row.workers, row.batch_size),
        state=outcome.state,
        duration_s=outcome.duration_s,
        cost_usd=cost_usd,
        cost_kind=CostKind.DERIVED,
        price=paid,
        started_ns=outcome.started_ns,
        repeat=row.repeat,
        contended=row.contended,
        load_average=outcome.load_average,
        local_run=local_run_name(campaign, row.task) if grid.local_run else "",
        reason=outcome.reason,
    )


def local_profile(grid: Grid, campaign: str, features: TaskFeatures, outcome: RunOutcome) -> RunProfile:
    """A task's local run. `grid.local_run` is set."""
    local = grid.local_run
    assert local is not None
    return RunProfile(
        run=local_run_name(campaign, features.task),
        task=features,
        configuration=local.machine.configuration(local.workers, local.batch_size),
        command=("turnbuckle", "emulate", features.task),
        started_ns=outcome.started_ns,
        interval_s=local.interval_s,
        duration_s=outcome.duration_s or 0.0,
        end=_ENDS.get(outcome.state, RunEnd.FAILED),
        exit_codes=outcome.exit_codes,
        workers=outcome.series,
        load_average=outcome.load_average,
        reason=outcome.reason,
    )

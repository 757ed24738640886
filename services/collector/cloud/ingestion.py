"""Ingestion: polls finished cloud jobs and their costs, and appends a record of each job once its cost is final."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import RootModel, ValidationError

from schemas.jobs import CostKind, JobRecord
from services._runtime.atomic_file import write_atomically
from services.collector.cloud.cloud_jobs import CloudJob, CloudState, JobCost, derived_cost, job_record
from services.collector.cloud.cost_settlement import (
    BilledCost,
    CostStability,
    Observation,
    Settlement,
    observe,
    settlement_of,
)
from services.collector.cloud.ports import Billing, CloudError, TrainingCloud
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal, UnsendableRecordError

FILE_NAME: Final = "costs.json"


class _File(RootModel[dict[str, Observation]]):
    """The file's content."""


class CostTracker:
    """Observations by job. If the file is lost, polls are counted anew."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        try:
            self.seen = _File.model_validate_json(self._path.read_bytes()).root
        except (OSError, ValidationError):
            self.seen = {}

    def store(self) -> None:
        """Write the file atomically.

        Raises:
            OSError: it cannot be written.
        """
        write_atomically(self._path, _File(self.seen).model_dump_json(by_alias=True), to_disk=True)


_USAGE_MARGIN: Final = timedelta(days=1)
"""Usage is billed by the hour, which begins before the job."""


@dataclass(slots=True)
class PollResult:
    """Result of one poll."""

    waiting: int = 0
    """Queued jobs."""
    running: int = 0
    unsettled: int = 0
    """Finished jobs whose cost is not final yet."""
    recorded: list[JobRecord] = field(default_factory=list)
    """Appended to the journal (in a dry run: would be)."""
    problems: list[str] = field(default_factory=list)
    """Problems that prevent jobs from being recorded."""


def cost_stability(settings: CollectorSettings) -> CostStability:
    """The settings' criteria of a final cost."""
    return CostStability(
        polls=settings.cost_stable_polls,
        spacing_s=0.9 * settings.billing_poll_s,  # polls are a little irregular
        min_age_s=settings.cost_min_age_hours * 3_600,
        timeout_s=settings.cost_timeout_hours * 3_600,
    )


class Ingestion:
    """Polls the cloud and the billing export. Blocks; not thread-safe."""

    def __init__(
        self, clouds: tuple[TrainingCloud, Billing | None], journal: Journal, settings: CollectorSettings
    ) -> None:
        self._cloud, self._billing = clouds
        self._journal = journal
        self._settings = settings
        self._stability = cost_stability(settings)
        self._costs = CostTracker(journal.directory)
        self._billed: dict[str, BilledCost | None] = {}
        """Result of the last successful poll of costs, by job."""
        self._billing_due_s = 0.0

    def poll(self, now_s: float, *, grid: str | None = None, dry_run: bool = False) -> PollResult:
        """Poll once.

        Args:
            now_s: Unix time.
            grid: only jobs of this grid.
            dry_run: write nothing and count no poll of costs.

        Raises:
            CloudError: jobs cannot be listed.
            JournalError: a record cannot be written; retried at the next poll.
        """
        result = PollResult()
        since = datetime.fromtimestamp(now_s, UTC) - timedelta(days=self._settings.lookback_days)
        finished: list[CloudJob] = []
        for job in _first_of_each(self._cloud.jobs(since=since, grid=grid)):
            result.waiting += job.state is CloudState.WAITING
            result.running += not job.is_finished and job.state is not CloudState.WAITING
            if job.is_finished and f"job:{job.job}" not in self._journal:
                finished.append(job)
        self._record_settled(finished, result, now_s, dry_run=dry_run)
        return result

    def _record_settled(self, jobs: list[CloudJob], result: PollResult, now_s: float, *, dry_run: bool) -> None:
        if self._billing is not None and jobs and (dry_run or now_s >= self._billing_due_s):
            try:
                self._read_costs(self._billing, jobs, now_s, dry_run=dry_run)
            except (CloudError, OSError) as error:
                result.problems.append(f"billing: {error}")
        for job in jobs:
            try:
                cost = self._settled_cost(job, now_s)
                if cost is None:
                    result.unsettled += 1
                    continue
                record = job_record(job, cost)
                if not dry_run:
                    self._journal.append(record)
                    self._costs.seen.pop(job.job, None)
                result.recorded.append(record)
            except (ValueError, UnsendableRecordError) as error:
                result.problems.append(f"{job.job}: {error}")

    def _read_costs(self, billing: Billing, jobs: list[CloudJob], now_s: float, *, dry_run: bool) -> None:
        """Poll the costs of these jobs; observations of others (another grid's) are kept for the lookback."""
        first_ns = min(job.created_ns or job.started_ns or job.ended_ns for job in jobs)
        costs = billing.costs(datetime.fromtimestamp(first_ns / 1e9, UTC) - _USAGE_MARGIN)
        self._billed = {job.job: costs.get(job.job) for job in jobs}
        seen = dict(self._costs.seen)
        for job, billed in self._billed.items():
            observation = observe(seen.pop(job, None), billed, now_s, self._stability)
            if observation is not None:
                seen[job] = observation
        oldest_s = now_s - self._settings.lookback_days * 86_400
        self._costs.seen = {job: observation for job, observation in seen.items() if observation.last_s >= oldest_s}
        if not dry_run:
            self._billing_due_s = now_s + self._settings.billing_poll_s
            self._costs.store()

    def _settled_cost(self, job: CloudJob, now_s: float) -> JobCost | None:
        """None: wait.

        Raises:
            ValueError: the cost is negative, or in a currency without a rate.
        """
        if self._billing is None:
            return derived_cost(job)
        billed = self._billed.get(job.job)
        if billed is not None and billed.unconverted_rows:
            raise ValueError(f"the billing export has no rate to US dollars for {billed.unconverted_rows} of its rows")
        has_no_row = job.job in self._billed and billed is None
        seen = self._costs.seen.get(job.job)
        if seen is None and job.duration_s is None:
            return JobCost(None, CostKind.DERIVED) if has_no_row and self._may_never_cost(job, now_s) else None
        settlement = settlement_of(seen, job.ended_ns / 1e9, now_s, self._stability)
        if settlement is Settlement.DERIVED and has_no_row:  # not if the polls have failed
            return derived_cost(job)
        if settlement in {Settlement.WAIT, Settlement.DERIVED}:
            return None
        assert seen is not None
        if settlement is Settlement.NEGATIVE:
            raise ValueError(f"its billed cost with credits is {seen.usd:.2f} USD: less than nothing")
        return JobCost(max(0.0, seen.usd), CostKind.BILLED)

    def _may_never_cost(self, job: CloudJob, now_s: float) -> bool:
        """Whether a job that never ran may be recorded without a cost, earlier than others: most have no row at all."""
        return now_s - job.ended_ns / 1e9 >= self._stability.min_age_s


def _first_of_each(jobs: list[CloudJob]) -> list[CloudJob]:
    """One job per label value, the first that was created."""
    found: dict[str, CloudJob] = {}
    for job in sorted(jobs, key=lambda job: (job.created_ns, job.name)):
        found.setdefault(job.job, job)
    return list(found.values())


def summary(result: PollResult) -> Iterator[str]:
    """A poll's result as text."""
    yield (
        f"{result.waiting} waiting, {result.running} running, "
        f"{result.unsettled} finished with a cost that is not settled, "
        f"{len(result.recorded)} recorded"
    )
    yield from result.problems

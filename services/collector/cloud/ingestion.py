"""From finished cloud jobs to records in the journal: once each, and not before the cost is settled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from schemas.jobs import CostKind, JobRecord
from services.collector.cloud.cloud_jobs import CloudJob, CloudState, JobCost, derived_cost, job_record
from services.collector.cloud.cost_book import CostBook
from services.collector.cloud.cost_settlement import BilledCost, Patience, Settled, judge, observe
from services.collector.cloud.ports import Billing, CloudError, TrainingCloud
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal, UnsendableRecordError

_USAGE_MARGIN: Final = timedelta(days=1)
"""Usage is billed by the hour, and the hour of the first second begins before it."""


@dataclass(slots=True)
class Look:
    """What one look has shown."""

    waiting: int = 0
    """Jobs that are queued."""
    running: int = 0
    unsettled: int = 0
    """Finished jobs whose cost is not believed yet."""
    recorded: list[JobRecord] = field(default_factory=list)
    """Written to the journal (or, in a dry run, what would be)."""
    problems: list[str] = field(default_factory=list)
    """What keeps a job, or all of them, from being recorded."""


def patience(settings: CollectorSettings) -> Patience:
    """How sure to be of a cost."""
    return Patience(
        looks=settings.cost_stable_polls,
        apart_s=0.9 * settings.billing_poll_s,  # looks are a little irregular
        settle_s=settings.cost_min_age_hours * 3_600,
        give_up_s=settings.cost_timeout_hours * 3_600,
    )


class Ingestion:
    """Looks at the cloud and at the billing export. Blocks; not to be used by two threads at once."""

    def __init__(
        self, clouds: tuple[TrainingCloud, Billing | None], journal: Journal, settings: CollectorSettings
    ) -> None:
        self._cloud, self._billing = clouds
        self._journal = journal
        self._settings = settings
        self._patience = patience(settings)
        self._book = CostBook(journal.directory)
        self._billed: dict[str, BilledCost | None] = {}
        """What the last successful look at costs has shown, by the jobs that it was about."""
        self._billing_due_s = 0.0

    def look(self, now_s: float, *, grid: str | None = None, dry_run: bool = False) -> Look:
        """Look once.

        Args:
            now_s: Unix time.
            grid: only jobs of this grid.
            dry_run: note nothing and count no look at costs.

        Raises:
            CloudError: jobs cannot be listed.
            JournalError: a record cannot be written; it is tried again at the next look.
        """
        look = Look()
        since = datetime.fromtimestamp(now_s, UTC) - timedelta(days=self._settings.lookback_days)
        finished: list[CloudJob] = []
        for job in _first_of_each(self._cloud.jobs(since=since, grid=grid)):
            look.waiting += job.state is CloudState.WAITING
            look.running += not job.is_finished and job.state is not CloudState.WAITING
            if job.is_finished and f"job:{job.job}" not in self._journal:
                finished.append(job)
        self._look_at_costs(finished, look, now_s, dry_run=dry_run)
        return look

    def _look_at_costs(self, jobs: list[CloudJob], look: Look, now_s: float, *, dry_run: bool) -> None:
        if self._billing is not None and jobs and (dry_run or now_s >= self._billing_due_s):
            try:
                self._read_costs(self._billing, jobs, now_s, dry_run=dry_run)
            except (CloudError, OSError) as error:
                look.problems.append(f"billing: {error}")
        for job in jobs:
            try:
                cost = self._settled_cost(job, now_s)
                if cost is None:
                    look.unsettled += 1
                    continue
                record = job_record(job, cost)
                if not dry_run:
                    self._journal.append(record)
                    self._book.seen.pop(job.job, None)
                look.recorded.append(record)
            except (ValueError, UnsendableRecordError) as error:
                look.problems.append(f"{job.job}: {error}")

    def _read_costs(self, billing: Billing, jobs: list[CloudJob], now_s: float, *, dry_run: bool) -> None:
        """One more look at the costs of these jobs; what was seen of others (another grid's) stays for a while."""
        first_ns = min(job.created_ns or job.started_ns or job.ended_ns for job in jobs)
        costs = billing.costs(datetime.fromtimestamp(first_ns / 1e9, UTC) - _USAGE_MARGIN)
        self._billed = {job.job: costs.get(job.job) for job in jobs}
        seen = dict(self._book.seen)
        for job, billed in self._billed.items():
            observation = observe(seen.pop(job, None), billed, now_s, self._patience)
            if observation is not None:
                seen[job] = observation
        oldest_s = now_s - self._settings.lookback_days * 86_400
        self._book.seen = {job: observation for job, observation in seen.items() if observation.last_s >= oldest_s}
        if not dry_run:
            self._billing_due_s = now_s + self._settings.billing_poll_s
            self._book.store()

    def _settled_cost(self, job: CloudJob, now_s: float) -> JobCost | None:
        """None: wait.

        Raises:
            ValueError: the cost is absurd, or in a currency of unknown price.
        """
        if self._billing is None:
            return derived_cost(job)
        billed = self._billed.get(job.job)
        if billed is not None and billed.unconverted_rows:
            raise ValueError(f"the billing export has no rate to US dollars for {billed.unconverted_rows} of its rows")
        has_no_row = job.job in self._billed and billed is None
        seen = self._book.seen.get(job.job)
        if seen is None and job.duration_s is None:
            return JobCost(None, CostKind.DERIVED) if has_no_row and self._may_never_cost(job, now_s) else None
        verdict = judge(seen, job.ended_ns / 1e9, now_s, self._patience)
        if verdict is Settled.DERIVED and has_no_row:  # not where only the looks have failed
            return derived_cost(job)
        if verdict in {Settled.WAIT, Settled.DERIVED}:
            return None
        assert seen is not None
        if verdict is Settled.ABSURD:
            raise ValueError(f"its billed cost with credits is {seen.usd:.2f} USD: less than nothing")
        return JobCost(max(0.0, seen.usd), CostKind.BILLED)

    def _may_never_cost(self, job: CloudJob, now_s: float) -> bool:
        """A job that never ran is not waited for as long as one that did: most such jobs have no row at all."""
        return now_s - job.ended_ns / 1e9 >= self._patience.settle_s


def _first_of_each(jobs: list[CloudJob]) -> list[CloudJob]:
    """One job per label value, the first that was created."""
    found: dict[str, CloudJob] = {}
    for job in sorted(jobs, key=lambda job: (job.created_ns, job.name)):
        found.setdefault(job.job, job)
    return list(found.values())


def described(look: Look) -> Iterator[str]:
    """A look in words, for people."""
    yield (
        f"{look.waiting} waiting, {look.running} running, {look.unsettled} finished with a cost that is not settled, "
        f"{len(look.recorded)} recorded"
    )
    yield from look.problems

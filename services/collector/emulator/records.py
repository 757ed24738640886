"""Job records and profiles from outcomes of runs."""

from __future__ import annotations

from schemas.jobs import CostKind, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile
from services.collector.emulator.grid import Grid, Row
from services.collector.emulator.instance_types import price, snapshot
from services.collector.emulator.run_request import RunOutcome

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

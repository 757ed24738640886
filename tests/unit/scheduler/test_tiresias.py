"""Simulations equal to the released Tiresias simulator's, job by job: its own outputs are in ``tiresias``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from services.scheduler.core.attained_service import AttainedService, GittinsTable
from services.scheduler.core.jobs import Job, Node
from services.scheduler.core.policies import ArrivalOrder, Policy, Smallest, fewest_slots, remaining_s, remaining_slot_s
from services.scheduler.core.simulation import Ended, simulate
from tests.support.tiresias import DIRECTORY, read

TRACES: Final = {
    "480_n15g4_count": ("480_job.csv", 60),
    "60_n1g4_count": ("60_job.csv", 4),
    "philly_103959": ("philly_103959.csv", 16),
    "philly_7f04ca": ("philly_7f04ca.csv", 60),
}
"""By the beginning of their outputs' names: the trace, and the cluster's slots."""
WITHOUT_COUNTS: Final = {"fifo", "fjf"}
"""For which the released simulator writes no preemptions and starts."""


def samples() -> list[int]:
    return [int(row["duration"]) for row in read("yarn-gput1000.csv")]


POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "fifo": ArrivalOrder,
    "fjf": lambda: ArrivalOrder(backfills=True),
    "sjf": lambda: Smallest(key=fewest_slots),
    "shortest": lambda: Smallest(key=remaining_s),
    "shortest-gpu": lambda: Smallest(key=remaining_slot_s),
    "dlas": lambda: AttainedService(counts_slots=False),
    "dlas-gpu": AttainedService,
    "dlas-gpu-8": lambda: AttainedService(promote_after=8),
    "dlas-gpu-gittins": lambda: AttainedService(table=GittinsTable.of(samples())),
}


def outputs() -> list[tuple[str, str, str]]:
    """(file, trace, policy) of each output."""
    names = [path.stem for path in DIRECTORY.glob("*.csv")]
    return sorted(
        (f"{name}.csv", trace, name.removeprefix(f"{trace}_"))
        for trace in TRACES
        for name in names
        if name.startswith(f"{trace}_")
    )


def row(ended: Ended, *, counts: bool) -> dict[str, int]:
    job, end = ended.job, ended.ended_s
    assert job.first_start_s is not None
    numbers = {
        "time": end,
        "job_id": int(job.name),
        "num_gpu": job.slots,
        "submit_time": job.submitted_s,
        "start_time": job.first_start_s,
        "end_time": end,
        "executed_time": end - job.first_start_s,
        "JCT": ended.completion_s,
        "duration": job.duration_s or 0,
        "pending_time": job.waited_s,
        "preempt": job.preemptions if counts else 0,
        "resume": job.starts if counts else 0,
        "promote": job.promotions,
    }
    return {name: int(number) for name, number in numbers.items()}


def test_all_outputs_of_the_released_simulator_are_there() -> None:
    assert len(outputs()) == 20
    assert sum(len(read(file)) for file, _, _ in outputs()) == 11_070
    assert {policy for _, _, policy in outputs()} == set(POLICIES)


@pytest.mark.parametrize(("file", "trace", "policy"), outputs())
def test_every_row_and_column_and_their_order(file: str, trace: str, policy: str) -> None:
    name, slots = TRACES[trace]
    jobs = [
        Job(each["job_id"], int(each["num_gpu"]), int(each["submit_time"]), duration_s=int(float(each["duration"])))
        for each in read(name)
    ]
    run = simulate(jobs, [Node("all", slots)], POLICIES[policy]())
    expected = [{column: int(number) for column, number in each.items()} for each in read(file)]

    assert [row(each, counts=policy not in WITHOUT_COUNTS) for each in run.ended] == expected
    assert {job.name for job in run.too_large} == {job.name for job in jobs if job.slots > slots}

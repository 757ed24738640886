"""A training job that is preempted three times ends as one that is not: docs/examples/train.py as two workers."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.scheduling import JobSpec, OrderAction, WorkerChange, WorkOrder
from tests.support.deadline import until
from tests.support.runner_lab import OVER, RunnerLab, order, run_order

TRAIN = Path(__file__).parents[2] / "docs" / "examples" / "train.py"
EPOCHS = 24
TOLERANCE = 1e-6


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RunnerLab]:
    made = RunnerLab(tmp_path)
    yield made
    made.end_workers()


def training(lab: RunnerLab, job: str) -> JobSpec:
    command = (sys.executable, str(TRAIN), "--epochs", str(EPOCHS))
    given = {"job": job, "workers": 2, "directory": str(lab.work), "command": command, "grace_s": 120.0}
    return JobSpec.model_validate(given | {"preemption": "checkpoint"})


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """For rank 0 of two jobs: they are kept bound until the test's end, so that no other program is given them.

    Rank 0 may bind its own all the same: it sets SO_REUSEADDR as well, and nothing else listens (socket(7), ip(7)).
    """
    with socket.socket() as first, socket.socket() as second:
        for kept in (first, second):
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", 0))
        yield first.getsockname()[1], second.getsockname()[1]


def with_port(asked: WorkOrder, port: int) -> WorkOrder:
    return asked.model_copy(update={"master_port": port})


def epochs(lab: RunnerLab, job: str, attempt: int, rank: int = 0) -> list[int]:
    log = lab.files(rank, attempt, job).log
    return [int(found) for found in re.findall(r"^epoch (\d+):", log.read_text() if log.exists() else "", re.MULTILINE)]


def last_loss(lab: RunnerLab, job: str, attempt: int) -> float:
    found = re.search(r"^last loss ([0-9.]+)$", lab.files(0, attempt, job).log.read_text(), re.MULTILINE)
    assert found is not None, lab.files(0, attempt, job).log.read_text()
    return float(found[1])


@pytest.mark.timeout(600)
async def test_preempted_three_times_it_ends_with_the_same_loss(lab: RunnerLab, ports: tuple[int, int]) -> None:
    """Each attempt is stopped after its first epoch; the last one does the rest, and no epoch is done twice."""
    await lab.listen()
    async with lab.runner():
        await lab.ask(with_port(run_order(training(lab, "whole")), ports[0]))
        for attempt in (1, 2, 3, 4):
            asked = run_order(training(lab, "try"), attempt=attempt, sequence=2 * attempt)
            await lab.ask(with_port(asked, ports[1]))
            if attempt < 4:
                await until(lambda at=attempt: epochs(lab, "try", at), within_s=240, what="an epoch")
                stop = order(OrderAction.STOP, attempt=attempt, sequence=2 * attempt + 1, ranks=(0, 1))
                await lab.ask(stop)

            def ended(at: int = attempt) -> list[WorkerChange]:
                mine = [event for event in lab.events if event.job == "try" and event.attempt == at]
                return [event.change for event in mine if event.change in OVER]

            await until(lambda: len(ended()) == 2, within_s=240, what=f"the end of attempt {attempt}")
            expected = WorkerChange.ENDED if attempt == 4 else WorkerChange.STOPPED
            assert ended() == [expected] * 2, [event for event in lab.events if event.attempt == attempt]
        whole = lab.files(0, 1, "whole").log
        await until(lambda: "last loss" in whole.read_text(), within_s=240, what="the other's end")

    done = [epoch for attempt in (1, 2, 3, 4) for epoch in epochs(lab, "try", attempt)]
    assert done == list(range(1, EPOCHS + 1)) == epochs(lab, "whole", 1)
    assert all(epochs(lab, "try", attempt) for attempt in (1, 2, 3, 4)), "it was preempted with work behind it"
    assert abs(last_loss(lab, "try", 4) - last_loss(lab, "whole", 1)) <= TOLERANCE

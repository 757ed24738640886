"""What a job says of its training, published by its runner: under the job's name, whatever the job says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.message import Message
from schemas.scheduling import SchedulerHeartbeat, WorkerChange
from schemas.streams import TRAINING_STREAM
from schemas.subjects import STEPS
from schemas.trainings import StepBatch, TrainingChange, TrainingEvent
from services._runtime.bus.api import Delivery
from services.runner.training_sockets import MOST_BYTES
from tests.support.deadline import until
from tests.support.runner_lab import JOB, NODE, RunnerLab, job_spec, run_order
from tests.support.training_reports import event, saying, steps


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RunnerLab]:
    made = RunnerLab(tmp_path)
    yield made
    made.end_workers()


@pytest_asyncio.fixture
async def heard(lab: RunnerLab) -> AsyncIterator[list[tuple[str, Message]]]:
    """Subjects and messages of trainings, as they come."""
    found: list[tuple[str, Message]] = []

    def take(delivery: Delivery) -> None:
        found.append((delivery.subject, delivery.message))

    async def take_event(delivery: Delivery) -> None:
        take(delivery)

    await lab.listen()
    await lab.bus.subscribe(STEPS.pattern("tb"), take)
    await lab.bus.replay(TRAINING_STREAM, take_event)
    yield found


async def test_a_job_speaks_for_itself_only(lab: RunnerLab, heard: list[tuple[str, Message]]) -> None:
    """It names another job, node and attempt: the runner knows whose socket it is."""
    forged = {"job": "other", "node": "n9", "generation": 7}
    ended = event(TrainingChange.ENDED, sequence=1, exit_code=0, **forged)
    async with lab.runner():
        command = saying(event(**forged), steps(**forged), ended)
        await lab.ask(run_order(job_spec(lab.work, command), attempt=2))
        await until(lambda: len(heard) == 3, what="all that it says")

    assert {subject for subject, _ in heard} == {f"tb.evt.train.{JOB}.{NODE}", f"tb.obs.step.{JOB}.{NODE}"}
    whose = {"job": JOB, "node": NODE, "generation": 2}
    events = [message for _, message in heard if isinstance(message, TrainingEvent)]
    assert events == [event(**whose), ended.model_copy(update=whose)]
    assert [message for _, message in heard if isinstance(message, StepBatch)] == [steps(**whose)]


async def test_what_is_no_report_is_refused_and_the_next_one_taken(
    lab: RunnerLab, heard: list[tuple[str, Message]]
) -> None:
    other = SchedulerHeartbeat(leader="me", sequence=1, time_ns=1)
    nonsense = (b"", b"\xff" * 100, other, steps().model_dump_json().encode()[:-9], 2 * MOST_BYTES)
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, saying(*nonsense, *nonsense, *nonsense, steps(rank=5)))))
        await until(lambda: heard, what="the one that can be used")
        await lab.until_change(WorkerChange.ENDED)

    assert [message.rank for _, message in heard if isinstance(message, StepBatch)] == [5]
    assert len(heard) == 1


async def test_the_next_runner_hears_it_too(lab: RunnerLab, heard: list[tuple[str, Message]]) -> None:
    file = lab.work / "go"
    async with lab.runner():
        command = saying(steps(rank=0), file, steps(rank=1), steps(rank=2))
        await lab.ask(run_order(job_spec(lab.work, command)))
        await until(lambda: heard, what="the first one")
    file.touch()  # it speaks while there is no runner
    async with lab.runner():
        await lab.until_change(WorkerChange.ENDED)
        await until(lambda: len(heard) == 3, what="the others")
    assert [message.rank for _, message in heard if isinstance(message, StepBatch)] == [0, 1, 2]


async def test_the_socket_is_its_users_only_and_ends_with_the_worker(lab: RunnerLab) -> None:
    path, file = lab.files().training_socket, lab.work / "go"
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, saying(file))))
        await until(path.is_socket, what="the socket")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_uid == os.geteuid()
        file.touch()
        await lab.until_change(WorkerChange.ENDED)
        await until(lambda: not path.exists(), what="its removal")

"""How often a runner reads records: when the kernel notifies it of one, and seldom else."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from schemas.scheduling import WorkerChange
from services.runner import node_workers, service
from services.runner.node_workers import NodeWorkers
from tests.support.runner_lab import RunnerLab, job_spec, run_order


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RunnerLab]:
    made = RunnerLab(tmp_path)
    yield made
    made.end_workers()


@pytest.mark.virtual_time
async def test_a_runner_without_workers_polls_once_a_second(lab: RunnerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = 0
    poll = NodeWorkers.poll

    def count(workers: NodeWorkers) -> None:
        nonlocal polls
        polls += 1
        poll(workers)

    async with lab.runner():
        monkeypatch.setattr(NodeWorkers, "poll", count)
        await asyncio.sleep(100.0)

    assert 90 <= polls <= 110


async def test_records_are_read_as_they_come(lab: RunnerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it not notified, it would read them in an hour."""
    monkeypatch.setattr(service, "LONGEST_POLL_S", 3_600.0)
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, ("true",))))
        await lab.until_change(WorkerChange.STARTED)
        await lab.until_change(WorkerChange.ENDED)


async def test_records_of_an_earlier_runner_s_worker_are_read_as_they_come(
    lab: RunnerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LONGEST_POLL_S", 3_600.0)
    await lab.listen()
    command = ("sh", "-c", "echo at work; while [ ! -e end ]; do sleep 0.05; done")
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, command)))
        await lab.until_log("at work")
    async with lab.runner():
        (lab.work / "end").touch()
        await lab.until_change(WorkerChange.ENDED)


async def test_without_notifications_records_are_polled(lab: RunnerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a user has no inotify instance left."""

    def refuse() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(node_workers, "MovedFiles", refuse)
    monkeypatch.setattr(service, "LONGEST_POLL_S", 3_600.0)
    await lab.listen()
    async with lab.runner() as runner:
        assert runner.workers is not None
        assert not runner.workers.watched
        await lab.ask(run_order(job_spec(lab.work, ("true",))))
        await lab.until_change(WorkerChange.ENDED)


async def test_a_directory_that_cannot_be_watched_is_polled(lab: RunnerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beyond fs.inotify.max_user_watches."""

    def refuse(_moved: object, _directory: str) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(node_workers.MovedFiles, "watch", refuse)
    await lab.listen()
    async with lab.runner() as runner:
        assert runner.workers is not None
        assert runner.workers.watched, "there is none"
        await lab.ask(run_order(job_spec(lab.work)))
        assert not runner.workers.watched
        await lab.until_change(WorkerChange.STARTED)

"""Runners that are killed, and what the next one makes of it: no worker is lost, none is started twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.scheduling import OrderAction, WorkerChange, WorkOrder
from services._host.instance_lock import AnotherInstanceError
from services.runner.worker_files import Claim, Intent
from tests.support.deadline import until
from tests.support.killed_runner import POINTS
from tests.support.runner_lab import OBEDIENT, RunnerLab, job_spec, lives, order, run_order, started

STARTED, STOPPED, LOST = WorkerChange.STARTED, WorkerChange.STOPPED, WorkerChange.LOST


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RunnerLab]:
    made = RunnerLab(tmp_path)
    yield made
    made.end_workers()


def kill_at(point: str, tmp_path: Path, *orders: WorkOrder) -> None:
    """Have a runner obey orders until it is killed at a point."""
    files = []
    for number, asked in enumerate(orders):
        files.append(tmp_path / f"order-{number}")
        files[-1].write_text(asked.model_dump_json())
    command = [sys.executable, "-m", "tests.support.killed_runner", point, str(tmp_path), *map(str, files)]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("point", ["before the intent", "after the intent", "after the spawn"])
async def test_killed_while_it_starts(lab: RunnerLab, tmp_path: Path, point: str) -> None:
    asked = run_order(job_spec(lab.work, OBEDIENT))
    kill_at(point, tmp_path, asked)
    await lab.listen()
    async with lab.runner():
        for _ in range(3):
            assert (await lab.ask(asked)).obeyed
        await lab.until_change(STARTED)
        await lab.until_log("at work")
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(STOPPED)

    assert lab.files().log.read_text().count("at work") == 1


async def test_a_start_that_was_only_intended_is_not_made_up_for(lab: RunnerLab, tmp_path: Path) -> None:
    """The runner may have been away for long: without an order nothing is started, and CHECK says that it is lost."""
    kill_at("after the intent", tmp_path, run_order(job_spec(lab.work, OBEDIENT)))
    async with lab.runner() as runner:
        assert runner.workers is not None
        runner.workers.poll()
        assert not lab.files().has(Claim)
        reply = await lab.ask(order(OrderAction.CHECK))
        assert reply.workers[0].last is not None
        assert reply.workers[0].last.change is LOST
        late = await lab.ask(run_order(job_spec(lab.work, OBEDIENT), sequence=3))

    assert late.workers == reply.workers
    assert not lab.files().log.exists()


async def test_a_worker_that_is_at_work_is_found_again(lab: RunnerLab, tmp_path: Path) -> None:
    asked = run_order(job_spec(lab.work, OBEDIENT))
    kill_at("before the request", tmp_path, asked, order(OrderAction.STOP))
    pid = started(lab.files()).pid
    assert lives(pid)
    await lab.listen()
    async with lab.runner():
        reply = await lab.ask(order(OrderAction.CHECK))
        assert reply.workers[0].pid == pid
        await lab.until_change(STARTED)
        await lab.until_log("at work")
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(STOPPED)

    assert "saved" in lab.files().log.read_text()


async def test_killed_while_it_stops_a_worker(lab: RunnerLab, tmp_path: Path) -> None:
    """The request was recorded, nobody was woken: its shim finds it, with no runner there."""
    kill_at("after the request", tmp_path, run_order(job_spec(lab.work, OBEDIENT)), order(OrderAction.STOP))
    await until((lab.files().directory / "exit.json").exists, what="the end")
    await lab.listen()
    async with lab.runner():
        await lab.until_change(STOPPED)

    assert lab.changes() == [STARTED, STOPPED]


async def test_an_order_that_is_too_old_starts_nothing(lab: RunnerLab, tmp_path: Path) -> None:
    """The runner was frozen between the intent and the start for so long that the job runs elsewhere."""
    kill_at("after the intent", tmp_path, run_order(job_spec(lab.work, OBEDIENT)))
    intent = lab.files().read(Intent)
    assert intent is not None
    lab.files().write(intent._replace(ordered_s=intent.ordered_s - 301))
    await lab.listen()
    async with lab.runner() as runner:
        assert runner.workers is not None
        worker = runner.workers.find("try", 1, 0)
        assert worker is not None
        worker.start_shim()
        event = await lab.until_change(LOST)

    assert event.reason == "its order was too old when it was to be started"
    assert not lab.files().log.exists()


def test_every_point_is_tried() -> None:
    assert set(POINTS) == {
        "before the intent",
        "after the intent",
        "after the spawn",
        "before the request",
        "after the request",
    }


async def test_a_worker_dies_with_its_shim_and_is_lost(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, OBEDIENT)))
        await lab.until_change(STARTED)
        pid, claim = started(lab.files()).pid, lab.files().read(Claim)
        assert claim is not None
        os.kill(claim.pid, signal.SIGKILL)
        event = await lab.until_change(LOST)

    assert event.reason == "its shim was killed"
    await until(lambda: not lives(pid), what="its end")


async def test_after_a_boot_workers_are_lost(lab: RunnerLab) -> None:
    """The process of that number belongs to somebody else by then, and is left alone."""
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, OBEDIENT)))
        await lab.until_change(STARTED)
    intent = lab.files().read(Intent)
    assert intent is not None
    lab.files().write(intent._replace(boot="an earlier one"))
    claim = lab.files().read(Claim)
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    await until(lambda: not lives(claim.pid), what="the shim's end")
    async with lab.runner():
        event = await lab.until_change(LOST)

    assert event.reason == "the host was booted anew"


async def test_two_shims_of_one_worker(lab: RunnerLab) -> None:
    await lab.listen()
    async with lab.runner() as runner:
        await lab.ask(run_order(job_spec(lab.work, OBEDIENT)))
        assert runner.workers is not None
        worker = runner.workers.find("try", 1, 0)
        assert worker is not None
        first = worker._shim
        worker.start_shim()
        second = worker._shim
        assert first is not None
        assert second is not None
        await until(lambda: first.poll() is not None or second.poll() is not None, what="one of them to give up")
        await lab.until_log("at work")
        await lab.until_change(STARTED)
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(STOPPED)
        await until(lambda: first.poll() is not None and second.poll() is not None, what="both to end")

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert lab.files().log.read_text().count("at work") == 1


async def test_garbage_in_the_state_directory(lab: RunnerLab) -> None:
    """What is not legible is left alone and named; the rest works."""
    jobs = lab.state / "n1" / "jobs"
    broken = jobs / "broken" / "1" / "0"
    for path in (broken, jobs / "UPPER" / "1" / "0", jobs / "ok" / "x" / "0", jobs / "ok" / "1" / "-1"):
        path.mkdir(parents=True)
    (broken / "spec.json").write_bytes(os.urandom(300))
    (jobs / "a-file").write_text("")
    (jobs / "try").mkdir()
    (jobs / "try" / "order.json").write_text("{")
    (lab.state / "n1" / "bus").write_bytes(b"\xff" * 100)
    await lab.listen()
    async with lab.runner():
        spec = job_spec(lab.work, ("true",), job="broken")
        reply = await lab.ask(run_order(spec))
        assert not reply.obeyed
        assert f"{broken}/spec.json is not legible" in reply.reason
        await lab.ask(run_order(job_spec(lab.work, ("true",))))
        await lab.until_change(WorkerChange.ENDED)

    assert (broken / "spec.json").stat().st_size == 300


async def test_a_second_runner_of_the_node_is_refused(lab: RunnerLab) -> None:
    async with lab.runner():
        with pytest.raises(AnotherInstanceError, match="the workers of node 'n1' are managed by another runner"):
            async with lab.runner():
                pass

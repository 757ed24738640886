"""Jobs paced by real freezers, measured by the kernel's counters of real connections between two namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from schemas.scheduling import IterationSource, OrderAction, Pace, Preemption, WorkerChange, WorkOrder
from services.runner.service import Runner
from services.runner.tcp_counters import JobKey, JobTraffic, Processes
from services.runner.worker import Worker
from services.runner.worker_files import boot_s
from tests.support.deadline import until
from tests.support.paced_lab import PacedLab, groups_left
from tests.support.runner_lab import (
    JOB,
    NODE,
    OBEDIENT,
    end_workers,
    job_spec,
    lives,
    order,
    python,
    run_order,
    started,
)
from tests.support.traffic_pair import TrafficPair

pytestmark = [pytest.mark.root, pytest.mark.netns]
COMPUTE_S = 0.5
SEND_BYTES = 2_000_000
"""0.32 s at 50 Mbit/s."""


@pytest.fixture
def pair() -> Iterator[TrafficPair]:
    made = TrafficPair()
    with made.peer():
        yield made
    made.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PacedLab]:
    made = PacedLab(tmp_path)
    yield made
    made.end_workers()
    made.remove_groups()


def run_paced(lab: PacedLab, pair: TrafficPair) -> WorkOrder:
    """An order to run a job whose rank 1 is elsewhere."""
    spec = job_spec(lab.work, pair.worker(COMPUTE_S, SEND_BYTES), workers=2, preemption=Preemption.RESTART)
    return run_order(spec, nodes=(NODE, "n2"))


def paced(pace: Pace | None, sequence: int = 2) -> WorkOrder:
    return order(OrderAction.PACE, sequence=sequence).model_copy(update={"pace": pace})


@pytest.mark.machine
async def test_a_job_is_measured_and_waits_for_its_turn(lab: PacedLab, pair: TrafficPair) -> None:
    """It is due half a period before its turn, and waits for that. Seen from its connections alone."""
    await lab.listen()
    async with lab.runner() as runner:
        await lab.ask(run_paced(lab, pair))
        await until(lambda: len(lab.samples) >= 4, what="four iterations")
        learned = lab.samples[1:]
        period_us = int(median(each.period_us for each in learned))
        paused = order(OrderAction.PACE, sequence=2)
        # Where the machine has stood still after it was due, little is left of the wait.
        await lab.wait_half_a_period(
            paused, period_us, lambda: any(each.frozen_us >= 0.4 * period_us for each in lab.samples)
        )
        metrics = {each.spec.name: each.value for each in runner._runtime.telemetry.collect()}
        assert (await lab.ask(paced(None))).obeyed
        await lab.ask(order(OrderAction.KILL))
        await lab.until_change(WorkerChange.UNSAVED)

    assert median(each.sent_bytes for each in learned) == pytest.approx(SEND_BYTES, rel=0.1)
    assert period_us >= 750_000, "0.5 s, and 0.32 s less what the queue takes"
    assert {(each.job, each.rank, each.node, each.source) for each in lab.samples} == {
        (JOB, 0, NODE, IterationSource.SOCKETS)
    }
    assert all(each.congestion_control for each in learned)
    pause = next(each for each in lab.samples if each.frozen_us >= 0.4 * period_us)
    assert pause.frozen_us <= 10 * period_us
    assert pause.period_us >= period_us, "it has waited"
    assert metrics["turnbuckle_runner_pauses_total"] >= 1
    assert metrics["turnbuckle_runner_paused_seconds_total"] >= pause.frozen_us / 1e6
    assert metrics["turnbuckle_runner_paced_jobs"] == 1
    assert groups_left() == []


@pytest.mark.machine
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
async def test_a_job_goes_on_where_its_runner_does_not(
    lab: PacedLab, pair: TrafficPair, tmp_path: Path, name: str
) -> None:
    """Frozen for half a period when its runner is killed or stopped; its shim thaws it after two at most."""
    asked = tmp_path / "order"
    asked.write_text(run_paced(lab, pair).model_dump_json())
    command = [sys.executable, "-m", "tests.support.stopped_runner", name, str(tmp_path), str(asked)]
    with subprocess.Popen(command) as runner:  # noqa: ASYNC220 - no wait within
        try:
            await until(lambda: has_stopped(runner), what="the runner's end")
            until_s = lab.pause().until_s
            was_frozen, in_time = lab.is_frozen(), boot_s() < until_s
            assert was_frozen or not in_time
            assert until_s - boot_s() <= 15.0, "0.41 s and one second more, or twice 0.82 s"
            await until(lambda: boot_s() >= until_s and not lab.is_frozen(), what="the end of the pause")
            assert lives(started(lab.files()).pid)
        finally:
            runner.kill()
    end_workers(lab.state)


def has_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether it was killed, or stopped (state T of proc_pid_stat(5))."""
    return process.poll() is not None or state_of(process.pid) == "T"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


async def test_nothing_is_frozen_after_the_runner_has_ended(lab: PacedLab, pair: TrafficPair) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_paced(lab, pair))
        await until(lambda: len(lab.samples) >= 4, what="four iterations")
        period_us = int(median(each.period_us for each in lab.samples))
        paused = order(OrderAction.PACE, sequence=2)
        await lab.wait_half_a_period(paused, period_us, (lab.files().directory / "pause.json").exists)

    assert not lab.is_frozen()
    assert lives(started(lab.files()).pid)


async def started_worker(lab: PacedLab, runner: Runner, command: tuple[str, ...]) -> Worker:
    """A worker that is at work, as its runner knows it."""
    await lab.ask(run_order(job_spec(lab.work, command)))
    await lab.until_log("at work")
    assert runner.workers is not None
    found = runner.workers.find(JOB, 1, 0)
    assert found is not None
    await until(lambda: found.started is not None, what="its start")
    return found


async def test_the_next_runner_lets_it_go_on(lab: PacedLab) -> None:
    """Neither the runner that has paused it nor its shim will, for an hour."""
    async with lab.runner() as runner:
        worker = await started_worker(lab, runner, OBEDIENT)
        assert worker.pause(boot_s() + 3_600)
    assert lab.is_frozen()
    async with lab.runner():
        assert not lab.is_frozen()


@pytest.mark.parametrize("control_groups", ["auto", "off"])
@pytest.mark.parametrize(("action", "change"), [("stop", WorkerChange.STOPPED), ("kill", WorkerChange.UNSAVED)])
async def test_a_paused_worker_is_stopped_at_once(
    tmp_path: Path, control_groups: str, action: str, change: WorkerChange
) -> None:
    """Its pause would last an hour, its grace period 20 s."""
    lab = PacedLab(tmp_path, control_groups=control_groups)
    try:
        await lab.listen()
        async with lab.runner() as runner:
            worker = await started_worker(lab, runner, OBEDIENT)
            assert worker.pause(boot_s() + 3_600)
            pid = started(lab.files()).pid
            await until(lambda: is_stopped(lab, pid), what="the pause")
            await lab.ask(order(OrderAction(action)))
            event = await lab.until_change(change)
            assert not worker.pause(boot_s() + 3_600)
        assert ("saved" in lab.files().log.read_text()) == (change is WorkerChange.STOPPED)
        assert event.took_s < 60
        assert groups_left() == []
    finally:
        lab.end_workers()
        lab.remove_groups()


def is_stopped(lab: PacedLab, pid: int) -> bool:
    """By its group's freezer, or by a signal (state T of proc_pid_stat(5))."""
    if lab.freezer_state():
        return lab.is_frozen()
    return state_of(pid) == "T"


async def test_a_signal_pauses_children_in_other_process_groups_too(tmp_path: Path) -> None:
    lab = PacedLab(tmp_path, control_groups="off")
    code = (
        "import subprocess as s; c = s.Popen(['sleep', '3600'], process_group=0); print(c.pid, 'at work', flush=True)"
    )
    command = python(f"{code}; c.wait()")
    try:
        async with lab.runner() as runner:
            worker = await started_worker(lab, runner, command)
            child = int(lab.files().log.read_text().split()[0])
            assert worker.pause(boot_s() + 3_600)
            for pid in (started(lab.files()).pid, child):
                await until(lambda pid=pid: is_stopped(lab, pid), what=f"the pause of {pid}")
            worker.thaw()
            for pid in (started(lab.files()).pid, child):
                await until(lambda pid=pid: not is_stopped(lab, pid), what=f"the end of the pause of {pid}")
            os.kill(child, signal.SIGKILL)
    finally:
        lab.end_workers()


async def test_a_frozen_worker_whose_shim_is_killed_is_lost_and_leaves_nothing(lab: PacedLab) -> None:
    await lab.listen()
    async with lab.runner() as runner:
        worker = await started_worker(lab, runner, OBEDIENT)
        assert worker.pause(boot_s() + 3_600)
        lab.end_workers()
        await lab.until_change(WorkerChange.LOST)

    assert groups_left() == []


def test_connections_are_counted_for_the_job_that_has_them_open(pair: TrafficPair) -> None:
    """Two jobs and a stranger in one namespace: what each sends to the other node counts, what stays here does not."""
    local = "import socket, time; s = socket.create_server(('', 0)); c = socket.create_connection(s.getsockname())\n"
    local += "a, _ = s.accept()\nwhile True: c.sendall(bytes(5000)); a.recv(5000); time.sleep(0.01)"
    enter = ["nsenter", f"--net={pair.netns}", "--"]
    commands = [pair.worker(0.05, 400_000), pair.worker(0.05, 4_000), pair.worker(0.05, 90_000)]
    commands.append((*enter, sys.executable, "-S", "-E", "-c", local))
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    big, small, local_only = (JobKey(name, 1) for name in ("big", "small", "local"))
    traffic = JobTraffic()
    try:
        pids = [process.pid for process in processes]
        jobs = {
            key: [Processes(pid, [pid])]
            for key, pid in zip((big, small, local_only), (*pids[:2], pids[3]), strict=True)
        }
        counted = counted_until(traffic, jobs, big, small)
        assert not traffic.has_connections(local_only)
        assert counted[big].congestion_control
        processes[0].kill()
        deadline = time.monotonic() + 60
        while traffic.has_connections(big):
            assert time.monotonic() < deadline
            traffic.read([big, small])
        traffic.find({small: jobs[small]})
        assert big not in traffic.read([big, small])
    finally:
        traffic.close()
        for process in processes:
            process.kill()
            process.wait(60)


def counted_until(traffic: JobTraffic, jobs: dict[JobKey, list[Processes]], big: JobKey, small: JobKey) -> dict:
    """What the jobs have sent once one has sent ten times as much as the other, whichever began first."""
    deadline = time.monotonic() + 60
    while True:
        traffic.find(jobs)
        counted = traffic.read(jobs)
        if {big, small} <= counted.keys() and counted[big].sent_bytes > 10 * counted[small].sent_bytes > 200_000:
            return counted
        assert time.monotonic() < deadline, counted

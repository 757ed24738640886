"""Training jobs in a real Slurm of this machine, through the adapter as a process: orders, events, failures."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.scheduling import (
    JobSpec,
    OrderAction,
    Preemption,
    RunnerInfo,
    WorkerChange,
    WorkerLogReply,
    WorkerLogRequest,
    WorkEvent,
)
from schemas.streams import RUNNERS
from schemas.subjects import WORKER_LOGS
from tests.support.cluster_lab import poll
from tests.support.deadline import until
from tests.support.slurm_cluster import ENDS, SlurmCluster
from tests.support.slurm_lab import SlurmLab, missing

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ENDED, FAILED, LOST = WorkerChange.ENDED, WorkerChange.FAILED, WorkerChange.LOST
READY, STOPPED, UNSAVED = WorkerChange.READY, WorkerChange.STOPPED, WorkerChange.UNSAVED

# Counts until there is a file "enough", a step each 0.1 s, and notes that it does; saves on SIGTERM, and goes on there.
COUNTER = """
import os, signal, sys, time
folder = os.environ["TURNBUCKLE_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, os.environ["RANK"])
step = int(open(path).read()) if os.path.exists(path) else 0
print("from", step, flush=True)
def save(*_):
    open(path, "w").write(str(step))
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(os.environ["TURNBUCKLE_READY_FILE"], "w").close()
while not os.path.exists("enough"):
    time.sleep(0.1)
    step += 1
    open("counts." + os.environ["RANK"], "w").close()
"""

SLOW_TO_SAVE = COUNTER.replace(
    '    open(path, "w")', '    time.sleep(2 * int(os.environ["RANK"]))\n    open(path, "w")'
)
"""Rank 1 takes two seconds, rank 0 none."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SlurmCluster]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    lab = SlurmLab(tmp_path_factory.mktemp("slurm"))
    made = SlurmCluster(tmp_path_factory.mktemp("adapter"), lab)
    try:
        await lab.start()
        await made.start()
        yield made
    finally:
        await made.stop()
        lab.stop()


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobSpec]:
    """A job that runs a shell's script, or Python's, in a directory of its own."""

    def make(name: str, script: str, workers: int = 2, **fields: object) -> JobSpec:
        command = ("python3", "-c", script) if "import" in script else ("sh", "-c", script)
        return JobSpec(job=name, workers=workers, command=command, directory=str(tmp_path), **fields)

    return make


async def test_each_node_is_a_runner(cluster: SlurmCluster) -> None:
    entries = await cluster.bus.bucket(RUNNERS).entries()
    info = entries["n3"].message
    assert isinstance(info, RunnerInfo)
    assert (info.engine, info.slots, info.cores, info.gpus) == ("slurm", 2, 2.0, 0)
    assert (info.address, info.memory_bytes) == ("127.0.0.1", 1000 << 20)

    async def slots() -> int:
        entry = await cluster.bus.bucket(RUNNERS).get("n3")
        assert entry is not None
        return int(getattr(entry.message, "slots", -1))

    cluster.lab.call("scontrol", "update", "nodename=n3", "state=drain", "reason=a test")
    await poll(lambda: _is(slots, 0), what="no slots on a drained node")
    cluster.lab.call("scontrol", "update", "nodename=n3", "state=resume")
    await poll(lambda: _is(slots, 2), what="its slots")


async def _is(ask: Callable[[], object], value: int) -> bool:
    return bool(await ask() == value)  # type: ignore[misc]


async def test_a_job_starts_again_at_once_on_its_nodes_and_is_cancelled_while_it_waits(
    cluster: SlurmCluster, job: Callable[..., JobSpec]
) -> None:
    """Slurm's nodes refuse a job in the second in which they gave it up: so it is stopped when one begins."""
    spec, nodes = job("again", COUNTER, preemption=Preemption.CHECKPOINT), ("n1", "n1")
    for attempt in range(1, 5):
        await cluster.run(spec, attempt, nodes)
        await cluster.until_told("again", attempt, {READY}, 2)
        await until(lambda: time.time() % 1 < 0.1, what="the beginning of a second")
        await cluster.order(OrderAction.STOP, spec, attempt, nodes)
        ended = await cluster.until_told("again", attempt, ENDS, 2)
        assert {event.change for event in ended} == {STOPPED}
    await until(lambda: list(cluster.slurm_jobs("again").values()) == ["PENDING"], what="it to wait")
    await cluster.order(OrderAction.FORGET, spec, 4, nodes)
    replies = await cluster.order(OrderAction.KILL, spec, 4, nodes)
    assert all(reply.obeyed for reply in replies.values())
    await until(lambda: list(cluster.slurm_jobs("again").values()) == ["CANCELLED"], what="it to be cancelled")


async def test_a_worker_that_has_saved_does_not_end_those_that_still_save(
    cluster: SlurmCluster, job: Callable[..., JobSpec]
) -> None:
    spec = job("slowly", SLOW_TO_SAVE, preemption=Preemption.CHECKPOINT)
    await cluster.run(spec, 1, ("n1", "n2"))
    await cluster.until_told("slowly", 1, {READY}, 2)

    await cluster.order(OrderAction.STOP, spec, 1, ("n1", "n2"))
    ended = await cluster.until_told("slowly", 1, ENDS, 2)

    assert [(event.change, event.exit_code) for event in ended] == [(STOPPED, -15)] * 2
    await cluster.order(OrderAction.FORGET, spec, 1, ("n1", "n2"))
    await cluster.order(OrderAction.KILL, spec, 1, ("n1", "n2"))


async def test_a_gang_saves_and_goes_on_elsewhere_as_the_same_slurm_job(
    cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path
) -> None:
    spec = job("moves", COUNTER, preemption=Preemption.CHECKPOINT, environment={"TOKEN": "hidden'x y"})
    await cluster.run(spec, 1, ("n2", "n1"))
    started = await cluster.until_told("moves", 1, {READY}, 2)
    assert {(event.rank, event.node) for event in started} == {(0, "n2"), (1, "n1")}
    # A worker counts as ready after a second although it is not, and may have nothing to save yet.
    await until(lambda: all((tmp_path / f"counts.{rank}").exists() for rank in range(2)), what="steps to save")
    (number,) = cluster.slurm_jobs("moves")
    shown = cluster.lab.call("scontrol", "show", "job", str(number))
    assert "hidden" not in shown
    environments = [_environment_of(tmp_path, rank) for rank in range(2)]
    assert [each["TOKEN"] for each in environments] == ["hidden'x y"] * 2
    assert [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) for each in environments] == [
        ("0", "0", "2"),
        ("1", "0", "2"),
    ]
    assert not any(name.startswith(("NATS_", "TURNBUCKLE_SLURM", "TURNBUCKLE_HEALTH")) for name in environments[0])

    await cluster.order(OrderAction.STOP, spec, 1, ("n2", "n1"))
    stopped = await cluster.until_told("moves", 1, ENDS, 2)
    assert [(event.change, event.exit_code) for event in stopped] == [(STOPPED, -15)] * 2
    assert all(0 < event.ran_s < 60 and event.took_s < 60 for event in stopped)
    await until(lambda: cluster.slurm_jobs("moves") == {number: "PENDING"}, what="it to wait")

    await cluster.order(OrderAction.FORGET, spec, 1, ("n2", "n1"))
    await cluster.run(spec, 2, ("n3", "n4"))
    (tmp_path / "enough").touch()
    ended = await cluster.until_told("moves", 2, ENDS, 2)
    assert {(event.change, event.node, event.exit_code) for event in ended} == {(ENDED, "n3", 0), (ENDED, "n4", 0)}
    assert set(cluster.slurm_jobs("moves")) == {number}
    log = await cluster.bus.request(
        WORKER_LOGS.subject("tb", node="n4"), WorkerLogRequest(job="moves", rank=1), timeout_s=60
    )
    assert isinstance(log, WorkerLogReply)
    assert (log.attempt, log.over) == (2, True)
    assert int(log.text.removeprefix("from ")) > 0


def _environment_of(directory: Path, rank: int) -> dict[str, str]:
    """Of the process that works in a directory as this rank."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() != directory or b"python3" not in (entry / "cmdline").read_bytes():
                continue
            pairs = (entry / "environ").read_bytes().decode().split("\0")
        except OSError:
            continue
        found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if found.get("RANK") == str(rank):
            return found
    raise AssertionError(f"no worker {rank} in {directory}")


async def test_workers_are_placed_unevenly_and_a_repeated_order_starts_nothing(
    cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path
) -> None:
    seat = 'echo "$SLURMD_NODENAME $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK" >>seats'
    script = f"{seat}; while [ ! -e go ]; do sleep 0.1; done"
    spec = job("uneven", script, workers=3, preemption=Preemption.RESTART)
    await cluster.run(spec, 1, ("n2", "n1", "n2"))
    await cluster.run(spec, 1, ("n2", "n1", "n2"))
    await cluster.until_told("uneven", 1, {READY}, 3)
    await until(lambda: len(_lines(tmp_path / "seats")) == 3, what="a line of each worker")
    assert sorted(_lines(tmp_path / "seats")) == ["n1 1 0 1 1", "n2 0 0 2 0", "n2 2 1 2 0"]
    (first,) = cluster.slurm_jobs("uneven")

    await cluster.order(OrderAction.STOP, spec, 1, ("n2", "n1", "n2"))
    killed = await cluster.until_told("uneven", 1, ENDS, 3)
    assert {event.change for event in killed} == {UNSAVED}
    # Slurm keeps the shape of an allocation, so this one is another job of Slurm.
    await cluster.run(spec, 2, ("n4", "n4", "n1"))
    await cluster.until_told("uneven", 2, {READY}, 3)
    (tmp_path / "go").touch()
    ended = await cluster.until_told("uneven", 2, ENDS, 3)
    assert {event.change for event in ended} == {ENDED}
    jobs = cluster.slurm_jobs("uneven")
    assert len(jobs) == 2
    await until(lambda: cluster.slurm_jobs("uneven")[first] == "CANCELLED", what="the first to be cancelled")


async def test_a_worker_that_fails_is_named_first(cluster: SlurmCluster, job: Callable[..., JobSpec]) -> None:
    spec = job("fails", 'if [ "$RANK" = 1 ]; then echo "no such data" >&2; exit 3; fi; sleep 600')
    await cluster.run(spec, 1, ("n1", "n2"))
    first, second = await cluster.until_told("fails", 1, ENDS, 2)
    assert (first.rank, first.change, first.exit_code, first.reason) == (1, FAILED, 3, "no such data")
    assert (second.rank, second.change) == (0, UNSAVED)


async def test_a_killed_worker_and_a_command_that_is_not_there(
    cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path
) -> None:
    spec = job("killed", "echo $$ >pid; exec sleep 600", workers=1)
    await cluster.run(spec, 1, ("n1",))
    await cluster.until_told("killed", 1, {READY}, 1)
    await until(lambda: _lines(tmp_path / "pid"), what="its process")
    os.kill(int(_lines(tmp_path / "pid")[0]), signal.SIGKILL)
    (event,) = await cluster.until_told("killed", 1, ENDS, 1)
    assert (event.change, event.exit_code) == (FAILED, -9)

    wrong = spec.model_copy(update={"job": "wrong", "command": ("no-such-command",)})
    await cluster.run(wrong, 1, ("n1",))
    (event,) = await cluster.until_told("wrong", 1, ENDS, 1)
    assert (event.change, event.exit_code) == (FAILED, 127)
    assert "no-such-command: not found" in event.reason
    elsewhere = spec.model_copy(update={"job": "elsewhere", "directory": "/no/such/place"})
    await cluster.run(elsewhere, 1, ("n1",))
    (event,) = await cluster.until_told("elsewhere", 1, ENDS, 1)
    assert event.change is FAILED
    assert "there is no such directory here" in event.reason


async def test_a_worker_that_does_not_stop_is_killed_after_the_grace(
    cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path
) -> None:
    script = "trap '' TERM; echo $$ >pid.$RANK; while :; do sleep 0.1; done"
    spec = job("stubborn", script, preemption=Preemption.CHECKPOINT, grace_s=0.5)
    await cluster.run(spec, 1, ("n1", "n2"))
    await cluster.until_told("stubborn", 1, {READY}, 2)
    await until(lambda: all(_lines(tmp_path / f"pid.{rank}") for rank in range(2)), what="workers that ignore SIGTERM")
    await cluster.order(OrderAction.STOP, spec, 1, ("n1", "n2"))
    events = await cluster.until_told("stubborn", 1, ENDS, 2)
    assert {(event.change, event.reason) for event in events} == {(UNSAVED, "killed after 0.5 s of grace")}
    assert all(event.ran_s > 0 for event in events)
    await until(lambda: not any(_is_alive(tmp_path / f"pid.{rank}") for rank in range(2)), what="their ends")
    await cluster.order(OrderAction.KILL, spec, 1, ("n1", "n2"))
    await until(lambda: set(cluster.slurm_jobs("stubborn").values()) <= {"CANCELLED"}, what="nothing in the queue")


def _lines(file: Path) -> list[str]:
    """What workers have written so far: they may count as ready, after a second, before they have begun."""
    return file.read_text().splitlines() if file.exists() else []


def _is_alive(pid_file: Path) -> bool:
    return Path("/proc", pid_file.read_text().strip()).exists()


async def test_slurmctld_is_restarted_midway(
    cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path
) -> None:
    spec = job("patient", "while [ ! -e go ]; do sleep 0.1; done", preemption=Preemption.CHECKPOINT)
    await cluster.run(spec, 1, ("n1", "n3"))
    await cluster.until_told("patient", 1, {READY}, 2)
    cluster.lab.stop_controller()
    await cluster.adapter.not_ready_because("squeue")
    other = job("later", "true", workers=1)
    replies = await cluster.order(OrderAction.RUN, other, 1, ("n1",))
    assert not replies["n1"].obeyed
    assert "Slurm does not answer" in replies["n1"].reason
    (tmp_path / "go").touch()
    cluster.lab.start_controller()
    await cluster.adapter.ready()
    ended = await cluster.until_told("patient", 1, ENDS, 2)
    assert {event.change for event in ended} == {ENDED}
    await cluster.run(other, 1, ("n1",))
    assert [event.change for event in await cluster.until_told("later", 1, ENDS, 1)] == [ENDED]


async def _to_the_end(
    cluster: SlurmCluster, spec: JobSpec, nodes: tuple[str, ...], let_end: Callable[[], None]
) -> list[WorkEvent]:
    """Have a job run to its end, as scheduler and administrator would; an end of each attempt.

    Its first attempt may be ordered already. It may end once Slurm says that it runs.
    """
    found: list[WorkEvent] = []
    while not found or found[-1].change is LOST:
        attempt = len(found) + 1
        await poll(lambda at=attempt: _obeyed(cluster, OrderAction.RUN, spec, at, nodes), what="it to be ordered")
        await cluster.order(OrderAction.CHECK, spec, attempt, nodes)
        await until(
            lambda at=attempt: _runs(cluster, spec.job) or len(cluster.told(spec.job, at, ENDS)) == len(nodes),
            what="it to run, or its end",
        )
        if _runs(cluster, spec.job):
            let_end()
        ends = await cluster.until_told(spec.job, attempt, ENDS, len(nodes))
        assert len({event.change for event in ends}) == 1, ends
        found.append(ends[0])
        await poll(lambda at=attempt: _obeyed(cluster, OrderAction.FORGET, spec, at, nodes), what="it to be forgotten")
        for node in cluster.lab.drained():
            cluster.lab.call("scontrol", "update", f"nodename={node}", "state=resume")
    return found


async def _obeyed(
    cluster: SlurmCluster, action: OrderAction, spec: JobSpec, attempt: int, nodes: tuple[str, ...]
) -> bool:
    return all(reply.obeyed for reply in (await cluster.order(action, spec, attempt, nodes)).values())


def _runs(cluster: SlurmCluster, job: str) -> bool:
    return "RUNNING" in cluster.slurm_jobs(job).values()


@pytest.mark.parametrize("daemon", ["slurmctld", "n2"])
async def test_a_daemon_of_slurm_is_killed_midway(
    cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path, daemon: str
) -> None:
    """While one job runs, and another one's order is carried out: of that slurmctld may know nothing any more."""
    note = 'echo "$TURNBUCKLE_JOB $TURNBUCKLE_ATTEMPT $RANK" >>starts'
    script = f'{note}; while [ ! -e "$TURNBUCKLE_JOB" ]; do sleep 0.1; done'
    runs, begins, nodes = job(f"runs-{daemon}", script), job(f"begins-{daemon}", script), ("n1", "n2")
    await cluster.run(runs, 1, nodes)
    await cluster.until_told(runs.job, 1, {READY}, 2)
    await cluster.lab.until_saved(*cluster.slurm_jobs(runs.job))
    ordering = asyncio.create_task(cluster.order(OrderAction.RUN, begins, 1, nodes))
    await until((cluster.shared / begins.job / "job.json").exists, what="the order's record")
    cluster.lab.kill(daemon)
    await asyncio.gather(ordering, return_exceptions=True)
    cluster.lab.restart(daemon)
    await cluster.adapter.ready()
    for spec in (begins, runs):
        ends = await _to_the_end(cluster, spec, nodes, (tmp_path / spec.job).touch)
        assert ends[-1].change is ENDED, ends
        assert len(ends) == 1 or spec is begins, ends
    starts = (tmp_path / "starts").read_text().splitlines()
    assert sorted(starts) == sorted(set(starts)), "an attempt started a worker twice"


async def test_the_adapter_is_killed_midway(cluster: SlurmCluster, job: Callable[..., JobSpec], tmp_path: Path) -> None:
    """While one job runs, and while another one's order is carried out: it is not known how far."""
    script = 'echo "$TURNBUCKLE_JOB $RANK" >>starts; while [ ! -e go ]; do sleep 0.1; done'
    runs, begins = job("runs", script), job("begins", script)
    await cluster.run(runs, 1, ("n1", "n2"))
    await cluster.until_told("runs", 1, {READY}, 2)
    ordering = asyncio.create_task(cluster.order(OrderAction.RUN, begins, 1, ("n3", "n4")))
    await until((cluster.shared / "begins" / "job.json").exists, what="the order's record")
    await cluster.adapter.signal(signal.SIGKILL)
    ordering.cancel()
    await asyncio.gather(ordering, return_exceptions=True)
    cluster.events.clear()

    await cluster.start_adapter()
    await cluster.run(begins, 1, ("n3", "n4"))
    await cluster.until_told("begins", 1, {READY}, 2)
    await cluster.order(OrderAction.CHECK, runs, 1, ("n1", "n2"))
    (tmp_path / "go").touch()
    for name in ("runs", "begins"):
        events = await cluster.until_told(name, 1, ENDS, 2)
        assert {event.change for event in events} == {ENDED}
    assert sorted((tmp_path / "starts").read_text().splitlines()) == ["begins 0", "begins 1", "runs 0", "runs 1"]


async def test_somebody_cancels_or_requeues_it_in_slurm(cluster: SlurmCluster, job: Callable[..., JobSpec]) -> None:
    cancelled, requeued = job("cancelled", "sleep 600", workers=1), job("requeued", "sleep 600", workers=1)
    await cluster.run(cancelled, 1, ("n1",))
    await cluster.run(requeued, 1, ("n2",))
    for name in ("cancelled", "requeued"):
        await cluster.until_told(name, 1, {READY}, 1)
    cluster.lab.call("scancel", "--name=cancelled")
    (number,) = cluster.slurm_jobs("requeued")
    cluster.lab.call("scontrol", "requeue", str(number))

    (event,) = await cluster.until_told("cancelled", 1, ENDS, 1)
    assert (event.change, event.reason) == (FAILED, "cancelled in Slurm, not by the scheduler")
    (event,) = await cluster.until_told("requeued", 1, ENDS, 1)
    assert event.change is LOST
    await until(lambda: _held(cluster, number), what="it to be held: no attempt begins twice")
    await cluster.order(OrderAction.KILL, requeued, 1, ("n2",))
    await until(lambda: cluster.slurm_jobs("requeued").get(number, "CANCELLED") == "CANCELLED", what="its end")


def _held(cluster: SlurmCluster, number: int) -> bool:
    shown = cluster.lab.call("squeue", "--noheader", f"--jobs={number}", "--format=%T %Q")
    return shown.split() == ["PENDING", "0"]


async def test_a_node_goes_down(cluster: SlurmCluster, job: Callable[..., JobSpec]) -> None:
    spec = job("fallen", "sleep 600")
    await cluster.run(spec, 1, ("n3", "n4"))
    await cluster.until_told("fallen", 1, {READY}, 2)
    cluster.lab.call("scontrol", "update", "nodename=n4", "state=down", "reason=a test")
    events = await cluster.until_told("fallen", 1, ENDS, 2)
    assert {event.change for event in events} == {LOST}
    await cluster.order(OrderAction.KILL, spec, 1, ("n3", "n4"))
    await until(lambda: set(cluster.slurm_jobs("fallen").values()) <= {"CANCELLED"}, what="its end")


async def test_a_later_job_has_an_earlier_ones_name(cluster: SlurmCluster, job: Callable[..., JobSpec]) -> None:
    first = job("again", "exit 4", workers=1)
    await cluster.run(first, 1, ("n1",))
    assert [event.exit_code for event in await cluster.until_told("again", 1, ENDS, 1)] == [4]
    await cluster.order(OrderAction.FORGET, first, 1, ("n1",))
    cluster.events.clear()
    await cluster.run(job("again", "exit 5", workers=1), 1, ("n1",))
    assert [event.exit_code for event in await cluster.until_told("again", 1, ENDS, 1)] == [5]


async def test_orders_of_the_past_and_of_nothing(cluster: SlurmCluster, job: Callable[..., JobSpec]) -> None:
    spec = job("unknown", "true", workers=1)
    await cluster.order(OrderAction.CHECK, spec, 3, ("n1",))
    (event,) = await cluster.until_told("unknown", 3, ENDS, 1)
    assert event.change is LOST
    cluster._sequence -= 2
    replies = await cluster.order(OrderAction.RUN, spec, 3, ("n1",))
    cluster._sequence += 2
    assert not replies["n1"].obeyed
    assert "was obeyed before" in replies["n1"].reason
    assert cluster.slurm_jobs("unknown") == {}


async def test_a_second_adapter_is_refused(cluster: SlurmCluster) -> None:
    second = cluster.new_adapter(TURNBUCKLE_SLURM__HOLDER_DIRECTORY=str(cluster.directory / "other"))
    await until(lambda: not second.running, what="its end")
    assert second._process.wait() == 78
    assert any("has a runner already" in str(line.get("error")) for line in second.log())
    assert cluster.adapter.running


async def test_slots_are_gpus(tmp_path_factory: pytest.TempPathFactory, job: Callable[..., JobSpec]) -> None:
    """Of a cluster whose GPUs are files: each worker sees its own."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    lab = SlurmLab(tmp_path_factory.mktemp("gpus"), nodes=2, gpus=2)
    made = SlurmCluster(tmp_path_factory.mktemp("adapter"), lab, TURNBUCKLE_SLURM__SLOTS="gpus")
    try:
        await lab.start()
        await made.start()
        entry = await made.bus.bucket(RUNNERS).get("n2")
        assert entry is not None
        assert isinstance(entry.message, RunnerInfo)
        assert (entry.message.slots, entry.message.gpus) == (2, 2)
        spec = job("gpus", 'echo "$CUDA_VISIBLE_DEVICES"', workers=4)
        await made.run(spec, 1, ("n2", "n1", "n2", "n1"))
        ended = await made.until_told("gpus", 1, ENDS, 4)
        assert {event.change for event in ended} == {ENDED}
        seen = [(made.shared / "gpus" / "1" / f"{rank}.log").read_text() for rank in range(4)]
        assert seen == ["0\n", "0\n", "1\n", "1\n"]
        await made.run(job("odd", "true", workers=3), 1, ("n1", "n2", "n2"))
        refused = await made.until_told("odd", 1, ENDS, 3)
        assert {event.change for event in refused} == {FAILED}
        assert "different numbers of GPUs" in refused[0].reason
    finally:
        await made.stop()
        lab.stop()

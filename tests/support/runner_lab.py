"""A runner in the test's own process, on a bus in memory, with real shims and workers below a directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from schemas.scheduling import (
    JobSpec,
    OrderAction,
    Preemption,
    WorkerChange,
    WorkerLogReply,
    WorkerLogRequest,
    WorkEvent,
    WorkOrder,
    WorkReply,
)
from schemas.streams import WORK_STREAM
from schemas.subjects import WORK_ORDERS, WORKER_LOGS
from services._host.boot_records import boot_id, start_ticks
from services._runtime.bus.api import Delivery
from services.runner.service import Runner
from services.runner.settings import RunnerSettings
from services.runner.worker_files import Claim, End, IllegibleRecordError, Intent, Started, WorkerFiles, boot_s
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.service_in_process import run_in_process

NODE: Final = "n1"
JOB: Final = "try"
RUN_AS: Final = "root" if os.geteuid() == 0 else None
"""Temporary directories of tests are nobody's."""
FOREVER: Final = ("sh", "-c", "while :; do sleep 0.05; done")
OBEDIENT: Final = ("sh", "-c", "trap 'echo saved; exit 143' TERM; echo at work; while :; do sleep 0.05; done")
STUBBORN: Final = ("sh", "-c", "trap '' TERM; echo at work; while :; do sleep 0.05; done")
OVER: Final = frozenset(set(WorkerChange) - {WorkerChange.STARTED, WorkerChange.READY})


def job_spec(directory: Path, command: tuple[str, ...] = FOREVER, **changes: Any) -> JobSpec:
    """A job of one worker with one slot."""
    given = {"job": JOB, "directory": str(directory), "command": command, "preemption": Preemption.CHECKPOINT}
    return JobSpec.model_validate(given | {"grace_s": 20.0} | changes)


def run_order(spec: JobSpec, *, sequence: int = 1, attempt: int = 1, nodes: tuple[str, ...] | None = None) -> WorkOrder:
    """Start a job's workers, all on one node unless others are named."""
    placed = nodes or (NODE,) * spec.workers
    return WorkOrder(
        sequence=sequence,
        leader="scheduler",
        job=spec.job,
        attempt=attempt,
        action=OrderAction.RUN,
        ranks=tuple(rank for rank, node in enumerate(placed) if node == NODE),
        spec=spec,
        nodes=placed,
        master_address="127.0.0.1",
        master_port=29_500,
    )


def order(action: OrderAction, *, sequence: int = 2, attempt: int = 1, ranks: tuple[int, ...] = (0,)) -> WorkOrder:
    """Another order about the job `JOB`."""
    return WorkOrder(sequence=sequence, leader="scheduler", job=JOB, attempt=attempt, action=action, ranks=ranks)


def intent(directory: Path, **changes: Any) -> Intent:
    """The record of a worker that is to be started, for a shim or a reader of it."""
    given: dict[str, Any] = {
        "job": JOB,
        "attempt": 1,
        "rank": 0,
        "boot": boot_id(),
        "preemption": "never",
        "grace_s": 1.0,
        "slots": [0],
        "cpu_cores": 1.0,
        "memory_bytes": 1 << 30,
        "command": ["true"],
        "directory": str(directory),
        "environment": {},
        "checkpoint_directory": "",
        "user": None,
        "group": None,
        "ordered_s": boot_s(),
        "bus_file": str(directory / "bus"),
        "fence_after_s": 0.0,
        "ready_within_s": 0.0,
        "log_bytes": 1 << 20,
    }
    return Intent(**given | changes)


class RunnerLab:
    """One node."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.work = directory / "work"
        """The jobs' directory."""
        self.state = directory / "state"
        self.work.mkdir(exist_ok=True)
        given = {"node": NODE, "state_directory": self.state, "run_as": RUN_AS, "control_groups": "off", "slots": 4}
        self.settings = RunnerSettings.load({}, **(given | settings))
        self.events: list[WorkEvent] = []
        """All that came, also twice."""

    def files(self, rank: int = 0, attempt: int = 1, job: str = JOB) -> WorkerFiles:
        """A worker's records."""
        return WorkerFiles(self.state / NODE / "jobs" / job / str(attempt) / str(rank))

    async def listen(self) -> None:
        """Collect events from now on."""

        async def take(delivery: Delivery) -> None:
            if isinstance(delivery.message, WorkEvent):
                self.events.append(delivery.message)

        await self.bus.replay(WORK_STREAM, take)

    @asynccontextmanager
    async def runner(self) -> AsyncIterator[Runner]:
        """A runner that is registered."""
        async with run_in_process(Runner, self.settings, MemoryBus(self.broker)) as runner:
            await until(lambda: runner.not_ready() is None, what="the registration")
            yield runner

    def end_workers(self) -> None:
        """Kill what a test has left running."""
        end_workers(self.state)

    async def ask(self, asked: WorkOrder) -> WorkReply:
        """Give an order."""
        reply = await self.bus.request(WORK_ORDERS.subject("tb", node=NODE), asked, timeout_s=60)
        assert isinstance(reply, WorkReply), reply
        return reply

    async def log(self, request: WorkerLogRequest) -> WorkerLogReply:
        """Ask for a part of a log."""
        reply = await self.bus.request(WORKER_LOGS.subject("tb", node=NODE), request, timeout_s=60)
        assert isinstance(reply, WorkerLogReply), reply
        return reply

    def changes(self, rank: int = 0, attempt: int = 1) -> list[WorkerChange]:
        """What a worker did, each once, in order."""
        mine = [event.change for event in self.events if (event.rank, event.attempt) == (rank, attempt)]
        return list(dict.fromkeys(mine))

    async def until_change(self, change: WorkerChange, rank: int = 0, attempt: int = 1) -> WorkEvent:
        """Wait for an event."""

        def found() -> list[WorkEvent]:
            wanted = (change, rank, attempt)
            return [event for event in self.events if (event.change, event.rank, event.attempt) == wanted]

        await until(found, what=f"{change} of rank {rank}")
        return found()[0]

    async def until_log(self, text: str, rank: int = 0) -> None:
        """Wait until a worker has written something."""
        log = self.files(rank).log
        await until(lambda: log.exists() and text in log.read_text(errors="replace"), what=f"{text!r} in the log")

    async def run_to_the_end(self, spec: JobSpec, rank: int = 0) -> WorkEvent:
        """Start a job and wait for the last event of a worker."""
        await self.listen()
        async with self.runner():
            await self.ask(run_order(spec))
            await until(lambda: set(self.changes(rank)) & OVER, what="its end")
        return next(event for event in self.events if event.rank == rank and event.change in OVER)


def end_workers(state: Path) -> None:
    """Kill what a test has left running: a shim's death is its worker's."""
    for path in state.glob(f"{NODE}/jobs/*/*/*"):
        with suppress(IllegibleRecordError):
            claim = WorkerFiles(path).read(Claim)
            if claim is not None and start_ticks(claim.pid) == claim.started_ticks:
                os.kill(claim.pid, signal.SIGKILL)


def started(files: WorkerFiles) -> Started:
    """A worker's process, which was started."""
    record = files.read(Started)
    assert record is not None
    return record


def end_of(files: WorkerFiles) -> End:
    """How a worker ended."""
    record = files.read(End)
    assert record is not None
    return record


def lives(pid: int) -> bool:
    """Whether there is such a process, and not only its remains."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_for(condition: Callable[[], object], what: str, within_s: float = 60.0) -> None:
    """Wait outside of an event loop."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not hold within {within_s:g} s"
        time.sleep(0.01)


def python(code: str) -> tuple[str, ...]:
    """A command that runs Python code, quickly started."""
    return (sys.executable, "-S", "-E", "-c", code)

"""A runner as a process on a real NATS server: killed, frozen, without the server; jobs do not notice, events come."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.permissions import uses
from schemas.roles import Role
from schemas.scheduling import OrderAction, WorkerChange, WorkEvent, WorkOrder, WorkReply
from schemas.streams import WORK_STREAM
from schemas.subjects import WORK_ORDERS
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.runner.worker_files import WorkerFiles
from tests.support.cluster_lab import ServiceProcess
from tests.support.deadline import until
from tests.support.runner_lab import JOB, NODE, OBEDIENT, end_workers, job_spec, lives, order, run_order, started

pytestmark = pytest.mark.root
FENCE_S = 15.0
"""Longer than a heartbeat, 5 s, on a machine that stalls for as long."""
NEVER_S = 3_600.0
"""A runner on a busy machine may take longer than `FENCE_S` to be there again."""
STARTED, STOPPED, ENDED = WorkerChange.STARTED, WorkerChange.STOPPED, WorkerChange.ENDED


class Lab:
    """One server, one node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nats = EmbeddedNats(store_directory=directory / "nats")
        self.runners: list[ServiceProcess] = []
        self.events: list[WorkEvent] = []
        self.bus: NatsBus | None = None

    async def connect(self) -> None:
        needs = uses(Role.SCHEDULER)
        options = BusOptions(servers=(self.nats.url,), streams=needs.streams, buckets=needs.buckets)
        self.bus = await NatsBus.connect(options)

        async def take(delivery: Delivery) -> None:
            if isinstance(delivery.message, WorkEvent):
                self.events.append(delivery.message)

        await self.bus.replay(WORK_STREAM, take)

    def launch(self, fence_s: float = NEVER_S) -> ServiceProcess:
        """Start a runner on the same directory."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
        ours = {
            "HEALTH_PORT": "0",
            "LOG_FORMAT": "json",
            "RUNNER__NODE": NODE,
            "RUNNER__SLOTS": "4",
            "RUNNER__RUN_AS": "root",
            "RUNNER__CONTROL_GROUPS": "off",
            "RUNNER__FENCE_AFTER_S": str(fence_s),
            "RUNNER__STATE_DIRECTORY": str(self.directory / "state"),
        }
        environment = kept | {"NATS_URL": self.nats.url} | {f"TURNBUCKLE_{name}": value for name, value in ours.items()}
        self.runners.append(ServiceProcess("runner", environment, self.directory / f"runner-{len(self.runners)}.log"))
        return self.runners[-1]

    def files(self) -> WorkerFiles:
        return WorkerFiles(self.directory / "state" / NODE / "jobs" / JOB / "1" / "0")

    async def ask(self, asked: WorkOrder) -> WorkReply:
        assert self.bus is not None
        reply = await self.bus.request(WORK_ORDERS.subject("tb", node=NODE), asked, timeout_s=60)
        assert isinstance(reply, WorkReply)
        return reply

    async def until_change(self, change: WorkerChange) -> WorkEvent:
        def found() -> list[WorkEvent]:
            return [event for event in self.events if event.change is change]

        await until(found, within_s=120, what=str(change))
        return found()[0]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    async with made.nats:
        await made.connect()
        yield made
        for runner in made.runners:
            runner.kill()
        end_workers(tmp_path / "state")
        assert made.bus is not None
        await made.bus.close(2)


async def begin(lab: Lab, fence_s: float = NEVER_S) -> tuple[ServiceProcess, int]:
    """A runner with a worker; returns the worker's process id."""
    runner = await lab.launch(fence_s).ready()
    assert (await lab.ask(run_order(job_spec(lab.directory, OBEDIENT)))).obeyed
    await lab.until_change(STARTED)
    log = lab.files().log
    await until(lambda: log.exists() and "at work" in log.read_text(), what="a worker that heeds SIGTERM")
    return runner, started(lab.files()).pid


async def test_a_runner_that_is_told_to_stop_leaves_its_workers(lab: Lab) -> None:
    runner, pid = await begin(lab)
    assert await runner.signal(signal.SIGTERM) == 0
    assert lives(pid)
    await lab.launch().ready()
    await lab.ask(order(OrderAction.KILL))
    await lab.until_change(WorkerChange.UNSAVED)


async def test_a_frozen_runner_is_one_without_a_bus(lab: Lab) -> None:
    """Its worker is stopped by the shim; the event comes when the runner goes on."""
    runner, pid = await begin(lab, FENCE_S)
    runner.send(signal.SIGSTOP)
    await until(lambda: not lives(pid), within_s=120, what="the fence")
    assert all(event.change is not STOPPED for event in lab.events)
    runner.send(signal.SIGCONT)
    event = await lab.until_change(STOPPED)

    assert event.reason.startswith(f"stopped after {FENCE_S:g} s without the bus")


async def test_events_wait_for_the_server(lab: Lab) -> None:
    """The worker ends while there is no server, and its runner is killed before there is one again."""
    runner = await lab.launch().ready()
    command = ("sh", "-c", f"while [ ! -e {lab.directory}/go ]; do sleep 0.05; done")
    await lab.ask(run_order(job_spec(lab.directory, command, preemption="never")))
    await lab.until_change(STARTED)
    await lab.nats.halt()
    (lab.directory / "go").touch()
    await until((lab.files().directory / "exit.json").exists, what="the end")
    runner.kill()
    await lab.nats.start()
    await lab.launch().ready()
    event = await lab.until_change(ENDED)

    assert event.exit_code == 0

"""Schedulers as processes on a real nats-server: submitted, decided, ordered, ended; killed and frozen leaders."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.message import Message
from schemas.scheduling import (
    ControlRequest,
    JobAction,
    JobExplainReply,
    JobExplainRequest,
    JobOutcome,
    JobPhase,
    JobSpec,
    OrderAction,
    Preemption,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SchedulerHeartbeat,
    SubmitReply,
    SubmitRequest,
    WorkerChange,
    WorkEvent,
)
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_EXPLAIN, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import BUCKETS, SCHEDULE_STREAM, SNAPSHOTS, STREAMS
from schemas.subjects import SCHEDULE, SCHEDULER_HEARTBEATS, WORK_EVENTS
from services._runtime.bus.api import Delivery, NoResponderError, RequestRefusedError, RequestTimeoutError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.state import State, fold
from tests.support.deadline import until
from tests.support.fake_runner import FakeRunner

ROOT = Path(__file__).resolve().parents[2]
FAILOVER_S = 50.0
"""Some 5 s where the machine has time."""
REPLY_S = 20.0
"""A frozen leader does not answer; a request that was given up too early is a job submitted twice."""


class Schedulers:
    """Processes on one server, the runners of two nodes, and a person."""

    def __init__(self, server: EmbeddedNats) -> None:
        self._server = server
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.runners: dict[str, FakeRunner] = {}
        self.beats: list[SchedulerHeartbeat] = []
        self.entries: list[tuple[int, ScheduleEvent]] = []
        """The log, with sequences."""
        self.started: dict[str, list[dict[str, Any]]] = {}
        """What each replica has logged until its start."""
        self._heard = 0
        self._buses: list[NatsBus] = []
        self.bus: NatsBus

    async def open(self) -> None:
        """Connect, and hear everything."""
        self.bus = await self.connect()
        await self.bus.replay(SCHEDULE_STREAM, self._on_entry)
        await self.bus.subscribe(SCHEDULER_HEARTBEATS.subject(self.bus.root), self._on_beat)
        for node in ("n1", "n2"):
            self.runners[node] = FakeRunner(await self.connect(), node)
            await self.runners[node].start()

    async def connect(self) -> NatsBus:
        """One more connection."""
        options = BusOptions(servers=(self._server.url,), streams=STREAMS, buckets=BUCKETS, connect_deadline_s=60)
        self._buses.append(await NatsBus.connect(options))
        return self._buses[-1]

    async def _on_entry(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, ScheduleEvent) and delivery.sequence > self._heard:  # told again: a restart
            self._heard = delivery.sequence
            self.entries.append((delivery.sequence, delivery.message))

    def _on_beat(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, SchedulerHeartbeat):
            self.beats.append(delivery.message)

    async def start(self, replica: str, snapshot_entries: int = 5_000) -> None:
        """One more scheduler; returns once it has replayed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        settings = {
            "TURNBUCKLE_NATS_URL": self._server.url,
            "TURNBUCKLE_SCHEDULER__REPLICA": replica,
            "TURNBUCKLE_SCHEDULER__ADVISOR_TIMEOUT_S": "0",
            "TURNBUCKLE_SCHEDULER__SNAPSHOT_ENTRIES": str(snapshot_entries),
            "TURNBUCKLE_LOG_FORMAT": "json",
            "TURNBUCKLE_SHUTDOWN_GRACE_S": "60",
            "XDG_CONFIG_HOME": "/nonexistent",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.scheduler", env=kept | settings, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        self.processes[replica] = process
        assert process.stderr is not None
        told = self.started[replica] = []
        async with asyncio.timeout(60):
            while not told or told[-1]["event"] != "scheduler_started":
                line = await process.stderr.readline()
                assert line, f"{replica} has ended"
                told.append(json.loads(line))
        self._reading = asyncio.ensure_future(process.stderr.read())  # so that it never blocks

    def began_behind(self, replica: str) -> int:
        """The entry of the snapshot that its start was from; 0: none."""
        (replayed,) = [line for line in self.started[replica] if line["event"] == "log_replayed"]
        return int(replayed["behind_snapshot"])

    async def ends(self, replica: str, number: signal.Signals) -> None:
        """Return once it has."""
        self.signal(replica, number)
        async with asyncio.timeout(60):
            await self.processes[replica].wait()

    def signal(self, replica: str, number: signal.Signals) -> None:
        """To one of them."""
        self.processes[replica].send_signal(number)

    async def led_by(self, replica: str) -> None:
        """Return once the last entry and a heartbeat are its own."""

        def leads() -> bool:
            last = self.entries[-1][1].leader if self.entries else ""
            return last.startswith(f"{replica}-") and bool(self.beats) and self.beats[-1].leader == last

        await until(leads, what=f"{replica} leads")

    async def ask(self, endpoint: Endpoint, message: Message) -> Message:
        """Ask until somebody leads."""
        async with asyncio.timeout(120):
            while True:
                try:
                    return await self.bus.request(endpoint.template.subject(self.bus.root), message, timeout_s=REPLY_S)
                except (NoResponderError, RequestTimeoutError):
                    await asyncio.sleep(0.05)
                except RequestRefusedError as refusal:
                    if refusal.code != 503:
                        raise

    async def submit(self, job: str, **fields: object) -> SubmitReply:
        """A job that may be preempted."""
        plain = {"job": job, "command": ("train",), "directory": "/srv", "preemption": Preemption.CHECKPOINT}
        reply = await self.ask(SCHEDULER_SUBMIT, SubmitRequest(spec=JobSpec.model_validate(plain | fields)))
        assert isinstance(reply, SubmitReply)
        return reply

    async def phases(self) -> dict[str, JobPhase]:
        """Of all jobs."""
        reply = await self.ask(SCHEDULER_QUEUE, QueueRequest())
        assert isinstance(reply, QueueReply)
        return {job.job: job.phase for job in reply.jobs}

    def tell(self, job: str, change: WorkerChange, **fields: object) -> None:
        """All workers of a job."""
        for runner in self.runners.values():
            if any(worker[0] == job for worker in runner.workers):
                runner.tell(job, change, **fields)

    def running(self, job: str) -> bool:
        """Whether any worker of it runs."""
        return any(worker[0] == job for runner in self.runners.values() for worker in runner.running())

    def ended(self, job: str) -> bool:
        """By the log."""
        return any(each.job == job for _, entry in self.entries for each in entry.ended)

    async def close(self) -> None:
        """End all."""
        for process in self.processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()
        for runner in self.runners.values():
            await runner.stop()
        for bus in self._buses:
            await bus.close(2.0)

    def check(self) -> None:
        """What holds at the end of every test: one history, and a replay that finds its decisions."""
        assert [sequence for sequence, _ in self.entries] == sorted({sequence for sequence, _ in self.entries})
        starts = Counter(worker for runner in self.runners.values() for worker in runner.starts.elements())
        assert set(starts.values()) <= {1}
        state = State()
        for _, entry in self.entries:
            if not says_nothing(entry):
                assert decided(state, undecided(entry), "index")[0] == entry
            state = fold(state, [entry])


@pytest.fixture
async def schedulers() -> AsyncIterator[Schedulers]:
    server = EmbeddedNats()
    await server.start()
    made = Schedulers(server)
    await made.open()
    try:
        yield made
        made.check()
    finally:
        await made.close()
        await server.stop()


async def test_a_job_is_decided_ordered_and_recorded(schedulers: Schedulers) -> None:
    await schedulers.start("a")
    reply = await schedulers.submit("gang", workers=4, environment={"TOKEN": "secret"})
    assert (reply.job.nodes, reply.warnings) == (("n1", "n1", "n2", "n2"), ())
    second = await schedulers.submit("second")
    assert (second.job.phase, second.waiting_before) == (JobPhase.WAITING, 0)
    await until(lambda: all(len(runner.running()) == 2 for runner in schedulers.runners.values()), what="the gang")
    orders = [order for runner in schedulers.runners.values() for order in runner.orders]
    specs = [order.spec for order in orders if order.action is OrderAction.RUN and order.job == "gang"]
    assert len(specs) >= 2, "one for each node, and more where an answer was late"
    assert all(spec is not None and spec.environment == {"TOKEN": "secret"} for spec in specs)
    schedulers.tell("gang", WorkerChange.READY, took_s=0.5)
    schedulers.tell("gang", WorkerChange.ENDED, ran_s=7.0)
    await until(lambda: schedulers.ended("gang") and schedulers.running("second"), what="the next one's turn")
    assert await schedulers.phases() == {"second": JobPhase.RUNNING, "gang": JobPhase.ENDED}
    (ended,) = [each for _, entry in schedulers.entries for each in entry.ended]
    assert (ended.outcome, ended.ran_s, ended.attempts) == (JobOutcome.ENDED, 7.0, 1)
    assert "secret" not in repr(schedulers.entries)


async def test_another_leads_when_the_leader_is_killed(schedulers: Schedulers) -> None:
    """What was appended is carried out, nothing twice; the standby served nothing before."""
    await schedulers.start("a")
    await schedulers.led_by("a")
    await schedulers.start("b")
    await schedulers.submit("one", workers=2)
    await until(lambda: schedulers.running("one"), what="the workers")
    for runner in schedulers.runners.values():
        runner.answers = False  # the order of the next decision is not obeyed before the leader is gone
    await schedulers.submit("two", workers=2)
    await until(lambda: any(_starts(entry, "two") for _, entry in schedulers.entries), what="the decision")

    schedulers.signal("a", signal.SIGKILL)
    killed_s = asyncio.get_running_loop().time()
    for runner in schedulers.runners.values():
        runner.answers = True
    await schedulers.led_by("b")
    assert asyncio.get_running_loop().time() - killed_s < FAILOVER_S
    await until(lambda: schedulers.running("two"), what="the decision is carried out")
    await until(lambda: _asked(schedulers, OrderAction.CHECK, "one"), what="what became of the others is asked")
    schedulers.tell("one", WorkerChange.ENDED, ran_s=1.0)
    schedulers.tell("two", WorkerChange.ENDED, ran_s=1.0)
    await until(lambda: schedulers.ended("one") and schedulers.ended("two"), what="their ends")


def _starts(entry: ScheduleEvent, job: str) -> bool:
    return entry.decision is not None and any(start.job == job for start in entry.decision.starts)


def _asked(schedulers: Schedulers, action: OrderAction, job: str) -> bool:
    return any(
        (order.action, order.job) == (action, job) for runner in schedulers.runners.values() for order in runner.orders
    )


@pytest.mark.host  # each request that a frozen leader takes waits for REPLY_S: a minute and more
async def test_a_leader_that_was_frozen_steps_down(schedulers: Schedulers) -> None:
    """It wakes up, believes to lead, and can store nothing any more."""
    await schedulers.start("a")
    await schedulers.led_by("a")
    await schedulers.start("b")
    await schedulers.submit("one")
    schedulers.signal("a", signal.SIGSTOP)
    await schedulers.led_by("b")
    taken = schedulers.entries[-1][0]
    await schedulers.submit("two")
    schedulers.signal("a", signal.SIGCONT)
    asked = ControlRequest(job="one", action=JobAction.CANCEL)
    await schedulers.ask(SCHEDULER_CONTROL, asked)
    await until(lambda: schedulers.ended("one"), what="its end")
    await schedulers.submit("three")
    beats = len(schedulers.beats)
    await until(lambda: len(schedulers.beats) >= beats + 3, what="heartbeats")
    assert {entry.leader[0] for sequence, entry in schedulers.entries if sequence >= taken} == {"b"}
    assert {beat.leader[0] for beat in schedulers.beats[-2:]} == {"b"}
    assert schedulers.processes["a"].returncode is None


async def test_garbage_and_forged_events_are_dropped(schedulers: Schedulers) -> None:
    await schedulers.start("a")
    reply = await schedulers.submit("one")
    (node,) = reply.job.nodes
    other = next(name for name in schedulers.runners if name != node)
    await until(lambda: schedulers.running("one"), what="the worker")
    bus = await schedulers.connect()
    thief = WORK_EVENTS.subject(bus.root, job="one", node=other)
    event = WorkEvent(job="one", attempt=1, rank=0, node=node, change=WorkerChange.ENDED, time_ns=1)
    bus.publish_event(thief, event, message_id="as the other node")
    bus.publish_event(thief, event.model_copy(update={"node": other}), message_id="of a worker elsewhere")
    bus.publish_event(thief, SchedulerHeartbeat(leader="x", sequence=1, time_ns=1), message_id="another message")
    await bus.flush(60)
    for subject in (thief.text, SCHEDULE.subject(bus.root).text):
        await bus.connection.publish(subject, b"\xff\xff")
    await bus.flush(60)
    await schedulers.submit("two")
    await until(lambda: schedulers.running("two"), what="the log goes on behind the garbage")
    assert (await schedulers.phases())["one"] is JobPhase.RUNNING
    assert not schedulers.ended("one")


async def test_jobs_outlive_a_restart_of_the_server(schedulers: Schedulers) -> None:
    """What ended meanwhile is told by the runner's outbox, or by the answer to a question."""
    await schedulers.start("a")
    await schedulers.submit("one")
    await until(lambda: schedulers.running("one"), what="the worker")
    server = schedulers._server
    server.kill()
    await until(lambda: not schedulers.bus.connected, what="the server is gone")
    schedulers.tell("one", WorkerChange.ENDED, ran_s=2.0)
    await server.start()
    await until(lambda: schedulers.ended("one"), what="its end")
    await schedulers.submit("two")
    await until(lambda: schedulers.running("two"), what="the next one")


async def test_a_scheduler_that_was_stopped_starts_from_its_snapshot(schedulers: Schedulers) -> None:
    await schedulers.start("a")
    await schedulers.submit("one")
    await until(lambda: schedulers.running("one"), what="the worker")
    await schedulers.ends("a", signal.SIGTERM)
    await schedulers.start("b")
    await schedulers.led_by("b")  # by then all that "a" has written was heard
    last = max(sequence for sequence, entry in schedulers.entries if entry.leader.startswith("a-"))
    assert 0 < schedulers.began_behind("b") <= last, "it may have decided once more while it stopped"
    reply = await schedulers.ask(SCHEDULER_EXPLAIN, JobExplainRequest(job="one"))
    assert isinstance(reply, JobExplainReply)
    assert [line.what for line in reply.history[:2]] == ["submitted", "started"]
    schedulers.tell("one", WorkerChange.ENDED, ran_s=3.0)
    await until(lambda: schedulers.ended("one"), what="its end")


async def test_a_scheduler_that_is_killed_while_it_stores_a_snapshot_loses_nothing(schedulers: Schedulers) -> None:
    """Twice, at the first piece of one: the next begins from an older one, or from that, and decides alike."""
    await schedulers.start("first")
    await schedulers.submit("first")
    await schedulers.ends("first", signal.SIGTERM)
    whole = schedulers.entries[-1][0]
    for number in range(2):
        replica = f"r{number}"
        await schedulers.start(replica, snapshot_entries=2)
        await schedulers.led_by(replica)
        hearing = await schedulers.bus.connection.subscribe("$O.tb_snapshots.C.>")
        for turn in range(2):
            await schedulers.submit(f"j{number}-{turn}")
        async with asyncio.timeout(60):
            await hearing.next_msg(60)
        await schedulers.ends(replica, signal.SIGKILL)
        await hearing.unsubscribe()
    await schedulers.start("last")
    await schedulers.led_by("last")
    assert whole <= schedulers.began_behind("last") <= schedulers.entries[-1][0]
    expected = fold(State(), [entry for _, entry in schedulers.entries])
    jobs = {"first", *(f"j{number}-{turn}" for number in range(2) for turn in range(2))}
    assert (await schedulers.phases()).keys() == expected.live.keys() == jobs


async def test_a_spoiled_snapshot_costs_time_only(schedulers: Schedulers) -> None:
    await schedulers.start("a")
    await schedulers.submit("one")
    await schedulers.ends("a", signal.SIGTERM)
    objects = (await schedulers.connect()).objects(SNAPSHOTS)
    ((name, info),) = (await objects.names()).items()
    await objects.put(name, b"garbage", info.attributes)
    await schedulers.start("b")
    assert schedulers.began_behind("b") == 0
    assert any(line["event"] == "snapshot_unusable" for line in schedulers.started["b"])
    assert (await schedulers.phases()).keys() == {"one"}

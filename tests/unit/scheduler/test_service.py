"""The scheduler on a bus in memory, with runners that have no processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schemas.apps import AppSpec
from schemas.codec import decode
from schemas.jobs import TaskFeatures
from schemas.message import Message
from schemas.network import RouteEvent, RouteKind
from schemas.predictions import ConfigurationPrediction, Estimate, ModelName, PredictReply, PredictRequest
from schemas.scheduling import (
    ELASTIC_IS_SIMULATED,
    MASKED,
    ControlReply,
    ControlRequest,
    EstimateSource,
    JobAction,
    JobExplainReply,
    JobExplainRequest,
    JobOutcome,
    JobPhase,
    JobSpec,
    OrderAction,
    Pace,
    Preemption,
    QueuedJob,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SubmitReply,
    SubmitRequest,
    WorkerChange,
    WorkEvent,
)
from schemas.service import Endpoint
from schemas.services.advisor import ADVISOR_PREDICT
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_EXPLAIN, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import APPS, JOB_SPECS
from schemas.subjects import ITERATIONS, ROUTE_EVENTS, WORK_EVENTS
from services._runtime.bus.api import NoResponderError, RequestRefusedError
from services._runtime.settings_error import UnusableSettingsError
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.live_policies import POLICIES
from services.scheduler.core.state import State, fold
from services.scheduler.service import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.fake_runner import FakeRunner
from tests.support.service_in_process import run_in_process
from tests.support.traffic import SENT_BYTES, sample

pytestmark = pytest.mark.virtual_time

READY = WorkerChange.READY
GARBAGE = b"\xff\xff"


def spec(job: str = "try", **fields: object) -> JobSpec:
    plain = {"job": job, "command": ("train",), "directory": "/srv", "preemption": Preemption.CHECKPOINT}
    return JobSpec.model_validate(plain | fields)


@dataclass
class Cluster:
    """A scheduler that leads, and its runners."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    runners: dict[str, FakeRunner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bus = MemoryBus(self.broker)
        """A person's."""

    async def ask(self, endpoint: Endpoint, message: Message) -> Message:
        return await self.bus.request(endpoint.template.subject("tb"), message, timeout_s=60)

    async def submit(self, job: str = "try", **fields: object) -> SubmitReply:
        reply = await self.ask(SCHEDULER_SUBMIT, SubmitRequest(spec=spec(job, **fields), by="ada"))
        assert isinstance(reply, SubmitReply)
        return reply

    async def control(self, **fields: object) -> str:
        reply = await self.ask(SCHEDULER_CONTROL, ControlRequest.model_validate({"by": "ada", **fields}))
        assert isinstance(reply, ControlReply)
        return reply.done

    async def queue(self) -> QueueReply:
        reply = await self.ask(SCHEDULER_QUEUE, QueueRequest())
        assert isinstance(reply, QueueReply)
        return reply

    async def job(self, name: str = "try") -> QueuedJob:
        return next(job for job in (await self.queue()).jobs if job.job == name)

    async def until(self, phase: JobPhase, job: str = "try") -> QueuedJob:
        await self.eventually(lambda: self._is(job, phase), f"{job} is {phase}")
        return await self.job(job)

    async def _is(self, job: str, phase: JobPhase) -> bool:
        try:
            return any(each.job == job and each.phase is phase for each in (await self.queue()).jobs)
        except NoResponderError:  # nobody leads
            return False

    async def eventually(self, holds: Callable[[], Awaitable[object]], what: str, within_s: float = 60.0) -> None:
        end_s = asyncio.get_running_loop().time() + within_s
        while not await holds():
            assert asyncio.get_running_loop().time() < end_s, f"not within {within_s:g} s: {what}"
            await asyncio.sleep(0.05)

    def log(self) -> list[ScheduleEvent]:
        stream = self.broker.stream("TB_SCHEDULE")
        assert stream is not None
        decoded = [decode(data) for _, data in stream.messages if data != GARBAGE]
        return [event for event in decoded if isinstance(event, ScheduleEvent)]

    async def runner(self, node: str, slots: int = 2) -> FakeRunner:
        self.runners[node] = FakeRunner(MemoryBus(self.broker), node, slots)
        await self.runners[node].start()
        return self.runners[node]


@asynccontextmanager
async def cluster(*nodes: str, slots: int = 2, **settings: object) -> AsyncIterator[Cluster]:
    made = Cluster()
    for node in nodes:
        await made.runner(node, slots)
    async with run_in_process(Scheduler, SchedulerSettings.load({}, **settings), MemoryBus(made.broker)):

        async def lists() -> bool:
            try:
                return len((await made.queue()).nodes) == len(nodes)
            except NoResponderError:
                return False

        await made.eventually(lists, "the nodes are known")
        yield made
    for runner in made.runners.values():
        await runner.stop()


async def refused(asked: Awaitable[object]) -> tuple[int, str]:
    with pytest.raises(RequestRefusedError) as refusal:
        await asked
    return refusal.value.code, str(refusal.value)


async def test_a_job_runs_from_its_submission_to_its_end() -> None:
    async with cluster("n1", "n2") as made:
        reply = await made.submit(workers=2, slots=2, environment={"TOKEN": "secret"})
        assert (reply.job.phase, reply.job.nodes, reply.waiting_before) == (JobPhase.RUNNING, ("n1", "n2"), 0)
        await made.eventually(lambda: _true(all(each.workers for each in made.runners.values())), "workers")
        order = made.runners["n2"].orders[0]
        assert (order.ranks, order.nodes, order.master_address) == ((1,), ("n1", "n2"), "10.0.0.1")
        assert order.spec is not None
        assert order.spec.environment == {"TOKEN": "secret"}
        assert 29_500 <= order.master_port < 29_900
        for runner in made.runners.values():
            runner.tell("try", READY, took_s=1.0)
            runner.tell("try", WorkerChange.ENDED, ran_s=30.0, exit_code=0)
        ended = await made.until(JobPhase.ENDED)
        assert (ended.ran_s, ended.attempt, len(ended.spans)) == (30.0, 1, 1)
        (message,) = [each for entry in made.log() for each in entry.ended]
        assert (message.outcome, message.ran_s, message.node and message.node.node) == (JobOutcome.ENDED, 30.0, "n1")
        assert "secret" not in repr(made.log())
        assert {each.starts.total() for each in made.runners.values()} == {1}
        await made.eventually(lambda: _gone(made, "try"), "its specification is removed")


async def _true(value: bool) -> bool:
    return value


async def _gone(made: Cluster, job: str) -> bool:
    return await made.bus.bucket(JOB_SPECS).get(job) is None


async def test_a_short_job_goes_before_a_long_one_that_gives_up_its_slots() -> None:
    async with cluster("n1") as made:
        await made.submit("long", workers=2, estimate_s=36_000)
        made.runners["n1"].stops = False
        await made.until(JobPhase.RUNNING, "long")
        await asyncio.sleep(1)
        made.runners["n1"].tell("long", READY)
        await asyncio.sleep(700)  # it is held for ten times what a preemption is taken to cost
        short = await made.submit("short", workers=2, estimate_s=60)
        assert short.job.phase is JobPhase.WAITING
        assert short.job.expected_start_ns > 0
        assert (await made.job("long")).phase is JobPhase.STOPPING, "it holds its slots until it has stopped"
        made.runners["n1"].tell("long", WorkerChange.STOPPED, ran_s=700.0, took_s=3.0)
        await made.until(JobPhase.RUNNING, "short")
        waiting = await made.job("long")
        assert (waiting.phase, waiting.ran_s, waiting.preemptions) == (JobPhase.WAITING, 700.0, 1)
        assert waiting.ahead == ("short",)
        explained = await made.ask(SCHEDULER_EXPLAIN, JobExplainRequest(job="long"))
        assert isinstance(explained, JobExplainReply)
        told = [line.what for line in explained.history]
        assert told[:2] == ["submitted", "started"]
        assert "preempted" in told


async def test_what_is_wrong_with_a_submission_is_said() -> None:
    async with cluster("n1", "n2") as made:
        await made.submit("try")
        assert await refused(made.submit("try")) == (409, "a job named try has not ended yet: choose another name")
        assert (await refused(made.submit("here", directory="train")))[0] == 400
        code, text = await refused(made.submit("fat", command=("x" * 4_000,) * 10))
        assert code == 400
        assert "bytes, at most" in text
        assert (await refused(made.submit("n" * 60)))[0] == 400
        for fields in ({"min_workers": 1}, {"max_workers": 8}, {"deadline_s": 60.0}, {"budget_slot_hours": 1.0}):
            code, text = await refused(made.submit("elastic", **fields))
            assert (code, text) == (400, ELASTIC_IS_SIMULATED), "never run as if it were not there"
        large = await made.submit("large", workers=16)
        assert large.warnings == ("needs 16 slots, the cluster has 4: it will never start",)
        assert "it will never start" in (await made.job("large")).why
        wide = await made.submit("wide", slots=3)
        assert wide.warnings == ("each worker needs 3 slots on one node, the largest has 2: it will never start",)
        assert "it will never start" in (await made.job("wide")).why
        assert await made.control(drain="n2")
        pair = await made.submit("pair", workers=2, slots=2)
        assert pair.warnings == ("no place for 2 workers of 2 slots on the nodes that can be used now",)
        assert "it waits for n2, where nothing can be started" in (await made.job("pair")).why
        much = await made.submit("much", memory_bytes=100 << 30, cpu_cores=3)
        assert much.warnings == (
            "memory: each worker may use 100GiB, and the largest node has 2GiB: it is killed where it needs more",
            "cpu: each worker may use 3 cores, and the largest node has 2",
        )


async def test_what_is_wrong_with_a_request_is_said() -> None:
    async with cluster("n1") as made:
        assert await refused(made.control(job="x", action="cancel")) == (404, "no job is named x")
        assert await refused(made.control(drain="n9")) == (404, "no node is named n9")
        for given in ({}, {"job": "x"}, {"action": "cancel"}, {"drain": "n1", "undrain": "n1"}):
            assert (await refused(made.control(**given)))[0] == 400
        assert await refused(made.ask(SCHEDULER_EXPLAIN, JobExplainRequest(job="x"))) == (404, "no job is named x")
        await made.submit("try", workers=3)
        assert (await refused(made.control(job="try", action="preempt")))[0] == 409
        assert (await refused(made.control(job="try", action="release")))[0] == 409
        assert await made.control(job="try", action="cancel") == "try is cancelled"
        assert await refused(made.control(job="try", action="cancel")) == (409, "try has cancelled already")


async def test_a_person_preempts_a_job_for_some_time_and_releases_it() -> None:
    async with cluster("n1") as made:
        await made.submit(preemption=Preemption.NEVER)
        done = await made.control(job="try", action=JobAction.PREEMPT, for_s=600)
        assert done == "try gives up its slots, and is not started again for 10 min"
        kept = await made.until(JobPhase.WAITING)
        assert kept.why.startswith("kept back by a person for ")
        assert await made.control(job="try", action=JobAction.RELEASE) == "try may start again"
        assert (await made.until(JobPhase.RUNNING)).attempt == 2
        await made.control(job="try", action=JobAction.PREEMPT, for_s=600)
        await made.until(JobPhase.WAITING)
        await asyncio.sleep(601)
        assert (await made.until(JobPhase.RUNNING)).attempt == 3


async def test_a_cancelled_job_ends_once_its_workers_have() -> None:
    async with cluster("n1") as made:
        made.runners["n1"].stops = False
        await made.submit()
        await made.eventually(lambda: _true(bool(made.runners["n1"].workers)), "the worker")
        assert await made.control(job="try", action="cancel") == "try stops, and ends then"
        assert (await made.job()).phase is JobPhase.STOPPING
        made.runners["n1"].tell("try", WorkerChange.UNSAVED)
        assert (await made.until(JobPhase.CANCELLED)).nodes == ()


@pytest.mark.parametrize("waits", [True, False])
async def test_the_last_attempt_of_a_cancelled_job_is_killed_then_forgotten(*, waits: bool) -> None:
    """What held it to start it again lets go of it: once, although nothing of it runs any more."""
    async with cluster("n1", "n2") as made:
        await made.submit(workers=4)
        runners = made.runners.values()
        await made.eventually(lambda: _true(all(len(each.workers) == 2 for each in runners)), "the workers")
        if waits:
            await made.control(job="try", action=JobAction.PREEMPT, for_s=600)
            await made.until(JobPhase.WAITING)
            await made.eventually(lambda: _true(not any(each.workers for each in runners)), "it is forgotten")
        for each in runners:
            each.orders.clear()
        await made.control(job="try", action="cancel")
        await made.until(JobPhase.CANCELLED)
        await asyncio.sleep(60)
        asked = [OrderAction.KILL, OrderAction.FORGET]
        for each in runners:
            orders = [order for order in each.orders if order.action in asked]
            assert [(order.action, order.attempt) for order in orders] == [(action, 1) for action in asked]
        assert [made.runners[node].orders[-1].ranks for node in ("n1", "n2")] == [(0, 1), (2, 3)]


async def test_a_job_that_was_never_started_is_cancelled_without_orders() -> None:
    async with cluster("n1") as made:
        await made.submit(workers=3)
        await made.control(job="try", action="cancel")
        await made.until(JobPhase.CANCELLED)
        await asyncio.sleep(60)
        assert made.runners["n1"].orders == []


async def test_a_kill_that_is_not_answered_is_given_up() -> None:
    async with cluster("n1") as made:
        runner = made.runners["n1"]
        await made.submit()
        await made.eventually(lambda: _true(bool(runner.workers)), "the worker")
        await made.control(job="try", action=JobAction.PREEMPT, for_s=600)
        await made.until(JobPhase.WAITING)
        await made.eventually(lambda: _true(not runner.workers), "it is forgotten")
        await runner.stop()
        await made.control(job="try", action="cancel")
        await asyncio.sleep(300)
        runner = await made.runner("n1")
        await asyncio.sleep(60)
        assert runner.orders == []


async def test_nothing_is_started_on_a_drained_node() -> None:
    async with cluster("n1", "n2") as made:
        await made.submit("old", workers=2)
        assert (await made.job("old")).nodes == ("n1", "n1")
        assert "old may stay" in await made.control(drain="n1")
        assert await made.control(drain="n1") == "n1 is drained already"
        await made.submit("new")
        assert (await made.job("new")).nodes == ("n2",)
        assert (await made.job("old")).phase is JobPhase.RUNNING
        assert {node.node: node.why for node in (await made.queue()).nodes} == {"n1": "drained", "n2": ""}
        assert await made.control(undrain="n1") == "n1 is in use again"


async def test_a_lost_event_comes_with_the_answer_to_a_check() -> None:
    async with cluster("n1") as made:
        await made.submit()
        await made.eventually(lambda: _true(bool(made.runners["n1"].workers)), "the worker")
        made.runners["n1"].publishes = False
        made.runners["n1"].tell("try", WorkerChange.ENDED, ran_s=5.0)
        await made.eventually(lambda: made._is("try", JobPhase.ENDED), "its end", within_s=150)


async def test_workers_that_a_new_runner_does_not_know_are_lost_and_start_again() -> None:
    async with cluster("n1") as made:
        await made.submit()
        await made.eventually(lambda: _true(bool(made.runners["n1"].workers)), "the worker")
        await asyncio.sleep(2)
        await made.runners["n1"].restart(forgetting=True)
        await made.eventually(lambda: _attempt(made, 2), "it runs again")
        assert max(made.runners["n1"].starts.values()) == 1


async def _attempt(made: Cluster, number: int) -> bool:
    job = await made.job()
    return job.phase is JobPhase.RUNNING and job.attempt == number


async def test_a_silent_node_keeps_its_workers_until_they_count_as_lost() -> None:
    """Registration: 30 s. Then 330 s, and a grace period of 30 s."""
    async with cluster("n1") as made:
        await made.submit("may")
        await made.submit("never", preemption=Preemption.NEVER)
        await made.eventually(lambda: _true(len(made.runners["n1"].workers) == 2), "the workers")
        await made.runner("n2")
        await made.runners["n1"].stop(silently=True)
        await asyncio.sleep(300)
        assert [node.silent for node in (await made.queue()).nodes] == [True, False]
        waiting = await made.job("may")
        assert (waiting.phase, waiting.nodes) == (JobPhase.RUNNING, ("n1",))
        assert waiting.why.endswith("the runner of n1 is silent")
        await asyncio.sleep(120)
        moved = await made.job("may")
        assert (moved.phase, moved.nodes, moved.attempt) == (JobPhase.RUNNING, ("n2",), 2)
        kept = await made.job("never")
        assert (kept.phase, kept.attempt) == (JobPhase.RUNNING, 1), "only a person knows what became of it"
        await made.control(job="never", action="cancel")
        await made.until(JobPhase.CANCELLED, "never")


async def test_an_attempt_that_its_node_refuses_is_given_up() -> None:
    async with cluster("n1") as made:
        made.runners["n1"].refuses = "no space left on device"
        await made.submit()
        await made.eventually(lambda: made._is("try", JobPhase.FAILED), "given up three times", within_s=300)
        failed = await made.job()
        assert failed.why == "worker 0 on n1: n1 refuses to start it: no space left on device"
        assert failed.attempt == 3


async def test_a_worker_that_fails_takes_its_gang_with_it() -> None:
    async with cluster("n1", "n2") as made:
        await made.submit(workers=2, slots=2)
        await made.eventually(lambda: _true(all(each.workers for each in made.runners.values())), "workers")
        made.runners["n2"].tell("try", WorkerChange.FAILED, exit_code=1, reason="no data", oom_kills=1)
        failed = await made.until(JobPhase.FAILED)
        assert failed.why == "worker 1 on n2: exit code 1: no data"
        assert [order.action for order in made.runners["n1"].orders if order.action is OrderAction.KILL]
        (message,) = [each for entry in made.log() for each in entry.ended]
        assert (message.exit_code, message.out_of_memory) == (1, True)


async def test_forged_events_and_garbage_change_nothing() -> None:
    """A host with a stolen key harms its own workers only."""
    async with cluster("n1", "n2", slots=1) as made:
        await made.submit()
        assert (await made.job()).nodes == ("n1",)
        entries = len(made.log())
        event = WorkEvent(job="try", attempt=1, rank=0, node="n1", change=WorkerChange.ENDED, time_ns=1)
        other = MemoryBus(made.broker)
        thief = WORK_EVENTS.subject("tb", job="try", node="n2")
        other.publish_event(thief, event, message_id="as n1")
        other.publish_event(thief, event.model_copy(update={"node": "n2"}), message_id="as n2")
        made.broker.publish_event(thief.text, GARBAGE, "garbage")
        made.broker.publish_event("tb.evt.schedule", GARBAGE, "garbage in the log")
        await other.flush(60)
        await asyncio.sleep(5)
        assert (await made.job()).phase is JobPhase.RUNNING
        assert all(not entry.ended for entry in made.log()[entries:])
        assert (await made.submit("next")).job.phase is JobPhase.RUNNING, "the log goes on behind the garbage"


async def test_each_job_with_slots_is_an_application() -> None:
    async with cluster("n1") as made:
        apps = made.bus.bucket(APPS)
        await made.submit(workers=2, cpu_cores=0.5)

        async def announced() -> bool:
            return await apps.get("job-try") is not None

        await made.eventually(announced, "the application")
        entry = await apps.get("job-try")
        assert entry is not None
        assert isinstance(entry.message, AppSpec)
        assert (entry.message.cpu_limit, int(entry.message.memory_limit)) == (1.0, 2 << 30)
        await made.control(job="try", action="cancel")
        await made.until(JobPhase.CANCELLED)

        async def withdrawn() -> bool:
            return not await announced()

        await made.eventually(withdrawn, "its end")


@pytest.mark.parametrize("known", [True, False])
async def test_the_advisor_is_asked_once(known: bool) -> None:
    async with cluster("n1") as made:
        asked: list[PredictRequest] = []

        async def predict(delivery: object) -> PredictReply:
            request = delivery.message  # type: ignore[attr-defined]
            asked.append(request)
            model = ModelName(model="gp", version="gp-1", data_hash="", records=1, tasks=1, trained_ns=1)
            told = ConfigurationPrediction(
                configuration=request.configurations[0], time_s=Estimate(median=60, low=50, high=70), known=known
            )
            return PredictReply(model=model, prices_as_of=None, level=0.9, predictions=(told,))

        await made.bus.serve_queries("advisor", "0", "", {ADVISOR_PREDICT: predict})
        reply = await made.submit(task=TaskFeatures(task="cnn"))
        await asyncio.sleep(100)
        (request,) = asked
        assert (request.task.task, len(request.configurations)) == ("cnn", 1)
        assert reply.job.estimate_source is (EstimateSource.ADVISOR if known else EstimateSource.NONE)
        assert (reply.job.estimate and reply.job.estimate.median_s) == (60 if known else None)


async def test_an_advisor_that_does_not_answer_delays_a_submission_by_two_seconds() -> None:
    async with cluster("n1") as made:

        async def hangs(_delivery: object) -> PredictReply:
            return await asyncio.Event().wait()  # type: ignore[return-value]

        serving = await made.bus.serve(ADVISOR_PREDICT.template.subject("tb"), hangs)
        del serving
        begun_s = asyncio.get_running_loop().time()
        reply = await made.submit()
        assert 1.9 < asyncio.get_running_loop().time() - begun_s < 25
        assert reply.job.estimate is None


async def test_secrets_stay_in_their_bucket() -> None:
    async with cluster() as made:
        reply = await made.submit(environment={"TOKEN": "secret"})
        assert reply.warnings == ("no runner has registered yet: the job waits for one",)
        explained = await made.ask(SCHEDULER_EXPLAIN, JobExplainRequest(job="try"))
        assert isinstance(explained, JobExplainReply)
        assert explained.spec.environment == {"TOKEN": MASKED}
        kept = await made.bus.bucket(JOB_SPECS).get("try")
        assert kept is not None
        assert isinstance(kept.message, JobSpec)
        assert kept.message.environment == {"TOKEN": "secret"}


async def test_another_replica_goes_on_where_the_leader_ended() -> None:
    made = Cluster()
    runner = await made.runner("n1")
    settings = SchedulerSettings.load({}, replica="a")
    async with run_in_process(Scheduler, settings, MemoryBus(made.broker)) as first:
        await made.eventually(lambda: _true(first.lead.leading), "it leads")
        await made.eventually(lambda: _true(len(first.lead.state.nodes) == 1), "the node")
        async with run_in_process(Scheduler, SchedulerSettings.load({}, replica="b"), MemoryBus(made.broker)) as second:
            await asyncio.sleep(30)
            assert (first.lead.leading, second.lead.leading) == (True, False)
            await made.submit()
            await made.until(JobPhase.RUNNING)
            first.lead._bus.disconnect()  # type: ignore[attr-defined]
            await made.eventually(lambda: _true(second.lead.leading), "the other leads")
            await made.eventually(lambda: made._is("try", JobPhase.RUNNING), "it knows the job")
            await made.eventually(
                lambda: _true(any(order.action is OrderAction.CHECK for order in runner.orders)), "it asks"
            )
            runner.tell("try", WorkerChange.ENDED, ran_s=3.0)
            await made.until(JobPhase.ENDED)
            assert max(runner.starts.values()) == 1
            first.lead._bus.reconnect()  # type: ignore[attr-defined]
            await made.eventually(lambda: _true(not first.lead.leading), "the first one steps down")
            assert first.lead.state == second.lead.state
    await runner.stop()


def _sends(made: Cluster, job: str, node: str, time_ms: int, **changes: object) -> None:
    """An iteration of one job as its runner sees it."""
    subject = ITERATIONS.subject("tb", job=job, node=node)
    made.bus.publish(subject, sample(job, node, time_ms).model_copy(update=changes))


def _paces(made: Cluster, node: str) -> list[Pace | None]:
    return [order.pace for order in made.runners[node].orders if order.action is OrderAction.PACE]


async def _part(made: Cluster) -> None:
    """Both jobs are due at 10 s; b waits until a has sent all."""
    for job, node in (("a", "n1"), ("b", "n3")):
        _sends(made, job, node, 1_240 * 3, ended_ns=9_300_000_000, due_ns=10_000_000_000)
    await made.eventually(
        lambda: _true((pace := _paces(made, "n3")[-1]) is not None and pace.begin_ns == 10_540_000_000), "its turn"
    )


async def test_jobs_on_one_uplink_are_shifted_paced_and_shown(tmp_path: Path) -> None:
    """From samples on the bus to the log, to orders, and to the queue."""
    topology = tmp_path / "topology.yaml"
    topology.write_text("links:\n  up: {rate: 100Mbit, nodes: [n1, n3]}\n")
    async with cluster("n1", "n2", "n3", "n4", slots=1, topology=topology) as made:
        for job in ("a", "b"):
            await made.submit(job, workers=2)
            await made.until(JobPhase.RUNNING, job)
        await made.eventually(lambda: _true(all(each.workers for each in made.runners.values())), "workers")
        assert ((await made.job("a")).nodes, (await made.job("b")).nodes) == (("n1", "n2"), ("n3", "n4"))
        _sends(made, "a", "n4", 0)
        for turn in range(3):
            _sends(made, "a", "n1", 1_240 * turn)
            _sends(made, "b", "n3", 1_240 * turn + 10)
        await made.eventually(lambda: _true(bool(_paces(made, "n1")) and bool(_paces(made, "n3"))), "paces")
        assert {pace.period_us for pace in (*_paces(made, "n1"), *_paces(made, "n3")) if pace} == {1_240_000}
        await _part(made)
        second = _paces(made, "n3")[-1]
        told = len(_paces(made, "n3"))
        shown = await made.queue()
        (link,) = shown.links
        assert (link.jobs, link.score, link.why) == (("a", "b"), 1.0, "")
        traffic = {job.job: job.traffic for job in shown.jobs}
        assert [each and each.sent_bytes for each in traffic.values()] == [SENT_BYTES] * 2
        assert {job.job for job in shown.jobs if job.shift} == {"a", "b"}
        explained = await made.ask(SCHEDULER_EXPLAIN, JobExplainRequest(job="b"))
        assert isinstance(explained, JobExplainReply)
        assert any(line.what == "shifted" and "up 0.56 together, 1.00 so" in line.why for line in explained.history)
        await made.runners["n3"].restart()
        await made.eventually(
            lambda: _true(_paces(made, "n3")[told - 1 :] == [second, second]), "the new runner is told again"
        )
        made.runners["n1"].tell("a", WorkerChange.ENDED)
        made.runners["n2"].tell("a", WorkerChange.ENDED)
        await made.eventually(lambda: _true(_paces(made, "n3")[-1] is None), "b needs no turns any more")
        assert (await made.job("b")).shift is None
        assert _replayed(made.log())


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_replay_of_a_live_run_decides_as_it_did_under_each_policy(policy: str) -> None:
    async with cluster("n1", slots=1, policy=policy) as made:

        async def at_work() -> list[str]:
            workers = made.runners["n1"].workers.items()
            return [job for (job, _, _), last in workers if last.change is WorkerChange.STARTED]

        for job, estimate_s in (("long", 9_000.0), ("short", 60.0), ("unknown", None)):
            await made.submit(job, estimate_s=estimate_s)
        for _ in ("long", "short", "unknown"):
            await made.eventually(at_work, "one is at work")
            (job,) = await at_work()
            made.runners["n1"].tell(job, WorkerChange.ENDED)
            await made.until(JobPhase.ENDED, job)

        assert _replayed(made.log(), policy)
        assert {entry.decision.policy for entry in made.log() if entry.decision} == {policy}


def _replayed(log: list[ScheduleEvent], policy: str = "index") -> bool:
    """Whether a replay decides all entries as they were decided."""
    state = State()
    for entry in log:
        if not says_nothing(entry):
            assert decided(state, undecided(entry), policy)[0] == entry
        state = fold(state, [entry])
    return len(log) > 1


async def test_a_node_without_uplinks_gets_no_job_and_a_link_with_one_of_two_has_half_its_rate(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text("links:\n  up: {rate: 100Mbit, nodes: [n1]}\n")
    async with cluster("n1", "n2", topology=topology) as made:

        def rate() -> int:
            return next((entry.links[0].bits_per_s for entry in reversed(made.log()) if entry.links), 0)

        def tell(seq: int, **fields: object) -> None:
            plain = {"node": "n1", "incarnation": 1, "seq": seq, "source": "watcher", "time_ns": 1}
            event = RouteEvent.model_validate(plain | fields)
            made.bus.publish_event(ROUTE_EVENTS.subject("tb", node="n1"), event, message_id=str(seq))

        await made.eventually(lambda: _true(rate() == 10**8), "the topology is in the log")
        tell(1, kind=RouteKind.ROUTE, destination="10.0.0.0/8", before=("p1", "p2"), after=("p2",))
        await made.eventually(lambda: _true(rate() == 5 * 10**7), "half its rate")
        tell(2, kind=RouteKind.LINK, interface="p2", before=("up", "carrier"), after=("up", "no carrier"))
        await made.eventually(lambda: _is_cut_off(made), "it is cut off")
        await made.submit("x", workers=4)
        assert (await made.job("x")).phase is JobPhase.WAITING
        assert (await made.queue()).nodes[0].why == "none of its uplinks carries traffic"
        tell(3, kind=RouteKind.LINK, interface="p2", before=("up", "no carrier"), after=("up", "carrier"))
        await made.until(JobPhase.RUNNING, "x")


async def _is_cut_off(made: Cluster) -> bool:
    return (await made.queue()).nodes[0].cut_off


async def test_a_topology_that_cannot_be_used_ends_the_service(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text("links: 7\n")
    settings = SchedulerSettings.load({}, topology=topology)
    with pytest.raises(UnusableSettingsError, match=r"topology.yaml:1: links: should be a map"):
        async with run_in_process(Scheduler, settings, MemoryBus(MemoryBroker())):
            pass

"""Jobs with a model: the planner's answer goes to the log and to the workers, or why there is none."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schemas.message import Message
from schemas.plans import Plan, PlanReply, PlanRequest, Strategy
from schemas.scheduling import (
    ClusterNode,
    ControlRequest,
    JobExplainReply,
    JobExplainRequest,
    JobHistoryLine,
    JobPlanned,
    JobSubmitted,
    ScheduleEvent,
    SubmitRequest,
    WorkerChange,
    WorkOrder,
)
from schemas.services.planner import PLANNER_PLAN
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_EXPLAIN, SCHEDULER_SUBMIT
from schemas.streams import RUNNERS, SCHEDULE_STREAM
from services._runtime.bus.api import Bus, Delivery, RequestRefusedError
from services._runtime.telemetry.logging import get_logger
from services.planner.core.choose import plan
from services.planner.core.inputs import UnusableInputError
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.plan_request import NotPlannableError, Rates, plan_request
from services.scheduler.core.planned_places import Question, that_fit
from services.scheduler.core.state import State, fold
from services.scheduler.membership import Membership
from services.scheduler.planning import MOST_AT_ONCE, Planning
from services.scheduler.service import Scheduler
from services.scheduler.settings import SchedulerSettings
from services.trainer.worker.plan_file import check_plan
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.fake_runner import FakeRunner
from tests.support.layer_profiles import GIB, profile
from tests.support.recording_bus import RecordingBus, Use
from tests.support.scheduled_jobs import cluster_node, job_spec
from tests.support.service_in_process import run_in_process

PROFILES = (profile("fast"), profile("slow", ms_per_sample=4.0))
KINDS = {"n1": "fast", "n2": "slow"}


class Ground:
    """A scheduler that leads, and two nodes with one unequal device each."""

    def __init__(self, slots: int) -> None:
        self.broker = MemoryBroker()
        self.bus: Bus = MemoryBus(self.broker)
        self.scheduler = RecordingBus(self.broker)
        self.asked: list[PlanRequest] = []
        self.runners = {node: FakeRunner(MemoryBus(self.broker), node, slots=slots) for node in KINDS}

    async def serve_plans(self) -> None:
        """By the planner's own core."""

        async def answer(delivery: Delivery) -> Message:
            assert isinstance(delivery.message, PlanRequest)
            self.asked.append(delivery.message)
            try:
                return plan(delivery.message, PROFILES)
            except UnusableInputError as error:
                return PlanReply(refused=str(error))

        await self.bus.serve_queries("planner", "0", "", {PLANNER_PLAN: answer})

    async def submit(self, job: str = "try", **fields: object) -> None:
        spec = job_spec(job, **({"workers": 2, "model": "tiny", "batch": 15} | fields))
        await self.bus.request(SCHEDULER_SUBMIT.template.subject("tb"), SubmitRequest(spec=spec), timeout_s=60)

    async def control(self, **fields: str) -> None:
        await self.bus.request(SCHEDULER_CONTROL.template.subject("tb"), ControlRequest(**fields), timeout_s=60)

    async def orders(self) -> list[WorkOrder]:
        """The first to each node, once both have come."""
        await until(lambda: all(runner.orders for runner in self.runners.values()), what="orders")
        return [runner.orders[0] for runner in self.runners.values()]

    async def orders_of(self, jobs: list[str]) -> dict[str, WorkOrder]:
        """The first of each job, once all have come."""

        def found() -> dict[str, WorkOrder]:
            given = [order for runner in self.runners.values() for order in reversed(runner.orders)]
            return {order.job: order for order in given}

        await until(lambda: found().keys() >= set(jobs), what="an order of each job")
        return found()

    async def told(self, job: str = "try") -> JobHistoryLine:
        """What `jobs explain` says of how its work is divided."""
        reply = await self.bus.request(
            SCHEDULER_EXPLAIN.template.subject("tb"), JobExplainRequest(job=job), timeout_s=60
        )
        assert isinstance(reply, JobExplainReply)
        (line,) = [line for line in reply.history if line.what in {"planned", "divided evenly"}]
        return line

    async def log(self) -> list[ScheduleEvent]:
        entries: list[ScheduleEvent] = []

        async def take(delivery: Delivery) -> None:
            assert isinstance(delivery.message, ScheduleEvent)
            entries.append(delivery.message)

        replay = await self.bus.replay(SCHEDULE_STREAM, take)
        await replay.caught_up()
        await replay.stop()
        return entries


@asynccontextmanager
async def ground(kinds: dict[str, str], slots: int = 1, **settings: object) -> AsyncIterator[Ground]:
    made = Ground(slots)
    for node, runner in made.runners.items():
        runner.info = runner.info.model_copy(
            update={"device_kind": kinds.get(node, ""), "device_memory_bytes": 8 * GIB}
        )
        await runner.start()
    given = {"gbit_per_s_between_nodes": 10.0} | settings
    async with run_in_process(Scheduler, SchedulerSettings.load({}, **given), made.scheduler) as scheduler:
        await until(
            lambda: scheduler.inbox.closed is None and len(scheduler.lead.state.nodes) == len(KINDS), what="the nodes"
        )
        yield made
    for runner in made.runners.values():
        await runner.stop()


def replayed(log: list[ScheduleEvent]) -> State:
    """The state, if a replay decides all entries as they were decided."""
    state = State()
    for entry in log:
        if not says_nothing(entry):
            assert decided(state, undecided(entry), "index")[0] == entry
        state = fold(state, [entry])
    return state


async def test_workers_on_unequal_nodes_get_the_plan_for_just_these() -> None:
    async with ground(KINDS) as made:
        await made.serve_plans()
        await made.submit()
        orders = await made.orders()

        found = Plan.model_validate_json(orders[0].plan)
        assert orders[1].plan == orders[0].plan
        samples = {KINDS[node]: device.samples for node, device in zip(orders[0].nodes, found.devices, strict=True)}
        assert sum(samples.values()) == 15
        assert samples["fast"] > samples["slow"] > 0  # one is four times slower
        assert [device.node for device in made.asked[0].cluster.devices] == list(orders[0].nodes)
        line = await made.told()
        assert line.what == "planned"
        assert line.why.endswith(f"samples by rank: {' '.join(str(device.samples) for device in found.devices)}")
        log = await made.log()
        assert replayed(log).live["try"].plan == orders[0].plan
        assert len(made.asked) == 1


async def test_each_attempt_is_planned_anew() -> None:
    async with ground(KINDS) as made:
        await made.serve_plans()
        await made.submit(retries=1)
        await made.orders()
        made.runners["n1"].tell("try", WorkerChange.FAILED, exit_code=1)
        await until(lambda: len(made.asked) == 2, what="the second question")
        await until(lambda: {order.attempt for order in made.runners["n1"].orders} == {1, 2}, what="its next attempt")
        log = await made.log()
        assert [each.attempt for entry in log for each in entry.planned] == [1, 2]
        replayed(log)


async def test_without_a_planner_the_job_starts_all_the_same_and_it_is_said_why() -> None:
    async with ground(KINDS) as made:
        await made.submit()
        assert {order.plan for order in await made.orders()} == {""}
        line = await made.told()
        assert line.what == "divided evenly"
        assert "planner" in line.why
        replayed(await made.log())


async def test_where_plans_are_turned_off_that_is_the_reason() -> None:
    async with ground(KINDS, planner_timeout_s=0.0) as made:
        await made.serve_plans()
        await made.submit()
        assert {order.plan for order in await made.orders()} == {""}
        line = await made.told()
        assert (line.what, line.why) == ("divided evenly", "no plans: TURNBUCKLE_SCHEDULER__PLANNER_TIMEOUT_S is 0")
        assert made.asked == []


async def test_what_the_planner_refuses_is_told_as_it_says_it() -> None:
    async with ground(KINDS, gbit_per_s_between_nodes=0.0) as made:
        await made.serve_plans()
        await made.submit()
        assert {order.plan for order in await made.orders()} == {""}
        assert (await made.told()).why.startswith("no transfer rate between machines n1 and n2 is given: ")
        assert made.asked[0].cluster.between is None


@pytest.mark.virtual_time
async def test_a_planner_that_does_not_answer_delays_the_start_by_two_seconds() -> None:
    async with ground(KINDS) as made:

        async def hangs(_delivery: Delivery) -> Message:
            return await asyncio.Event().wait()  # type: ignore[return-value]

        await made.bus.serve(PLANNER_PLAN.template.subject("tb"), hangs)
        begun_s = asyncio.get_running_loop().time()
        await made.submit()
        assert {order.plan for order in await made.orders()} == {""}
        # Two seconds of virtual time, and what this process waited for a processor; it has asked for 20 at most.
        assert 1.9 < asyncio.get_running_loop().time() - begun_s < 20
        assert "not" in (await made.told()).why
        replayed(await made.log())


@pytest.mark.virtual_time
async def test_each_of_many_jobs_that_may_start_at_the_same_time_gets_its_plan() -> None:
    jobs = [f"job-{number}" for number in range(MOST_AT_ONCE + 2)]
    async with ground(KINDS, slots=len(jobs)) as made:
        await made.serve_plans()
        for node in KINDS:
            await made.control(drain=node)
        for job in jobs:
            await made.submit(job, workers=1)
        await made.control(undrain="n1")  # which has room for all of them
        orders = await made.orders_of(jobs)
        assert {Plan.model_validate_json(order.plan).job for order in orders.values()} == set(jobs)
        assert {(await made.told(job)).what for job in jobs} == {"planned"}
        assert sorted(request.job for request in made.asked) == jobs
        replayed(await made.log())


@pytest.mark.virtual_time
async def test_while_the_planner_does_not_answer_many_jobs_do_not_wait_for_each_other() -> None:
    """Asked one after another, 40 jobs would wait for 20 s; and each would be an entry of the log."""
    jobs, asked = [f"job-{number}" for number in range(10 * MOST_AT_ONCE)], []
    async with ground(KINDS, slots=len(jobs)) as made:

        async def hangs(delivery: Delivery) -> Message:
            asked.append(delivery)
            return await asyncio.Event().wait()  # type: ignore[return-value]

        await made.bus.serve(PLANNER_PLAN.template.subject("tb"), hangs)
        for node in KINDS:
            await made.control(drain=node)
        for job in jobs:
            await made.submit(job, workers=1)
        await made.control(undrain="n1")
        assert {order.plan for order in (await made.orders_of(jobs)).values()} == {""}
        assert len(asked) <= len(jobs) / 2
        log = await made.log()
        assert sum(bool(entry.answered) for entry in log) <= len(jobs) / 2
        replayed(log)


async def test_an_answer_about_a_job_or_a_device_that_is_another_one_by_now_is_no_fact() -> None:
    first, again = (JobSubmitted(spec=job_spec("try", model="tiny", batch=batch)) for batch in (4, 8))
    nodes = tuple(cluster_node(name, device_kind="slow", device_memory_bytes=8 * GIB) for name in ("n1", "n2"))
    places = tuple((node,) for node in nodes)
    planning = Planning(MemoryBus(MemoryBroker()), 0.0, Rates(), get_logger("scheduler"))
    running = asyncio.create_task(planning.run())

    async def answers(state: State) -> list[tuple[str, ...]]:
        arrived = asyncio.Event()
        planning.on_answers = arrived.set
        planning.ask([Question(first.spec, 1, places)])
        async with asyncio.timeout(60):
            await arrived.wait()
        return [answer.nodes for answer in planning.answers(state)]

    def state(submitted: JobSubmitted, *now: ClusterNode) -> State:
        return fold(State(), [ScheduleEvent(leader="s", time_ns=1, nodes=now, submitted=(submitted,))])

    assert await answers(state(first, *nodes)) == [("n1",), ("n2",)]
    assert await answers(state(again, *nodes)) == []
    assert await answers(State()) == []
    assert await answers(state(first, nodes[0], nodes[1].model_copy(update={"device_kind": "fast"}))) == [("n1",)]
    running.cancel()
    await asyncio.wait([running])


async def test_a_node_of_which_nothing_is_known_is_named_and_nobody_is_asked() -> None:
    async with ground({"n1": "fast"}) as made:
        await made.serve_plans()
        await made.submit()
        await made.orders()
        assert (await made.told()).why.startswith("n2 does not say of what kind its devices are")
        assert PLANNER_PLAN.template.text not in made.scheduler.recorded[Use.REQUEST]


async def test_a_node_whose_device_no_request_can_name_ends_no_scheduler() -> None:
    async with ground(KINDS | {"n2": "x" * 300}) as made:
        await made.serve_plans()
        await made.submit()
        assert {order.plan for order in await made.orders()} == {""}
        assert (await made.told()).why.startswith("the planner cannot be asked: kind: String should have at most 200")
        assert made.asked == []


async def test_jobs_without_a_model_are_not_asked_about() -> None:
    async with ground(KINDS) as made:
        await made.serve_plans()
        await made.submit(model="", batch=0)
        await made.orders()
        assert made.asked == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"batch": 0}, "model and batch: a plan needs both"),
        ({"model": ""}, "model and batch: a plan needs both"),
        ({"slots": 2}, "slots: each worker of a job with a model has one device, so one slot"),
    ],
)
async def test_a_job_that_cannot_be_planned_is_refused(fields: dict[str, object], sentence: str) -> None:
    async with ground(KINDS) as made:
        with pytest.raises(RequestRefusedError, match=sentence):
            await made.submit(**fields)


@pytest.mark.parametrize(
    ("changes", "is_asked_for"),
    [
        ({"engine": "slurm", "slots": 4, "gpus": 4}, True),
        ({"engine": "slurm", "slots": 8, "gpus": 4}, False),  # processors are its slots
        ({"engine": "slurm", "slots": 4}, False),
        ({"slots": 4, "gpus": 4}, False),
    ],
)
async def test_as_many_workers_on_each_node_are_asked_for_where_slurm_has_gpus_as_slots(
    changes: dict[str, object], *, is_asked_for: bool
) -> None:
    bus = MemoryBus(MemoryBroker())
    changed, listed = asyncio.Event(), asyncio.Event()
    membership = Membership(bus, changed.set)
    watching = asyncio.create_task(membership.watch(listed))
    async with asyncio.timeout(60):
        await listed.wait()
        info = FakeRunner(bus, "n1", slots=1).info
        await bus.bucket(RUNNERS).put("n1", info.model_copy(update=changes))
        await changed.wait()
    found = membership.nodes(State(), 0.0)
    assert found is not None
    assert [node.equal_workers for node in found] == [is_asked_for]
    watching.cancel()
    await asyncio.wait([watching])


def test_memory_of_a_device_is_the_jobs_own_limit_but_for_gpus() -> None:
    plain = cluster_node(device_kind="cpu", device_memory_bytes=2 * GIB)
    spec = job_spec(model="tiny", batch=4, memory_bytes=GIB)
    nodes = (plain, plain.model_copy(update={"gpus": 2}))

    found = plan_request(spec, nodes, Rates(inside_gbit_per_s=8.0))
    assert [device.memory_bytes for device in found.cluster.devices] == [GIB, 2 * GIB]
    assert found.cluster.inside is not None
    assert found.cluster.inside.bytes_per_s == 1e9


def test_a_plan_for_which_its_entry_has_no_room_is_left_out_and_the_next_smaller_one_kept() -> None:
    """Of characters that have three bytes each, as a device's kind may: the stream counts bytes."""
    answers = [
        JobPlanned(job=job, attempt=1, nodes=("n1",), plan=plan, why="uneven")
        for job, plan in (("first", "a" * 1_000), ("second", "\u20ac" * 1_000), ("third", "b" * 1_000))
    ]
    first, second, third = that_fit(answers, room_bytes=3_000)

    assert (first, third) == (answers[0], answers[2])
    assert (second.job, second.plan) == ("second", "")
    assert second.why == "the entry of the log that starts it has no room for its plan"


async def test_an_entry_of_the_log_is_never_too_large_for_its_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.core.entries.MOST_ENTRY_BYTES", 1_500)
    async with ground(KINDS) as made:
        await made.serve_plans()
        await made.submit()
        assert {order.plan for order in await made.orders()} == {""}
        assert (await made.told()).why == "the entry of the log that starts it has no room for its plan"


def test_no_pipeline_is_asked_for_also_where_it_were_the_fastest() -> None:
    """No job has been tried as a pipeline yet. A pipeline sends least over 10 MB/s."""
    nodes = [cluster_node(f"n{n}", device_kind="fast", device_memory_bytes=5 * GIB // 2) for n in range(4)]
    asked = plan_request(job_spec(model="tiny", batch=16), nodes, Rates(between_gbit_per_s=0.08))
    found = plan(asked, PROFILES).plan

    assert found is not None
    check_plan(found)
    fastest = min(found.alternatives, key=lambda one: one.step_us or math.inf)
    assert fastest.strategy is Strategy.PIPELINE
    assert fastest.step_us is not None
    assert fastest.step_us < found.step_us


def test_more_workers_than_devices_of_a_plan() -> None:
    with pytest.raises(NotPlannableError, match="1025 workers are more than the 1024 devices of a plan"):
        plan_request(job_spec(model="tiny", batch=4), [cluster_node(device_kind="cpu")] * 1_025, Rates())

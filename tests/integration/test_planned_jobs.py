"""A scheduler and a planner on a real NATS server: a job with a model starts on the nodes with the shortest step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from schemas.plans import Plan
from schemas.scheduling import JobExplainReply, JobExplainRequest, QueueRequest, ScheduleEvent, SubmitRequest
from schemas.services.scheduler import SCHEDULER_EXPLAIN, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import BUCKETS, SCHEDULE_STREAM, STREAMS
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.collector.layers.publishing import publish_on
from services.planner.service import Planner
from services.planner.settings import PlannerSettings
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.state import State, fold
from services.scheduler.service import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.support.asking import ask_until_answered
from tests.support.deadline import until
from tests.support.fake_runner import FakeRunner
from tests.support.layer_profiles import GIB, profile
from tests.support.scheduled_jobs import job_spec
from tests.support.service_in_process import run_in_process

KINDS = {"n1": "slow", "n2": "slow", "n3": "fast", "n4": "fast"}
PATIENT_S = 60.0
"""For the planner's answers, whatever else this machine does: a scheduler waits for 2 s at most."""


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[NatsBus, dict[str, FakeRunner]]]:
    """Four nodes with one device each, and layer profiles of both kinds."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats())

        async def connect() -> NatsBus:
            options = BusOptions(servers=(server.url,), streams=STREAMS, buckets=BUCKETS, connect_deadline_s=PATIENT_S)
            bus = await NatsBus.connect(options)
            stack.push_async_callback(bus.close, 2.0)
            return bus

        bus = await connect()
        for one in (profile("fast"), profile("slow", ms_per_sample=8.0)):
            await publish_on(bus, one)
        runners = {node: FakeRunner(bus, node, slots=1) for node in KINDS}
        for node, runner in runners.items():
            devices = {"device_kind": KINDS[node], "device_memory_bytes": 8 * GIB}
            runner.info = runner.info.model_copy(update=devices)
            await runner.start()
            stack.push_async_callback(runner.stop)
        planning = PlannerSettings.load({}, timeout_s=PATIENT_S)
        planner = await stack.enter_async_context(run_in_process(Planner, planning, await connect()))
        await until(lambda: len(planner._known) == 2, what="the profiles")
        settings = SchedulerSettings.load({}, gbit_per_s_between_nodes=10.0, advisor_timeout_s=0.0)
        patient = settings.model_copy(update={"planner_timeout_s": PATIENT_S})
        scheduler = await stack.enter_async_context(run_in_process(Scheduler, patient, await connect()))
        await until(
            lambda: scheduler.inbox.closed is None and scheduler.lead.state.nodes.keys() == KINDS.keys(),
            what="the nodes",
        )
        # The inbox is open a moment before the server knows the endpoints.
        await ask_until_answered(bus, SCHEDULER_QUEUE, QueueRequest())
        yield bus, runners


async def replayed(bus: NatsBus) -> State:
    """The state of the log, once its decisions were found again."""
    entries: list[ScheduleEvent] = []

    async def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, ScheduleEvent)
        entries.append(delivery.message)

    replay = await bus.replay(SCHEDULE_STREAM, take)
    await replay.caught_up()
    await replay.stop()
    state = State()
    for entry in entries:
        if not says_nothing(entry):
            assert decided(state, undecided(entry), "index")[0] == entry
        state = fold(state, [entry])
    return state


async def test_a_job_with_a_model_starts_on_the_faster_pair_and_it_is_told_what_others_would_take() -> None:
    async with cluster() as (bus, runners):
        spec = job_spec("try", workers=2, model="tiny", batch=16)
        await bus.request(SCHEDULER_SUBMIT.template.subject("tb"), SubmitRequest(spec=spec), timeout_s=PATIENT_S)
        await until(lambda: runners["n3"].running() and runners["n4"].running(), what="both workers")
        assert not runners["n1"].orders
        assert not runners["n2"].orders
        (order,) = {order.plan: order for order in runners["n3"].orders if order.plan}.values()
        plan = Plan.model_validate_json(order.plan)
        assert [device.kind for device in plan.devices] == ["fast", "fast"]

        request = JobExplainRequest(job="try")
        reply = await bus.request(SCHEDULER_EXPLAIN.template.subject("tb"), request, timeout_s=PATIENT_S)
        assert isinstance(reply, JobExplainReply)
        (compared,) = [line.why.split("\n") for line in reply.history if line.what == "compared"]
        assert compared[0] == f"n3 n4: step {plan.step_us / 1e6:.3g} s: chosen"
        assert any(line.startswith("n1 n2: step ") and line.endswith(" times as long") for line in compared)
        assert (await replayed(bus)).live["try"].plan == order.plan

"""The planner on a bus in memory, with its planning process for real."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from schemas.layers import LayerProfile
from schemas.measured_runs import MeasuredRun
from schemas.message import Message
from schemas.plans import Plan, PlanReply, PlanRequest, Strategy
from schemas.services.planner import PLANNER_PLAN
from schemas.streams import PLAN_STREAM, StreamSpec
from schemas.subjects import LAYER_PROFILES, TRAINING_EVENTS, Subject
from schemas.trainings import TrainingChange, TrainingEvent
from services._runtime.bus.api import Bus, BusError, Delivery, Handler, RequestRefusedError
from services.planner.core.choose import plan
from services.planner.known_runs import KnownRuns
from services.planner.service import Planner
from services.planner.settings import PlannerSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.layer_profiles import cluster, profile, request
from tests.support.manual_clock import ManualClock
from tests.support.measured_runs import measured_run
from tests.support.service_in_process import run_in_process

PAIR = cluster(("fast", "a", 8), ("slow", "b", 8))
FAST, SLOW = profile("fast"), profile("slow", ms_per_sample=5.0)
FROM_BUS = PlanRequest(job="train", task="tiny", cluster=PAIR, batch=16)


@asynccontextmanager
async def planner(
    *known: LayerProfile, runs: Sequence[MeasuredRun] = (), **settings: float
) -> AsyncIterator[tuple[Bus, Planner]]:
    """A bus to ask on, and the service that knows these profiles and runs."""
    broker = MemoryBroker()
    asking = MemoryBus(broker)
    for one in known:
        asking.publish_event(LAYER_PROFILES.subject("tb", profile=one.profile), one, message_id=one.profile)
    for run in runs:
        publish_ended(asking, run)
    defaults = {"timeout_s": 60.0, "max_work": 1_000_000}
    async with run_in_process(Planner, PlannerSettings.load({}, **(defaults | settings)), MemoryBus(broker)) as service:
        yield asking, service
    await asking.close(1)


class RefusingReads(MemoryBus):
    """As a server that was just started: its streams come later than its connections."""

    refused = 0

    async def read_stored(self, stream: StreamSpec, pattern: Subject, handler: Handler) -> None:
        if self.refused < 2:
            self.refused += 1
            raise BusError("stream TB_TRAIN does not answer")
        await super().read_stored(stream, pattern, handler)


def publish_ended(bus: Bus, run: MeasuredRun | None, training: str = "t1", node: str = "n1") -> None:
    """As `turnbuckle train` does, by hand or in a job on node n1, where its training has ended."""
    change = TrainingChange.ENDED
    event = TrainingEvent(
        job="train", node=node, training=training, sequence=3, change=change, time_ns=9, exit_code=0, run=run
    )
    bus.publish_event(TRAINING_EVENTS.subject("tb", job="train", node="n1"), event, message_id=event.message_id)


async def ask(bus: Bus, question: Message) -> PlanReply:
    reply = await bus.request(PLANNER_PLAN.template.subject("tb"), question, timeout_s=120)
    assert isinstance(reply, PlanReply)
    return reply


async def told(bus: Bus) -> list[Plan]:
    """Plans of the stream, once there is one."""
    plans: list[Plan] = []

    async def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Plan)
        plans.append(delivery.message)

    replay = await bus.replay(PLAN_STREAM, take)
    await until(lambda: plans, what="a plan")
    await replay.stop()
    return plans


async def test_the_answer_is_the_cores_and_is_told_once() -> None:
    async with planner(FAST, SLOW) as (bus, service):
        first, second = await ask(bus, FROM_BUS), await ask(bus, FROM_BUS)

        assert first == second == plan(FROM_BUS, (FAST, SLOW))
        assert first.plan is not None
        assert await told(bus) == [first.plan]
        assert service.not_ready() is None


async def test_what_trainings_took_corrects_the_answer() -> None:
    """One that had ended before the planner began, and one that ends meanwhile."""
    profiled = plan(FROM_BUS, (FAST, SLOW)).plan
    assert profiled is not None
    first, second, other = (
        measured_run(ratio, engine=profiled.engine, kinds=kinds, profiles=profiled.profiles)
        for ratio, kinds in ((1.3, ("fast", "slow")), (1.5, ("slow", "fast")), (9.0, ("fast",)))
    )
    async with planner(FAST, SLOW, runs=(first,)) as (bus, service):
        assert await ask(bus, FROM_BUS) == plan(FROM_BUS, (FAST, SLOW), [first])
        for number, run in enumerate((None, other, second)):
            publish_ended(bus, run, f"t{number + 2}")
        await until(lambda: len(service._runs) == 3, what="two further runs")

        found = (await ask(bus, FROM_BUS)).plan
        assert found == plan(FROM_BUS, (FAST, SLOW), [first, second]).plan
        assert found is not None
        # The geometric mean of 1.3 and 1.5
        assert found.step_us == pytest.approx((1.3 * 1.5) ** 0.5 * profiled.step_us)
        assert (found.measured_runs, found.profiled_step_us) == (2, profiled.step_us)


async def test_a_run_that_was_missed_is_read_after_the_reconnect() -> None:
    async with planner(FAST, SLOW) as (bus, service):
        await publish_to_no_planner(bus, service, measured_run(1.3), "t1")
        await until(lambda: len(service._runs) == 1, what="the missed run")


async def publish_to_no_planner(bus: Bus, service: Planner, run: MeasuredRun, training: str) -> None:
    """While the planner is not connected; then it is again."""
    assert isinstance(service._bus, MemoryBus)
    service._bus.disconnect()
    known = len(service._runs)
    publish_ended(bus, run, training)
    await bus.flush(60)
    assert len(service._runs) == known
    service._bus.reconnect()


async def test_a_run_in_another_nodes_name_does_not_count() -> None:
    """Neither as it is heard nor as it is read: its subject has the node whose key published it."""
    async with planner(FAST, SLOW) as (bus, service):
        publish_ended(bus, measured_run(9.0), "forged", node="n2")
        publish_ended(bus, measured_run(1.3))
        await until(lambda: len(service._runs) > 0, what="the run behind it")
        await publish_to_no_planner(bus, service, measured_run(1.5), "t2")
        await until(lambda: len(service._runs) > 1, what="the run that is read")

        assert [run.ratio for run in service._runs.of({"fast"})] == [1.3, 1.5]


async def test_a_start_waits_for_runs_that_cannot_be_read_yet() -> None:
    broker, clock = MemoryBroker(), ManualClock()
    asking, bus = MemoryBus(broker), RefusingReads(broker)
    publish_ended(asking, measured_run(1.3))
    await asking.flush(60)

    async def go_on() -> None:
        for number in (1, 2):
            await until(lambda number=number: bus.refused == number, what=f"refusal {number}")
            await clock.advance(60)

    going = asyncio.create_task(go_on())
    async with asyncio.timeout(120), run_in_process(Planner, PlannerSettings.load({}), bus, clock=clock) as service:
        await going
        assert [run.ratio for run in service._runs.of({"fast"})] == [1.3]
    await asking.close(1)


def test_runs_that_came_first_are_forgotten() -> None:
    known = KnownRuns(most=2)
    for number, ratio in enumerate((1.0, 2.0, 3.0), start=1):
        run = measured_run(ratio, ended_ns=1 << 60)
        change = TrainingChange.ENDED
        event = TrainingEvent(job="j", node="n", training=f"t{number}", sequence=0, change=change, time_ns=1, run=run)
        known.add(event)
        known.add(event)  # a message that comes twice

    runs = known.of({"fast"})
    assert [run.ratio for run in runs] == [2.0, 3.0]
    assert runs[0].ended_ns < runs[1].ended_ns < 1 << 60, "by arrival, not by their hosts' clocks"
    assert known.of({"fast", "slow"}) == []


async def test_what_cannot_be_planned_is_answered_with_a_sentence() -> None:
    async with planner(FAST, max_devices=4) as (bus, _):
        missing = await ask(bus, FROM_BUS)
        unknown = await ask(bus, FROM_BUS.model_copy(update={"task": "other"}))
        small = await ask(bus, request(cluster(("fast", "a", 0.1)), (FAST,)))
        large = await ask(bus, request(cluster(*[("fast", "a", 8)] * 5), (FAST,)))
        no_rate = await ask(bus, request(cluster(("fast", "a", 8), ("fast", "b", 8), between=None), (FAST,)))

        assert missing.refused.startswith("no layer profile of slow: measure")
        assert missing.missing_profiles == ("slow",)
        assert unknown.missing_profiles == ("fast", "slow")
        assert small.refused.startswith("no plan fits; ")
        assert small.missing_bytes > 0
        assert large.refused == "5 devices are more than the 4 that this planner takes"
        assert no_rate.refused.startswith("no transfer rate between machines a and b is given: ")

        slowest = profile("slow", ms_per_sample=1e304)
        hostile = await ask(bus, request(PAIR, (FAST, slowest), strategies=(Strategy.EVEN,)))
        assert hostile.refused.startswith("nothing can be planned with these figures")


async def test_planning_that_takes_too_long_is_ended_and_the_next_request_is_planned() -> None:
    async with planner(FAST, SLOW) as (bus, service):
        [child] = service._planning._children
        process = await child.start()
        process.send_signal(signal.SIGSTOP)  # however long is waited for it, it has no answer
        service._planning._timeout_s = 0.01
        with pytest.raises(RequestRefusedError, match=r"no plan was found within 0.01 s: fewer devices take less"):
            await ask(bus, FROM_BUS)
        assert process.returncode == -signal.SIGKILL
        service._planning._timeout_s = 60.0
        assert (await ask(bus, FROM_BUS)).plan is not None


async def test_so_many_wait_and_further_ones_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with planner(FAST, SLOW, max_waiting=2) as (bus, service):
        [child] = service._planning._children
        (await child.start()).send_signal(signal.SIGSTOP)  # however quick it is, it answers nobody
        asked, asks = asyncio.Event(), child.ask

        async def ask_it(data: bytes) -> PlanReply:
            asked.set()
            return await asks(data)

        monkeypatch.setattr(child, "ask", ask_it)
        long = asyncio.create_task(ask(bus, FROM_BUS))
        await asyncio.wait_for(asked.wait(), 60)
        waiting = [asyncio.create_task(ask(bus, FROM_BUS)) for _ in range(2)]
        await until(lambda: service._planning.waiting == 2, what="two that wait")
        with pytest.raises(RequestRefusedError, match="2 requests wait already: ask again later") as caught:
            await ask(bus, FROM_BUS)

        assert caught.value.code == 503
        await service._planning.end()  # the long one's process is killed
        with pytest.raises(RequestRefusedError, match="the process that planned has ended"):
            await long
        assert all(reply.plan is not None for reply in await asyncio.gather(*waiting))


def test_a_request_over_its_bounds_costs_no_more_than_reading_it() -> None:
    """The largest request that fits a message: some 20,000 devices where 1,024 are the most."""
    row = {"rank": 0, "kind": "a", "machine": "a", "memory_bytes": 1}
    fields = {"job": "j", "task": "t", "batch": 8, "cluster": {"devices": [row] * 20_000}}
    began_s = time.process_time()
    with pytest.raises(ValueError, match="at most 1024 items"):
        PlanRequest.model_validate(fields)

    assert time.process_time() - began_s < 20

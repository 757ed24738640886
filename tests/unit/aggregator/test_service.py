"""The aggregator service on a bus in memory: jobs placed, trained, moved, lost; who may ask for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from schemas.aggregations import (
    LEADER_KEY,
    AggregationChange,
    AggregationEndReply,
    AggregationReply,
    AggregatorInfo,
    OptimizerKind,
)
from schemas.codec import encode
from schemas.queries import StateRequest
from schemas.streams import AGGREGATIONS, AGGREGATORS
from services._runtime.bus.api import Bus, RequestRefusedError
from services.aggregator.settings import AggregatorSettings
from services.trainer.worker.gather import RankFailedError
from services.trainer.worker.push_pull import PushPull
from tests.support.aggregation import Ranks, by_torch, parameters, sha256, spec
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.local_aggregators import (
    ADAMW,
    CLAIM,
    OTHER_CLAIM,
    LocalService,
    asked,
    assignment,
    end,
    listen,
    place,
    places,
)
from tests.support.service_in_process import run_in_process

STEPS = 30


@asynccontextmanager
async def serving(broker: MemoryBroker, **settings: Any) -> AsyncIterator[LocalService]:
    """One instance that leads."""
    loaded = AggregatorSettings.load({}, **({"processes": 2, "range_values": 1_000} | settings))
    async with run_in_process(LocalService, loaded, MemoryBus(broker)) as service:
        await until(lambda: service.serving, what="the lead")
        yield service


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def bus(broker: MemoryBroker) -> AsyncIterator[Bus]:
    made = MemoryBus(broker)
    yield made
    await made.close(1)


async def refusal(asking: Any) -> tuple[int, str]:
    with pytest.raises(RequestRefusedError) as refused:
        await asking
    return refused.value.code, str(refused.value)


def ranks_of(reply: AggregationReply, steps: int = STEPS, gates: tuple[int, ...] = ()) -> Ranks:
    return Ranks(spec(reply.job), places(reply), steps, gates, bytes.fromhex(reply.key))


async def trained(ranks: Ranks) -> set[str]:
    with ranks:
        return {sha256(each) for each in await asyncio.to_thread(ranks.results)}


@pytest.mark.slow
async def test_a_placed_job_trains_as_by_torch_and_every_rank_gets_the_same_answer(
    broker: MemoryBroker, bus: Bus
) -> None:
    async with serving(broker) as service:
        heard = await listen(bus)
        reply, again = await place(bus, asked()), await place(bus, asked())

        assert reply == again
        # 1,500 values in ranges of 1,000 at most.
        assert [(each.first, each.last, each.version) for each in reply.ranges] == [(0, 1000, 1), (1000, 1500, 1)]
        assert await trained(ranks_of(reply)) == {sha256(by_torch(spec(), 1_500, STEPS))}
        assert len(service.living) == 1
        assert [event.change for event in heard] == [AggregationChange.PLACED]
        assert await end(bus) == AggregationEndReply(known=True)
        assert await end(bus) == AggregationEndReply(known=False)
        assert await assignment(bus) is None
        await until(lambda: not service.living, what="an aggregator without jobs is ended")


async def test_neither_bucket_nor_event_has_a_key_or_a_claim(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        heard = await listen(bus)
        reply = await place(bus, asked())
        stored = await assignment(bus)

        assert stored is not None
        await until(lambda: heard, what="the event")
        for message in (stored, *heard):
            data = encode(message)
            assert reply.key.encode() not in data
            assert CLAIM.encode() not in data
        for message in (reply, asked()):
            assert reply.key not in repr(message)
            assert CLAIM not in repr(message)


async def test_only_who_has_the_claim_gets_the_key_or_ends_the_job(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        reply = await place(bus, asked())

        for attempt in (1, 2):
            code, reason = await refusal(place(bus, asked(claim=OTHER_CLAIM, attempt=attempt)))
            assert code == 403
            assert reply.key not in reason
        assert (await refusal(end(bus, claim=OTHER_CLAIM)))[0] == 403
        assert await place(bus, asked()) == reply


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"attempt": 1}, 409, "attempt 2 of job was placed already"),
        ({"attempt": 2, "ranks": 3}, 409, "has other ranks, values or another optimizer"),
        ({"attempt": 2, "values": 3}, 409, "has other ranks, values or another optimizer"),
        (
            {"attempt": 2, "optimizer": ADAMW.model_copy(update={"kind": OptimizerKind.ADAM})},
            409,
            "has other ranks, values or another optimizer",
        ),
        ({"attempt": 3, "values": 1 << 30}, 413, "TURNBUCKLE_AGGREGATOR__MEMORY_BYTES"),
    ],
)
async def test_what_does_not_fit_the_placed_job_is_refused_and_leaves_it_alone(
    broker: MemoryBroker, bus: Bus, fields: dict[str, Any], code: int, reason: str
) -> None:
    async with serving(broker):
        reply = await place(bus, asked(attempt=2))

        refused, text = await refusal(place(bus, asked(**fields)))

        assert refused == code
        assert reason in text
        assert await place(bus, asked(attempt=2)) == reply


async def test_a_job_for_which_no_core_is_left_is_refused_until_another_ends(broker: MemoryBroker, bus: Bus) -> None:
    """Without a measured step each job needs an aggregator to itself."""
    async with serving(broker) as service:
        first, second = await place(bus, asked("first")), await place(bus, asked("second"))

        assert first.ranges[0].address != second.ranges[0].address
        code, reason = await refusal(place(bus, asked("third")))
        assert (code, "all 2 are at work" in reason) == (503, True)
        assert await assignment(bus, "third") is None
        await end(bus, "first")
        assert (await place(bus, asked("third"))).ranges[0].address == first.ranges[0].address
        assert len(service.living) == 2


async def test_the_number_of_jobs_is_bounded(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker, max_jobs=1):
        await place(bus, asked("first"))

        assert (await refusal(place(bus, asked("second"))))[0] == 503
        await place(bus, asked("first", attempt=2))


@pytest.mark.slow
async def test_by_measured_load_jobs_come_together_without_a_change_of_a_bit(broker: MemoryBroker, bus: Bus) -> None:
    """Both train on while one of them moves."""
    async with serving(broker, rebalance_s=0.5) as service:
        heard = await listen(bus)
        replies = [await place(bus, asked(name)) for name in ("first", "second")]
        assert len(service.living) == 2
        running = [ranks_of(reply, gates=(10,)) for reply in replies]
        for ranks in running:
            await until(partial(ranks.all_finished, 9), what="step 9")
        service.measured = dict.fromkeys(("first", "second"), (100, 40))
        await until(lambda: len(heard) > 2, what="a move")
        moved = heard[-1]
        for ranks in running:
            ranks.gates[10].set()
        results = [await trained(ranks) for ranks in running]

        expected = {sha256(by_torch(spec(), 1_500, STEPS))}
        assert results == [expected, expected]
        assert (moved.change, moved.bit_identical) == (AggregationChange.MOVED, True)
        stored = [await assignment(bus, name) for name in ("first", "second")]
        assert {each.address for record in stored if record is not None for each in record.ranges} == {
            moved.addresses[0]
        }
        versions = {record.job: {each.version for each in record.ranges} for record in stored if record is not None}
        assert sorted(max(each) for each in versions.values()) == [1, 2]
        await until(lambda: len(service.living) == 1, what="the emptied aggregator is ended")


@pytest.mark.slow
async def test_a_dead_aggregators_job_begins_anew_as_the_next_attempt(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker) as service:
        heard = await listen(bus)
        lost = await place(bus, asked())
        await service.aggregators[0].die()
        await until(lambda: len(heard) == 2, what="the loss")

        stored = await assignment(bus)
        assert stored is not None
        assert "aggregator 0: it has died by signal 9" in stored.lost
        code, reason = await refusal(place(bus, asked()))
        assert (code, "begin anew as attempt 2" in reason) == (410, True)
        reply = await place(bus, asked(attempt=2))
        assert reply.key != lost.key
        assert {each.version for each in reply.ranges} == {2}
        assert await trained(ranks_of(reply)) == {sha256(by_torch(spec(), 1_500, STEPS))}
        # Placed, lost, restored: the last two do not have the bits of a run without the loss.
        assert [(event.change, event.bit_identical) for event in heard] == [
            (AggregationChange.PLACED, True),
            (AggregationChange.LOST, False),
            (AggregationChange.RESTORED, False),
        ]
        assert "with the parameters and moments that its workers give" in heard[-1].reason


async def test_the_key_of_an_earlier_attempt_opens_nothing(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        earlier = await place(bus, asked(ranks=1))
        later = await place(bus, asked(ranks=1, attempt=2))

        assert earlier.key != later.key
        for key in (earlier.key, "00" * 32):
            worker = PushPull(("job", 0, bytes.fromhex(key)), places(later), 60)
            with pytest.raises(RankFailedError, match="with this key and rank 0 is not there"):
                await asyncio.to_thread(worker.start, parameters(1_500))
            worker.close()


async def test_an_aggregator_that_cannot_be_started_refuses_the_request(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker) as service:
        service.cannot_start = "it has ended with exit code 1"

        code, reason = await refusal(place(bus, asked()))
        assert (code, "it has ended with exit code 1" in reason) == (503, True)
        service.cannot_start = ""
        await place(bus, asked())


@pytest.mark.slow
async def test_a_job_without_steps_ends_after_a_while(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker, idle_after_s=0.2):
        heard = await listen(bus)
        await place(bus, asked())
        await until(lambda: len(heard) == 2, what="the end")

        assert heard[-1].change is AggregationChange.ENDED
        assert heard[-1].reason == "no step was finished for 0.2 s"
        assert await assignment(bus) is None


async def test_what_is_no_request_is_refused(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        code, reason = await refusal(place(bus, StateRequest()))
        assert (code, "expected turnbuckle.aggregation.v1.AggregationRequest" in reason) == (400, True)


async def test_an_instance_that_is_stopped_says_what_is_lost_and_the_next_one_goes_on(
    broker: MemoryBroker, bus: Bus
) -> None:
    heard = await listen(bus)
    async with serving(broker):
        first = await place(bus, asked())
    await until(lambda: len(heard) == 2, what="the loss")
    assert "was stopped" in heard[-1].reason

    async with serving(broker):
        assert (await refusal(place(bus, asked(claim=OTHER_CLAIM, attempt=2))))[0] == 403
        assert (await refusal(place(bus, asked())))[0] == 410
        second = await place(bus, asked(attempt=2))
        assert second.ranges[0].version == first.ranges[0].version + 1


async def test_assignments_of_an_instance_that_was_killed_are_marked_as_lost(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        await place(bus, asked())
        left = await assignment(bus)
    assert left is not None
    await bus.bucket(AGGREGATIONS).put("job", left)  # as it was before the end
    await bus.bucket(AGGREGATIONS).put("other", left)  # under another name than its own

    heard = await listen(bus)
    async with serving(broker):
        stored = await assignment(bus)
        assert stored is not None
        assert stored.lost == "the aggregator service was started anew"
        await until(lambda: heard and "started anew" in heard[-1].reason, what="the event")
        assert heard[-1].change is AggregationChange.LOST
        await place(bus, asked("other"))


@pytest.mark.slow
async def test_a_second_instance_waits_until_the_first_has_gone(broker: MemoryBroker, bus: Bus) -> None:
    loaded = AggregatorSettings.load({}, processes=2)
    async with run_in_process(LocalService, loaded, MemoryBus(broker)) as first:
        await until(lambda: first.serving, what="the lead")
        async with run_in_process(LocalService, loaded, MemoryBus(broker)) as second:
            await place(bus, asked())
            assert second.control is None
            assert second.not_ready() is None
            await first.stop()
            await until(lambda: second.serving, what="the lead")
            await place(bus, asked(attempt=2))
            await until(lambda: len(second.living) == 1 and not first.living, what="one aggregator of the second one")


@pytest.mark.slow
async def test_an_instance_whose_lead_was_taken_ends_its_aggregators(broker: MemoryBroker, bus: Bus) -> None:
    """As one that was stopped for longer than its registration lives."""
    async with serving(broker) as service:
        await place(bus, asked())
        other = AggregatorInfo(host="10.0.0.9", incarnation=1, holder="other", version="0.1.0")
        await bus.bucket(AGGREGATORS).put(LEADER_KEY, other)

        await until(lambda: service.control is None, what="the loss of the lead")
        await until(lambda: not service.living, what="the end of its aggregators")
        stored = await assignment(bus)
        assert stored is not None
        assert not stored.lost, "what is stored is the other instance's to change"

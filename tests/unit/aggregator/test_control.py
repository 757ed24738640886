"""Jobs on aggregators through any order of requests, measurements, moves and deaths; and what fails midway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.aggregations import Aggregation, AggregationChange, AggregationEndRequest, AggregationReply
from schemas.streams import AGGREGATIONS
from services._runtime.bus.api import BusError, RequestRefusedError
from services._runtime.clock import SystemClock
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Counter, Telemetry
from services.aggregator.aggregator_process import CommandRefusedError, ProcessLostError
from services.aggregator.assignments import Assignments, LeadLostError
from services.aggregator.control import Control, Counters
from services.aggregator.core.memory import most_bytes
from services.aggregator.core.packing import Move
from services.aggregator.settings import AggregatorSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.local_aggregators import CLAIM, LocalAggregator, asked, listen, listening

PROCESSES = 3
VALUES = 16_384
JOB_BYTES = most_bytes(2, 2, VALUES)
MEMORY_BYTES = JOB_BYTES * 5 // 2
"""For two jobs: the third needs another aggregator, whatever their loads are."""
JOBS = tuple(f"job-{number}" for number in range(4))
OPERATIONS = st.one_of(
    st.tuples(st.just("place"), st.sampled_from(JOBS), st.integers(0, 2)),
    st.tuples(st.just("end"), st.sampled_from(JOBS), st.just(0)),
    st.tuples(st.just("measure"), st.sampled_from(JOBS), st.sampled_from([5, 40, 90])),
    st.tuples(st.just("die"), st.just(""), st.integers(0, PROCESSES - 1)),
    st.tuples(st.just("poll"), st.just(""), st.just(0)),
)


class Lab:
    """A control with aggregators in this process, on a bus in memory."""

    def __init__(self, **settings: float) -> None:
        self.bus = MemoryBus(MemoryBroker())
        loaded = AggregatorSettings.load(
            {},
            **(
                {"processes": PROCESSES, "memory_bytes": MEMORY_BYTES, "range_values": 6_000, "rebalance_s": 1e-6}
                | settings
            ),
        )
        runtime = Runtime(loaded, self.bus, SystemClock(), Telemetry(), get_logger("aggregator"))
        self.started: list[LocalAggregator] = []
        self.measured: dict[str, tuple[int, int]] = {}
        assignments = Assignments(self.bus, runtime.clock, 1, self._leads)
        self.control = Control(runtime, assignments, self._start, Counters(Counter(), Counter()))
        self.versions: dict[str, int] = {}

    async def _leads(self) -> bool:
        return True

    async def _start(self, host: str, memory_bytes: int) -> LocalAggregator:
        shard = await listening(host, memory_bytes)
        self.started.append(LocalAggregator(shard, lambda: self.measured))
        return self.started[-1]

    async def place(self, job: str, attempt: int = 1) -> AggregationReply:
        return await self.control.place(asked(job, attempt=attempt, values=VALUES))

    async def stored(self) -> dict[str, Aggregation]:
        entries = await self.bus.bucket(AGGREGATIONS).entries()
        return {job: entry.message for job, entry in entries.items() if isinstance(entry.message, Aggregation)}

    async def carry_out(self, operation: str, job: str, number: int) -> None:
        if operation == "place":
            known = (await self.stored()).get(job)
            with suppress(RequestRefusedError):
                await self.place(job, max(1, (known.attempt if known else 0) + number))
        elif operation == "end":
            await self.control.end(AggregationEndRequest(job=job, claim=CLAIM))
            self.versions.pop(job, None)
        elif operation == "measure":
            self.measured[job] = (100, number)
            await self.control.poll()
        elif operation == "die" and number < len(self.started):
            await self.started[-1 - number].die()
            await self.control.poll()
        else:
            await self.control.poll()

    async def check(self) -> None:
        """What is stored is what is there; nothing exceeds its bound; versions only rise."""
        await self.control.settled()
        stored, packing = await self.stored(), self.control._packing
        placed = {load.job: number for number, loads in packing.jobs.items() for load in loads}
        assert sum(len(loads) for loads in packing.jobs.values()) == len(placed)
        assert {job for job, record in stored.items() if not record.lost} == set(placed) == set(self.control._live)
        for job, number in placed.items():
            aggregator = self.control._aggregators[number]
            assert {each.address for each in stored[job].ranges} == {aggregator.process.address}
            assert job in aggregator.hosted
        for number in packing.jobs:
            assert self.control._used_bytes(number) <= MEMORY_BYTES
        assert set(self.control._aggregators) <= set(range(PROCESSES))
        for job, record in stored.items():
            (version,) = {each.version for each in record.ranges}
            assert version >= self.versions.get(job, 0)
            self.versions[job] = version

    async def close(self) -> None:
        await self.control.close()
        await self.bus.close(1)


@given(operations=st.lists(OPERATIONS, max_size=25))
def test_what_is_stored_is_what_is_there_after_any_order_of_operations(
    operations: Sequence[tuple[str, str, int]],
) -> None:
    async def scenario() -> None:
        lab = Lab()
        for operation in operations:
            await lab.carry_out(*operation)
            await lab.check()
        await lab.close()

    asyncio.run(scenario())


async def test_a_job_whose_move_fails_midway_is_lost_and_begins_anew() -> None:
    lab = Lab()
    await lab.place("job-0")
    await lab.place("job-1")
    lab.measured = {"job-0": (100, 40), "job-1": (100, 40)}
    asking = lab.started[1].ask

    async def refusing(command: str, within_s: float = 60.0, **fields: object) -> dict[str, object]:
        if command == "move" and fields["range"] == 1:  # the second of three
            return await asking(command, within_s, **{**fields, "address": "127.0.0.1:1"})
        return await asking(command, within_s, **fields)

    lab.started[1].ask = refusing
    await lab.control.poll()

    await lab.check()
    stored = (await lab.stored())["job-1"]
    assert "could not be moved to aggregator 0: range 1 of job-1 was not taken by 127.0.0.1:1" in stored.lost
    reply = await lab.place("job-1", 2)
    assert {each.version for each in reply.ranges} == {3}
    await lab.check()
    await lab.close()


async def test_a_job_that_cannot_move_for_want_of_memory_stays() -> None:
    lab = Lab(memory_bytes=JOB_BYTES + JOB_BYTES // 2, processes=2)
    await lab.place("job-0")
    await lab.place("job-1")
    lab.measured = {"job-0": (100, 40), "job-1": (100, 40)}
    await lab.control.poll()

    await lab.check()
    assert [each.asked.count("move") for each in lab.started] == [0, 0]
    with pytest.raises(RequestRefusedError, match="all 2 are at work"):
        await lab.place("job-2")
    await lab.close()


async def test_a_target_that_dies_while_it_is_asked_to_expect_a_job_costs_the_job_nothing() -> None:
    lab = Lab()
    for job in ("job-0", "job-1"):
        await lab.place(job)
    lab.measured = {"job-0": (100, 40), "job-1": (100, 40)}
    asking = lab.started[0].ask

    async def dying(command: str, within_s: float = 60.0, **fields: object) -> dict[str, object]:
        if command == "add":
            await lab.started[0].die()
            raise ProcessLostError("it has died by signal 9")
        return await asking(command, within_s, **fields)

    lab.started[0].ask = dying
    await lab.control.poll()

    await lab.check()
    stored = await lab.stored()
    assert {job: bool(record.lost) for job, record in stored.items()} == {"job-0": True, "job-1": False}
    assert {each.version for each in stored["job-1"].ranges} == {1}
    await lab.close()


async def test_a_job_whose_assignment_cannot_be_stored_is_refused_and_leaves_nothing_behind() -> None:
    lab = Lab()
    lab.bus.disconnect()
    with pytest.raises(RequestRefusedError, match="cannot be placed: not connected"):
        await lab.place("job-0")
    assert lab.control.jobs == 0
    lab.bus.reconnect()
    await lab.control.poll()

    assert (await lab.stored())["job-0"].lost == "it could not be placed: not connected"
    await lab.place("job-0", 2)
    await lab.check()
    await lab.close()


async def test_an_idle_job_that_is_lost_at_the_end_of_another_does_not_end_the_watch() -> None:
    lab = Lab(rebalance_s=1e9)
    for job in JOBS[:3]:
        await lab.place(job)
        lab.measured[job] = (100, 40)

    for aggregator in lab.started:
        ask = aggregator.ask

        async def refused(command: str, *arguments: Any, _ask: Any = ask, **fields: Any) -> Any:
            if command == "move":
                raise CommandRefusedError("the other aggregator cannot be reached")
            return await _ask(command, *arguments, **fields)

        aggregator.ask = refused  # type: ignore[method-assign]
    for live in lab.control._live.values():
        live.progress_s = -1e9

    await lab.control.poll()
    await lab.control.settled()

    assert lab.control._live == {}
    await lab.close()


async def test_a_job_does_not_go_back_to_where_its_ranks_may_still_ask() -> None:
    lab = Lab(rebalance_s=1e9)
    for job in JOBS[:3]:
        await lab.place(job)
    source = lab.control._packing.aggregator_of(JOBS[2])
    assert source is not None
    await lab.control.end(AggregationEndRequest(job=JOBS[0], claim=CLAIM))
    await lab.control.settled()
    lab.control._carry_out((Move(JOBS[2], source, 0),))
    await lab.control.settled()
    assert lab.control._packing.aggregator_of(JOBS[2]) == 0

    lab.control._carry_out((Move(JOBS[2], 0, source),))
    await lab.control.settled()

    assert lab.control._packing.aggregator_of(JOBS[2]) == 0
    await lab.close()


async def test_an_assignment_that_was_never_acknowledged_is_not_removed_by_one_that_has_lost_the_lead() -> None:
    lab = Lab()
    await lab.place(JOBS[0])
    record = (await lab.stored())[JOBS[0]]
    await lab.bus.bucket(AGGREGATIONS).delete(JOBS[0])

    async def leads() -> bool:
        return False

    former = Assignments(lab.bus, SystemClock(), 1, leads)
    lab.bus.disconnect()
    with pytest.raises(BusError):
        await former.store(record)
    lab.bus.reconnect()
    await lab.bus.bucket(AGGREGATIONS).create(JOBS[0], record)  # by the instance that leads now

    with pytest.raises(LeadLostError):
        await former.remove(JOBS[0])

    assert JOBS[0] in await lab.stored()
    await lab.close()


def hang(aggregator: LocalAggregator, command: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Has a command answered once the second event is set, or the aggregator has died; the first: it was asked."""
    asked_for, goes_on, ask = asyncio.Event(), asyncio.Event(), aggregator.ask

    async def slow(kind: str, within_s: float = 60.0, **fields: Any) -> dict[str, Any]:
        if kind == command:
            asked_for.set()
            await until(lambda: goes_on.is_set() or aggregator.ended, what=f"the answer to {kind}")
        return await ask(kind, within_s, **fields)

    aggregator.ask = slow  # type: ignore[assignment, method-assign]
    return asked_for, goes_on


async def moving_lab() -> tuple[Lab, asyncio.Event]:
    """Two jobs, one of which is on its way to the other's aggregator until the event is set."""
    lab = Lab()
    for job in JOBS[:2]:
        await lab.place(job)
    lab.measured = dict.fromkeys(JOBS[:2], (100, 40))
    asked_for, goes_on = hang(lab.started[1], "move")
    await lab.control.poll()
    async with asyncio.timeout(60):
        await asked_for.wait()
    return lab, goes_on


async def test_other_jobs_do_not_wait_for_a_transfer() -> None:
    lab, goes_on = await moving_lab()
    async with asyncio.timeout(60):
        await lab.control.poll()
        await lab.place(JOBS[2])
        await lab.control.end(AggregationEndRequest(job=JOBS[0], claim=CLAIM))
    assert set(lab.control._moving) == {JOBS[1]}
    goes_on.set()
    await lab.check()
    assert {each.version for each in (await lab.stored())[JOBS[1]].ranges} == {2}
    await lab.close()


async def test_the_time_of_a_transfer_is_none_without_a_step() -> None:
    """A job without a step for `idle_after_s` counts as ended; while its ranges are on their way, it can make none."""
    lab, goes_on = await moving_lab()
    longer_s = 2 * lab.control._settings.idle_after_s
    lab.control._live[JOBS[1]].progress_s -= longer_s
    lab.control._moving[JOBS[1]].since_s -= longer_s

    await lab.control.poll()
    assert JOBS[1] in lab.control._live
    goes_on.set()
    await lab.control.settled()
    await lab.control.poll()

    assert JOBS[1] in lab.control._live
    await lab.check()
    await lab.close()


async def test_a_job_that_was_idle_before_its_move_is_ended_after_it() -> None:
    lab, goes_on = await moving_lab()
    lab.control._live[JOBS[1]].progress_s -= 2 * lab.control._settings.idle_after_s

    await lab.control.poll()
    assert JOBS[1] in lab.control._live
    goes_on.set()
    await lab.control.settled()
    await lab.control.poll()

    assert JOBS[1] not in lab.control._live
    await lab.check()
    await lab.close()


async def test_an_aggregator_that_refuses_to_say_its_loads_keeps_its_jobs_and_the_watch_goes_on() -> None:
    lab = Lab(rebalance_s=1e9)
    for job in JOBS[:2]:
        await lab.place(job)
    ask = lab.started[0].ask

    async def refusing(command: str, *arguments: Any, **fields: Any) -> Any:
        if command == "loads":
            raise CommandRefusedError("not a command of host, add, move, drop")
        return await ask(command, *arguments, **fields)

    lab.started[0].ask = refusing  # type: ignore[method-assign]
    lab.measured = dict.fromkeys(JOBS[:2], (100, 40))
    idle_s = 2 * lab.control._settings.idle_after_s
    lab.control._live[JOBS[0]].progress_s -= idle_s

    await lab.control.poll()

    # The first is not known to be idle; the second one's aggregator is measured as ever.
    assert set(lab.control._live) == set(JOBS[:2])
    assert [load.busy_us for load in lab.control._packing.jobs[1]] == [40]
    lab.started[0].ask = ask  # type: ignore[method-assign]
    lab.control._live[JOBS[0]].progress_s -= idle_s
    await lab.control.poll()
    assert set(lab.control._live) == {JOBS[1]}
    await lab.close()


@pytest.mark.parametrize("what", ["place", "end", "source dies", "target dies"])
async def test_what_becomes_of_a_job_during_its_transfer(what: str) -> None:
    lab, goes_on = await moving_lab()
    async with asyncio.timeout(60):
        if what == "place":
            await lab.place(JOBS[1], 2)
        elif what == "end":
            await lab.control.end(AggregationEndRequest(job=JOBS[1], claim=CLAIM))
        else:
            await lab.started[1 if what == "source dies" else 0].die()
            await lab.control.poll()
    goes_on.set()
    await lab.check()
    stored = await lab.stored()
    assert JOBS[1] not in stored if what == "end" else bool(stored[JOBS[1]].lost) is (what != "place")
    # Version 1, then 2 by the move that had begun, then 3 by the next attempt.
    if what == "place":
        assert {each.version for each in stored[JOBS[1]].ranges} == {3}
    assert bool(stored[JOBS[0]].lost) is (what == "target dies")
    await lab.close()


async def test_a_stop_waits_for_no_transfer() -> None:
    lab, _ = await moving_lab()
    async with asyncio.timeout(60):
        await lab.control.close("the aggregator service was stopped")

    assert [bool(each.ended) for each in lab.started] == [True, True]
    assert {record.lost for record in (await lab.stored()).values()} == {"the aggregator service was stopped"}
    await lab.bus.close(1)


@pytest.mark.parametrize("command", ["host", "add"])
async def test_a_stop_during_a_placement_refuses_it_and_leaves_no_job(command: str) -> None:
    lab = Lab()
    await lab.place(JOBS[0])
    await lab.control.end(AggregationEndRequest(job=JOBS[0], claim=CLAIM))
    asked_for, _ = hang(lab.started[0], command)
    placing = asyncio.create_task(lab.place(JOBS[1]))
    async with asyncio.timeout(60):
        await asked_for.wait()
        await lab.control.close("the aggregator service was stopped")
        with pytest.raises(RequestRefusedError, match="does not lead any more"):
            await placing

    assert await lab.stored() == {}
    await lab.bus.close(1)


async def test_a_stop_waits_for_no_aggregator_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, never = Lab(), asyncio.Event()

    async def start(_host: str, _memory_bytes: int) -> LocalAggregator:
        await never.wait()
        raise AssertionError

    monkeypatch.setattr(lab.control, "_start_process", start)
    placing = asyncio.create_task(lab.place(JOBS[0]))
    async with asyncio.timeout(60):
        await until(lambda: lab.control._starting, what="an aggregator's start")
        await lab.control.close("the aggregator service was stopped")
        with pytest.raises(RequestRefusedError, match="does not lead any more"):
            await placing
    await lab.bus.close(1)


async def test_jobs_that_wait_for_the_same_aggregator_are_placed_as_if_one_after_another() -> None:
    lab = Lab()
    replies = await asyncio.gather(*(lab.place(job) for job in JOBS[:3]))
    assert len({reply.ranges[0].address for reply in replies}) == 3
    assert len(lab.started) == 3
    await lab.check()
    await lab.close()


async def test_an_attempt_that_cannot_be_placed_after_the_one_before_was_freed_is_published() -> None:
    lab = Lab()
    heard = await listen(lab.bus)
    await lab.place(JOBS[0])
    ask = lab.started[0].ask

    async def refusing(command: str, within_s: float = 60.0, **fields: Any) -> dict[str, Any]:
        if command == "add":
            raise CommandRefusedError("memory is short")
        return await ask(command, within_s, **fields)

    lab.started[0].ask = refusing  # type: ignore[method-assign]
    with pytest.raises(RequestRefusedError, match="attempt 1 is freed; job-0 cannot be placed: memory is short"):
        await lab.place(JOBS[0], 2)

    reason = "its ranges were freed for attempt 2, which could not be placed: memory is short"
    with pytest.raises(RequestRefusedError) as refused:
        await lab.place(JOBS[0], 1)
    assert str(refused.value) == f"attempt 1 of job-0 is lost ({reason}): begin anew as attempt 2"
    await until(lambda: len(heard) == 2, what="the loss")
    assert (heard[1].change, heard[1].attempt) == (AggregationChange.LOST, 1)
    assert reason in heard[1].reason
    lab.started[0].ask = ask  # type: ignore[method-assign]
    await lab.place(JOBS[0], 2)
    await lab.check()
    await lab.close()


async def test_an_assignment_that_another_leader_has_written_meanwhile_is_not_overwritten() -> None:
    """The registration had lapsed and was taken again: what the other one has placed is not known here."""
    lab = Lab()
    await lab.place(JOBS[0])
    other = (await lab.stored())[JOBS[0]].model_copy(update={"incarnation": 2, "attempt": 5})
    await lab.bus.bucket(AGGREGATIONS).put(JOBS[0], other)

    with pytest.raises(LeadLostError, match="another instance has led meanwhile"):
        await lab.place(JOBS[0], 2)

    assert (await lab.stored())[JOBS[0]] == other
    await lab.close()

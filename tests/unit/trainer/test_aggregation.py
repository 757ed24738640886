"""What `turnbuckle train --aggregate` asks the aggregator service: ranges placed, lost, refused, given back."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas.aggregations import AggregationChange
from services._runtime.bus.api import Bus
from services._runtime.clock import SystemClock
from services._runtime.command.errors import BadFileError, UnavailableError
from services._runtime.exit_code import ExitCode
from services.aggregator.settings import AggregatorSettings
from services.trainer.commands import aggregation as limits
from services.trainer.commands.aggregation import (
    CLAIM_FILE,
    Aggregation,
    AggregationTakenError,
    aggregated,
    answering,
    claim_of,
)
from services.trainer.commands.training import Training
from services.trainer.core.placement import PlacementAnswer, PlacementQuestion
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.local_aggregators import ADAMW, CLAIM, OTHER_CLAIM, LocalService, assignment, listen
from tests.support.service_in_process import run_in_process
from tests.support.trainer_plans import plan_of


def question(attempt: int = 1, values: int = 1_500) -> PlacementQuestion:
    return PlacementQuestion(attempt=attempt, values=values, optimizer=ADAMW)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def bus(broker: MemoryBroker) -> AsyncIterator[Bus]:
    made = MemoryBus(broker)
    yield made
    await made.close(1)


def of_job(bus: Bus, claim: str = CLAIM, again_within_s: float = 60.0) -> Aggregation:
    return Aggregation(bus, SystemClock(), ("job", 2, claim), again_within_s)


@asynccontextmanager
async def serving(broker: MemoryBroker, processes: int = 2) -> AsyncIterator[LocalService]:
    loaded = AggregatorSettings.load({}, processes=processes, range_values=1_000)
    async with run_in_process(LocalService, loaded, MemoryBus(broker)) as service:
        await until(lambda: service.serving, what="the lead")
        yield service


async def test_without_a_service_it_says_how_to_start_one(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOUND_WITHIN_S", 0.0)
    with pytest.raises(UnavailableError, match="start one with `turnbuckle run aggregator`"):
        await of_job(bus).begin()


async def test_each_rank_gets_the_same_answer_and_the_end_frees_the_ranges(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        aggregation = of_job(bus)
        await aggregation.begin()
        first, second = await asyncio.gather(aggregation.answer(question()), aggregation.answer(question()))

        assert first == second
        assert [(each.first, each.last) for each in first.ranges] == [(0, 1000), (1000, 1500)]
        assert first.key not in repr(first)
        assert await assignment(bus) is not None
        assert await aggregation.end() == ""
        assert await assignment(bus) is None


async def test_ranges_that_are_lost_are_said_to_be_and_are_placed_as_the_next_attempt(
    broker: MemoryBroker, bus: Bus
) -> None:
    async with serving(broker) as service:
        heard = await listen(bus)
        aggregation = of_job(bus)
        before = await aggregation.answer(question())
        await service.aggregators[0].die()
        await until(lambda: heard and heard[-1].change is AggregationChange.LOST, what="the loss")

        assert "has died by signal 9" in (await aggregation.answer(question())).lost
        after = await aggregation.answer(question(2))
        assert after.ranges
        assert after.key != before.key
        # A rank that has not heard of it asks for the attempt before.
        assert (await aggregation.answer(question())).lost == "attempt 2 has taken its place"


async def test_ranges_that_a_killed_command_has_left_are_freed_by_the_next_one(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        left = await of_job(bus).answer(question())
        following = of_job(bus)
        await following.begin()

        assert await assignment(bus) is None
        assert (await following.answer(question())).key != left.key


async def test_a_name_of_another_training_is_refused(broker: MemoryBroker, bus: Bus) -> None:
    async with serving(broker):
        await of_job(bus, OTHER_CLAIM).answer(question())
        with pytest.raises(AggregationTakenError, match="give this one another --name"):
            await of_job(bus).begin()
        refused = await of_job(bus).answer(question())
        assert "was placed with another claim" in refused.refused
        assert refused.exit_code == ExitCode.UNAVAILABLE


async def test_what_no_aggregator_has_room_for_ends_the_training(
    broker: MemoryBroker, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FOUND_WITHIN_S", 0.0)
    async with serving(broker, processes=1) as service:
        refused = await of_job(bus).answer(question(values=1 << 30))
        assert "TURNBUCKLE_AGGREGATOR__MEMORY_BYTES" in refused.refused
        service.cannot_start = "it has ended with exit code 1"
        refused = await of_job(bus).answer(question())
        assert (refused.exit_code, "exit code 1" in refused.refused) == (ExitCode.UNAVAILABLE, True)


async def test_while_the_service_is_away_nothing_is_known_and_a_new_attempt_is_given_up_in_the_end(
    broker: MemoryBroker, bus: Bus
) -> None:
    aggregation = of_job(bus, again_within_s=0.0)
    async with serving(broker):
        await aggregation.answer(question())

    assert await aggregation.answer(question()) == PlacementAnswer()
    refused = await aggregation.answer(question(2))
    assert refused.exit_code == ExitCode.RESUMABLE
    assert "are freed once they have been idle for an hour" in await aggregation.end()


async def test_an_attempt_waits_for_the_service_that_is_started_anew(broker: MemoryBroker, bus: Bus) -> None:
    aggregation = of_job(bus)
    async with serving(broker):
        await aggregation.answer(question())
    asking = asyncio.create_task(aggregation.answer(question(2)))
    async with serving(broker):
        assert (await asking).ranges
        assert (await aggregation.answer(question(2))).ranges


async def test_ranks_ask_by_a_socket_that_only_this_user_reaches() -> None:
    async def answer(asked: PlacementQuestion) -> PlacementAnswer:
        return PlacementAnswer(job="job", lost=f"attempt {asked.attempt}")

    async with answering(answer) as path:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for line, expected in (
            (question(3).model_dump_json(), ("attempt 3", "")),
            ("{}", ("", "the job is not aggregated: a rank's question is none: Field required")),
            ("\x00", ("", "the job is not aggregated: a rank's question is none: Invalid JSON")),
        ):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(line.encode() + b"\n")
            found = json.loads(await reader.readline())
            assert found["lost"] == expected[0]
            assert found["refused"].startswith(expected[1])
            writer.close()
    assert not path.exists()


def test_a_claim_stays_beside_the_checkpoints_and_belongs_to_one_command_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "saved"
    with claim_of(str(directory)) as first:
        assert len(first) == 64
        assert stat.S_IMODE((directory / CLAIM_FILE).stat().st_mode) == 0o600
        with pytest.raises(AggregationTakenError, match="works in"), claim_of(str(directory)):
            pass
    with claim_of(str(directory)) as again:
        assert again == first
    (directory / CLAIM_FILE).write_text("damaged")
    with claim_of(str(directory)) as other:
        assert len(other) == 64
    with claim_of("") as one, claim_of("") as two:
        assert one != two


def test_a_directory_for_the_claim_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadFileError, match="cannot be written: Not a directory"),
        claim_of(str(tmp_path / "file" / "x")),
    ):
        pass


async def test_without_a_bus_it_says_what_to_give() -> None:
    training = Training(plan_of([1], [1], [1]), (), 1, "")
    with pytest.raises(UnavailableError, match="give --server or --context, or set NATS_URL"):
        async with aggregated(None, training, 1.0, print):
            pass

"""One coordinator of an elastic training's name, and the generations that it records, over a bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.streams import TRAININGS
from schemas.trainings import TrainingGeneration
from services._runtime.bus.api import BusError
from services._runtime.bus.name_registration import HEARTBEAT_S
from services.trainer.commands.publishing import RunnerSocket
from services.trainer.commands.registration import (
    CONNECTED_WITHIN_S,
    TrainingRegistration,
    TrainingTakenError,
    registered,
)
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.manual_clock import ManualClock
from tests.support.trainer_plans import plan_of

PLAN = plan_of([12], [1], [1])
TTL_S = TRAININGS.ttl_s or 0.0


class Lab:
    """Coordinators of the same training, on hosts of their own unless they share a directory."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(self.clock)
        self.bus = MemoryBus(self.broker)
        self.directory = directory
        self.notes: list[str] = []

    def coordinator(self, host: str) -> TrainingRegistration:
        return TrainingRegistration(self.bus, PLAN, self.clock, self.directory / host)

    async def stored(self) -> TrainingGeneration | None:
        entry = await self.bus.bucket(TRAININGS).get(PLAN.job)
        assert entry is None or isinstance(entry.message, TrainingGeneration)
        return None if entry is None else entry.message

    @asynccontextmanager
    async def renewed(self, registration: TrainingRegistration) -> AsyncIterator[asyncio.Task[None]]:
        """Its heartbeats, until the end of the block."""
        task = asyncio.create_task(registration.renew())
        yield task
        task.cancel()
        with suppress(asyncio.CancelledError, TrainingTakenError):
            await task

    async def claimed_within(self, registration: TrainingRegistration, seconds: float) -> bool:
        """Whether a claim succeeds while so much time passes; raises what it raises."""
        task = asyncio.create_task(registration.claim(self.notes.append))
        await self.clock.settle()
        for _ in range(round(2 * seconds)):
            await self.clock.advance(0.5)
        if not task.done():
            task.cancel()
            return False
        task.result()
        return True


async def test_each_generation_is_stored_with_its_plan_and_first_step(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    registration = lab.coordinator("a")
    await registration.claim(lab.notes.append)
    claimed = await lab.stored()
    assert claimed is not None
    assert (claimed.number, claimed.workers, claimed.plan) == (0, 0, PLAN.plan)

    await registration.record(1, 4, 20, is_formed=False)
    await registration.record(1, 4, 21, is_formed=True)

    found = await lab.stored()
    assert found is not None
    assert (found.number, found.workers, found.first_step, found.is_formed) == (1, 4, 21, True)
    await registration.release()
    assert await lab.stored() is None
    assert lab.notes == []


async def test_a_second_coordinator_of_the_name_is_refused_with_who_has_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    first, second = lab.coordinator("a"), lab.coordinator("b")
    await first.claim(lab.notes.append)
    async with lab.renewed(first):
        with pytest.raises(TrainingTakenError, match=r"process \d+ on .*: end that one, or .* --name"):
            await lab.claimed_within(second, TTL_S)

    assert "training j has a coordinator already" in lab.notes[0]
    assert len(lab.notes) == 1
    await second.release()
    assert await lab.stored() is not None, "the refused one takes nothing away"


async def test_after_a_kill_the_next_one_waits_for_the_expiry_elsewhere_and_not_at_all_on_the_same_host(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path)
    killed = lab.coordinator("a")
    await killed.claim(lab.notes.append)
    killed._holder.release()  # as the kernel does with the lock of a process that was killed

    elsewhere, here = lab.coordinator("b"), lab.coordinator("a")
    assert not await lab.claimed_within(elsewhere, TTL_S / 2)
    assert await lab.claimed_within(here, 0.5)
    here._holder.release()
    assert await lab.claimed_within(lab.coordinator("c"), TTL_S + 1)


async def test_one_that_was_paused_until_another_took_the_name_finds_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    paused, other = lab.coordinator("a"), lab.coordinator("b")
    await paused.claim(lab.notes.append)
    await lab.clock.advance(TTL_S + 1)
    await other.claim(lab.notes.append)

    with pytest.raises(TrainingTakenError):
        await paused.record(2, 3, 40, is_formed=False)
    found = await lab.stored()
    assert found is not None
    assert found.number == 0, "the other one's"


async def test_a_heartbeat_notices_that_another_took_the_name(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    paused, other = lab.coordinator("a"), lab.coordinator("b")
    await paused.claim(lab.notes.append)
    await lab.clock.advance(TTL_S + 1)
    await other.claim(lab.notes.append)

    async with lab.renewed(paused) as renewing:
        await lab.clock.settle()
        await lab.clock.advance(HEARTBEAT_S)
        assert isinstance(renewing.exception(), TrainingTakenError)


async def test_without_an_answer_of_the_bus_training_begins_and_what_was_recorded_is_stored_later(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path)
    lab.broker.stop()
    registration = lab.coordinator("a")
    assert await lab.claimed_within(registration, CONNECTED_WITHIN_S + 1)
    assert "the training is not registered" in lab.notes[0]
    await registration.record(1, 2, 0, is_formed=False)

    lab.broker.start()
    async with lab.renewed(registration):
        await lab.clock.settle()
        await lab.clock.advance(HEARTBEAT_S)
        found = await lab.stored()
    assert found is not None
    assert (found.number, found.workers) == (1, 2)


async def test_a_job_of_the_scheduler_and_a_training_without_a_bus_are_not_registered(tmp_path: Path) -> None:
    notes: list[str] = []
    async with registered(None, PLAN, notes.append) as found:
        assert found is None
    runner = RunnerSocket(tmp_path / "runner")
    async with registered(runner, PLAN, notes.append) as found:
        assert found is None
    await runner.close()
    assert notes == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("record"), st.integers(0, 2)),
            st.tuples(st.just("claim"), st.integers(0, 2)),
            st.tuples(st.just("release"), st.integers(0, 2)),
            st.tuples(st.just("pass"), st.integers(1, 40)),
            st.tuples(st.just("cut"), st.booleans()),
        ),
        max_size=30,
    )
)
def test_two_coordinators_never_both_believe_that_a_write_was_theirs(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """Whatever the order of writes, expiry and lost servers: what is stored is of who wrote last with success."""

    async def play() -> None:
        lab = Lab(tmp_path_factory.mktemp("locks"))
        coordinators = [lab.coordinator(f"host-{number}") for number in range(3)]
        for action, value in actions:
            if action == "pass":
                await lab.clock.advance(value)
            elif action == "cut":
                (lab.broker.stop if value else lab.broker.start)()
            elif action == "release":
                await coordinators[value].release()
            else:
                before = await lab.stored() if lab.broker.online else None
                held = False
                with suppress(TrainingTakenError, BusError, TimeoutError):
                    held = await coordinators[value]._write()
                if held:
                    found = await lab.stored()
                    assert found is not None
                    assert found.holder == coordinators[value]._info.holder
                elif before is not None and lab.broker.online:
                    assert await lab.stored() == before, "who does not hold the name changes nothing"

    asyncio.run(play())

"""An elastic training's name on a real server: whose key may take it, and that a second command is refused."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.roles import Role
from schemas.streams import TRAININGS
from schemas.trainings import TrainingGeneration
from services._runtime.bus.api import NotPermittedError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services._runtime.clock import SystemClock
from services.trainer.commands import registration as limits
from services.trainer.commands.registration import TrainingRegistration, TrainingTakenError
from tests.support.deadline import until
from tests.support.elastic_command import elastic_command
from tests.support.secured_nats import NODES, SecuredNats
from tests.support.trainer_plans import plan_of

PLAN = plan_of([12], [1], [1])


@pytest.fixture(autouse=True)
def room_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy for seconds is no bus that does not answer."""
    monkeypatch.setattr(limits, "CONNECTED_WITHIN_S", 60.0)
    monkeypatch.setattr(limits, "WRITE_WITHIN_S", 60.0)


@pytest_asyncio.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredNats]:
    async with SecuredNats(tmp_path / "secrets") as running:
        await running.declare()
        yield running


async def stored(bus: NatsBus, job: str) -> TrainingGeneration | None:
    entry = await bus.bucket(TRAININGS).get(job)
    assert entry is None or isinstance(entry.message, TrainingGeneration)
    return None if entry is None else entry.message


async def test_the_trainers_key_takes_a_name_once_and_an_observer_reads_it(
    secured: SecuredNats, tmp_path: Path
) -> None:
    trainer, clock, notes = await secured.bus(Role.TRAINER), SystemClock(), list[str]()
    first = TrainingRegistration(trainer, PLAN, clock, tmp_path / "first")
    await first.claim(notes.append)
    await first.record(3, 4, 20, is_formed=True)
    second = TrainingRegistration(trainer, PLAN, clock, tmp_path / "second")
    claiming = asyncio.create_task(second.claim(notes.append))
    await until(lambda: notes, what="the note that another one has it")
    assert "has a coordinator already" in notes[0]
    await first.record(4, 5, 30, is_formed=False)

    with pytest.raises(TrainingTakenError, match="training j has a coordinator already, process"):
        await claiming
    observer = await secured.bus(Role.OBSERVER)
    found = await stored(observer, "j")
    assert found is not None
    assert (found.number, found.workers, found.first_step, found.is_formed) == (4, 5, 30, False)
    with pytest.raises(NotPermittedError):
        await observer.bucket(TRAININGS).put("j", found)
    await first.release()
    assert await stored(observer, "j") is None
    for bus in (trainer, observer):
        await bus.close(2)


async def test_a_key_that_may_not_register_is_said_and_training_goes_on(secured: SecuredNats, tmp_path: Path) -> None:
    runner, notes = await secured.bus(Role.RUNNER, NODES[0]), list[str]()
    registration = TrainingRegistration(runner, PLAN, SystemClock(), tmp_path / "locks")

    await registration.claim(notes.append)
    await registration.record(1, 1, 0, is_formed=False)

    [note] = notes
    assert "the training is not registered" in note
    assert "turnbuckle nats config" in note
    await registration.release()
    await runner.close(2)


@pytest.mark.host
@pytest.mark.slow
async def test_a_second_command_of_the_name_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    """The store and the worker of the first one import torch."""
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
    async with EmbeddedNats() as server:
        given = ("--server", server.url)
        with elastic_command(places[0], *given, is_patient=True) as first:
            await asyncio.to_thread(first.until_workers, 1)
            bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
            found = await stored(bus, "train")
            assert found is not None
            assert (found.pid, found.number, found.workers, found.plan) == (first.process.pid, 1, 1, "example")
            with elastic_command(places[1], *given, is_patient=True) as second:
                code, said = await asyncio.to_thread(second.end)
            assert code == 1
            assert f"process {found.pid} on {found.node}: end that one, or give this one another --name" in said
            first.process.send_signal(signal.SIGTERM)
            code, said = await asyncio.to_thread(first.end)
            assert (code, said) == (0, "")
            assert await stored(bus, "train") is None, "given back"
            await bus.close(2)
    assert not (places[1] / "saved").exists(), "the refused one has begun nothing"

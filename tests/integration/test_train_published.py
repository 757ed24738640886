"""What `turnbuckle train` publishes on a real server, and that a training does not mind what becomes of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.streams import TRAINING_STREAM
from schemas.subjects import STEPS, TRAINING_EVENTS
from schemas.trainings import StepBatch, TrainingEvent
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.options import BusOptions
from services.trainer.commands.outcome import Ended
from services.trainer.commands.publishing import publisher
from services.trainer.commands.train_output import TrainOutput
from services.trainer.commands.training import Training, train
from services.trainer.core.progress import Progress
from tests.support import fake_ranks
from tests.support.deadline import until
from tests.support.trainer_plans import plan_of

FIRST, LAST = 10, 20
PLAN = plan_of([4, 3], [1, 1], [1, 1])


class Shown(TrainOutput):
    """What is printed of steps."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.steps: list[int] = []

    def progress(self, progress: Progress) -> None:
        self.steps.append(progress.done)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    """By ranks that need no torch, whose steps the test allows one by one."""

    def command(_training: Training, place: Path) -> list[str]:
        return [sys.executable, "-S", "-E", str(fake_ranks.__file__), str(place), str(LAST), str(tmp_path)]

    monkeypatch.setattr("services.trainer.commands.training._command", command)
    return Training(PLAN, (), LAST, "saved")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats() as running:
        yield running


async def run(training: Training, shown: Shown, url: str) -> Ended:
    """As the command does."""
    options = BusOptions(servers=(url,), streams=(TRAINING_STREAM,), buckets=(), object_stores=())
    async with publisher(options) as taking:
        return await train(training, shown, taking)


async def listen_to_events(bus: NatsBus) -> list[Delivery]:
    heard: list[Delivery] = []
    await bus.subscribe(TRAINING_EVENTS.pattern("tb"), heard.append)
    return heard


async def until_connected(events: list[Delivery]) -> None:
    """Steps that are published before are dropped."""
    await until(lambda: len(events) == 2, what="started, resumed")


def allow(directory: Path, first: int, last: int) -> None:
    for step in range(first, last):
        (directory / f"step-{step}").touch()


async def test_steps_and_events_of_a_training(server: EmbeddedNats, training: Training, tmp_path: Path) -> None:
    bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
    batches: list[StepBatch] = []

    def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, StepBatch)
        batches.append(delivery.message)

    await bus.subscribe(STEPS.pattern("tb"), take)
    events = await listen_to_events(bus)
    running = asyncio.create_task(run(training, Shown(), server.url))
    await until_connected(events)
    allow(tmp_path, FIRST, LAST)
    ended = await running

    assert ended.code == 0
    await until(lambda: len(batches) == 2 * (LAST - FIRST), what="all steps of both ranks")
    assert sorted((batch.rank, *batch.step) for batch in batches) == [
        (rank, step) for rank in (0, 1) for step in range(FIRST, LAST)
    ]
    await until(lambda: len(events) == 4, what="all events")
    told: list[TrainingEvent] = []

    def keep(delivery: Delivery) -> None:
        assert isinstance(delivery.message, TrainingEvent)
        told.append(delivery.message)

    await read_stored(bus, TRAINING_STREAM, TRAINING_EVENTS.pattern("tb"), 0.0, keep)
    assert [str(event.change) for event in told] == ["started", "resumed", "saved", "ended"]
    assert (told[0].plan, told[0].total, told[1].step) == (PLAN, LAST, FIRST)
    assert (told[-1].exit_code, told[-1].cause, told[-1].step) == (0, f"done after step {LAST}", LAST)
    assert len({event.training for event in told} | {batch.training for batch in batches}) == 1
    await bus.close(2.0)


async def test_a_server_that_ends_midway_changes_nothing(
    server: EmbeddedNats, training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
    events = await listen_to_events(bus)
    shown = Shown()
    running = asyncio.create_task(run(training, shown, server.url))
    await until_connected(events)
    allow(tmp_path, FIRST, FIRST + 5)
    await until(lambda: len(shown.steps) == 5, what="half of the steps")
    await bus.close(2.0)
    await server.stop()
    allow(tmp_path, FIRST + 5, LAST)
    ended = await running

    assert (ended.code, ended.result) == (0, {"event": "result", "step": LAST, "loss": 0.5, "stopped": False})
    assert shown.steps == list(range(FIRST + 1, LAST + 1)), "no report was lost"
    assert "events were not stored" in capsys.readouterr().err


async def test_without_a_server_it_trains_as_well(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown()
    allow(tmp_path, FIRST, LAST)
    ended = await run(training, shown, "nats://127.0.0.1:1")

    assert (ended.code, shown.steps[-1]) == (0, LAST)
    assert "4 events were not stored: nats://127.0.0.1:1 did not take them" in capsys.readouterr().err

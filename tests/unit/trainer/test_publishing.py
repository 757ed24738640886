"""Where a training publishes, by runner or by bus, and what is dropped while neither accepts messages."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.codec import decode
from schemas.message import Message
from services._runtime.bus.options import BusOptions
from services._runtime.deep_sockets import socket_address
from services.trainer.commands.publishing import MOST_WAITING, RunnerSocket, find_bus, publisher
from tests.support.deadline import until
from tests.support.training_reports import event, steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Deeper than a socket's address is long."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory / "training"


def listening(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with socket_address(path) as address:
        opened.bind(address)
    return opened


def received(opened: socket.socket) -> Iterator[Message]:
    while True:
        try:
            yield decode(opened.recv(1 << 16))
        except BlockingIOError:
            return


async def test_a_runner_that_is_away_finds_the_newest_and_every_event_first(path: Path) -> None:
    told = RunnerSocket(path)
    for sequence in range(MOST_WAITING + 5):
        told.publish(steps(time_ns=sequence))
    told.publish(event())
    heard: list[Message] = []
    with listening(path) as opened:

        def take() -> bool:
            heard.extend(received(opened))
            return len(heard) == MOST_WAITING + 1

        await until(take, what="all that was kept")
    assert await told.close() == ""
    # Of 205 batches the five oldest were dropped.
    assert heard == [event(), *(steps(time_ns=sequence) for sequence in range(5, MOST_WAITING + 5))]


@pytest.mark.virtual_time
async def test_a_runner_that_never_comes_costs_two_seconds_at_the_end(path: Path) -> None:
    told = RunnerSocket(path)
    for sequence in range(3):
        told.publish(event(sequence=sequence))
    assert await told.close() == "3 events were not taken by the job's runner"


async def test_in_a_job_its_runner_takes_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNBUCKLE_TRAINING_SOCKET", str(path))
    with listening(path) as opened:
        async with publisher(None) as taking:
            assert taking is not None
            taking.publish(event())
        assert list(received(opened)) == [event()]


@pytest.fixture
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS_URL", "NATS_CONTEXT", "TURNBUCKLE_NATS_URL", "TURNBUCKLE_JOB", "TURNBUCKLE_TRAINING_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.usefixtures("nothing_set")
async def test_a_bus_that_nobody_gave_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_bus(None, None) is None
    async with publisher(None) as taking:
        assert taking is None
    given = find_bus("nats://bus:4222", None)
    assert given is not None
    assert (given.servers, [spec.name for spec in given.streams], given.buckets) == (
        ("nats://bus:4222",),
        ["TRAIN"],
        (),
    )
    monkeypatch.setenv("NATS_URL", "nats://other:4222")
    found = find_bus(None, None)
    assert found is not None
    assert found.servers == ("nats://other:4222",)


@pytest.mark.usefixtures("nothing_set")
def test_a_job_uses_no_bus_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://other:4222")
    monkeypatch.setenv("TURNBUCKLE_JOB", "j")
    assert find_bus(None, None) is None


async def test_a_key_that_cannot_be_read_is_said_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    async with publisher(BusOptions(nkey_seed_file="/nonexistent/trainer.nk")) as taking:
        if taking is not None:
            taking.publish(steps())
            await until(taking._bus.lost.done, what="the refusal")  # type: ignore[attr-defined]
    assert "nothing" in (said := capsys.readouterr().err)
    assert "/nonexistent/trainer.nk" in said

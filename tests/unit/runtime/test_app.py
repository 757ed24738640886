"""The command line of a service, and a service inside a test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.service.app import run
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.bus_lab import node_info, number_of
from tests.support.deadline import until
from tests.support.service_in_process import run_in_process
from tests.support.tiny_service import TinyService, TinySettings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    for name in ("NATS_URL", "NATS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TinyService, ["--help"]) == 0

    text = capsys.readouterr().out
    assert "The smallest service there can be." in text
    assert all(info.variable in text for info in TinySettings.describe())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TinyService, ["--version"]) == 0
    assert capsys.readouterr().out == "turnbuckle-tiny 0.1.0\n"


@pytest.mark.parametrize("option", ["--print-config", "--help", "--version"])
def test_a_reader_that_closes_the_pipe_is_no_error(option: str) -> None:
    """As with `turnbuckle run allocator --print-config | head -1`."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "services.allocator", option]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(write)

    assert (done.returncode, done.stderr) == (0, b"")


def test_print_config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows what is in force, secrets masked."""
    monkeypatch.setenv("TURNBUCKLE_TINY__RATES", "1.5,2")
    monkeypatch.setenv("TURNBUCKLE_NATS_PASSWORD", "hush")

    assert run(TinyService, ["--print-config"]) == 0

    text = capsys.readouterr().out
    assert "TURNBUCKLE_TINY__RATES=1.5,2.0" in text
    assert "hush" not in text


def test_a_wrong_command_line_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """As that of every command does."""
    assert run(TinyService, ["--verbose"]) == 2
    assert "--verbose" in capsys.readouterr().err


def test_mistakes_in_settings_end_with_78(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, contexts."""
    monkeypatch.setenv("NATS_CONTEXT", "nowhere")
    assert run(TinyService, []) == 78
    assert "nowhere" in capsys.readouterr().err
    monkeypatch.setenv("TURNBUCKLE_TINY__RATE", "1")
    assert run(TinyService, ["--print-config"]) == 78
    assert "did you mean TURNBUCKLE_TINY__RATES?" in capsys.readouterr().err


async def test_run_in_process() -> None:
    """A service on a bus in memory, started and stopped."""
    bus = MemoryBus(MemoryBroker())

    async with run_in_process(TinyService, TinySettings.load({}), bus) as service:
        bus.publish(CFS.subject("tb", app="shop", node="n1"), node_info(1))
        await until(lambda: service.received == 1)
        reply = await bus.request(LIMIT_UPDATES.subject("tb", node="n1"), node_info(1), timeout_s=60)

    assert number_of(reply) == 1
    assert service.stopped
    await bus.close(1)


async def test_run_in_process_tells_of_a_crash() -> None:
    """A test must not pass over a crashed task."""
    bus = MemoryBus(MemoryBroker())

    with pytest.raises(ValueError, match="crashed as told"):
        async with run_in_process(TinyService, TinySettings.load({}, fault="crash"), bus) as service:
            await until(service.runtime.crashed.done)
    await bus.close(1)

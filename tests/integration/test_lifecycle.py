"""A real process of a tiny service against a real nats-server: start, readiness, drain, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from schemas.subjects import LIMIT_UPDATES
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from tests.support.bus_lab import node_info
from tests.support.deadline import until
from tests.support.http_health import Answers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedNats]:
    made = EmbeddedNats()
    await made.start()
    yield made
    await made.stop()


class Process:
    """A running tiny service."""

    def __init__(self, process: asyncio.subprocess.Process, health_port: int) -> None:
        self.process = process
        self.health_port = health_port
        self.answers = Answers(health_port)

    async def finish(self, within_s: float = 60.0) -> tuple[int | None, list[dict[str, Any]]]:
        """Exit code and the log."""
        _, err = await asyncio.wait_for(self.process.communicate(), within_s)
        return self.process.returncode, [json.loads(line) for line in err.decode().splitlines()]


@pytest.fixture
def environment() -> dict[str, str]:
    """No NATS variable or context of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
    return kept | {"XDG_CONFIG_HOME": "/nonexistent"}


@pytest.fixture
async def launch(environment: dict[str, str]) -> AsyncIterator[Any]:
    started: list[asyncio.subprocess.Process] = []

    async def start(**variables: str) -> Process:
        port = free_port()
        settings = {"TURNBUCKLE_HEALTH_PORT": str(port), "TURNBUCKLE_SHUTDOWN_GRACE_S": "30"} | variables
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.tiny_service",
            cwd=ROOT,
            env=environment | settings,
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return Process(process, port)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def events(log: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in log]


async def test_waits_for_nats_then_serves_and_drains(launch: Any, server: EmbeddedNats) -> None:
    """Alive without a server, ready when it comes, not ready when it goes, and a clean end on SIGTERM."""
    server.kill()
    service = await launch(NATS_URL=server.url)
    await service.answers.until("/readyz", 503, containing="no connection to NATS")
    assert (await service.answers.get("/livez"))[0] == 200

    await server.start()
    await service.answers.until("/readyz", 200)
    bus = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
    await bus.request(LIMIT_UPDATES.subject("tb", node="n1"), node_info(1), timeout_s=60)
    _, metrics = await service.answers.get("/metrics")
    assert 'turnbuckle_build_info{service="tiny",version="0.1.0"} 1.0' in metrics
    assert "turnbuckle_bus_received_messages_total 1.0" in metrics

    server.kill()
    await service.answers.until("/readyz", 503)
    await server.start()
    await service.answers.until("/readyz", 200)
    service.process.send_signal(signal.SIGTERM)
    code, log = await service.finish()

    assert code == 0
    assert events(log)[-1] == "stopped"
    assert {"starting", "started", "disconnected", "reconnected", "stopping"} <= set(events(log))
    assert all(line["service"] == "tiny" for line in log)
    await bus.close(2)


async def test_systemd_is_told(launch: Any, server: EmbeddedNats, tmp_path: Path) -> None:
    """Type=notify: what it waits for, that it serves only then, signs of life, and that it stops."""
    server.kill()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0)
        heard: list[str] = []

        async def hear(state: str) -> None:
            async with asyncio.timeout(60):
                while state not in heard:
                    heard.extend((await asyncio.get_running_loop().sock_recv(manager, 1000)).decode().splitlines())

        service = await launch(NATS_URL=server.url, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="10000000")
        await hear(f"STATUS=connecting to NATS at {server.url}")
        await hear("WATCHDOG=1")
        assert "READY=1" not in heard
        await server.start()
        await hear("READY=1")
        service.process.send_signal(signal.SIGTERM)
        await hear("STOPPING=1")
        assert (await service.finish())[0] == 0


async def test_ends_while_waiting_for_nats(launch: Any) -> None:
    """SIGTERM before there ever was a server is a clean end too."""
    service = await launch(TURNBUCKLE_NATS_URL=f"nats://127.0.0.1:{free_port()}")
    await service.answers.until("/livez", 200)
    service.process.send_signal(signal.SIGINT)

    assert (await service.finish())[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_ends_although_the_reader_of_its_log_is_gone(
    environment: dict[str, str], server: EmbeddedNats, number: signal.Signals
) -> None:
    reading, writing = os.pipe()
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.tiny_service",
        cwd=ROOT,
        env=environment | {"TURNBUCKLE_HEALTH_PORT": str(port), "NATS_URL": server.url},
        stderr=writing,
    )
    os.close(writing)
    try:
        await Answers(port).until("/readyz", 200)
        os.close(reading)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_bad_variable_is_named(launch: Any) -> None:
    """Exit code 78, and the text says which variable and what was meant."""
    service = await launch(TURNBUCKLE_TINY__NOD="x", TURNBUCKLE_LOG_LEVEL="loud")
    _, err = await asyncio.wait_for(service.process.communicate(), 60)

    text = err.decode()
    assert service.process.returncode == 78
    assert "TURNBUCKLE_TINY__NOD: unknown variable; did you mean TURNBUCKLE_TINY__NODE?" in text
    assert "TURNBUCKLE_LOG_LEVEL=loud" in text


@pytest.mark.parametrize(("fault", "event"), [("crash", "task_crashed"), ("start", "start_failed")])
async def test_our_own_fault(launch: Any, server: EmbeddedNats, fault: str, event: str) -> None:
    """A crashed task and a failed start end the process with 70, logged with a traceback."""
    service = await launch(NATS_URL=server.url, TURNBUCKLE_TINY__FAULT=fault)
    code, log = await service.finish()

    assert code == 70
    assert next(line for line in log if line["event"] == event)["exception"]


async def test_a_refusal_by_a_task_is_one_sentence(launch: Any, server: EmbeddedNats) -> None:
    """Exit code 78, and the reason without a traceback: nothing has crashed."""
    service = await launch(NATS_URL=server.url, TURNBUCKLE_TINY__FAULT="refuse")
    code, log = await service.finish()

    assert code == 78
    refusal = next(line for line in log if line["event"] == "settings_unusable")
    assert refusal["error"] == "the name is taken: choose another one"
    assert "exception" not in refusal
    assert "task_crashed" not in events(log)


async def test_stop_that_hangs(launch: Any, server: EmbeddedNats) -> None:
    """Costs its share of the grace, then the process ends with 70."""
    service = await launch(NATS_URL=server.url, TURNBUCKLE_TINY__FAULT="hang", TURNBUCKLE_SHUTDOWN_GRACE_S="0.5")
    await service.answers.until("/readyz", 200)
    service.process.send_signal(signal.SIGTERM)
    code, log = await service.finish()

    assert code == 70
    assert "shutdown_timed_out" in events(log)


async def test_a_second_signal_after_a_second_ends_it_at_once(launch: Any, server: EmbeddedNats) -> None:
    """Whatever the grace."""
    service = await launch(NATS_URL=server.url, TURNBUCKLE_TINY__FAULT="hang", TURNBUCKLE_SHUTDOWN_GRACE_S="600")
    await service.answers.until("/readyz", 200)
    finished = asyncio.create_task(service.finish())
    while not finished.done():
        with suppress(ProcessLookupError):  # it has ended, and `finished` is about to be told
            service.process.send_signal(signal.SIGTERM)
        await asyncio.wait({finished}, timeout=0.1)
    code, log = finished.result()

    assert code == 70
    assert events(log)[-1] == "forced_exit"
    assert events(log).count("stopping") == 1


PARENT = """
import os, signal, sys, threading, time
from pathlib import Path
from services._runtime.child_process import spawn_logged
for _ in range(16):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
child = spawn_logged([sys.executable, "-m", "tests.support.tiny_service"], Path(sys.argv[1]), dict(os.environ))
print(child.pid, flush=True)
time.sleep(3600)
"""


async def test_a_parent_with_many_threads_that_is_killed_stops_it_in_order(
    environment: dict[str, str], server: EmbeddedNats, tmp_path: Path
) -> None:
    """The kernel may send SIGTERM for each of its threads: one request, not an impatient second one."""
    port, log = free_port(), tmp_path / "log"
    settings = {"TURNBUCKLE_HEALTH_PORT": str(port), "TURNBUCKLE_SHUTDOWN_GRACE_S": "3", "NATS_URL": server.url}
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(log)),
        cwd=ROOT,
        env=environment | settings | {"TURNBUCKLE_TINY__FAULT": "hang"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    await Answers(port).until("/readyz", 200)
    parent.kill()
    await parent.communicate()
    await until(lambda: not _command(child), what="the end of the child")

    seen = events([json.loads(line) for line in log.read_text().splitlines()])
    assert "forced_exit" not in seen
    assert seen.count("stopping") == 1
    assert seen[-1] == "stopped"


def _command(pid: int) -> bytes:
    """Its command line; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_own_reason_and_taken_port(launch: Any, server: EmbeddedNats) -> None:
    """The service's own reason is told; a health port that is taken ends it with 69."""
    service = await launch(NATS_URL=server.url, TURNBUCKLE_TINY__FAULT="unready")
    await service.answers.until("/livez", 200)
    await service.answers.until("/readyz", 503, containing="told not to be")
    other = await launch(NATS_URL=server.url, TURNBUCKLE_HEALTH_PORT=str(service.health_port))
    code, log = await other.finish()

    assert code == 69
    assert events(log)[-1] == "cannot_listen"

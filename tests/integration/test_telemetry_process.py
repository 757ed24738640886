"""A service whose telemetry goes to a collector that takes, refuses, hangs, or is not there; and wrong variables."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schemas.subjects import LIMIT_UPDATES
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from tests.support.bus_lab import node_info
from tests.support.deadline import until
from tests.support.http_health import Answers
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.support.telemetry_rules import assert_all_declared

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "s3cret-token"


class Tiny:
    """The smallest service as a process."""

    def __init__(self, server: EmbeddedNats, log: Path, variables: dict[str, str]) -> None:
        unrelated = ("TURNBUCKLE_", "NATS_", "OTEL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unrelated)}
        port = free_port()
        ours = {"NATS_URL": server.url, "XDG_CONFIG_HOME": "/nonexistent", "TURNBUCKLE_HEALTH_PORT": str(port)}
        self.answers = Answers(port)
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.tiny_service"], cwd=ROOT, env=kept | ours | variables, stderr=out
            )

    @property
    def log(self) -> str:
        """All that it has said."""
        return self._log.read_text(encoding="utf-8")

    async def end(self) -> tuple[int, float]:
        """Exit code, and how long it took to stop."""
        begun_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.wait, 60)
        return code, time.monotonic() - begun_s


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    """One real server for the module."""
    made = EmbeddedNats()
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


@pytest.fixture
async def bus(server: EmbeddedNats) -> AsyncIterator[NatsBus]:
    made = await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60))
    yield made
    await made.close(2)


async def ask(bus: NatsBus, count: int) -> None:
    for _ in range(count):
        await bus.request(LIMIT_UPDATES.subject("tb", node="n1"), node_info(1), timeout_s=60)


async def test_what_is_left_is_sent_at_the_end(
    server: EmbeddedNats, receiver: OtlpReceiver, bus: NatsBus, tmp_path: Path
) -> None:
    """Nothing is due for an hour, and then the service is stopped."""
    patience = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={TOKEN}"}
    tiny = Tiny(server, tmp_path / "log", receiver.environment | patience | headers)
    await tiny.answers.until("/readyz", 200)
    await ask(bus, 3)
    assert receiver.requests == 0
    code, took_s = await tiny.end()

    assert code == 0, tiny.log
    assert took_s < 60
    answered = [span for span in receiver.spans if span.name == "respond cmd.limits.{node}"]
    assert [span.service for span in answered] == ["turnbuckle-tiny"] * 3
    assert_all_declared(receiver.spans)
    assert {point.name for point in receiver.points} >= {"turnbuckle.bus.received_messages", "turnbuckle.build.info"}
    assert receiver.headers[0]["authorization"] == TOKEN
    assert TOKEN not in tiny.log


async def test_what_becomes_of_spans_is_counted(
    server: EmbeddedNats, receiver: OtlpReceiver, bus: NatsBus, tmp_path: Path
) -> None:
    tiny = Tiny(server, tmp_path / "log", receiver.environment)
    await tiny.answers.until("/readyz", 200)
    await ask(bus, 2)
    await tiny.answers.until("/metrics", 200, "turnbuckle_telemetry_exported_spans_total 2.0")
    receiver.mood = "refuses"
    await ask(bus, 3)
    await tiny.answers.until("/metrics", 200, 'turnbuckle_telemetry_lost_spans_total{reason="refused"} 3.0')
    code, _ = await tiny.end()

    assert code == 0
    assert tiny.log.count("Failed to export") == 1, "once a minute, whatever fails meanwhile"


async def test_a_collector_that_hangs_holds_up_nobody(
    server: EmbeddedNats, receiver: OtlpReceiver, bus: NatsBus, tmp_path: Path
) -> None:
    """Commands are answered meanwhile, and SIGTERM ends the service within its grace."""
    receiver.mood = "hangs"
    tiny = Tiny(server, tmp_path / "log", receiver.environment)
    await tiny.answers.until("/readyz", 200)
    await ask(bus, 5)
    await until(lambda: receiver.requests > 0, what="an export that hangs")
    await ask(bus, 5)
    code, took_s = await tiny.end()

    assert code == 0
    assert took_s < 60
    assert "telemetry_not_flushed" in tiny.log


async def test_without_a_collector_everything_goes_on(server: EmbeddedNats, bus: NatsBus, tmp_path: Path) -> None:
    nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    tiny = Tiny(server, tmp_path / "log", nobody)
    await tiny.answers.until("/readyz", 200)
    await ask(bus, 5)
    code, took_s = await tiny.end()

    assert code == 0
    assert took_s < 60


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER=sometimes: must be one of"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json: there is http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost"}, "OTEL_EXPORTER_OTLP_ENDPOINT=localhost: must be a URL"),
    ],
)
async def test_a_variable_that_cannot_be_honoured_is_named(
    server: EmbeddedNats, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    tiny = Tiny(server, tmp_path / "log", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} | variables)

    assert await asyncio.to_thread(tiny.process.wait, 60) == 78
    assert said in tiny.log

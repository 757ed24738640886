"""Health over HTTP, asked by friends and by strangers."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from services._runtime.service.health import Health, HealthServer
from services._runtime.service.probe import probe
from services._runtime.telemetry.telemetry import Telemetry


@asynccontextmanager
async def serving(health: Health) -> AsyncIterator[int]:
    beat = asyncio.create_task(health.beat())
    await asyncio.sleep(0)
    async with without_beats(health) as port:
        yield port
    beat.cancel()


@asynccontextmanager
async def without_beats(health: Health) -> AsyncIterator[int]:
    server = HealthServer(health, "127.0.0.1", 0)
    port = server.start()
    yield port
    await asyncio.to_thread(server.stop)


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, any bytes, and read until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer


async def get(port: int, path: str) -> tuple[int, bytes]:
    answer = await asyncio.to_thread(exchange, port, f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def run_probe(port: int, *arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return probe(list(arguments), {"TURNBUCKLE_HEALTH_PORT": str(port)}, out), out.getvalue()


async def test_ready_and_live() -> None:
    """Readiness gives its reasons; the probe of the container agrees."""
    reasons = ["no connection to NATS"]
    health = Health(lambda: list(reasons), Telemetry())

    async with serving(health) as port:
        assert await get(port, "/livez") == (200, b'{"ok": true, "reasons": []}\n')
        status, body = await get(port, "/readyz")
        assert (status, json.loads(body)) == (503, {"ok": False, "reasons": reasons})
        assert (await asyncio.to_thread(run_probe, port))[0] == 1
        reasons.clear()
        assert (await get(port, "/readyz?x=1"))[0] == 200
        assert await asyncio.to_thread(run_probe, port) == (0, '{"ok": true, "reasons": []}\n')
        assert (await asyncio.to_thread(run_probe, port, "/livez"))[0] == 0
        assert (await get(port, "/nothing"))[0] == 404


async def test_stuck_event_loop() -> None:
    """A heartbeat that is too old means dead; readiness and metrics do not hang."""
    now = [0.0]
    health = Health(list, Telemetry(), monotonic=lambda: now[0])

    async with without_beats(health) as port:
        now[0] = 4.0
        health.last_beat_s = 0.0
        assert health.not_live() == []
        now[0] = 6.0
        assert (await get(port, "/livez"))[0] == 503


async def test_busy_event_loop_is_not_ready() -> None:
    """The HTTP thread answers although the loop does not."""
    health = Health(list, Telemetry(), loop_timeout_s=0.1)

    async with serving(health) as port:
        with ThreadPoolExecutor(1) as asking:
            answer = asking.submit(exchange, port, b"GET /readyz HTTP/1.0\r\n\r\n")
            assert b"event loop is busy" in answer.result(60)  # which keeps the loop busy until then


async def test_a_bug_in_readiness_is_not_ready() -> None:
    def buggy() -> list[str]:
        raise IndexError("a bug")

    health = Health(buggy, Telemetry())

    async with serving(health) as port:
        status, body = await get(port, "/readyz")

    assert status == 503
    assert b"IndexError" in body


async def test_metrics_are_prometheus_text() -> None:
    telemetry = Telemetry()
    telemetry.counter("turnbuckle_bus_reconnects_total").add(3)
    telemetry.observe("turnbuckle_build_info", lambda: 1, service="agent", version='0.1 "x"')
    telemetry.observe("turnbuckle_bus_dropped_messages_total", lambda: 1, reason="slow")
    telemetry.observe("turnbuckle_bus_dropped_messages_total", lambda: 2, reason="disconnected")

    telemetry.observe_rows(
        ("turnbuckle_app_containers", "turnbuckle_app_oom_kills_total"), "app", lambda: {"shop": (3, 1), "web": (2, 0)}
    )
    telemetry.histogram("turnbuckle_allocator_step_seconds").observe(0.002)

    async with serving(Health(list, telemetry)) as port:
        status, body = await get(port, "/metrics")

    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert status == 200
    assert samples["turnbuckle_bus_reconnects_total",] == 3
    assert samples["turnbuckle_build_info", '0.1 "x"', "agent"] == 1
    assert samples["turnbuckle_bus_dropped_messages_total", "slow"] == 1
    assert samples["turnbuckle_bus_dropped_messages_total", "disconnected"] == 2
    assert (samples["turnbuckle_app_containers", "web"], samples["turnbuckle_app_oom_kills_total", "shop"]) == (2, 1)
    assert samples["turnbuckle_allocator_step_seconds_bucket", "0.001"] == 0
    assert samples["turnbuckle_allocator_step_seconds_bucket", "0.0025"] == 1
    assert samples["turnbuckle_allocator_step_seconds_bucket", "+Inf"] == 1
    assert samples["turnbuckle_allocator_step_seconds_sum",] == 0.002
    assert samples["process_resident_memory_bytes",] > 1 << 20
    assert samples["process_cpu_seconds_total",] > 0


async def test_garbage_requests() -> None:
    """Whatever is sent, the next request is answered."""
    async with serving(Health(list, Telemetry())) as port:
        for request in (
            b"",
            b"\x00\xff\xfe\r\n\r\n",
            b"GET\r\n\r\n",
            b"A" * 70_000 + b"\r\n\r\n",
            b"POST /livez HTTP/1.1\r\n\r\n",
            b"GET /livez HTTP/9.9\r\n\r\n",
            b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        ):
            await asyncio.to_thread(_exchange_quietly, port, request)
        assert (await get(port, "/livez"))[0] == 200


def _exchange_quietly(port: int, request: bytes) -> None:
    try:
        exchange(port, request)
    except ConnectionError:
        return


async def test_many_silent_clients() -> None:
    """Those that connect and say nothing cannot take all threads: later ones are turned away, then served again."""
    async with serving(Health(list, Telemetry())) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for connection in silent:
            connection.close()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert (await get(port, "/livez"))[0] == 200
                break
            except (ConnectionError, IndexError):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)


def test_probe_without_a_port() -> None:
    """78, as any wrong setting."""
    out = io.StringIO()

    assert probe([], {}, out) == 78
    assert probe([], {"TURNBUCKLE_HEALTH_PORT": "0"}, out) == 78
    assert "TURNBUCKLE_HEALTH_PORT" in out.getvalue()


def test_probe_of_nobody() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, text = run_probe(taken.getsockname()[1])

    assert code == 1
    assert "refused" in text.lower()

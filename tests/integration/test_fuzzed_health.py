"""A service's health port and whatever a network sends it: the service lives, answers, and gives nothing away."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services._runtime.bus.embedded_server import EmbeddedNats
from tests.support.cluster_lab import ServiceProcess

PATHS = (
    b"/livez",
    b"/readyz",
    b"/metrics",
    b"/",
    b"/../../etc/passwd",
    b"/livez?" + b"x" * 5_000,
    b"*",
    b"http://h/",
    b"",
)
METHODS = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"CONNECT",
    b"OPTIONS",
    b"TRACE",
    b"get",
    b"\x00",
    b"G" * 70_000,
)
VERSIONS = (b"HTTP/1.0", b"HTTP/1.1", b"HTTP/9.9", b"HTTP/0.9", b"HTTP", b"", b"HTTP/1.1\x00", b"HTTP/-1.-1")
HEADERS = (
    b"Host: x",
    b"Content-Length: 99999999999999",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b": nothing",
    b"X" * 70_000 + b": y",
    b"A: " + b"b" * 70_000,
    b"no colon",
    b"Connection: keep-alive",
    b"Expect: 100-continue",
    b"\xff\xfe: \x00",
    b"Range: bytes=0-",
)
REQUESTS = 400


def requests(seed: int) -> Iterator[bytes]:
    """Requests that are nearly right, quite wrong, cut short, or no requests at all."""
    chance = random.Random(seed)
    while True:
        kind = chance.random()
        if kind < 0.15:
            yield chance.randbytes(chance.randrange(4_000))
            continue
        line = b" ".join([chance.choice(METHODS), chance.choice(PATHS), chance.choice(VERSIONS)])
        headers = [chance.choice(HEADERS) for _ in range(chance.choice((0, 1, 3, 120)))]
        request = b"\r\n".join([line, *headers, b"", b""]) + chance.randbytes(chance.choice((0, 0, 10, 2_000)))
        if kind < 0.4:
            request = request[: chance.randrange(len(request) + 1)]
        elif kind < 0.6:
            spoiled = bytearray(request[:3_000])
            for _ in range(8):
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            request = bytes(spoiled)
        yield request


def exchange(port: int, request: bytes) -> bytes:
    """What comes back, if anything does."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=8) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                answer += part
    except OSError:  # it hung up before it had read all
        pass
    return answer


def open_files(service: ServiceProcess) -> int:
    """Of its process."""
    return len(list(Path(f"/proc/{service.pid}/fd").iterdir()))


@pytest.fixture
async def allocator(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    async with EmbeddedNats() as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        ours = {"NATS_URL": server.url, "XDG_CONFIG_HOME": "/nonexistent", "TURNBUCKLE_HEALTH_PORT": "0"}
        service = ServiceProcess("allocator", kept | ours, tmp_path / "allocator.log")
        await service.ready(60)
        yield service
        service.kill()


async def test_nothing_that_is_sent_harms_the_service(allocator: ServiceProcess) -> None:
    port = allocator.health_port
    assert port is not None
    files_before = open_files(allocator)
    seed = random.randrange(1 << 32)
    stream = requests(seed)
    answers: list[bytes] = []
    for _ in range(REQUESTS // 8):
        batch = [next(stream) for _ in range(8)]
        answers += await asyncio.gather(*(asyncio.to_thread(exchange, port, request) for request in batch))

    assert allocator.running, seed
    await allocator.ready()
    assert (await allocator.get("/livez"))[0] == 200, seed
    statuses = {answer.split(b" ", 2)[1] for answer in answers if answer.startswith(b"HTTP/1.")}
    assert statuses <= {b"200", b"400", b"404", b"414", b"431", b"501", b"503", b"505"}, (statuses, seed)
    assert len(statuses) >= 4, (statuses, seed)
    told = b"".join(answers)
    for secret in (b"Traceback", b"root:x:", b"Python", b"/work", b"services/"):
        assert secret not in told, (secret, seed)
    assert open_files(allocator) <= files_before + 16, seed
    assert "Traceback" not in allocator.log_path.read_text(), seed

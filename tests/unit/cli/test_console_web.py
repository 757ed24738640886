"""The console's web server: loopback, read-only, closed to other origins and names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from services.console.hub import Hub, console_message
from services.console.web import WebServer, is_loopback_name, load_files, parse_head
from tests.support.deadline import until

KEY = "the-key"


@dataclass(slots=True)
class Console:
    """A server with its port."""

    hub: Hub
    web: WebServer
    port: int

    async def ask(self, text: str) -> bytes:
        """Send bytes, read to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(text.encode("latin-1"))
        try:
            return await asyncio.wait_for(reader.read(), 5.0)
        finally:
            writer.close()

    async def get(self, path: str, *, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        answer = await self.ask(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), head, body


@pytest_asyncio.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "assets" / "index.js").write_text("1")
    hub = Hub()
    web = WebServer(load_files(tmp_path), hub, KEY, lambda: console_message("Beat", connected=True))
    port = await web.start(0)
    try:
        yield Console(hub, web, port)
    finally:
        await web.stop()


async def test_serves_the_page_and_forbids_everything_from_elsewhere(console: Console) -> None:
    status, head, body = await console.get("/?x=1")
    assert (status, body) == (200, b"<!doctype html>")
    assert b"default-src 'none'; script-src 'self'; style-src 'self'" in head
    assert b"frame-ancestors 'none'" in head
    assert b"unsafe" not in head
    assert b"Access-Control" not in head
    status, head, _ = await console.get("/assets/index.js")
    assert status == 200
    assert b"Content-Type: text/javascript" in head
    assert (await console.get("/", method="HEAD"))[2] == b""


@pytest.mark.parametrize(
    "path", ["/../web.py", "/assets/../../web.py", "/%2e%2e/web.py", "//etc/passwd", "/assets", "/index.html/"]
)
async def test_serves_nothing_else(console: Console, path: str) -> None:
    assert (await console.get(path))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
async def test_only_reads(console: Console, method: str) -> None:
    assert (await console.get("/", method=method))[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:80", "", "[", "localhost.evil"])
async def test_refuses_foreign_names(console: Console, host: str) -> None:
    """A name of somebody else's that resolves to us (DNS rebinding)."""
    assert (await console.get("/", host=host))[0] == 421
    assert not is_loopback_name(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:8710"])
def test_knows_its_names(host: str) -> None:
    assert is_loopback_name(host)


@pytest.mark.parametrize("authorization", ["", "Authorization: Bearer wrong\r\n", "Authorization: Bearer \xff\r\n"])
async def test_the_stream_wants_the_key(console: Console, authorization: str) -> None:
    answer = await console.ask(f"GET /stream HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert console.hub.pages == 0


@pytest.mark.parametrize("text", ["\r\n\r\n", "GET / SPDY\r\n\r\n", "GET  / HTTP/1.1 x\r\n\r\n"])
async def test_refuses_what_is_no_http(console: Console, text: str) -> None:
    assert (await console.ask(text)).startswith(b"HTTP/1.1 400 ")


async def test_hangs_up_on_an_endless_head(console: Console) -> None:
    with suppress(ConnectionError):
        assert await console.ask("GET / HTTP/1.1\r\nX: " + "x" * 100_000) == b""


async def test_streams_until_the_page_goes(console: Console) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
    writer.write(f"GET /stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Length" not in head
    console.hub.broadcast_event("oom", b"fact")
    read = b""
    while b"fact" not in read:
        read += await asyncio.wait_for(reader.read(100), 5.0)
    assert b"console.Beat" in read
    writer.close()
    await until(lambda: console.hub.pages == 0, what="the page has left")


async def test_stop_ends_streams(console: Console) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
    writer.write(f"GET /stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b"console.Beat"), 5.0)
    await asyncio.wait_for(console.web.stop(), 5.0)
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 5.0)
    writer.close()
    assert console.hub.pages == 0


def test_a_head_is_read_as_http_has_it() -> None:
    request = parse_head(b"GET /a?b HTTP/1.1\r\nHoSt:  localhost \r\n\r\n")
    assert request is not None
    assert (request.method, request.path, request.headers) == ("GET", "/a", {"host": "localhost"})

"""The console's web server: loopback, read-only, closed to other origins and names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from services.console.access import WRONG_KEYS, Access
from services.console.hub import Hub
from services.console.listening import Listening
from services.console.messages import console_message
from services.console.web import MOST_PAGES, Content, WebServer, is_loopback_name, load_files, parse_head
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
            return await asyncio.wait_for(reader.read(), 60.0)
        finally:
            writer.close()

    async def get(
        self, path: str, *, host: str = "127.0.0.1", method: str = "GET", header: str = ""
    ) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        more = f"{header}\r\n" if header else ""
        answer = await self.ask(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), head, body


async def echo(query: Mapping[str, str]) -> bytes:
    """What was asked."""
    return repr(dict(query)).encode()


@asynccontextmanager
async def serving(directory: Path, listening: Listening) -> AsyncIterator[Console]:
    (directory / "assets").mkdir()
    (directory / "index.html").write_text("<!doctype html>")
    (directory / "assets" / "index.js").write_text("1")
    hub = Hub()
    content = Content(load_files(directory), hub, lambda: console_message("Beat", connected=True), {"/echo": echo})
    web = WebServer(content, Access(KEY))
    port = await web.start(listening)
    try:
        yield Console(hub, web, port)
    finally:
        await web.stop()


@pytest_asyncio.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    async with serving(tmp_path, Listening()) as started:
        yield started


@pytest_asyncio.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Console]:
    """For a team: whoever reaches this machine."""
    async with serving(tmp_path, Listening("0.0.0.0")) as started:
        yield started


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
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60.0)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Length" not in head
    console.hub.broadcast_event("oom", b"fact")
    read = b""
    while b"fact" not in read:
        read += await asyncio.wait_for(reader.read(100), 60.0)
    assert b"console.Beat" in read
    writer.close()
    await until(lambda: console.hub.pages == 0, what="the page has left")


async def test_stop_ends_streams(console: Console) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", console.port)
    writer.write(f"GET /stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b"console.Beat"), 60.0)
    await asyncio.wait_for(console.web.stop(), 60.0)
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 60.0)
    writer.close()
    assert console.hub.pages == 0


def test_a_head_is_read_as_http_has_it() -> None:
    request = parse_head(b"GET /a?b HTTP/1.1\r\nHoSt:  localhost \r\n\r\n")
    assert request is not None
    assert (request.method, request.path, request.headers) == ("GET", "/a", {"host": "localhost"})
    asked = parse_head(b"GET /history?app=a%20b&container=x HTTP/1.1\r\n\r\n")
    assert asked is not None
    assert asked.query == {"app": "a b", "container": "x"}


async def log_in(console: Console, key: str = KEY) -> str:
    """The cookie that the key is exchanged for."""
    status, head, _ = await console.get("/login", method="POST", header=f"Authorization: Bearer {key}")
    assert status == 204
    found = re.search(rb"Set-Cookie: ([^;]+); ([^\r]*)", head)
    assert found is not None
    assert found[2].startswith(b"Path=/; Max-Age=604800; HttpOnly; SameSite=Strict")
    return found[1].decode()


async def test_the_key_is_exchanged_for_a_cookie_that_does_not_hold_it(console: Console) -> None:
    cookie = await log_in(console)
    assert KEY not in cookie
    assert cookie.startswith(f"turnbuckle_console_{console.port}=")
    assert await console.get("/echo?app=shop", header=f"Cookie: other=1; {cookie}") == (
        200,
        (await console.get("/echo?app=shop", header=f"Authorization: Bearer {KEY}"))[1],
        b"{'app': 'shop'}",
    )


@pytest.mark.parametrize("path", ["/echo", "/stream", "/login"])
@pytest.mark.parametrize("value", ["", "x", "99999999999.", "99999999999." + "0" * 64, "9" * 30, "-1.0", "1.\xff"])
async def test_no_other_cookie_opens_anything(console: Console, path: str, value: str) -> None:
    header = f"Cookie: turnbuckle_console_{console.port}={value}"
    assert (await console.get(path, header=header, method="POST" if path == "/login" else "GET"))[0] == 401
    assert console.hub.pages == 0


async def test_login_takes_the_key_from_a_header_only(console: Console) -> None:
    """In an address it would stand in a proxy's log, and a form of another page could send it."""
    assert (await console.get(f"/login?key={KEY}", method="POST"))[0] == 401
    assert (await console.get("/login", header=f"Authorization: Bearer {KEY}"))[0] == 405


async def test_who_guesses_has_to_wait_and_others_do_not(console: Console) -> None:
    cookie = await log_in(console)
    for _ in range(WRONG_KEYS):
        assert (await console.get("/login", method="POST", header="Authorization: Bearer guess"))[0] == 401
    for path, method in (("/login", "POST"), ("/echo", "GET")):
        assert (await console.get(path, method=method, header=f"Authorization: Bearer {KEY}"))[0] == 429
    assert (await console.get("/echo", header=f"Cookie: {cookie}"))[0] == 200


async def test_a_team_may_use_any_name_but_needs_the_key(shared: Console) -> None:
    assert (await shared.get("/", host="console.example.org:8710"))[0] == 200
    assert (await shared.get("/echo", host="console.example.org"))[0] == 401
    cookie = await log_in(shared)
    assert (await shared.get("/echo", host="console.example.org", header=f"Cookie: {cookie}"))[0] == 200
    assert (await shared.get("/echo", method="POST", header=f"Cookie: {cookie}"))[0] == 405


async def test_more_pages_than_it_serves_are_told_so(console: Console) -> None:
    for _ in range(MOST_PAGES):
        console.hub.join()
    status, _, _ = await console.get("/stream", header=f"Authorization: Bearer {KEY}")
    assert status == 503

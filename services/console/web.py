"""A read-only web server for one page: the built files, the stream of the hub's messages, and queries.

Other origins in the same browser must not read it. Whatever comes from the bus requires the key, or the cookie that a
browser is given for it, and every response forbids other origins to embed or read it. On loopback a request with a
foreign Host (DNS rebinding) is refused; elsewhere names are many, and a rebound one comes without the cookie.

Nothing is logged: neither keys nor addresses of readers.
"""

from __future__ import annotations

import asyncio
import mimetypes
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from services.console.access import Access, AccessResult
from services.console.hub import Hub, Page
from services.console.listening import Listening
from services.console.messages import frame

MOST_PAGES: Final = 64
"""Open at once."""
_MOST_CONNECTIONS: Final = 512
"""More are closed unread: a page has one or two."""
HEARTBEAT_S: Final = 2.0
"""A page reconnects after some of these without a frame."""
_HEAD_BYTES: Final = 16_384
_HEAD_TIMEOUT_S: Final = 5.0
_LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Of a name that is there twice, the last."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a server serves."""

    files: Mapping[str, tuple[str, bytes]]
    """Type and content by path, for everybody."""
    hub: Hub
    heartbeat: Callable[[], bytes]
    queries: Mapping[str, Callable[[Mapping[str, str]], Awaitable[bytes]]] = field(default_factory=dict)
    """By path: from the fields of a query to a message."""


def parse_head(head: bytes) -> Request | None:
    """What was asked for; None: it is no HTTP."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return None
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    path, _, query = parts[1].partition("?")
    return Request(parts[0], path, headers, dict(parse_qsl(query)))


def is_loopback_name(host: str) -> bool:
    """Whether a Host header names the loopback. The port may differ (``ssh -L``)."""
    try:
        return urlsplit(f"//{host}").hostname in _LOOPBACK_NAMES
    except ValueError:
        return False


def load_files(directory: Path) -> dict[str, tuple[str, bytes]]:
    """Paths of a URL, with type and content: only these are ever served."""
    files: dict[str, tuple[str, bytes]] = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        files["/" + file.relative_to(directory).as_posix()] = (kind, file.read_bytes())
    if "/index.html" in files:
        files["/"] = files["/index.html"]
    return files


class WebServer:
    """Serves files, the hub's stream and queries."""

    def __init__(self, content: Content, access: Access) -> None:
        self._content = content
        self._access = access
        self._listening = Listening()
        self._cookie_name = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listening: Listening) -> int:
        """Listen, and return the port.

        Raises:
            OSError: the address and port cannot be listened on.
        """
        self._server = await asyncio.start_server(
            self._accept, listening.host, listening.port, limit=_HEAD_BYTES, ssl=listening.tls
        )
        port = int(self._server.sockets[0].getsockname()[1])
        self._listening = listening
        self._cookie_name = f"turnbuckle_console_{port}"  # cookies know no ports: each console has one of its own
        return port

    async def stop(self) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _MOST_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_TIMEOUT_S)
                await self._answer(parse_head(head), reader, writer)
        except asyncio.CancelledError:  # by `stop`, which awaits this task: asyncio.start_server need not log it
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(
        self, request: Request | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request is None:
            await _respond(writer, HTTPStatus.BAD_REQUEST)
        elif self._listening.on_loopback and not is_loopback_name(request.headers.get("host", "")):
            await _respond(writer, HTTPStatus.MISDIRECTED_REQUEST)
        elif request.path == "/login":
            await self._log_in(request, writer)
        elif request.method not in {"GET", "HEAD"}:
            await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED)
        elif request.path == "/stream" or request.path in self._content.queries:
            await self._answer_reader(request, reader, writer)
        elif request.path in self._content.files:
            kind, body = self._content.files[request.path]
            await _respond(writer, HTTPStatus.OK, kind, body, only_head=request.method == "HEAD")
        else:
            await _respond(writer, HTTPStatus.NOT_FOUND)

    async def _log_in(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """The key comes in a header, so that no form of another origin can send it; the browser keeps the cookie."""
        if request.method != "POST":
            await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED)
            return
        result = self._check_key(request, writer)
        if result is not AccessResult.ALLOWED:
            await _respond(writer, _STATUS[result])
            return
        secure = self._listening.tls is not None
        cookie = self._access.cookie(self._cookie_name, time.time(), secure=secure)
        writer.write(_head(HTTPStatus.NO_CONTENT, "text/plain", None, {"Set-Cookie": cookie}))
        await writer.drain()

    async def _answer_reader(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        result = self._access.check(request.headers, self._cookie_name, time.time())
        if result is not AccessResult.ALLOWED:
            result = self._check_key(request, writer)
        if result is not AccessResult.ALLOWED:
            await _respond(writer, _STATUS[result])
        elif request.method != "GET":
            await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED)
        elif request.path != "/stream":
            answer = await self._content.queries[request.path](request.query)
            await _respond(writer, HTTPStatus.OK, "application/octet-stream", answer)
        elif self._content.hub.pages >= MOST_PAGES:
            await _respond(writer, HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            await self._stream(reader, writer)

    def _check_key(self, request: Request, writer: asyncio.StreamWriter) -> AccessResult:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._access.check_key(given, str(writer.get_extra_info("peername")[0]), time.time())

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Stream to a page until it disconnects or overflows."""
        writer.write(_head(HTTPStatus.OK, "application/octet-stream", None))
        page = self._content.hub.join()
        gone = asyncio.ensure_future(reader.read(1))  # a page sends nothing more: this completes when it disconnects
        try:
            writer.write(frame(self._content.heartbeat()))
            pump = asyncio.ensure_future(self._pump(page, writer))
            try:
                await asyncio.wait({gone, pump}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
        finally:
            self._content.hub.leave(page)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            writer.transport.abort()  # what is still queued has no reader

    async def _pump(self, page: Page, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        heartbeat_at_s = loop.time() + HEARTBEAT_S
        while not page.behind:
            writer.write(await page.take(max(0.0, heartbeat_at_s - loop.time())))
            if loop.time() >= heartbeat_at_s:
                writer.write(frame(self._content.heartbeat()))
                heartbeat_at_s = loop.time() + HEARTBEAT_S
            await writer.drain()


async def _respond(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    kind: str = "text/plain; charset=utf-8",
    body: bytes | None = None,
    *,
    only_head: bool = False,
) -> None:
    content = f"{status.value} {status.phrase}\n".encode() if body is None else body
    writer.write(_head(status, kind, len(content)) + (b"" if only_head else content))
    await writer.drain()


_STATUS: Final = {
    AccessResult.NO_KEY: HTTPStatus.UNAUTHORIZED,
    AccessResult.WRONG_KEY: HTTPStatus.UNAUTHORIZED,
    AccessResult.TOO_MANY: HTTPStatus.TOO_MANY_REQUESTS,
}


def _head(status: HTTPStatus, kind: str, length: int | None, more: Mapping[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}", "Connection: close"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in (*_HEADERS.items(), *(more or {}).items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

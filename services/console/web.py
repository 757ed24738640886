"""A read-only web server for one page, on loopback: the built files, and the stream of the bus's messages.

Other origins in the same browser must not read it. The stream requires a key that only the printed address holds, and
every response forbids other origins to embed or read it; a request with a foreign Host (DNS rebinding) is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import mimetypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from services.console.hub import Hub, Page, frame

HOST: Final = "127.0.0.1"
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


def parse_head(head: bytes) -> Request | None:
    """What was asked for; None: it is no HTTP."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return None
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Request(parts[0], parts[1].partition("?")[0], headers)


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
    """Serves files and the hub's stream."""

    def __init__(
        self, files: Mapping[str, tuple[str, bytes]], hub: Hub, key: str, heartbeat: Callable[[], bytes]
    ) -> None:
        self._files = files
        self._hub = hub
        self._key = key
        self._heartbeat = heartbeat
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> int:
        """Listen on loopback, and return the port; 0 takes any free one.

        Raises:
            OSError: the port cannot be listened on.
        """
        self._server = await asyncio.start_server(self._accept, HOST, port, limit=_HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        elif not is_loopback_name(request.headers.get("host", "")):
            await _respond(writer, HTTPStatus.MISDIRECTED_REQUEST)
        elif request.method not in {"GET", "HEAD"}:
            await _respond(writer, HTTPStatus.METHOD_NOT_ALLOWED)
        elif request.path == "/stream":
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if hmac.compare_digest(given.encode(), self._key.encode()) and request.method == "GET":
                await self._stream(reader, writer)
            else:
                await _respond(writer, HTTPStatus.UNAUTHORIZED)
        elif request.path in self._files:
            kind, body = self._files[request.path]
            await _respond(writer, HTTPStatus.OK, kind, body, only_head=request.method == "HEAD")
        else:
            await _respond(writer, HTTPStatus.NOT_FOUND)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Stream to a page until it disconnects or overflows."""
        writer.write(_head(HTTPStatus.OK, "application/octet-stream", None))
        page = self._hub.join()
        gone = asyncio.ensure_future(reader.read(1))  # a page sends nothing more: this completes when it disconnects
        try:
            writer.write(frame(self._heartbeat()))
            pump = asyncio.ensure_future(self._pump(page, writer))
            try:
                await asyncio.wait({gone, pump}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
        finally:
            self._hub.leave(page)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            writer.transport.abort()  # what is still queued has no reader

    async def _pump(self, page: Page, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        heartbeat_at_s = loop.time() + HEARTBEAT_S
        while not page.behind:
            writer.write(await page.take(max(0.0, heartbeat_at_s - loop.time())))
            if loop.time() >= heartbeat_at_s:
                writer.write(frame(self._heartbeat()))
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


def _head(status: HTTPStatus, kind: str, length: int | None) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}", "Connection: close"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in _HEADERS.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

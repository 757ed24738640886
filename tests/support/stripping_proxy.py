"""A man in the middle of client and NATS server who takes TLS out of the server's INFO, and so reads what is said."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from typing import Final, Self

_TLS_KEYS: Final = ("tls_required", "tls_verify", "tls_available")
_CHUNK_BYTES: Final = 65_536


class StrippingProxy:
    """Passes bytes on as they are until `strip` is set; from then on it speaks TLS to the server only."""

    def __init__(self, server_port: int, *, strip: bool = True) -> None:
        self.strip = strip
        self.heard = b""
        """What clients have said to it in clear text, or what it took for that."""
        self.stripped = 0
        """Connections on which it told a client that there is no TLS."""
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        await self.disconnect()

    async def disconnect(self) -> None:
        """End every connection that goes through it."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(set(self._open))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            server, upstream = await asyncio.open_connection("127.0.0.1", self._server_port)
            if self.strip:
                await self._tell_a_lie(server, upstream, writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, upstream, listen=self.strip))
                pumps.create_task(self._pump(server, writer, listen=False))
        except (OSError, asyncio.CancelledError, BaseExceptionGroup):
            pass  # either side has gone, or the test has ended it
        finally:
            self._open.discard(task)
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()

    async def _tell_a_lie(
        self, server: asyncio.StreamReader, upstream: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        line = await server.readline()
        info = json.loads(line.removeprefix(b"INFO "))
        assert info.get("tls_required"), "the server was to require TLS"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        await upstream.start_tls(context)
        told = {key: value for key, value in info.items() if key not in _TLS_KEYS}
        client.write(b"INFO " + json.dumps(told).encode() + b"\r\n")
        await client.drain()
        self.stripped += 1

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, listen: bool) -> None:
        while data := await source.read(_CHUNK_BYTES):
            if listen:
                self.heard += data
            sink.write(data)
            await sink.drain()
        with suppress(OSError):
            sink.close()

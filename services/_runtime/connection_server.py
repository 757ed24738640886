"""A TCP server whose connections are each served by a task, bounded in how many have not shown who they are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager


class ConnectionServer:
    """Listens, and closes every connection whose task ends; `stop` closes all."""

    def __init__(
        self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], most_unproven: int
    ) -> None:
        """Nothing listens before `start`.

        Args:
            serve: of one connection; does not raise.
            most_unproven: connections in `unproven` at the same time.
        """
        self._serve_one = serve
        self._most_unproven = most_unproven
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._unproven: deque[asyncio.StreamWriter] = deque()
        self.address = ""
        """HOST:PORT, once it listens."""

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0: any.

        Raises:
            OSError: it cannot listen there.
        """
        self._server = await asyncio.start_server(self._serve, host, port)
        name = f"[{host}]" if ":" in host else host  # RFC 3986, 3.2.2
        self.address = f"{name}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for writer in self._serving.values():
            writer.transport.abort()
        await asyncio.gather(*self._serving)

    @contextmanager
    def unproven(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """While a peer has not shown that it may be here: beyond the bound the oldest such connection is closed."""
        self._unproven.append(writer)
        if len(self._unproven) > self._most_unproven:
            self._unproven.popleft().transport.abort()
        try:
            yield
        finally:
            if writer in self._unproven:
                self._unproven.remove(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            await self._serve_one(reader, writer)
        finally:
            writer.transport.abort()
            del self._serving[task]

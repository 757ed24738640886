"""A small HTTP/1.1 server for tests of clients: it does with each request what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Reply = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(reply: Reply) -> AsyncIterator[tuple[str, int]]:
    """Calls ``reply`` with each request's number, in order of arrival."""
    count = 0
    tasks: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        tasks.add(asyncio.current_task())
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                count += 1
                await reply(count - 1, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        host, port = listening.sockets[0].getsockname()[:2]
        yield host, port
    finally:
        listening.close()
        await listening.wait_closed()
        await asyncio.gather(*filter(None, tasks))

"""Daemons that speak FRR's vty protocol on unix sockets, with answers that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Self

NO_SUCH_COMMAND = 2


class FakeFrr:
    """Daemons of a pathspace: by name the answers by command. An answer of None never comes."""

    def __init__(self, directory: Path, answers: Mapping[str, Mapping[str, str | None]]) -> None:
        self.directory = directory
        self.answers = answers
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        for daemon in self.answers:
            path = self.directory / f"{daemon}.vty"

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, daemon: str = daemon) -> None:
                await self._serve(daemon, reader, writer)

            self._servers.append(await asyncio.start_unix_server(serve, path))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        for daemon in self.answers:
            (self.directory / f"{daemon}.vty").unlink(missing_ok=True)

    async def _serve(self, daemon: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                command = (await reader.readuntil(b"\0"))[:-1].decode()
                status, text = self._answer(daemon, command)
                if text is None:
                    await reader.read()
                    return
                # In two pieces, as a pager's worth of routes comes in many.
                data = text.encode() + b"\0\0\0" + bytes((status,))
                writer.write(data[: len(data) // 2])
                await writer.drain()
                writer.write(data[len(data) // 2 :])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, daemon: str, command: str) -> tuple[int, str | None]:
        if command == "enable":
            return 0, ""
        answers = self.answers[daemon]
        if command not in answers:
            return NO_SUCH_COMMAND, f"% Unknown command: {command}\n"
        return 0, answers[command]

"""FRR's daemons asked directly on their vty sockets, as vtysh does (vtysh.c), without its fork of 10 ms for each query.

A command goes out with a NUL at its end; the answer ends with three NULs and a status byte. FRR with ``-N pathspace``
has its sockets in a directory of that name.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path("/var/run/frr")
ANSWER_WITHIN_S: Final = 1.0
LARGEST_ANSWER_BYTES: Final = 64 << 20
_END: Final = b"\0\0\0"
_SUCCESS: Final = (0, 6)
"""CMD_SUCCESS, CMD_SUCCESS_DAEMON (lib/command.h)."""


class FrrError(Exception):
    """A daemon could not be asked; the message says which, why, and what to do."""


class Frr:
    """The daemons of one pathspace. Each question opens a connection of its own, so a restarted daemon is no matter."""

    def __init__(
        self, pathspace: str | None = None, *, directory: Path = DIRECTORY, within_s: float = ANSWER_WITHIN_S
    ) -> None:
        self.directory = directory / pathspace if pathspace else directory
        self._within_s = within_s

    def socket_of(self, daemon: str) -> Path:
        """Where a daemon listens."""
        return self.directory / f"{daemon}.vty"

    async def show_json(self, daemon: str, command: str) -> Any:
        """The parsed answer of a daemon (zebra, bgpd, bfdd) to a show command that ends in ``json``.

        Raises:
            FrrError: it does not run, does not answer in time, does not know the command, or sends no JSON.
        """
        text = await self.ask(daemon, command)
        try:
            return json.loads(text)
        except ValueError as error:
            said = text.strip().splitlines()[:1] or ["nothing"]
            raise FrrError(f"{daemon} answered {command!r} with no JSON: {said[0]!r}") from error

    async def ask(self, daemon: str, command: str) -> str:
        """The answer of a daemon to one command, as text.

        Raises:
            FrrError: as `show_json`.
        """
        try:
            async with asyncio.timeout(self._within_s):
                return await self._ask(daemon, command)
        except TimeoutError as error:
            raise FrrError(f"{daemon} has not answered {command!r} within {self._within_s:g} s") from error
        except FileNotFoundError as error:
            raise FrrError(f"{daemon} does not run: there is no {self.socket_of(daemon)}; start FRR") from error
        except PermissionError as error:
            raise FrrError(
                f"not permitted to query {daemon} at {self.socket_of(daemon)}: run as root or as frrvty"
            ) from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise FrrError(f"{daemon} does not run: {self.socket_of(daemon)} does not answer ({error})") from error

    async def _ask(self, daemon: str, command: str) -> str:
        reader, writer = await asyncio.open_unix_connection(self.socket_of(daemon), limit=LARGEST_ANSWER_BYTES)
        try:
            await self._exchange(reader, writer, "enable")
            status, text = await self._exchange(reader, writer, command)
        finally:
            writer.close()
        if status not in _SUCCESS:
            said = text.decode(errors="replace").strip()
            raise FrrError(f"{daemon} refuses {command!r} (status {status}): {said or 'it does not know the command'}")
        return text.decode(errors="replace")

    @staticmethod
    async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: str) -> tuple[int, bytes]:
        writer.write(command.encode() + b"\0")
        text = await reader.readuntil(_END)
        status = await reader.readexactly(1)
        return status[0], text.removesuffix(_END)

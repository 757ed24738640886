"""A daemon as a process: ``python -m services.memory.process PARENT HOST:PORT LIMIT HEADROOM [PER_OWNER]``, in bytes.

It says its address (``{"address": "127.0.0.1:40001"}``), then carries out a command per line on its standard input, and
answers each with a line: its result, or ``{"refused": "why"}``:

    {"command": "take", "bytes": 67108864, "owner": "gpu-07"}
                                                ->  {"name": "..."}: the secret under which one connection finds it
    {"command": "leave", "label": "..."}        ->  {}: its owner has some seconds to leave
    {"command": "offer"}                        ->  what it holds, and what it would hold more

It gives slabs up by itself where less than HEADROOM of its host's memory is free; one owner holds PER_OWNER at most. It
ends with its input, and is killed when its parent dies. Its own memory is locked where that is permitted.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from services._host.host_load import read_available
from services._runtime.child_process import die_with_parent
from services._runtime.exit_code import ExitCode
from services.memory.adapters.locked_memory import LockedMemoryError, lock_process
from services.memory.offering import OfferError, Offering

_LINE_BYTES: Final = 1 << 16


class Commands:
    """Carries out commands on one daemon."""

    def __init__(self, offering: Offering) -> None:
        self._offering = offering
        self._kinds: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "take": self._take,
            "leave": self._leave,
            "offer": self._offer,
        }

    async def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to ``{"command": KIND, ...}``."""
        try:
            fields = json.loads(line)
            carry_out = self._kinds[fields.pop("command")]
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            return {"refused": f"not a command of {', '.join(self._kinds)}"}
        try:
            return await carry_out(fields)
        except OfferError as error:
            return {"refused": str(error)}

    async def _take(self, fields: dict[str, Any]) -> dict[str, Any]:
        match fields:
            case {"bytes": int(slab_bytes), "owner": str(owner)} if len(fields) == 2 and not isinstance(
                slab_bytes, bool
            ):
                return {"name": await self._offering.take(slab_bytes, owner)}
        raise OfferError("take needs `bytes`, a whole number, `owner`, a text, and nothing else")

    async def _leave(self, fields: dict[str, Any]) -> dict[str, Any]:
        match fields:
            case {"label": str(label)} if len(fields) == 1:
                self._offering.leave(label)
                return {}
        raise OfferError("leave needs `label`, a text, and nothing else")

    async def _offer(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields:
            raise OfferError("offer needs nothing else")
        return asdict(self._offering.offer())


async def serve(address: tuple[str, int], limit_bytes: int, headroom_bytes: int, per_owner_bytes: int) -> None:
    """Listen, and carry out commands until the standard input ends.

    Raises:
        OSError: it cannot listen there.
        OfferError: free memory cannot be read.
    """
    offering = Offering(limit_bytes, headroom_bytes, read_available, per_owner_bytes)
    await offering.start(*address)
    commands = Commands(offering)
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say({"address": offering.address})
    while line := await reader.readline():
        _say(await commands.answer(line))
    await offering.stop()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run as a process; returns the exit code."""
    parent, address, limit_bytes, headroom_bytes, *per_owner_bytes = sys.argv[1:]
    if not die_with_parent(signal.SIGKILL, int(parent)):
        return ExitCode.INTERNAL
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's, which ends this one
    with suppress(LockedMemoryError):  # the service that starts it says so
        lock_process()
    host, _, port = address.rpartition(":")
    most = int(per_owner_bytes[0]) if per_owner_bytes else int(limit_bytes)
    asyncio.run(serve((host.strip("[]"), int(port)), int(limit_bytes), int(headroom_bytes), most))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

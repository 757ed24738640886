"""One aggregator as a process: ``python -m services.aggregator.process PARENT HOST:PORT MEMORY_LIMIT_BYTES``.

It says its address (``{"address": "127.0.0.1:40001"}``), then carries out a command per line on its standard input,
and answers each with a line: ``{}``, its result, or ``{"refused": "why"}``, with the command's ``id``. Commands are
begun in their order; what is asked while a range is being moved is answered before that. They come from its parent
alone, and have the jobs' keys. It ends with its input, and is killed when its parent dies. One process per core: steps
of all jobs are computed by one thread, one after another.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Final

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services._jobs.aggregation_frames import LEAST_KEY_BYTES, MOST_RANKS, RangeIndex, Text, Version
from services._runtime.child_process import die_with_parent
from services._runtime.exit_code import ExitCode
from services.aggregator.hosted_job import JobSpec, RangeError
from services.aggregator.range_state import OptimizerSpec
from services.aggregator.shard import JobKeys, Shard

_LINE_BYTES: Final = 1 << 16
Key = Annotated[str, Field(pattern=rf"^([0-9a-f][0-9a-f]){{{LEAST_KEY_BYTES},64}}$")]
"""In hexadecimal digits."""


class Command(BaseModel):
    """The fields of one kind of command."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    job: Annotated[str, Field(min_length=1, max_length=255)]


class Host(Command):
    """A job whose ranges may come here."""

    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    optimizer: OptimizerSpec
    worker_key: Key
    aggregator_key: Key


class Add(Command):
    """A range that begins here, or (moving) comes from another aggregator."""

    range: RangeIndex
    values: Annotated[int, Field(ge=1, lt=1 << 40)]
    version: Version
    moving: bool = False


class MoveAway(Command):
    """Send a range to its next owner, which has to expect it already; where that is refused, send the command again."""

    range: RangeIndex
    version: Version
    address: Text


class Drop(Command):
    """A job has ended."""


class Loads(BaseModel):
    """Ask for the load of each job, and the last step that its ranges here have finished."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Commands:
    """Carries out commands on one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._kinds: dict[str, tuple[type[BaseModel], Callable[[Any], Awaitable[dict[str, Any]]]]] = {
            "host": (Host, self._host),
            "add": (Add, self._add),
            "move": (MoveAway, self._move),
            "drop": (Drop, self._drop),
            "loads": (Loads, self._loads),
        }

    async def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to ``{"command": KIND, ...}``; with an ``id`` it has the same."""
        try:
            fields = json.loads(line)
            identity = {"id": fields.pop("id")} if "id" in fields else {}
            kind, carry_out = self._kinds[fields.pop("command")]
        except (AttributeError, KeyError, TypeError, ValueError):
            return {"refused": f"not a command of {', '.join(self._kinds)}"}
        return identity | await self._carried_out(kind, carry_out, fields)

    @staticmethod
    async def _carried_out(
        kind: type[BaseModel], carry_out: Callable[[Any], Awaitable[dict[str, Any]]], fields: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            return await carry_out(kind.model_validate_json(json.dumps(fields)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return {"refused": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"}
        except RangeError as error:
            return {"refused": str(error)}

    async def _host(self, command: Host) -> dict[str, Any]:
        keys = JobKeys(bytes.fromhex(command.worker_key), bytes.fromhex(command.aggregator_key))
        self._shard.host(JobSpec(command.job, command.ranks, command.optimizer), keys)
        return {}

    async def _add(self, command: Add) -> dict[str, Any]:
        self._shard.add(command.job, command.range, command.values, command.version, moving=command.moving)
        return {}

    async def _move(self, command: MoveAway) -> dict[str, Any]:
        await self._shard.move(command.job, command.range, command.version, command.address)
        return {}

    async def _drop(self, command: Drop) -> dict[str, Any]:
        self._shard.drop(command.job)
        return {}

    async def _loads(self, _: Loads) -> dict[str, Any]:
        return {"loads": [asdict(load) for load in self._shard.loads()], "finished": self._shard.finished_steps()}


async def serve(host: str, port: int, memory_limit_bytes: int) -> None:
    """Listen, and carry out commands until the standard input ends.

    Raises:
        OSError: it cannot listen there.
    """
    shard = Shard(memory_limit_bytes)
    await shard.start(host, port)
    commands = Commands(shard)
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say({"address": shard.address})

    async def answer(line: bytes) -> None:
        _say(await commands.answer(line))

    answering: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.get_running_loop().create_task(answer(line))  # each begins in its turn
        answering.add(task)
        task.add_done_callback(answering.discard)
    for task in answering:
        task.cancel()
    await shard.stop()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run as a process; returns the exit code."""
    parent, address, memory_limit_bytes = sys.argv[1:]
    if not die_with_parent(signal.SIGKILL, int(parent)):
        return ExitCode.INTERNAL
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's, which ends this one
    torch.set_num_threads(1)
    OptimizerSpec(kind="sgd", lr=1.0).optimizer(torch.zeros(1))  # imports more of torch, for seconds: not in a step
    host, port = address.rsplit(":", 1)
    asyncio.run(serve(host, int(port), int(memory_limit_bytes)))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

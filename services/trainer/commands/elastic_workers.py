"""Workers of an elastic training, and the store by which they find each other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from services._runtime.command.errors import UnavailableError
from services.trainer.commands.starters import (
    LOOPBACK,
    STORE,
    WORKER,
    Exit,
    Launch,
    ProcessStarter,
    Program,
    Starter,
    sandboxes,
)
from services.trainer.commands.torchrun import pass_lines
from services.trainer.commands.training import split_event
from services.trainer.core.generations import Generation
from services.trainer.core.worker_place import Form, Place

_STORE_WITHIN_S: Final = 300.0
OUTPUT_WITHIN_S: Final = 5.0
"""After a worker's end, for what it wrote before; a process that outlives it may hold its output open for ever."""
_ALL_OF_ITS_NETWORK: Final = "0.0.0.0"  # noqa: S104 - of a sandbox or container, whose address is not known before


@asynccontextmanager
async def open_starter(place: Place, reports: Path) -> AsyncIterator[Starter]:
    """The starter of a form; what it has made is gone at its end.

    Args:
        place: where workers run.
        reports: directory of the socket on which they report.

    Raises:
        UnavailableError: this form is not possible here; says what helps.
    """
    if place.form is Form.DOCKER:
        from services.trainer.commands.container_starter import containers  # noqa: PLC0415 - 0.3 s to import

        async with containers(place, reports) as of_containers:
            yield of_containers
    elif place.form is Form.SANDBOX:
        assert place.limits is not None
        async with sandboxes(place.limits) as of_sandboxes:
            yield of_sandboxes
    else:
        yield ProcessStarter()


class Stage(Enum):
    """Of a worker's life."""

    STARTING = auto()
    READY = auto()
    MEMBER = auto()
    LEAVING = auto()


@dataclass(slots=True)
class Worker:
    """One of them."""

    name: str
    program: Program
    stage: Stage = Stage.STARTING

    @classmethod
    async def start(cls, starter: Starter, number: int, arguments: Sequence[str]) -> Worker:
        """Start one; RANK in its environment is its number, for errors that it reports.

        Raises:
            UnavailableError: it cannot be started.
        """
        name = f"worker-{number}"
        return cls(name, await starter.start(Launch(name, WORKER, (*arguments, "--name", name), number)))

    def order(self, generation: Generation) -> None:
        """Write it the generation: it reads that at its next boundary. One that is being killed does not."""
        self.program.stdin.write(generation.to_json().encode() + b"\n")

    def close_orders(self) -> None:
        """There will be no generation any more: where it waits for one, it ends."""
        self.program.stdin.close()

    def send(self, number: signal.Signals) -> None:
        """A signal: SIGTERM to save and end; SIGKILL to all that it has started, too."""
        self.program.send(number)

    async def ended(self, on_line: Callable[[str], None], on_error_line: Callable[[str], None]) -> Exit:
        """Pass its lines on until it has ended, and end what it has started."""
        lines = pass_lines(self.program.stdout, on_line), pass_lines(self.program.stderr, on_error_line)
        reading = asyncio.gather(*lines)
        _, ended = await asyncio.gather(reading, self._ended(reading))
        return ended

    async def _ended(self, reading: asyncio.Future[Any]) -> Exit:
        ended = await self.program.wait()
        done, _ = await asyncio.wait({reading}, timeout=OUTPUT_WITHIN_S)
        if not done:
            self.program.close_output()
        return ended


@dataclass(slots=True)
class Store:
    """A program that outlives any worker."""

    program: Program
    address: str
    """HOST:PORT, as workers reach it."""

    @classmethod
    async def start(cls, starter: Starter, place: Place) -> Store:
        """Start it, and wait for its port.

        Raises:
            UnavailableError: it does not come up.
        """
        listens_at = LOOPBACK if place.form is Form.PROCESS else _ALL_OF_ITS_NETWORK
        program = await starter.start(Launch("store", STORE, (listens_at,)))
        try:
            async with asyncio.timeout(_STORE_WITHIN_S):
                port = await _port_of(program)
        except BaseException as error:
            program.send(signal.SIGKILL)
            await program.wait()
            if isinstance(error, TimeoutError):
                raise UnavailableError(f"the workers' store has not come up within {_STORE_WITHIN_S:g} s") from error
            raise
        return cls(program, f"{program.address}:{port}")

    async def close(self) -> None:
        """End it."""
        self.program.send(signal.SIGKILL)
        await self.program.wait()


async def _port_of(program: Program) -> int:
    """On which the store listens.

    Raises:
        UnavailableError: it has ended before.
    """
    _, event = split_event((await program.stdout.readline()).decode())
    if event is None:
        said = (await program.stderr.read()).decode(errors="replace").strip()
        raise UnavailableError(f"the workers' store cannot be started: {said.rpartition(chr(10))[2]}")
    return int(event["port"])

"""The daemon's process as its service sees it: started, asked, and started anew when it has died with all its slabs."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from services._runtime.child_process import AnsweringChild
from services._runtime.service.interpreter import isolated_command
from services.memory.settings import MemorySettings

ANSWER_S: Final = 60.0
"""It locks GiB of memory meanwhile. One that takes longer is killed: no later answer would fit its question."""
_EXIT_S: Final = 5.0
_MODULE: Final = "services.memory.process"
_NOT_PASSED: Final = ("TURNBUCKLE_", "NATS_", "OTEL_")
"""Variables by which this process reaches the bus: the daemon, which other hosts connect to, does not."""


class DaemonLostError(Exception):
    """The daemon has died, or cannot be started; the text says why."""


class TakeRefusedError(Exception):
    """The daemon gives no slab; the text holds the figures."""


@dataclass(frozen=True, slots=True)
class LeavingSlab:
    """A slab whose memory its host wants back."""

    label: str
    slab_bytes: int


@dataclass(frozen=True, slots=True)
class OfferState:
    """What the daemon holds and offers."""

    address: str = ""
    offered_bytes: int = 0
    held_bytes: int = 0
    free_bytes: int = 0
    headroom_bytes: int = 0
    leaving: tuple[LeavingSlab, ...] = field(default=())
    labels: frozenset[str] = frozenset()
    """Of all exports that it holds."""


class DaemonPort(Protocol):
    """A daemon that can be asked."""

    state: OfferState
    """As of the last `read`."""

    async def read(self) -> OfferState:
        """What it holds and offers.

        Raises:
            DaemonLostError: it has died, with every slab.
        """

    async def take(self, slab_bytes: int, owner: str) -> str:
        """A slab; returns the name of its export, a secret.

        Raises:
            TakeRefusedError: it does not fit.
            DaemonLostError: the daemon is not there.
        """

    async def stop(self) -> None:
        """End it, with every slab."""


class Daemon:
    """One daemon's process, as the settings say."""

    def __init__(self, settings: MemorySettings) -> None:
        self._settings = settings
        self._child: AnsweringChild | None = None
        self._asking = asyncio.Lock()
        self._taking = asyncio.Lock()
        """Requests for slabs wait here, so that one at most waits for `_asking`, which is taken in order: a reading, by
        which evictions are announced, waits for one slab, however many are asked for."""
        self._starting = asyncio.Lock()
        self.state = OfferState()

    async def read(self) -> OfferState:
        """As `DaemonPort.read`; a daemon that is not there is started first."""
        try:
            async with self._starting:
                if self._child is None:
                    await self._start()
            self.state = state_of(await self._ask('{"command": "offer"}'))
        except DaemonLostError:
            self.state = OfferState()
            raise
        return self.state

    async def take(self, slab_bytes: int, owner: str) -> str:
        """As `DaemonPort.take`."""
        async with self._taking:
            answer = await self._ask(json.dumps({"command": "take", "bytes": slab_bytes, "owner": owner}))
        if "refused" in answer:
            raise TakeRefusedError(str(answer["refused"]))
        return str(answer["name"])

    async def stop(self) -> None:
        """End it, with every slab."""
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.close, _EXIT_S)

    async def _start(self) -> None:
        settings = self._settings
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        amounts = (int(settings.offer_bytes), int(settings.headroom_bytes), settings.most_per_host_bytes)
        command = isolated_command(_MODULE, str(os.getpid()), f"{host}:{settings.port}", *map(str, amounts))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}
        async with self._asking:
            try:
                child = AnsweringChild(command, environment)  # in this thread: with it the daemon dies (prctl(2))
            except OSError as error:
                raise DaemonLostError(f"it cannot be started: {error.strerror}") from error
            await self._answer(child, None)
            self._child = child

    async def _ask(self, line: str) -> dict[str, Any]:
        async with self._asking:
            if self._child is None:
                raise DaemonLostError("it is being started")
            return await self._answer(self._child, line)

    async def _answer(self, child: AnsweringChild, line: str | None) -> dict[str, Any]:
        answered = False
        try:
            answer: dict[str, Any] = await asyncio.to_thread(child.ask, line, ANSWER_S)
            answered = True
        except (TimeoutError, EOFError, ValueError, OSError) as error:
            raise DaemonLostError(f"it {error}") from error
        finally:
            if not answered:  # also where this was cancelled: a later answer would fit another question
                self._child = None
                child.process.kill()
                await asyncio.shield(asyncio.to_thread(child.close, _EXIT_S))
        return answer


def state_of(answer: dict[str, Any]) -> OfferState:
    """What the answer to `offer` says (`process.py`)."""
    sizes = {slab["name"]: slab["slab_bytes"] for slab in answer["slabs"]}
    return OfferState(
        address=answer["address"],
        offered_bytes=answer["offered_bytes"],
        held_bytes=sum(sizes.values()),
        free_bytes=max(0, answer["free_bytes"]),
        headroom_bytes=answer["headroom_bytes"],
        leaving=tuple(LeavingSlab(label, sizes[label]) for label in answer["leaving"] if label in sizes),
        labels=frozenset(sizes),
    )

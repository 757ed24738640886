"""Hosts with the memory service in the test's process: swap devices of dictionaries, daemons on loopback sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from services._runtime.service.app import Runtime
from services.memory.daemon import DaemonPort, OfferState, TakeRefusedError, state_of
from services.memory.offering import Offering
from services.memory.process import Commands
from services.memory.service import MemoryService
from services.memory.settings import MemorySettings
from services.memory.swap_devices import SwapDevices
from tests.support.swap_host import SwapHost

MIB = 1 << 20
GIB = 1 << 30


class LocalDaemon:
    """All that a daemon's process does, without starting one; its host's free memory is as a test says."""

    def __init__(self, offering: Offering, free: list[int]) -> None:
        self.offering = offering
        self.free = free
        """One number, in bytes."""
        self.state = OfferState()
        self.taken: list[str] = []
        """Names of exports."""
        self._commands = Commands(offering)

    async def read(self) -> OfferState:
        self.state = state_of(await self._ask(command="offer"))
        return self.state

    async def take(self, slab_bytes: int, owner: str) -> str:
        answer = await self._ask(command="take", bytes=slab_bytes, owner=owner)
        if "refused" in answer:
            raise TakeRefusedError(answer["refused"])
        self.taken.append(str(answer["name"]))
        return self.taken[-1]

    async def stop(self) -> None:
        await self.offering.stop()

    async def _ask(self, **command: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(json.dumps(await self._commands.answer(json.dumps(command).encode())))
        return answer


@asynccontextmanager
async def local_daemon(limit_bytes: int = 64 * MIB, headroom_bytes: int = GIB) -> AsyncIterator[LocalDaemon]:
    """A daemon whose host has plenty of free memory."""
    free = [16 * GIB]
    offering = Offering(limit_bytes, headroom_bytes, lambda: free[0])
    await offering.start("127.0.0.1", 0)
    try:
        yield LocalDaemon(offering, free)
    finally:
        await offering.stop()


def service_on(host: SwapHost, daemon: DaemonPort | None = None) -> type[MemoryService]:
    """The service with these in place of the kernel and of a process."""

    class Local(MemoryService):
        def __init__(self, runtime: Runtime[MemorySettings]) -> None:
            devices = SwapDevices(runtime.settings.state_directory, lambda: host.as_host)
            super().__init__(runtime, daemon, devices, lock=lambda: None)

    return Local

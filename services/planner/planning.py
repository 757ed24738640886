"""Plans made in processes beside this one: each with a deadline, and with a bound on how many requests wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from schemas.codec import decode_as
from schemas.layers import LayerProfile
from schemas.plans import PlanReply, PlanRequest
from services._runtime.service.interpreter import isolated_command
from services.planner.process import LENGTH_BYTES, pack

_MODULE: Final = "services.planner.process"


class BusyError(Exception):
    """Too many requests wait, or one has waited or was planned for too long; the text says which."""


class PlanningFailedError(Exception):
    """The process that planned cannot be started, or has ended; the text says which."""


class Planning:
    """So many planning processes, which live on; one that was killed is started again when it is needed."""

    def __init__(self, processes: int, max_waiting: int, timeout_s: float) -> None:
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._children = [_Child() for _ in range(processes)]
        self._idle: asyncio.Queue[_Child] = asyncio.Queue()
        for child in self._children:
            self._idle.put_nowait(child)
        self.waiting = 0
        """Requests that wait for a process."""

    async def start(self) -> None:
        """Start the processes: the first request does not wait for what they import.

        Raises:
            PlanningFailedError: one cannot be started.
        """
        for child in self._children:
            await child.start()

    async def plan(
        self, request: PlanRequest, profiles: Sequence[LayerProfile], began: Callable[[], None] = lambda: None
    ) -> PlanReply:
        """The plan, or why there is none; ``began`` is called when the waiting is over.

        Raises:
            BusyError: others are planned, or it takes too long.
            PlanningFailedError: the process has ended, with a traceback on standard error.
            CodecError: a profile is too large.
        """
        child = await self._next_child()
        finished = False
        try:
            began()
            data = await asyncio.to_thread(pack, (request, *profiles))
            async with asyncio.timeout(self._timeout_s):
                reply = await child.ask(data)
            finished = True
        except TimeoutError as error:
            raise BusyError(f"no plan was found within {self._timeout_s:g} s: fewer devices take less") from error
        finally:
            if not finished:
                await child.end()
            self._idle.put_nowait(child)
        return reply

    async def end(self) -> None:
        """Kill the processes."""
        for child in self._children:
            await child.end()

    async def _next_child(self) -> _Child:
        if self._idle.empty() and self.waiting >= self._max_waiting:
            raise BusyError(f"{self.waiting} requests wait already: ask again later")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._idle.get()
        except TimeoutError as error:
            raise BusyError(f"others were planned for {self._timeout_s:g} s: ask again later") from error
        finally:
            self.waiting -= 1


class _Child:
    """One planning process, or none yet."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """The process, which is started where there is none."""
        if self._process is None or self._process.returncode is not None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *isolated_command(_MODULE, str(os.getpid())),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            except OSError as error:
                raise PlanningFailedError(f"no process to plan in can be started: {error.strerror}") from error
        return self._process

    async def ask(self, data: bytes) -> PlanReply:
        """Its answer."""
        process = await self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(data)
            await process.stdin.drain()
            length = await process.stdout.readexactly(LENGTH_BYTES)
            answer = await process.stdout.readexactly(int.from_bytes(length, "big"))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise PlanningFailedError("the process that planned has ended: its log says why") from error
        return decode_as(answer, PlanReply)

    async def end(self) -> None:
        """Kill and reap the process, also while being cancelled."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())

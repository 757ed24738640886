"""One aggregator's process as its service sees it: started, asked line by line, ended."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from services._host.cgroup_processes import CgroupProcesses
from services._runtime.service.interpreter import isolated_command

START_S: Final = 240.0
"""It imports torch, which takes seconds, more on a busy machine."""
ANSWER_S: Final = 60.0
"""It answers between two steps. One that takes longer is killed."""
_EXIT_S: Final = 5.0
_LINE_BYTES: Final = 1 << 22
"""Of an answer: loads of thousands of jobs."""
_MODULE: Final = "services.aggregator.process"
_NOT_PASSED: Final = ("TURNBUCKLE_", "NATS_", "OTEL_")
"""Variables by which this process reaches the bus: an aggregator, which workers connect to, does not."""


EnterGroup = Callable[[int], CgroupProcesses | None]
"""Of a process id: the control group that it is in now, if it has one of its own. Does not raise."""


class ProcessLostError(Exception):
    """An aggregator has died, was killed as it did not answer, or cannot be started; the text says which."""


class CommandRefusedError(Exception):
    """An aggregator refuses a command; the text says why."""


class AggregatorPort(Protocol):
    """An aggregator that can be asked."""

    address: str
    """HOST:PORT for workers."""

    @property
    def ended(self) -> str:
        """How it has ended; empty: it runs."""

    async def ask(self, command: str, within_s: float = ANSWER_S, **fields: Any) -> dict[str, Any]:
        """The answer to a command.

        Raises:
            CommandRefusedError: it refuses.
            ProcessLostError: it has died, or does not answer in this time and was killed.
        """

    async def end(self) -> None:
        """Kill it."""


class AggregatorProcess:
    """A child of this process, killed by the kernel when this one dies."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._group: CgroupProcesses | None = None
        self.address = ""
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, host: str, memory_bytes: int, enter_group: EnterGroup | None = None) -> AggregatorProcess:
        """Start one that listens on a free port.

        Args:
            host: the address.
            memory_bytes: for its jobs.
            enter_group: puts it into a control group, which is removed with it; None: it stays in that of this process.

        Raises:
            ProcessLostError: it cannot be started, or cannot listen there.
        """
        command = isolated_command(_MODULE, str(os.getpid()), f"{host}:0", str(memory_bytes))
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, start_new_session=True, limit=_LINE_BYTES, env=_environment()
            )
        except OSError as error:
            raise ProcessLostError(f"an aggregator cannot be started: {error.strerror}") from error
        started = cls(process)
        started._group = enter_group(process.pid) if enter_group is not None else None
        try:
            async with asyncio.timeout(START_S):
                started.address = (await started._read())["address"]
        except TimeoutError as error:
            await started.end()
            raise ProcessLostError(f"it did not answer within {START_S:g} s, and was killed") from error
        except BaseException:
            await started.end()
            raise
        started._reading = asyncio.get_running_loop().create_task(started._read_answers())
        return started

    @property
    def ended(self) -> str:
        """How it has ended; empty: it runs."""
        code = self._process.returncode
        if code is None:
            return ""
        return f"it has died by signal {-code}" if code < 0 else f"it has ended with exit code {code}"

    async def ask(self, command: str, within_s: float = ANSWER_S, **fields: Any) -> dict[str, Any]:
        """As `AggregatorPort.ask`."""
        assert self._process.stdin is not None
        self._asked += 1
        identity, answered = self._asked, asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            raise ProcessLostError(self.ended or "it was killed")
        self._waiting[identity] = answered
        try:
            async with asyncio.timeout(within_s):
                self._process.stdin.write(json.dumps({"command": command, "id": identity, **fields}).encode() + b"\n")
                await self._process.stdin.drain()
                answer: dict[str, Any] = await answered
        except TimeoutError as error:
            await self.end()
            raise ProcessLostError(f"it did not answer within {within_s:g} s, and was killed") from error
        except OSError as error:  # its end of the pipe is closed
            answered.cancel()
            raise ProcessLostError(await self._how_it_ended()) from error
        finally:
            del self._waiting[identity]
        if "refused" in answer:
            raise CommandRefusedError(answer["refused"])
        return answer

    async def _read_answers(self) -> None:
        """Until it ends; what is asked then has failed."""
        try:
            while True:
                answer = await self._read()
                waiting = self._waiting.get(answer.pop("id", 0))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ProcessLostError as error:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ProcessLostError(str(error)))

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        except (OSError, ValueError) as error:  # a part of a line, or none
            raise ProcessLostError(await self._how_it_ended()) from error
        return answer

    async def _how_it_ended(self) -> str:
        with suppress(TimeoutError):  # its own exit code says more than that of a kill
            async with asyncio.timeout(_EXIT_S):
                await self._process.wait()
        text = self.ended or "it has closed its output, and was killed"
        await self.end()
        return text

    async def end(self) -> None:
        """Kill and reap it, also while being cancelled."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.shield(self._process.wait())
        if self._group is not None:
            self._group.remove()  # where the kernel holds it for a moment longer, this host's agent does


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}

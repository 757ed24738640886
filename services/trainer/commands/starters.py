"""Where workers of an elastic training run: as processes of this machine, in sandboxes, or in containers.

Each form starts a program with pipes for its standard streams, says when it began and ended by one clock, and ends with
this process, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from subprocess import SubprocessError
from typing import Final, NamedTuple, Protocol

from services._jobs.rank_environment import GLOO_DEVICE
from services._jobs.sandbox.network import DEVICE
from services._jobs.sandbox.sandbox import Sandbox, Sandboxes, SandboxUnavailableError
from services._runtime.command.errors import UnavailableError
from services._runtime.service.interpreter import isolated_command
from services._runtime.task_cancellation import uninterrupted
from services.trainer.commands.torchrun import before_exec
from services.trainer.core.worker_place import WorkerLimits

LOOPBACK: Final = "127.0.0.1"
WORKER: Final = "services.trainer.worker"
STORE: Final = "services.trainer.worker.store"
_POLL_S: Final = 0.02


class Launch(NamedTuple):
    """What is started."""

    name: str
    module: str
    """As ``python -m`` runs it."""
    arguments: tuple[str, ...]
    rank: int | None = None
    """In its environment, for errors that it reports. None: the store, which has no limits."""


class Exit(Protocol):
    """How a program has ended."""

    @property
    def code(self) -> int:
        """Negative: of a signal."""

    @property
    def time_ns(self) -> int:
        """By its starter's clock."""


class ProcessExit(NamedTuple):
    """Of a process of this machine."""

    code: int
    """Negative: of a signal."""
    time_ns: int
    """Monotonic."""


class Input(Protocol):
    """Standard input of a program."""

    def write(self, data: bytes, /) -> None:
        """Queue it."""

    def close(self) -> None:
        """End it."""


class Program(Protocol):
    """A worker or the store."""

    @property
    def address(self) -> str:
        """Where the others of this training reach it."""

    @property
    def started_ns(self) -> int:
        """By its starter's clock."""

    @property
    def stdin(self) -> Input:
        """Of its own."""

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Of its own."""

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Of its own."""

    def send(self, number: signal.Signals) -> None:
        """A signal: SIGTERM to save and end; SIGKILL to all that it has started, too."""

    async def wait(self) -> Exit:
        """Until it has ended, and with it all that it has started."""

    def close_output(self) -> None:
        """End `stdout` and `stderr`, also where another process holds them open."""


class Starter(Protocol):
    """One form of a training's programs."""

    def now_ns(self) -> int:
        """By the clock of `Program.started_ns` and `Exit.time_ns`."""

    async def start(self, launch: Launch) -> Program:
        """Start one.

        Raises:
            UnavailableError: it cannot be started.
        """


def threads(limits: WorkerLimits | None) -> dict[str, str]:
    """No more threads than processors; without limits several share this machine: one each, as torchrun sets it."""
    return {"OMP_NUM_THREADS": str(1 if limits is None else max(1, int(limits.cpu_cores)))}


def rank(launch: Launch) -> dict[str, str]:
    """Its rank, where it has one."""
    return {} if launch.rank is None else {"RANK": str(launch.rank)}


@dataclass(slots=True)
class RunningProcess:
    """A process of this machine, in a sandbox or none."""

    process: asyncio.subprocess.Process
    started_ns: int
    address: str = LOOPBACK
    remove: Callable[[], Awaitable[object]] | None = None
    """What it was in."""

    @property
    def stdin(self) -> Input:
        """Of its own."""
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Of its own."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Of its own."""
        assert self.process.stderr is not None
        return self.process.stderr

    def send(self, number: signal.Signals) -> None:
        """A signal: SIGKILL to its whole group."""
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.returncode is None:
                # Not `Process.send_signal`: its `Popen` may reap the process then, before asyncio does, which takes 255
                # for its exit code. By number, as above: asyncio knows of an end within a turn of its loop.
                os.kill(self.process.pid, number)

    async def wait(self) -> Exit:
        """What it has started may hold its output open, such as processes that load data: that is ended, too.

        Not what has left for a session of its own, unless it is in a sandbox.
        """
        # Not `Process.wait`: called before the exit, it may wait for the end of the pipes, which others hold open.
        while (code := self.process.returncode) is None:  # noqa: ASYNC110 - asyncio has no event for it
            await asyncio.sleep(_POLL_S)
        ended = ProcessExit(code, time.monotonic_ns())
        self.send(signal.SIGKILL)
        if self.remove is not None:
            await self.remove()
        return ended

    def close_output(self) -> None:
        """A process in a session of its own may hold it open; that one is left alone."""
        self.process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no public name for it


class ProcessStarter:
    """Processes of this machine, which share it."""

    @staticmethod
    def now_ns() -> int:
        """Monotonic."""
        return time.monotonic_ns()

    async def start(self, launch: Launch) -> RunningProcess:
        """Start one.

        Raises:
            UnavailableError: it cannot be started.
        """
        started_ns = time.monotonic_ns()
        # All are here: they need no other interface, whatever the host's name resolves to.
        given = {GLOO_DEVICE: "lo"} | threads(None) | os.environ | rank(launch)
        return RunningProcess(await spawn(isolated_command(launch.module, *launch.arguments), given), started_ns)


@asynccontextmanager
async def sandboxes(limits: WorkerLimits) -> AsyncIterator[SandboxStarter]:
    """Sandboxes with these limits; all are gone at its end.

    Raises:
        UnavailableError: this is not possible here; says what helps.
    """
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Sandboxes())
        except SandboxUnavailableError as error:
            raise UnavailableError(f"workers cannot have sandboxes: {error}, or --workers process") from error
        yield SandboxStarter(made, limits)


class SandboxStarter(ProcessStarter):
    """A sandbox for each program: with the limits, but for the store, and on a network of their own."""

    def __init__(self, sandboxes: Sandboxes, limits: WorkerLimits) -> None:
        self._sandboxes, self._limits = sandboxes, limits

    async def start(self, launch: Launch) -> RunningProcess:
        """Make a sandbox, and start it in there.

        Raises:
            UnavailableError: the kernel refuses, or it cannot be started.
        """
        started_ns = time.monotonic_ns()
        limits = None if launch.rank is None else self._limits
        bounds = (None, None) if limits is None else (limits.cpu_cores, limits.memory_bytes)
        try:
            sandbox = await uninterrupted(self._sandboxes.create, launch.name, *bounds)
        except (SandboxUnavailableError, ValueError) as error:
            raise UnavailableError(f"{launch.name} cannot have a sandbox: {error}") from error

        async def remove() -> None:
            await uninterrupted(self._sandboxes.remove, sandbox)

        given = threads(limits) | os.environ | {GLOO_DEVICE: DEVICE} | rank(launch)
        try:
            command = isolated_command(launch.module, *launch.arguments)
            process = await spawn(command, given, partial(_enter, sandbox))
        except BaseException:
            await remove()
            raise
        return RunningProcess(process, started_ns, sandbox.address, remove)


def _enter(sandbox: Sandbox) -> None:
    before_exec()
    sandbox.enter()


async def spawn(
    command: Sequence[str], environment: Mapping[str, str], enter: Callable[[], None] = before_exec
) -> asyncio.subprocess.Process:
    """Start a program in a session of its own, with pipes.

    Args:
        command: the program and its arguments.
        environment: all of its environment.
        enter: called in the child before exec; makes system calls only.

    Raises:
        UnavailableError: it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=enter,
        )
    except (OSError, SubprocessError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f"{command[0]} cannot be started: {reason}") from error

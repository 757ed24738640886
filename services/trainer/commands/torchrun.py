"""torchrun and the ranks that it starts, as processes of a command: their lines, a request to stop, their end.

A request to stop goes to the ranks, not to torchrun: that one kills them after 30 seconds, and would end with an error.
SIGTERM is blocked in all of them from the start; a rank unblocks it once it can take it (`StopRequest`), so none is
lost. Where this process is killed, torchrun is, too, and the ranks are sent SIGTERM: they save at the boundary and end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._runtime.child_process import die_with_parent

_POLL_S: Final = 0.05
_CHUNK_BYTES: Final = 1 << 16


class Torchrun:
    """One run of it; made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stopping: asyncio.Task[None] | None = None
        self.is_killed = False

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Torchrun:
        """Start it in a session of its own, which Ctrl-C does not reach.

        Raises:
            OSError: it cannot be started.
        """
        return cls(
            await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        )

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping is not None

    def on_signal(self) -> None:
        """The first time: the ranks save at the boundary between steps and end. The second time: they are killed."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        else:
            self.kill()

    def kill(self) -> None:
        """End the ranks and torchrun at once, with all that they have started: each leads a session."""
        self.is_killed = True
        for pid in [*self._children(), self._process.pid]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    async def ended(self, on_line: Callable[[str], None], on_error_line: Callable[[str], None]) -> int:
        """Pass lines on until all processes have closed their output; returns torchrun's exit code."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        await asyncio.gather(pass_lines(self._process.stdout, on_line), pass_lines(self._process.stderr, on_error_line))
        code = await self._process.wait()
        if self._stopping is not None:
            await self._stopping
        return code

    async def _stop(self) -> None:
        """Send SIGTERM to every child once, also to those that are still to be started."""
        asked: set[int] = set()
        while self._process.returncode is None:
            for pid in self._children() - asked:
                asked.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            await asyncio.sleep(_POLL_S)

    def _children(self) -> set[int]:
        if self._process.returncode is not None:
            return set()
        found: set[int] = set()
        for file in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            with suppress(OSError):  # the thread has ended
                found.update(map(int, file.read_text(encoding="ascii").split()))
        return found


def before_exec() -> None:
    """In a rank or torchrun before exec: it dies with this process, and keeps SIGTERM until it can take it."""
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


async def pass_lines(stream: asyncio.StreamReader, on_line: Callable[[str], None]) -> None:
    """Until the stream ends."""
    async for line in _lines(stream):
        on_line(line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Without their ends, however long they are."""
    rest = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")

"""How child processes are started and ended: with their parent, without its environment, killed where they stay.

What is done about a child's end differs with the child, and stands where it is started (docs/design-critique.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

_PDEATHSIG: Final = 1
_IMPORT_ROOT: Final = Path(__file__).parents[2]
LOG_TAIL_LINES: Final = 20
LOG_TAIL_BYTES: Final = 64 << 10


def die_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> bool:
    """In a child before exec: have the kernel send this signal when the parent dies, however it dies (prctl(2)).

    Args:
        number: SIGTERM by default, so that an agent still restores the limits that it found.
        parent: process id of the parent, which may have died before the call; None: it waits for the exec.

    Returns:
        False: the parent has died already, and no signal will come.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, number)
    return parent is None or os.getppid() == parent


def spawn_logged(
    command: Sequence[str],
    log_file: Path,
    environment: Mapping[str, str] | None = None,
    death_signal: int = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a program without input in a session of its own, which Ctrl-C does not reach; it dies with this thread.

    Args:
        command: the program and its arguments.
        log_file: emptied; its output and errors are appended.
        environment: all of its environment; None: ours.
        death_signal: sent by the kernel when the thread that calls this ends.

    Raises:
        OSError: it cannot be started, or the file cannot be written.
    """
    log_file.write_bytes(b"")
    with log_file.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own programs
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, death_signal),  # noqa: PLW1509 - one prctl call, no locks
        )


def read_log(log_file: Path) -> str:
    """What a process has written; empty where that cannot be read."""
    with suppress(OSError):
        return log_file.read_text(encoding="utf-8", errors="replace")
    return ""


def log_tail(log_file: Path, most_bytes: int = LOG_TAIL_BYTES) -> str:
    """The last lines of it, of so many bytes at most; empty where it cannot be read."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


@dataclass(slots=True)
class Child:
    """A child with a log, from its readiness to its end."""

    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def exit_text(self) -> str:
        """How it has ended."""
        code = self.process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def log_tail(self) -> str:
        """The last lines of its log."""
        return log_tail(self.log_file)

    async def until_ready(self, probe: Callable[[], bool], within_s: float, poll_s: float) -> bool:
        """Ask the probe, which may block, until it says so; False: the child has ended, or time is up."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.running:
            if await asyncio.to_thread(probe):
                return True
            await asyncio.sleep(poll_s)
        return False

    async def end(self, within_s: float) -> None:
        """Send SIGTERM where it runs, and kill it where it has not ended in this time."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_or_kill, self.process, within_s)


class AnsweringChild:
    """A child that answers each line on its standard input with a line of JSON, and ends with its input.

    It has a session of its own, which Ctrl-C does not reach: this process ends it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout

    def ask(self, line: str | None = None, within_s: float | None = None) -> Any:
        """Send a line (None: none, it speaks first) and return the answer; None: however long that takes.

        Raises:
            TimeoutError: it does not come in this time.
            EOFError: the child has ended; holds its exit code.
        """
        if line is not None:
            with suppress(BrokenPipeError):  # its exit code is the answer
                self._requests.write(line + "\n")
        # One answer per request: none waits in our buffer while the pipe is polled.
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(None if within_s is None else within_s * 1e3):
            raise TimeoutError(f"does not answer within {within_s:g} s")
        line = self._answers.readline()
        if not line:
            raise EOFError(f"has ended with {self.process.wait()}")
        return json.loads(line)

    def close(self, within_s: float) -> None:
        """End its input, and kill it where it has not ended in this time."""
        with suppress(BrokenPipeError):
            self._requests.close()
        wait_or_kill(self.process, within_s)
        self._answers.close()


def start_bare(  # noqa: PLR0913 - what the child is told
    module: str,
    arguments: Sequence[str],
    *,
    blocked: Iterable[signal.Signals],
    stdin: int = subprocess.DEVNULL,
    stderr: IO[bytes] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a module that uses the standard library and our files only, and that outlives this process if need be.

    In a session of its own, without our environment and site packages, in the root directory.

    Args:
        module: what ``python -m`` runs.
        arguments: its arguments.
        blocked: signals that are blocked in it from its first moment: a signal to a group must not end it.
        stdin: descriptor that it reads; by default nothing.
        stderr: where it writes errors; None: where this process does.
        descriptors: further ones that it inherits, under the same numbers.

    Raises:
        OSError: it cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # inherited, however early the signal comes
    try:
        return subprocess.Popen(  # noqa: S603 - this interpreter, our own modules
            [sys.executable, "-S", "-P", "-m", module, *arguments],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd="/",
            env={"PYTHONPATH": str(_IMPORT_ROOT), "PATH": os.environ.get("PATH", os.defpath)},
            pass_fds=descriptors,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_or_kill(process: subprocess.Popen[bytes] | subprocess.Popen[str], within_s: float) -> None:
    """Wait for the end of a child that was asked to end; it is killed where that takes longer. Blocks."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

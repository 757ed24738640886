"""How child processes are started and ended: with their parent, without its environment, killed where they stay."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

_PDEATHSIG: Final = 1
_IMPORT_ROOT: Final = Path(__file__).parents[2]


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """In a child before exec: have the kernel send this signal when the parent dies, however it dies (prctl(2)).

    SIGTERM by default, so that an agent still restores the limits that it found.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, number)


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

"""Programs of the host that the block path is made with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

WITHIN_S: Final = 120.0
KILLED_WITHIN_S: Final = 10.0
"""After SIGKILL. A program in an uninterruptible wait (state D of proc_pid_stat(5)) ends with that, perhaps never."""
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_left: Final[dict[tuple[str, ...], subprocess.Popen[str]]] = {}
"""Programs that were killed and have not ended, by their command: it is not run a second time beside the first."""


class ProgramError(Exception):
    """A program is missing, failed, or did not end; the message has its own words."""


def run(command: Sequence[str], stdin: str = "", within_s: float = WITHIN_S) -> str:
    """Run a program and return its output.

    Raises:
        ProgramError: it is missing, failed, or took too long: then it was killed, and is not waited for where the
            kernel does not end it. An earlier run of the same command that has not ended yet counts as failed, too.
    """
    words, environment = tuple(command), {"PATH": f"{_PATH}:{os.environ.get('PATH', '')}", "LC_ALL": "C"}
    _check_left(words)
    try:
        process = subprocess.Popen(  # noqa: S603 - names of our own devices and paths of the user's disk, no shell
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError as error:
        raise ProgramError(f"{words[0]} is not installed") from error
    try:
        output, errors = process.communicate(stdin, within_s)
    except subprocess.TimeoutExpired as error:
        stays = "" if _ended(words, process) else f", nor when it was killed: {_what_stays(process)}"
        raise ProgramError(f"{' '.join(words)} has not ended within {within_s:g} s{stays}") from error
    except BaseException:
        _ended(words, process)
        raise
    if process.returncode:
        reason = " ".join(errors.split())[-500:] or f"exit code {process.returncode}"
        raise ProgramError(f"{' '.join(words)}: {reason}")
    return output


def _check_left(words: tuple[str, ...]) -> None:
    if (process := _left.get(words)) is None:
        return
    if process.poll() is None:
        raise ProgramError(f"{' '.join(words)} was killed before and has not ended: {_what_stays(process)}")
    _left.pop(words, None)


def _ended(words: tuple[str, ...], process: subprocess.Popen[str]) -> bool:
    """Kill it; whether it has ended. What it has started may hold its pipes open: they are not waited for."""
    process.kill()
    try:
        process.wait(KILLED_WITHIN_S)
    except subprocess.TimeoutExpired:
        _left[words] = process
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    return process.returncode is not None


def _what_stays(process: subprocess.Popen[str]) -> str:
    state = ""
    with suppress(OSError, IndexError):  # it has ended just now
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        state = f" in state {stat.rpartition(')')[2].split()[0]}"
    return (
        f"process {process.pid}{state} stays in the kernel, usually for a disk that does not answer; "
        "see `dmesg`: it ends when the disk answers, or with the next boot"
    )

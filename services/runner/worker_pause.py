"""A worker's processes, stopped for a moment and let go on: by its group's freezer, or by signals to its session.

Standard library only: the shim uses it, too, which lies outside of the group.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.cgroup_processes import CgroupProcesses

_SESSION_FIELD: Final = 3
"""Of /proc/pid/stat, counted behind the name in parentheses (proc_pid_stat(5))."""


def session_processes(session: int) -> list[int]:
    """Processes of a session, in whatever process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(words[_SESSION_FIELD]) == session:
                found.append(int(path.parent.name))
    return found


class WorkerPause:
    """Stops one worker, and lets it go on."""

    def __init__(self, group: CgroupProcesses | None, session: int) -> None:
        """Name it.

        Args:
            group: its control group, if it has one.
            session: its first process' id, for where it has no freezer; 0: that process has ended.
        """
        self._group = group
        self._session = session

    def freeze(self) -> None:
        """Stop all its processes.

        Raises:
            OSError: as the kernel answers.
        """
        if self._group is None or not self._group.freeze():
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all its processes go on; twice does no harm.

        Raises:
            OSError: as the kernel answers.
        """
        if self._group is None or not self._group.thaw():
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in session_processes(self._session) if self._session else ():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

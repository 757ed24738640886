"""Processes of the testbed that outlive the command that started them: identified, and ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pydantic import BaseModel

from services._host.boot_records import start_ticks
from services._runtime.command.errors import CommandError

END_TIMEOUT_S: Final = 5.0
"""After SIGTERM; a busy machine may take longer."""
KILL_TIMEOUT_S: Final = 60.0
"""After SIGKILL: the kernel has yet to end it, and its parent to wait for it."""
_POLL_S: Final = 0.02


class StartedProcess(BaseModel):
    """A started process, identified by pid and start time, since pids are reused."""

    name: str
    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        with suppress(ChildProcessError):  # not our child: `up` was another process
            os.waitpid(self.pid, os.WNOHANG)
        return start_ticks(self.pid) == self.start_ticks


def end(processes: Sequence[StartedProcess], *, at_once: bool = False) -> None:
    """End them and wait for it; `at_once`: as if the power had failed.

    Raises:
        CommandError: one does not end.
    """
    alive = [process for process in processes if process.is_alive]
    for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + (KILL_TIMEOUT_S if number is signal.SIGKILL else END_TIMEOUT_S)
        while alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            alive = [process for process in alive if process.is_alive]
    if alive:
        raise CommandError(f"does not end: {', '.join(process.name for process in alive)}")

"""The watchdog as the agent sees it: a process at the other end of a pipe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services._runtime.child_process import start_bare, wait_or_kill
from services._runtime.telemetry.logging import get_logger
from services.agent.ports import WatchdogReport
from services.agent.state_files import StateDirectory
from services.agent.watchdog.reports import read_report_lines, take_report_lines

HEARTBEAT: Final = b"."
BYE: Final = b"q"
MODULE: Final = "services.agent.watchdog.supervision"
COMMAND_LINE: Final = re.compile(
    r"services[./]agent[./](memory[./])?watchdog([./]supervision)?(\.py)? "
    r"(?P<state>.+) (?P<lock>\S+) (?P<agent>\d+) \S+ \S+$"
)
"""Its arguments, joined by spaces: directory of the managed root, lock, agent's pid, `WatchdogOptions.seconds`.
Those of earlier versions, `services.agent.memory.watchdog` and `services.agent.watchdog`, match too: a watchdog
outlives an upgrade."""
_BLOCKED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESTART_S: Final = 1.0
_END_S: Final = 1.0
_NUMBERS: Final = ("time_ns", "usage_bytes", "limit_before_bytes", "limit_after_bytes", "paused_us")
_REPORT_FIELDS: Final[dict[str, type]] = {"key": str, "app": str, "granted": bool} | dict.fromkeys(_NUMBERS, int)


@dataclass(frozen=True, slots=True)
class WatchdogOptions:
    """Options of the process."""

    lock: Path
    """Of the managed root: while another agent holds it, that one's watchdog is in charge."""
    oom_wait_timeout_s: float
    timeout_s: float
    leave_groups: bool = False
    """It is to outlive the container or unit that the agent runs in."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Both times."""
        return self.oom_wait_timeout_s, self.timeout_s


class WatchdogProcess:
    """Starts it, feeds it, reads what it did; `services.agent.ports.Watchdog`."""

    def __init__(self, state: StateDirectory, options: WatchdogOptions) -> None:
        self._state = state
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._started_s = 0.0
        self._previous_reports = True
        """Whether a previous agent may have taken reports and died before they were stored."""
        self.starts = 0
        """How often it was started: more than once if it died."""

    @property
    def pid(self) -> int | None:
        """Of the process, while one was started."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it in a session of its own, without the agent's descriptors and environment. Raises OSError."""
        self._started_s = time.monotonic()
        options = self._options
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        arguments = [str(self._state.path), str(options.lock), str(os.getpid())]
        arguments += map(str, options.seconds)
        try:
            with self._state.watchdog_errors.open("wb") as errors:
                # Never unblocked there: a signal to the agent's whole group must not end the watchdog first
                self._process = start_bare(MODULE, arguments, blocked=_BLOCKED_SIGNALS, stdin=read_end, stderr=errors)
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        os.set_blocking(write_end, False)
        self._pipe = write_end
        self.starts += 1
        if options.leave_groups and (refused := move_to_root_groups(self._process.pid)):
            get_logger("agent").warning(
                "watchdog_confined", refused=refused, consequence="it ends with the agent's group"
            )

    def heartbeat(self) -> None:
        """Send a heartbeat; where the process has died, start it again, at most once a second."""
        try:
            os.write(self._pipe, HEARTBEAT)
        except BlockingIOError:
            return  # it does not read: stopped, or starved
        except OSError:  # EPIPE: it has died; EBADF: it could not be started
            self._reap()
            if time.monotonic() - self._started_s > _RESTART_S:
                with suppress(OSError):
                    self.start()

    def take_reports(self) -> list[WatchdogReport]:
        """Actions since the last call, also for a previous agent. Costs one stat where there are none."""
        lines = []
        if self._previous_reports:
            self._previous_reports = False
            lines = read_report_lines(self._state.taken_reports)
        lines += take_report_lines(self._state.reports, self._state.taken_reports)
        return [WatchdogReport(**line) for line in lines if _is_report(line)]

    def forget_reports(self) -> None:
        """What was taken has been stored elsewhere."""
        with suppress(OSError):
            self._state.taken_reports.unlink(missing_ok=True)

    def stop(self) -> None:
        """End it; everything has been restored. Not started, or stopped already: nothing."""
        if self._pipe >= 0:
            with suppress(OSError):
                os.write(self._pipe, BYE)
        self._reap()

    def _reap(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        process, self._process = self._process, None
        if process is not None:
            wait_or_kill(process, _END_S)


def _is_report(line: dict[str, Any]) -> bool:
    return line.keys() == _REPORT_FIELDS.keys() and all(
        type(line[name]) is kind for name, kind in _REPORT_FIELDS.items()
    )


def move_to_root_groups(pid: int, mounts: Path = Path("/proc/self/mounts")) -> list[str]:
    """Move a process to the top of every hierarchy that is mounted here; returns why it could not, one reason each.

    A container runtime that shares the host's process ids ends a container by killing all in its control groups, and
    so does systemd with a unit (KillMode=control-group): what should outlive the container must not be found in them.
    """
    refused = []
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, directory, filesystem = line.split(" ", 3)[:3]
        if filesystem in {"cgroup", "cgroup2"}:
            try:
                Path(directory, "cgroup.procs").write_text(str(pid), encoding="ascii")
            except OSError as error:
                refused.append(f"{directory}: {error.strerror}")
    return refused

"""The process between the runner and one worker: ``python -m services.runner.shim DIRECTORY``.

It starts the worker that the directory's intent describes, at most once: it holds the directory's lock, and a claim
that is there already means that another shim was faster. It has a session of its own and outlives the runner: it sees
the worker's end, stops it if asked to, or if the runner has had no bus for too long, and keeps its log within bounds.
When it dies, the kernel kills the worker. Standard library only, started without site packages.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.boot_records import start_ticks
from services._host.cgroup_processes import CgroupProcesses
from services._runtime.file_lock import open_lock_file, try_flock
from services.runner.worker_files import (
    SHIM_POLL_S,
    Claim,
    End,
    IllegibleRecordError,
    Intent,
    Pause,
    Ready,
    Started,
    StopRequest,
    WorkerFiles,
    boot_s,
)
from services.runner.worker_log import bound_log
from services.runner.worker_pause import WorkerPause
from services.runner.worker_process import CannotStartError, start_worker

SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
"""Taken one by one: the worker's end, a request to stop, a request that is written in the directory."""
_LOCK_ATTEMPTS: Final = 25
_LOCK_PAUSE_S: Final = 0.02
"""The runner takes the lock for some microseconds to find out whether a shim lives."""
_READY_POLL_S: Final = 0.1


class Shim:
    """One worker, from its start to its end."""

    def __init__(self, files: WorkerFiles, intent: Intent) -> None:
        self._files = files
        self._intent = intent
        self._group = None if intent.group is None else CgroupProcesses(**intent.group)
        self._pid = 0
        self._began_s = time.monotonic()
        self._ready_s: float | None = None
        """When it was ready."""
        self._asked, self._asked_s = "", 0.0
        self._kill_at_s: float | None = None
        self._killed = False
        self._bus_s = intent.ordered_s
        self._next_poll_s = 0.0
        self._paused_until_s = 0.0
        """By CLOCK_BOOTTIME, as the runner has announced it last."""
        self._may_be_paused = False

    def live(self) -> None:
        """Start the worker and see its end."""
        if self._files.has(StopRequest):
            request = self._stop_request()
            self._files.write(End(time.time_ns(), asked=request.why if request is not None else "order"))
            self._clear()
            return
        if 0 < self._intent.fence_after_s < boot_s() - self._intent.ordered_s:  # its runner was frozen in between
            self._files.write(End(time.time_ns(), error="its order was too old when it was to be started", lost=True))
            self._clear()
            return
        self._files.write(Claim(os.getpid(), start_ticks(os.getpid()) or 0))
        self._began_s = time.monotonic()  # before the fork: the worker may be faster than what follows
        try:
            self._pid = start_worker(self._files, self._intent, self._group)
        except CannotStartError as error:
            self._files.write(End(time.time_ns(), error=str(error)))
            self._clear()
            return
        self._files.write(Started(self._pid, start_ticks(self._pid) or 0, time.time_ns()))
        if not self._intent.ready_within_s:
            self._note_ready(0.0)
        while not self._has_ended():
            self._wait()
            self._poll()
        self._end()

    def _has_ended(self) -> bool:
        """Whether the worker's first process has ended; it is not reaped yet: its id stays its own."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _wait(self) -> None:
        now_s = time.monotonic()
        pause_s = SHIM_POLL_S if self._ready_s is not None else _READY_POLL_S
        if self._kill_at_s is not None and not self._killed:
            pause_s = min(pause_s, max(0.0, self._kill_at_s - now_s))
        if self._may_be_paused:
            pause_s = min(pause_s, max(0.0, self._paused_until_s - boot_s()))
        received = signal.sigtimedwait(SIGNALS, pause_s)
        if received is not None and received.si_signo == signal.SIGTERM:
            self._ask("signal", self._intent.grace_s)

    def _poll(self) -> None:
        if self._ready_s is None:
            self._poll_ready_file()
        if (request := self._stop_request()) is not None:
            self._ask(request.why, request.grace_s)
        self._poll_pause()
        now_s = time.monotonic()
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill()
        if now_s >= self._next_poll_s:
            self._next_poll_s = now_s + SHIM_POLL_S
            self._fence()
            bound_log(self._files.log, self._intent.log_bytes)

    def _stop_request(self) -> StopRequest | None:
        with suppress(IllegibleRecordError):  # not the runner's
            return self._files.read(StopRequest)
        return None

    def _poll_pause(self) -> None:
        """Dead man's timer: the worker goes on although the runner that has paused it was killed, or is stopped."""
        with suppress(IllegibleRecordError):
            pause = self._files.read(Pause)
            if pause is not None and pause.until_s != self._paused_until_s:
                self._paused_until_s, self._may_be_paused = pause.until_s, True
        if self._may_be_paused and boot_s() >= self._paused_until_s:
            self._may_be_paused = False
            self._thaw()

    def _thaw(self) -> None:
        try:
            WorkerPause(self._group, self._pid).thaw()
        except OSError as error:
            print(f"the worker cannot go on: {error}", file=sys.stderr)  # noqa: T201 - goes to shim.log

    def _poll_ready_file(self) -> None:
        took_s = time.monotonic() - self._began_s
        if self._files.ready_file.exists():
            self._note_ready(took_s)
        elif took_s >= self._intent.ready_within_s:
            self._note_ready(0.0)

    def _note_ready(self, took_s: float) -> None:
        self._ready_s = self._began_s + took_s
        self._files.write(Ready(took_s, time.time_ns()))

    def _fence(self) -> None:
        """Another node may run the job by now: for the scheduler this one has been silent for as long."""
        if not self._asked and self._is_fenced():
            restarts = self._intent.preemption == "restart"
            self._ask("fence", 0.0 if restarts else self._intent.grace_s)

    def _is_fenced(self) -> bool:
        if not self._intent.fence_after_s:
            return False
        with suppress(OSError, ValueError):
            self._bus_s = max(self._bus_s, float(Path(self._intent.bus_file).read_text(encoding="ascii")))
        return boot_s() - self._bus_s > self._intent.fence_after_s

    def _ask(self, why: str, grace_s: float) -> None:
        now_s = time.monotonic()
        if not self._asked:
            self._asked, self._asked_s = why, now_s
            self._poll_pause()  # of the last moment, too
            if self._may_be_paused:
                self._thaw()
            if grace_s:
                self._signal(signal.SIGTERM)
        kill_at_s = self._asked_s + grace_s if grace_s else now_s
        self._kill_at_s = kill_at_s if self._kill_at_s is None else min(self._kill_at_s, kill_at_s)

    def _kill(self) -> None:
        self._killed = True
        if self._group is not None:
            self._group.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To all processes of the worker: of its control group, else of its session's first process group."""
        if self._group is not None and self._group.is_populated():
            self._group.signal(number)
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, number)

    def _end(self) -> None:
        """End what it has left running, then record how it ended: from then on its slots are free."""
        ended_s = time.monotonic()
        kills = 0 if self._group is None else self._group.oom_kills()
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._clear()
        self._files.write(
            End(
                time.time_ns(),
                exit_code=code,
                asked=self._asked,
                killed=self._killed,
                oom_kills=kills,
                ran_s=ended_s - (self._began_s if self._ready_s is None else self._ready_s),
                took_s=ended_s - self._asked_s if self._asked else 0.0,
            )
        )

    def _clear(self) -> None:
        if self._group is not None and not self._group.end():
            print("processes of the control group do not end", file=sys.stderr)  # noqa: T201 - goes to shim.log


def main() -> int:
    """Live for one worker; 0 also if another shim has it or had it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    files = WorkerFiles(Path(sys.argv[1]))
    lock = open_lock_file(files.lock)
    if not try_flock(lock, attempts=_LOCK_ATTEMPTS, pause_s=_LOCK_PAUSE_S):
        return 0
    if files.has(Claim) or files.has(End):
        return 0
    intent = files.read(Intent)
    if intent is None:
        return 0
    Shim(files, intent).live()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One worker: what its records and processes say, the events that follow from that, and what can be done about it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from schemas.scheduling import MAX_REASON_CHARACTERS, Preemption, WorkerChange, WorkEvent
from services._host.boot_records import boot_id, start_ticks
from services._host.cgroup_processes import CgroupProcesses
from services._runtime.child_process import start_bare
from services._runtime.file_lock import is_locked, open_lock_file, try_flock
from services._runtime.telemetry.tracing import NEW_TRACE, Carrier
from services.runner.core.worker_state import Ending, Facts, ending_change
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
from services.runner.worker_log import read_log
from services.runner.worker_pause import WorkerPause, session_processes

SHIM: Final = "services.runner.shim"
SHIM_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
"""Blocked in a shim from its first moment: it takes them one by one."""
_TAIL_LINES: Final = 20
_SETTLED_NS: Final = 1_000_000_000
"""A directory that has changed later may change again at what its file system takes for the same time."""


class WorkerKey(NamedTuple):
    """Names a worker on its node."""

    job: str
    attempt: int
    rank: int


class Origin(NamedTuple):
    """Who reports."""

    node: str
    incarnation: int


class ShimProcess:
    """A shim that this runner has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.exit_code: int | None = None
        process.returncode = 0  # it outlives this process, which `Popen` would complain of

    def poll(self) -> int | None:
        """Its exit code; None: it lives."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self.exit_code


class Worker:
    """A worker on this node."""

    def __init__(self, key: WorkerKey, directory: Path, origin: Origin) -> None:
        self.key = key
        self.files = WorkerFiles(directory)
        self.intent: Intent | None = None
        self.claim: Claim | None = None
        self.started: Started | None = None
        self.end: End | None = None
        self.events: list[WorkEvent] = []
        """What it did, in order."""
        self.published = 0
        """So many of the events are handed to the bus."""
        self.trace: Carrier = NEW_TRACE
        """Of the order that started it."""
        self._origin = origin
        self._ready: Ready | None = None
        self._asked: StopRequest | None = None
        self._shim: ShimProcess | None = None
        self._group: CgroupProcesses | None = None
        """Once it was asked for."""
        self._was_paused = False
        """By this runner."""
        self._is_of_this_boot: bool | None = None
        """None: not asked yet."""
        self._read_ns: int | None = None
        """When the records had changed last that are read; None: they may have changed since."""

    @property
    def over(self) -> bool:
        """Whether its end is recorded."""
        return self.end is not None

    @property
    def pid(self) -> int:
        """Of its first process while that lives; else 0."""
        return self.started.pid if self.started is not None and not self.over else 0

    @property
    def state(self) -> str:
        """What it does, until its end."""
        if self._asked is not None:
            return "stopping"
        return "starting" if self.started is None else "running"

    @property
    def unpublished(self) -> bool:
        """Whether it has events that are not handed to the bus."""
        return self.published < len(self.events)

    @property
    def preemption(self) -> Preemption:
        """How its job gives up slots."""
        return Preemption(self.intent.preemption) if self.intent is not None else Preemption.NEVER

    # -- records -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the records that are new; nothing where the directory has not changed.

        Raises:
            IllegibleRecordError: one of them was damaged.
        """
        if self.over:
            return
        changed_ns = self.files.changed_ns()
        if changed_ns is not None and changed_ns == self._read_ns:
            return
        self._read_records()
        settled = changed_ns is not None and changed_ns < time.time_ns() - _SETTLED_NS
        self._read_ns = changed_ns if settled else None

    def _read_records(self) -> None:
        ended = self.files.has(End)  # asked first: what precedes it is there then
        if self.intent is None and (intent := self.files.read(Intent)) is not None:
            if intent.preemption not in set(Preemption):
                raise IllegibleRecordError(f"{self.files.directory}: preemption {intent.preemption!r:.40} is not known")
            self.intent = intent
        self.claim = self.claim or self.files.read(Claim)
        self._asked = self.files.read(StopRequest)
        if self.started is None and (started := self.files.read(Started)) is not None:
            self.started = started
            self._add(WorkerChange.STARTED, started.time_ns)
        if self._ready is None and (ready := self.files.read(Ready)) is not None:
            self._ready = ready
            self._add(WorkerChange.READY, ready.time_ns, took_s=ready.took_s)
        if ended and (end := self.files.read(End)) is not None:
            self.end = end
            self._add_end(end)

    def facts(self) -> Facts:
        """What is known of it now.

        Raises:
            IllegibleRecordError: a record was damaged.
        """
        lives = not self.over and self._shim_lives()
        self.refresh()  # after that: a shim that is gone has written all it will
        return Facts(
            intended=self.intent is not None,
            same_boot=self._same_boot,
            shim_lives=lives,
            claimed=self.claim is not None,
            over=self.over,
            stop_asked=self._asked is not None,
            kill_asked=self._asked is not None and not self._asked.grace_s,
        )

    def _shim_lives(self) -> bool:
        if self._shim is not None and self._shim.poll() is None:
            return True
        if self.claim is not None and start_ticks(self.claim.pid) == self.claim.started_ticks:
            return True
        return is_locked(self.files.lock)

    def is_reaped(self) -> bool:
        """Whether the shim that this runner has started, if any, is gone and reaped."""
        return self._shim is None or self._shim.poll() is not None

    @property
    def shim_failure(self) -> str | None:
        """Why the shim that was started last is gone without having claimed the worker; None: it is not."""
        if self._shim is None or self.claim is not None or self.over or not self._shim.poll():
            return None
        with suppress(OSError):
            tail = self._shim_log.read_text(encoding="utf-8", errors="replace")[-MAX_REASON_CHARACTERS // 2 :]
            return f"its shim ended with {self._shim.exit_code}: {tail.strip()}"
        return f"its shim ended with {self._shim.exit_code}"

    # -- events --------------------------------------------------------------------------------------------------

    def _add(self, change: WorkerChange, time_ns: int, took_s: float = 0.0) -> None:
        self.events.append(self._event(change, time_ns, took_s=took_s))

    def _add_end(self, end: End) -> None:
        change = ending_change(
            Ending(
                self.preemption,
                end.exit_code,
                asked=bool(end.asked),
                killed=end.killed,
                error=end.error,
                lost=end.lost,
            )
        )
        self.events.append(
            self._event(
                change,
                end.time_ns,
                exit_code=end.exit_code,
                oom_kills=end.oom_kills,
                ran_s=end.ran_s,
                took_s=end.took_s,
                reason=self._reason(end, change),
            )
        )

    def _event(self, change: WorkerChange, time_ns: int, **rest: object) -> WorkEvent:
        job, attempt, rank = self.key
        names = {"job": job, "attempt": attempt, "rank": rank, **self._origin._asdict()}
        return WorkEvent.model_validate({**names, "change": change, "time_ns": time_ns, **rest})

    def _reason(self, end: End, change: WorkerChange) -> str:
        if end.error:
            return end.error[:MAX_REASON_CHARACTERS]
        words = []
        if end.asked == "fence" and self.intent is not None:
            words.append(f"stopped after {self.intent.fence_after_s:g} s without the bus")
        if end.asked == "runner":
            words.append("stopped because its runner ended")
        if end.killed and self.intent is not None and self.preemption is not Preemption.RESTART:
            words.append("killed, as it had not stopped in time")
        if end.oom_kills:
            words.append(f"the kernel killed {end.oom_kills} of its tasks at its memory limit")
        if change in (WorkerChange.FAILED, WorkerChange.UNSAVED):
            words.append(self.log_tail())
        return "; ".join(filter(None, words))[-MAX_REASON_CHARACTERS:]

    def log_tail(self) -> str:
        """The last lines that it wrote, of `MAX_REASON_CHARACTERS` at most."""
        with suppress(OSError):
            return read_log(self.files.log, -1, _TAIL_LINES, MAX_REASON_CHARACTERS).text.strip()
        return ""

    # -- actions -------------------------------------------------------------------------------------------------

    def renew(self, ordered_s: float) -> None:
        """Record that what was intended before is ordered again.

        Raises:
            OSError: it cannot be recorded.
        """
        assert self.intent is not None
        self.intent = self.intent._replace(ordered_s=ordered_s)
        self.files.write(self.intent)

    def start_shim(self) -> None:
        """Start a shim; where two run, one of them gets the worker.

        Raises:
            OSError: it cannot be started.
        """
        with self._shim_log.open("ab") as errors:
            arguments = [str(self.files.directory)]
            self._shim = ShimProcess(start_bare(SHIM, arguments, blocked=SHIM_SIGNALS, stderr=errors))

    @property
    def _shim_log(self) -> Path:
        return self.files.directory / "shim.log"

    def ask_stop(self, grace_s: float, why: str = "order") -> None:
        """Record that it has to stop, and wake its shim; a paused one goes on first.

        Args:
            grace_s: from SIGTERM to SIGKILL.
            why: as `End.asked`.

        Raises:
            OSError: it cannot be recorded.
        """
        self.thaw()
        request = StopRequest(grace_s, why)
        self.files.write(request)
        self._asked = request
        self._wake_shim()

    def _wake_shim(self) -> None:
        claim = self.claim
        if claim is not None and start_ticks(claim.pid) == claim.started_ticks:
            with suppress(ProcessLookupError):
                os.kill(claim.pid, signal.SIGUSR1)

    def pause(self, until_s: float) -> bool:
        """Stop its processes; False: it does not run, or has to stop.

        Args:
            until_s: from then on, by CLOCK_BOOTTIME, its shim lets it go on, whatever has become of this runner.

        Raises:
            OSError: that cannot be recorded, then nothing is stopped; or the kernel refuses.
        """
        if self.over or self.started is None or self._asked is not None:
            return False
        self.files.overwrite(Pause(until_s))
        self._was_paused = True
        if until_s - boot_s() < SHIM_POLL_S:  # else it reads that in time by itself
            self._wake_shim()
        self._pausing().freeze()
        return True

    def thaw(self) -> None:
        """Let it go on if it was ever paused; twice does no harm."""
        if not self.over and self.intent is not None and (self._was_paused or self.files.has(Pause)):
            with suppress(OSError):  # its shim does it in a moment
                self._pausing().thaw()

    def _pausing(self) -> WorkerPause:
        group = self._control_group()
        return WorkerPause(group, 0 if group is not None and group.has_freezer else self._session)

    @property
    def _same_boot(self) -> bool:
        """Whether its intent, if there is one, was recorded since the host was booted."""
        if self._is_of_this_boot is None and self.intent is not None:
            self._is_of_this_boot = self.intent.boot == boot_id()  # this process does not outlive the boot
        return self._is_of_this_boot is not False

    def _control_group(self) -> CgroupProcesses | None:
        if self.intent is None or self.intent.group is None or not self._same_boot:
            return None
        if self._group is None:
            self._group = CgroupProcesses(**self.intent.group)
        return self._group

    @property
    def _session(self) -> int:
        """Its first process' id while that lives; else 0."""
        started = self.started
        return started.pid if started is not None and start_ticks(started.pid) == started.started_ticks else 0

    def process_ids(self) -> list[int]:
        """All its processes, as far as they can be found."""
        group = self._control_group()
        return group.process_ids() if group is not None else session_processes(self._session)

    def declare(self, end: End) -> bool:
        """Record an end that no shim will record; False: a shim has it, or something of it does not die yet.

        Raises:
            OSError: it cannot be recorded.
            IllegibleRecordError: a record was damaged.
        """
        self.files.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = open_lock_file(self.files.lock)
        try:
            if not try_flock(lock):
                return False
            self.refresh()
            if not self.over and self._cleared():
                self.files.write(end)
                self.refresh()
        finally:
            os.close(lock)
        return self.over

    def _cleared(self) -> bool:
        """Kill what is left of it; True: that is nothing any more."""
        if self.intent is None or not self._same_boot:
            return True
        lives = self._session
        if lives:
            with suppress(ProcessLookupError):
                os.killpg(lives, signal.SIGKILL)
        group = self._control_group()
        if group is None:
            return not lives
        group.kill()
        return group.remove() and not lives

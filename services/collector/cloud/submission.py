"""A grid of jobs, submitted with bounded parallelism, so that no interruption submits a job twice.

A job's label identifies it permanently. Before anything is created, the cloud's jobs are listed; before each creation,
the intent is written to disk. A later submission (also after kill -9) creates no job that the cloud lists, and none
with a recent intent that may not be listed yet.
"""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from services.collector.cloud.cloud_jobs import CloudJob, CloudState
from services.collector.cloud.grid import JobRequest
from services.collector.cloud.ports import (
    CloudBusyError,
    CloudError,
    CloudForbiddenError,
    CloudRefusedError,
    CloudUncertainError,
    TrainingCloud,
    single,
)
from services.collector.write_ahead_log import as_journal_errors

INTENTS_NAME: Final = "intents.jsonl"
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 120.0


class Time(Protocol):
    """A clock that can wait; tests bring their own."""

    def time(self) -> float:
        """Unix time, seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Parallelism, intervals and timeout of a submission."""

    parallel: int = 8
    """Jobs that may be under way at once."""
    poll_s: float = 30.0
    visible_s: float = 30.0
    """Seconds after which a created job is in the cloud's list."""
    timeout_s: float = 3_600.0
    """Seconds without any success after which the submission ends; a later start continues it."""


@dataclass(slots=True)
class Tally:
    """Progress of a submission."""

    total: int
    found: int = 0
    """Submitted before."""
    created: int = 0
    pending: int = 0
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    ended_otherwise: int = 0
    refused: list[str] = field(default_factory=list)
    """Jobs rejected by the cloud."""


class Intents:
    """Times of creation attempts, written to disk before each. Raises `JournalError`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / INTENTS_NAME
        self.tried_s: dict[str, float] = {}
        with as_journal_errors(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            data = self._path.read_bytes()
            if data and not data.endswith(b"\n"):
                os.write(self._file, b"\n")
        for line in data.splitlines():
            try:
                entry = json.loads(line)
                self.tried_s[str(entry["job"])] = float(entry["at"])
            except (ValueError, TypeError, KeyError):
                continue  # torn by a crash before its creation

    def note(self, job: str, now_s: float) -> None:
        """Write an intent durably."""
        line = json.dumps({"job": job, "at": now_s}).encode() + b"\n"
        with as_journal_errors(self._path):
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        self.tried_s[job] = now_s

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Submission:
    """Submits the missing jobs of a list."""

    def __init__(
        self,
        cloud: TrainingCloud,
        requests: list[JobRequest],
        intents: Intents,
        pace: Pace,
        on_change: Callable[[str, Tally, CloudJob | None], None],
    ) -> None:
        """Submit with these parameters.

        Args:
            cloud: where to submit.
            requests: jobs of one grid.
            intents: of this submission's directory.
            pace: parallelism and intervals.
            on_change: called with the event (``progress``, ``created``, ``ended``, or the reason of a delay), the
                tally, and the job.
        """
        self._cloud = cloud
        self._requests = {request.plan.job: request for request in requests}
        self._intents = intents
        self._pace = pace
        self._on_change = on_change
        self._pending: deque[JobRequest] = deque()
        self._known: dict[str, CloudJob] = {}
        self._retry_s = _FIRST_RETRY_S
        self._progress_s = 0.0
        self.tally = Tally(total=len(requests))
        self.clock: Time = time

    def run(self, *, wait: bool) -> Tally:
        """Submit everything; with `wait`, return when all jobs have ended.

        Raises:
            CloudError: no rights, or nothing has worked for long; what was submitted stays submitted.
        """
        self._progress_s = self.clock.time()
        self._with_retry(self._refresh)
        self._pending = deque(request for job, request in self._requests.items() if job not in self._known)
        self.tally.found = len(self._known)
        self._say("progress")
        while self._pending or (wait and self._active()):
            room = self._pace.parallel - self._active()
            if self._pending and room > 0:
                self._with_retry(self._submit_next)
                continue
            self.clock.sleep(self._pace.poll_s)
            self._with_retry(self._refresh)
            self._say("progress")
        self._say("progress")
        return self.tally

    def _active(self) -> int:
        return sum(not job.is_finished for job in self._known.values())

    def _refresh(self) -> None:
        """List the grid's jobs in the cloud."""
        grids = {request.plan.grid for request in self._requests.values()}
        for grid in grids:
            for job in sorted(self._cloud.jobs(grid=grid), key=lambda job: -job.created_ns):
                if job.job in self._requests:
                    self._update(job)

    def _update(self, job: CloudJob) -> None:
        before = self._known.get(job.job)
        self._known[job.job] = job
        if before is not None and job.is_finished and not before.is_finished:
            self._progress_s = self.clock.time()
            self._say("ended", job)

    def _submit_next(self) -> None:
        request = self._pending[0]
        job = request.plan.job
        if (found := self._tried_before(job)) is None:
            self._intents.note(job, self.clock.time())
            try:
                found = self._cloud.create(request)
            except CloudForbiddenError:
                raise
            except CloudRefusedError as error:
                self._pending.popleft()
                self.tally.refused.append(job)
                self._say(str(error))
                return
            except CloudBusyError:
                self._intents.tried_s.pop(job, None)  # not carried out
                raise
            self.tally.created += 1
        self._pending.popleft()
        self._known[job] = found
        self._say("created", found)

    def _tried_before(self, job: str) -> CloudJob | None:
        """The job, if an earlier attempt without an answer was carried out."""
        tried_s = self._intents.tried_s.get(job)
        if tried_s is None:
            return None
        left_s = tried_s + self._pace.visible_s - self.clock.time()
        self.clock.sleep(min(max(0.0, left_s), self._pace.visible_s))  # the clock may have been set back since
        return single(self._cloud.jobs(job=job), job)

    def _with_retry(self, work: Callable[[], None]) -> None:
        """Do it once; on a busy or silent cloud, back off exponentially and refresh."""
        try:
            work()
        except CloudForbiddenError:
            raise
        except (CloudBusyError, CloudUncertainError) as error:
            holds_quota = isinstance(error, CloudBusyError) and self._active()
            if not holds_quota and self.clock.time() - self._progress_s > self._pace.timeout_s:
                raise type(error)(f"nothing has worked for {self._pace.timeout_s:.0f} s: {error}") from error
            self._say(f"again in {self._retry_s:.0f} s: {error}")
            self.clock.sleep(self._retry_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
            self._refresh_quietly()
        else:
            self._retry_s = _FIRST_RETRY_S
            self._progress_s = self.clock.time()

    def _refresh_quietly(self) -> None:
        """Refresh, ignoring errors: a finished job frees its quota."""
        try:
            self._refresh()
        except CloudError:
            return

    def _say(self, what: str, job: CloudJob | None = None) -> None:
        states = [job.state for job in self._known.values()]
        tally = self.tally
        tally.pending = len(self._pending)
        tally.waiting = states.count(CloudState.WAITING)
        tally.running = states.count(CloudState.RUNNING)
        tally.succeeded = states.count(CloudState.SUCCEEDED)
        tally.ended_otherwise = len(states) - tally.waiting - tally.running - tally.succeeded
        self._on_change(what, tally, job)

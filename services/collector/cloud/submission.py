"""A grid of jobs, submitted with bounded parallelism, so that no interruption submits a job twice.

A job's label says which it is, for ever. Before anything is created, the cloud is asked what it has; before each
creation, the intent goes to disk. Whoever comes later (we again, after kill -9) creates nothing that the cloud shows,
and nothing that was intended moments ago and may not show yet.
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
    """How fast, and how patient."""

    parallel: int = 8
    """Jobs that may be under way at once."""
    poll_s: float = 30.0
    visible_s: float = 30.0
    """Seconds after which a created job surely shows in the cloud's list."""
    give_up_s: float = 3_600.0
    """Seconds without any success after which we end; a later start goes on."""


@dataclass(slots=True)
class Tally:
    """Where a submission stands."""

    total: int
    found: int = 0
    """Were there before us."""
    created: int = 0
    pending: int = 0
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    ended_otherwise: int = 0
    refused: list[str] = field(default_factory=list)
    """Jobs that the cloud does not take."""


class Intents:
    """When each creation was tried, on disk before it is. Raises `JournalError`."""

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
                continue  # torn by a crash before the creation that it was for

    def note(self, job: str, now_s: float) -> None:
        """Note one, durably."""
        line = json.dumps({"job": job, "at": now_s}).encode() + b"\n"
        with as_journal_errors(self._path):
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        self.tried_s[job] = now_s

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Submission:
    """Submits what is missing of a list of jobs."""

    def __init__(
        self,
        cloud: TrainingCloud,
        requests: list[JobRequest],
        intents: Intents,
        pace: Pace,
        tell: Callable[[str, Tally, CloudJob | None], None],
    ) -> None:
        """Remember what to do.

        Args:
            cloud: where to submit.
            requests: what is wanted, of one grid.
            intents: of this submission's directory.
            pace: how fast.
            tell: called with what happened (``progress``, ``created``, ``ended``, or why nothing happens), the
                standing, and the job that it is about.
        """
        self._cloud = cloud
        self._requests = {request.plan.job: request for request in requests}
        self._intents = intents
        self._pace = pace
        self._tell = tell
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
        self._patiently(self._refresh)
        self._pending = deque(request for job, request in self._requests.items() if job not in self._known)
        self.tally.found = len(self._known)
        self._say("progress")
        while self._pending or (wait and self._active()):
            room = self._pace.parallel - self._active()
            if self._pending and room > 0:
                self._patiently(self._submit_next)
                continue
            self.clock.sleep(self._pace.poll_s)
            self._patiently(self._refresh)
            self._say("progress")
        self._say("progress")
        return self.tally

    def _active(self) -> int:
        return sum(not job.is_finished for job in self._known.values())

    def _refresh(self) -> None:
        """Ask what the cloud has of ours."""
        grids = {request.plan.grid for request in self._requests.values()}
        for grid in grids:
            for job in sorted(self._cloud.jobs(grid=grid), key=lambda job: -job.created_ns):
                if job.job in self._requests:
                    self._learn(job)

    def _learn(self, job: CloudJob) -> None:
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
                self._intents.tried_s.pop(job, None)  # surely not done
                raise
            self.tally.created += 1
        self._pending.popleft()
        self._known[job] = found
        self._say("created", found)

    def _tried_before(self, job: str) -> CloudJob | None:
        """The job, where an earlier try that nobody answered was carried out all the same."""
        tried_s = self._intents.tried_s.get(job)
        if tried_s is None:
            return None
        left_s = tried_s + self._pace.visible_s - self.clock.time()
        self.clock.sleep(min(max(0.0, left_s), self._pace.visible_s))  # the clock may have been set back since
        return single(self._cloud.jobs(job=job), job)

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do it once; where the cloud is busy or silent, wait a little longer each time, and look again."""
        try:
            work()
        except CloudForbiddenError:
            raise
        except (CloudBusyError, CloudUncertainError) as error:
            holds_quota = isinstance(error, CloudBusyError) and self._active()
            if not holds_quota and self.clock.time() - self._progress_s > self._pace.give_up_s:
                raise type(error)(f"nothing has worked for {self._pace.give_up_s:.0f} s: {error}") from error
            self._say(f"again in {self._retry_s:.0f} s: {error}")
            self.clock.sleep(self._retry_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
            self._look_meanwhile()
        else:
            self._retry_s = _FIRST_RETRY_S
            self._progress_s = self.clock.time()

    def _look_meanwhile(self) -> None:
        """A quota is free again when a job has ended."""
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
        self._tell(what, tally, job)

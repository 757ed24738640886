"""Reads workers' output from the runners of their nodes, attempt after attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from schemas.scheduling import (
    JobExplainReply,
    JobExplainRequest,
    JobSpan,
    QueuedJob,
    WorkerLogReply,
    WorkerLogRequest,
)
from schemas.services.scheduler import SCHEDULER_EXPLAIN
from schemas.subjects import WORKER_LOGS
from services._runtime.bus.api import Bus, RequestRefusedError
from services._runtime.command.connection import QUERY_TIMEOUT_S, await_reply, connected, find_server
from services._runtime.command.errors import CommandError
from services._runtime.command.output import print_json, print_line, print_note
from services.scheduler.commands.asking import LIVE, ask
from services.scheduler.commands.queue_view import placed
from services.scheduler.commands.waiting import ask_patiently

EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class LogChoice:
    """Which output is wanted."""

    job: str
    worker: int | None
    """Rank; None: all."""
    attempt: int | None
    """None: the latest."""
    lines: int
    """The last ones, to begin with."""
    follow: bool
    as_json: bool


@dataclass(slots=True)
class _Worker:
    """How far one worker's output in one attempt has been read."""

    attempt: int
    rank: int
    node: str
    offset: int = -1
    """-1: the last lines come first."""
    rest: str = ""
    """A line that is not complete yet."""
    done: bool = False

    def take(self, reply: WorkerLogReply) -> Iterator[str]:
        """The lines that are complete now."""
        if self.offset >= 0 and reply.next_offset < self.offset:  # the runner has dropped what is older
            self.rest = ""
        self.offset = reply.next_offset
        self.done = reply.over and not reply.text
        *complete, self.rest = (self.rest + reply.text).split("\n")
        yield from complete


@dataclass(slots=True)
class LogReader:
    """Reads and prints what workers write, attempt after attempt."""

    bus: Bus
    choice: LogChoice
    is_prefixed: bool = False
    lines: int = 0
    """So many were printed."""
    workers: dict[tuple[int, int], _Worker] = field(default_factory=dict)

    def open(self, span: JobSpan, *, is_first: bool) -> None:
        """Begin with an attempt's workers: the first with its last lines, a later one from its start."""
        ranks = range(len(span.nodes)) if self.choice.worker is None else [self.choice.worker]
        self.is_prefixed = len(ranks) > 1
        for rank in ranks:
            worker = _Worker(span.attempt, rank, span.nodes[rank], -1 if is_first else 0)
            self.workers[span.attempt, rank] = worker
        if not is_first:
            print_note(f"attempt {span.attempt} on {placed(span.nodes)}")

    async def read(self, worker: _Worker) -> bool:
        """Print what is new of a worker; returns whether there was something."""
        request = WorkerLogRequest(
            job=self.choice.job,
            attempt=worker.attempt,
            rank=worker.rank,
            offset=worker.offset,
            lines=self.choice.lines,
        )
        subject = WORKER_LOGS.subject(self.bus.root, node=worker.node)
        try:
            reply = await await_reply(
                f"runner of {worker.node}",
                self.bus.request(subject, request, timeout_s=QUERY_TIMEOUT_S),
                WorkerLogReply,
                starts="`turnbuckle run runner` on that host starts one",
            )
        except CommandError as error:
            if self._may_come(worker, error):
                return False
            raise
        for line in worker.take(reply):
            self._print(worker, line)
        if worker.done:
            self._finish(worker)
        return bool(reply.text)

    def _may_come(self, worker: _Worker, error: CommandError) -> bool:
        """Whether it is followed and its runner does not know it yet: it is ordered a moment after the decision."""
        refused = error.__cause__
        unknown = isinstance(refused, RequestRefusedError) and refused.code == HTTPStatus.NOT_FOUND
        return self.choice.follow and unknown and worker.offset <= 0

    def finish(self) -> None:
        """Print what has no end of a line, too."""
        for worker in self.workers.values():
            self._finish(worker)

    def _finish(self, worker: _Worker) -> None:
        if worker.rest:
            self._print(worker, worker.rest)
        worker.rest = ""

    def _print(self, worker: _Worker, line: str) -> None:
        self.lines += 1
        if self.choice.as_json:
            print_json({"worker": worker.rank, "attempt": worker.attempt, "line": line}, indent=None)
        else:
            print_line(f"{worker.rank}| {line}" if self.is_prefixed else line)


async def read_logs(choice: LogChoice, where: tuple[str | None, str | None]) -> None:
    """Print what is there, or follow it until the job's end.

    Raises:
        CommandError: no such job, worker or attempt; or it was not started yet, and is not followed.
        UnavailableError: no scheduler answers, or a runner does not.
    """
    async with connected(find_server(*where)) as bus:
        reader = LogReader(bus, choice)
        job = (await ask(bus, SCHEDULER_EXPLAIN, JobExplainRequest(job=choice.job), JobExplainReply)).job
        _check(choice, job)
        while True:
            _open_attempts(reader, job)
            is_live, read = job.phase in LIVE, False
            for worker in [worker for worker in reader.workers.values() if not worker.done]:
                read = await reader.read(worker) or read
            if not choice.follow or (not is_live and not read):
                break
            if not read:
                await asyncio.sleep(EVERY_S)
                job = (await ask_patiently(bus, choice.job)).job
        reader.finish()
        if not reader.lines and job.phase not in LIVE:
            print_note(f"{job.job} wrote nothing{f': {job.why}' if job.why else ''}")


def _check(choice: LogChoice, job: QueuedJob) -> None:
    if choice.worker is not None and choice.worker >= job.workers:
        raise CommandError(f"{job.job} has no worker {choice.worker}: its workers are 0 to {job.workers - 1}")
    if choice.follow:
        return
    if not job.spans:
        raise CommandError(f"{job.job} was not started yet ({job.phase}): -f waits for it")
    known = [span.attempt for span in job.spans]
    if choice.attempt is not None and choice.attempt not in known:
        raise CommandError(f"{job.job} has no attempt {choice.attempt}: known are {', '.join(map(str, known))}")


def _open_attempts(reader: LogReader, job: QueuedJob) -> None:
    """Begin with attempts that are new: the chosen one, or the latest, and when following all after it."""
    chosen = reader.choice.attempt
    spans = [span for span in job.spans if chosen in {None, span.attempt}]
    if not reader.workers:
        spans = spans[-1:]
    begun = {attempt for attempt, _ in reader.workers}
    for span in spans:
        if span.attempt not in begun and span.attempt > max(begun, default=0):
            reader.open(span, is_first=not begun)

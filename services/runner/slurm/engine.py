"""Orders carried out, and Slurm's queue and the workers' notes reported as events. One job at a time is changed."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from shlex import quote
from typing import Final, Protocol

from schemas.scheduling import (
    OrderAction,
    WorkerChange,
    WorkerState,
    WorkOrder,
    WorkReply,
)
from services.runner.slurm.commands import (
    INHERITED,
    SlurmError,
    SlurmUnavailableError,
    environment_descriptor,
)
from services.runner.slurm.core import scripts
from services.runner.slurm.core.attempt import Attempt, changes, not_begun
from services.runner.slurm.core.digests import digest_run, digest_spec, find_flaw
from services.runner.slurm.core.layout import shape
from services.runner.slurm.core.output import SlurmJob, SlurmOutputError, Where, parse_jobs, where_is
from services.runner.slurm.core.steps import (
    NO_LINEAGE,
    Lineage,
    Refusal,
    Step,
    held_by,
    select,
    start,
    superfluous,
    tend,
)
from services.runner.slurm.files import JobRecord, SharedFiles, UnreadableStateError
from services.runner.slurm.reporter import Reported, Reporter, short

_FRESH_S: Final = 1.0
"""So old a view of the queue may be when an order is carried out."""
_TERM_AGAIN_S: Final = 10.0
RENEWED_AFTER_S: Final = 1.0
"""Since a job was seen to be held, before it is released: a node takes no credential of the second in which it gave up
the job before ("Job credential revoked", the job has failed then), as Slurm counts in whole seconds."""
_NEVER: Final = float("-inf")
_NOT_PACED: Final = "jobs in a Slurm cluster are not paced"
_NOT_BEGUN: Final = frozenset({Where.GONE, Where.HELD, Where.WAITING})

_UNKNOWN: Final = {
    OrderAction.CHECK: WorkerChange.LOST,
    OrderAction.STOP: WorkerChange.STOPPED,
    OrderAction.KILL: WorkerChange.STOPPED,
}
"""What is true of an attempt that was never ordered here, by what is asked about it."""


class Shell(Protocol):
    """Runs Slurm's commands."""

    async def __call__(
        self, command: tuple[str, ...], descriptors: tuple[int, ...] = (), extra: dict[str, str] | None = None
    ) -> str:
        """Output of a command.

        Raises:
            SlurmError: it failed.
        """


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """From the settings."""

    user: str
    settle_s: float = 5.0
    held_s: float = 7 * 86_400.0
    log_s: float = 7 * 86_400.0
    renewed_after_s: float = RENEWED_AFTER_S


class Engine:
    """All training jobs in Slurm. `poll` has to be called now and then, and before the first order."""

    def __init__(self, options: EngineOptions, files: SharedFiles, shell: Shell, reporter: Reporter) -> None:
        self.cluster = scripts.Cluster()
        self.away = "Slurm's queue was not read yet"
        """Why no order can be obeyed now; empty: they can."""
        self._options = options
        self._files = files
        self._shell = shell
        self._reporter = reporter
        self._clock = reporter.clock
        self._log = reporter.log
        self._queue: tuple[SlurmJob, ...] = ()
        self._read_s = _NEVER
        self._held_since_s: dict[int, float] = {}
        """When (monotonic) Slurm's jobs that are held were seen to be it first, by their ids."""
        self._names: set[str] = set()
        self._commands = 0
        """Begun or ended so far: what was read before the last one may be old."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reading = asyncio.Lock()

    @property
    def live_jobs(self) -> int:
        """Jobs with an attempt whose end was not reported yet."""
        return self._reporter.live_jobs

    async def open(self) -> None:
        """Make the directory, and find the jobs that were ordered before.

        Raises:
            OSError: it cannot be used.
        """
        await asyncio.to_thread(self._files.make_root)
        self._names = await asyncio.to_thread(self._files.jobs)

    # -- the queue -------------------------------------------------------------------------------------------------

    async def poll(self) -> None:
        """Read the queue, take the steps that follow, and report what is new."""
        try:
            await self._read_queue(0.0)
        except SlurmError:
            return  # `away` says it, and everything waits
        for job in sorted(self._names):
            async with self._locks[job]:
                await self._tend_safely(job)

    async def _tend_safely(self, job: str) -> None:
        try:
            await self._tend(job)
        except (SlurmError, UnreadableStateError, OSError) as error:
            self._log.warning("job_not_tended", job=job, error=str(error))

    async def _read_queue(self, fresh_s: float) -> tuple[SlurmJob, ...]:
        """The queue, not older than this.

        Raises:
            SlurmError: it cannot be read.
        """
        async with self._reading:
            asked_s, commands = self._clock.monotonic(), self._commands
            if asked_s - self._read_s <= fresh_s:
                return self._queue
            try:
                self._queue = parse_jobs(await self._shell(scripts.list_jobs(self._options.user)))
            except SlurmOutputError as error:
                self._lose(str(error))
                raise SlurmError(str(error)) from error
            except SlurmError as error:
                self._lose(str(error))
                raise
            now_s = self._clock.monotonic()
            held = [job.job_id for job in self._queue if job.where is Where.HELD]
            self._held_since_s = {number: self._held_since_s.get(number, now_s) for number in held}
            if self.away:
                self._log.info("slurm_answers", jobs=len(self._queue))
            self.away = ""
            self._read_s = asked_s if commands == self._commands else _NEVER
            return self._queue

    def _lose(self, reason: str) -> None:
        if not self.away:
            self._log.warning("slurm_does_not_answer", error=reason)
        self.away = reason

    async def _command(
        self, command: tuple[str, ...], descriptors: tuple[int, ...] = (), extra: dict[str, str] | None = None
    ) -> str:
        """Run a command that changes the queue.

        Raises:
            SlurmError: it failed.
        """
        self._commands, self._read_s = self._commands + 1, _NEVER
        try:
            return await self._shell(command, descriptors, extra)
        except SlurmUnavailableError as error:
            self._lose(str(error))
            raise
        finally:
            self._commands, self._read_s = self._commands + 1, _NEVER

    # -- orders ----------------------------------------------------------------------------------------------------

    async def obey(self, order: WorkOrder, node: str) -> WorkReply:
        """Carry out an order to a node; what is true then of its workers."""
        if order.action is OrderAction.PACE:
            return WorkReply(obeyed=order.pace is None, reason="" if order.pace is None else _NOT_PACED)
        if self.away:
            return WorkReply(obeyed=False, reason=short(f"Slurm does not answer: {self.away}"))
        async with self._locks[order.job]:
            try:
                refused = await self._obey(order, node)
            except SlurmError as error:
                refused = str(error)
            except (UnreadableStateError, OSError) as error:
                refused = f"nothing can be recorded: {error}"
        last = self._reporter.last(order.job, order.attempt)
        workers = tuple(WorkerState(rank=rank, last=last.get(rank)) for rank in order.ranks)
        return WorkReply(obeyed=not refused, workers=workers, reason=short(refused))

    async def _obey(self, order: WorkOrder, node: str) -> str:
        """Why it was refused; empty: it was obeyed."""
        record = await asyncio.to_thread(self._files.record, order.job)
        if order.sequence < record.sequence:
            return f"an order of sequence {record.sequence} was obeyed before"
        if order.sequence > record.sequence:
            record = replace(record, sequence=order.sequence)
            await self._remember(order.job, record)
        if order.action is OrderAction.RUN:
            if order.spec is None or not order.nodes:
                return "an order to run names neither spec nor nodes"
            if flaw := find_flaw(order, gpus=self.cluster.gpus_are_slots):
                self._reporter.report_unknown(order, node, WorkerChange.FAILED, flaw)
                return ""
            refused = await self._run(order, record)
        else:
            attempt = await asyncio.to_thread(self._files.attempt, order.job, order.attempt)
            if attempt is None or record.attempt != order.attempt:
                if order.action is OrderAction.KILL and record.attempt == order.attempt:
                    # It was forgotten once it had stopped, and does not start again.
                    await self._cancel(held_by(await self._read_queue(_FRESH_S), order.job, order.attempt))
                if (change := _UNKNOWN.get(order.action)) is not None:
                    self._reporter.report_unknown(order, node, change, "nothing is known of this attempt here")
                return ""
            refused = await self._change(order, attempt)
        if not refused:
            await self._tend_safely(order.job)  # what is wanted is noted: `poll` goes on with it
        return refused

    async def _change(self, order: WorkOrder, attempt: Attempt) -> str:
        """Note what is wanted of an attempt that is known; `_tend` does it."""
        files, job = self._files, order.job
        if order.action is OrderAction.STOP:
            await asyncio.to_thread(files.ask_stop, job, order.attempt, self._clock.time_ns() / 1e9)
        elif order.action is OrderAction.KILL:
            await asyncio.to_thread(files.ask_kill, job, order.attempt)
        elif order.action is OrderAction.CHECK:
            self._reporter.reported(attempt).checked = True
        elif order.action is OrderAction.FORGET:
            mine = await self._find(job, order.attempt)
            if where_is(mine) in {Where.ACTIVE, Where.WAITING}:
                return f"it is still in Slurm's hands (job {mine.job_id}, {mine.state})" if mine else ""
            await asyncio.to_thread(files.forget, job, order.attempt)
            record = await asyncio.to_thread(files.record, job)
            await self._remember(job, replace(record, run=""))
        return ""

    async def _run(self, order: WorkOrder, record: JobRecord) -> str:
        """Begin an attempt, unless that was done; why not, where it is refused."""
        assert order.spec is not None
        wanted, run = Lineage("", digest_spec(order.spec), shape(order.nodes)), digest_run(order)
        repeated = (record.attempt, record.run) == (order.attempt, run)
        # A smaller number, or another order of the same one: a new job has an old one's name.
        known = record.lineage if repeated or order.attempt > record.attempt else NO_LINEAGE
        attempt = await asyncio.to_thread(self._files.attempt, order.job, order.attempt) if repeated else None
        if attempt is None:
            repeated, attempt = False, not_begun(order)
        job = select(await self._read_queue(_FRESH_S), order.job, known.name)
        step = start(attempt, job, known, wanted)
        if isinstance(step, Refusal):
            return step.reason
        if step is None:
            return ""
        if not repeated:
            self._reporter.forget(order.job)
            await asyncio.to_thread(self._files.prepare, order, self.cluster, _slurm_exports())
        lineage = replace(wanted, name=known.name if step is Step.RENEW else secrets.token_hex(4))
        await self._remember(order.job, JobRecord(order.sequence, order.attempt, run, lineage))
        if step is Step.SUBMIT:
            await self._submit(order, lineage.name)
        elif job is not None:
            held_s = self._held_since_s.get(job.job_id, self._clock.monotonic())
            await self._clock.sleep_until(held_s + self._options.renewed_after_s)
            for command in scripts.renew(job, order):
                await self._command(command)
        return ""

    async def _submit(self, order: WorkOrder, lineage: str) -> None:
        assert order.spec is not None
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        paths = self._files.paths(order.job, order.attempt)
        descriptor = environment_descriptor(inherited | order.spec.environment)
        command = scripts.submit(order, lineage, self.cluster, paths, descriptor)
        try:
            said = await self._command(command, (descriptor,), {"SLURM_HOSTFILE": f"{paths.attempt}/allocation"})
        except SlurmUnavailableError:
            raise
        except SlurmError as error:
            await asyncio.to_thread(self._files.note_refusal, order.job, order.attempt, short(str(error)))
            return
        finally:
            os.close(descriptor)
        self._log.info("job_submitted", job=order.job, attempt=order.attempt, slurm_job=said.strip())

    async def _remember(self, job: str, record: JobRecord) -> None:
        self._names.add(job)
        await asyncio.to_thread(self._files.remember, job, record)

    # -- what follows ----------------------------------------------------------------------------------------------

    async def _find(self, job: str, attempt: int) -> SlurmJob | None:
        """Slurm's job of an attempt."""
        record = await asyncio.to_thread(self._files.record, job)
        found = select(await self._read_queue(_FRESH_S), job, record.lineage.name)
        return found if found is not None and found.attempt == attempt else None

    async def _tend(self, job: str) -> None:
        """Take the next step of a job's latest attempt, and report what is new about it."""
        record = await asyncio.to_thread(self._files.record, job)
        chosen = select(await self._read_queue(_FRESH_S), job, record.lineage.name)
        if record.lineage.name:
            await self._cancel(superfluous(self._queue, chosen, job))
        over = self._reporter.is_over(job, record.attempt)
        if not record.run or (over and where_is(chosen) in {Where.GONE, Where.FINISHED}):
            return
        attempt = await asyncio.to_thread(self._files.attempt, job, record.attempt)
        if attempt is not None and attempt.begun and not over and where_is(chosen) in _NOT_BEGUN:
            # It may have begun since the queue was read: only what the queue says from now on counts.
            chosen = select(await self._read_queue(0.0), job, record.lineage.name)
            attempt = await asyncio.to_thread(self._files.attempt, job, record.attempt)
        if attempt is not None:
            await self._follow(attempt, chosen)

    async def _follow(self, attempt: Attempt, chosen: SlurmJob | None) -> None:
        reported = self._reporter.reported(attempt)
        attempt = replace(attempt, checked=reported.checked)
        mine = chosen if chosen is not None and chosen.attempt == attempt.attempt else None
        step = tend(attempt, mine, self._clock.time_ns() / 1e9)
        if step is not None and mine is not None:
            await self._take(step, mine, reported)
        for change in changes(attempt, mine, settled=self._settled(reported, attempt, mine)):
            self._reporter.report(reported, attempt.nodes[change.rank], change)

    async def _cancel(self, jobs: Iterable[SlurmJob]) -> None:
        for each in jobs:
            self._log.info("superfluous_job_cancelled", job=each.job, slurm_job=each.job_id)
            await self._command(scripts.cancel(each))

    async def _take(self, step: Step, job: SlurmJob, reported: Reported) -> None:
        now_s = self._clock.monotonic()
        if step is Step.TERM:
            if now_s < reported.term_again_s:
                return
            reported.term_again_s = now_s + _TERM_AGAIN_S
        self._log.info("step", job=job.job, attempt=job.attempt, slurm_job=job.job_id, step=step.value)
        commands = {
            Step.TERM: scripts.terminate,
            Step.REQUEUE: scripts.requeue,
            Step.HOLD: scripts.hold,
            Step.CANCEL: scripts.cancel,
        }
        await self._command(commands[step](job))

    def _settled(self, reported: Reported, attempt: Attempt, job: SlurmJob | None) -> bool:
        """Whether the shared directory shows all that workers wrote before their job ended."""
        if not attempt.begun or where_is(job) is Where.ACTIVE:
            reported.settles_s = None
            return True
        now_s = self._clock.monotonic()
        if reported.settles_s is None:
            reported.settles_s = now_s + self._options.settle_s
        return now_s >= reported.settles_s

    # -- what is left over -------------------------------------------------------------------------------------------

    async def tidy(self) -> None:
        """Remove old logs; cancel held jobs that were not started again; forget what is gone from everywhere."""
        for job in sorted(self._names):
            async with self._locks[job]:
                await self._tidy(job)
        await asyncio.to_thread(self._files.remove_old, self._options.log_s, frozenset(self._names))

    async def _tidy(self, job: str) -> None:
        try:
            record = await asyncio.to_thread(self._files.record, job)
            held = [each for each in await self._read_queue(_FRESH_S) if each.job == job and each.where is Where.HELD]
            if not record.run and held and await asyncio.to_thread(self._files.age_s, job) > self._options.held_s:
                await self._cancel(held)
            elif not record.run and not held:
                self._names.discard(job)
                self._reporter.forget(job)
        except (SlurmError, UnreadableStateError, OSError) as error:
            self._log.warning("job_not_tidied", job=job, error=str(error))


def _slurm_exports() -> tuple[str, ...]:
    """What the batch script needs to find Slurm's commands and settings."""
    return tuple(f"{name}={quote(os.environ[name])}" for name in ("SLURM_CONF",) if name in os.environ)

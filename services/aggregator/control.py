"""Which aggregator has which job: starts aggregators, places jobs, moves their ranges, notices what has died.

One operation at a time: what decides (`core.packing`) sees what the operations before have done. What takes long is no
operation: an aggregator's start, and the transfer of a job's ranges, during which that job alone is on its way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter as Count
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from schemas.aggregations import (
    AggregatedRange,
    Aggregation,
    AggregationChange,
    AggregationEndReply,
    AggregationEndRequest,
    AggregationOptimizer,
    AggregationReply,
    AggregationRequest,
    OptimizerKind,
)
from services._runtime.bus.api import BusError, RequestRefusedError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import LogLimiter, log_once
from services._runtime.telemetry.telemetry import Counter
from services._runtime.telemetry.tracing import span
from services.aggregator.aggregator_process import AggregatorPort, CommandRefusedError, ProcessLostError
from services.aggregator.assignments import Assignments, LeadLostError
from services.aggregator.core.memory import most_bytes
from services.aggregator.core.packing import JobLoad, Move, Packing, Placed, end, place, rebalance
from services.aggregator.core.ranges import cut
from services.aggregator.core.requests import Action, Refusal, decide, digest, has_claim, next_version
from services.aggregator.settings import AggregatorSettings

POLL_S: Final = 1.0
"""Between two checks of what has died, and of what jobs take."""
TRANSFER_S: Final = 180.0
"""For one range to its next owner; longer than that one waits for the acknowledgement."""
MOVE_ATTEMPTS: Final = 3
_FORGOTTEN_AFTER_NS: Final = 7 * 86_400 * 10**9
"""Since a job was lost and not placed again: then its name is free."""
_LOG_EVERY_S: Final = 60.0
_MOST_REASON: Final = 800
"""Characters of a reason, with room for a sentence behind it."""
_KEY_BYTES: Final = 32
_UNAVAILABLE: Final = 503

StartProcess = Callable[[str, int], Awaitable[AggregatorPort]]
"""Of the address to listen on, and the memory in bytes; raises `ProcessLostError`."""


@dataclass(slots=True)
class _Live:
    """A job whose ranges are on an aggregator."""

    record: Aggregation
    worker_key: str
    aggregator_key: str
    progress_s: float
    """When a step was last seen to be finished."""
    finished: int = -1

    @property
    def most_bytes(self) -> int:
        return most_bytes(self.record.ranks, self.record.optimizer.vectors, self.record.values)


@dataclass(slots=True)
class _Aggregator:
    process: AggregatorPort
    hosted: set[str] = field(default_factory=set)
    """Jobs that it knows: also those that have moved away, until each rank has followed."""
    left: dict[str, int] = field(default_factory=dict)
    """Of those, the step that was finished when they moved: in the next one every rank pushes to the new owner."""


@dataclass(slots=True)
class _Moving:
    """A job on its way to where the packing has it already."""

    source: int
    since_s: float
    has_begun: bool = False
    """The next owner expects its ranges: where either dies from here on, the job is lost."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the service was started, however often it has led."""

    moves: Counter
    losses: Counter


class Control:
    """All jobs and aggregators of the instance that leads."""

    def __init__(
        self,
        runtime: Runtime[AggregatorSettings],
        assignments: Assignments,
        start_process: StartProcess,
        counters: Counters,
    ) -> None:
        clock = runtime.clock
        self._settings = runtime.settings
        self._assignments = assignments
        self._start_process = start_process
        self._clock = clock
        self._log = runtime.log
        self._packing = Packing({})
        self._live: dict[str, _Live] = {}
        self._aggregators: dict[int, _Aggregator] = {}
        self._moving: dict[str, _Moving] = {}
        self._transfers: set[asyncio.Task[None]] = set()
        """Also of jobs that are on their way no more: each finds that out."""
        self._starting: dict[int, asyncio.Task[_Aggregator]] = {}
        self._wanted: Count[int] = Count()
        """Who waits for an aggregator's start, to place a job on it: it has none until then."""
        self._polling: asyncio.Task[None] | None = None
        self._operation = asyncio.Lock()
        self._limiter = LogLimiter()
        self._closed = False
        self._rebalanced_s = clock.monotonic()
        self._moves, self._losses = counters.moves, counters.losses

    @property
    def jobs(self) -> int:
        """That are on an aggregator."""
        return len(self._live)

    @property
    def aggregators(self) -> int:
        """Processes that run."""
        return len(self._aggregators)

    # -- requests --------------------------------------------------------------------------------------------------

    async def place(self, request: AggregationRequest) -> AggregationReply:
        """Where a job is aggregated, and its key.

        Raises:
            RequestRefusedError: it is not, and why.
            LeadLostError: another instance leads.
        """
        with span("aggregator.place", turnbuckle__job=request.job), self._waiting() as wanted:
            while True:
                async with self._operation:
                    self._check_open()
                    number = await self._place_or_wait(request)
                    if number is None:
                        return self._reply(request)
                    wanted(number)
                try:
                    await self._started(number)
                except ProcessLostError as error:
                    raise RequestRefusedError(_UNAVAILABLE, f"{request.job} cannot be placed: {error}") from error

    def _reply(self, request: AggregationRequest) -> AggregationReply:
        live = self._live[request.job]
        return AggregationReply(
            job=request.job, attempt=request.attempt, key=live.worker_key, ranges=live.record.ranges
        )

    async def _place_or_wait(self, request: AggregationRequest) -> int | None:
        """Place the job where it is not placed; or the aggregator that has to be started for it first."""
        action = decide(self._assignments.get(request.job), request)
        if isinstance(action, Refusal):
            raise RequestRefusedError(action.code, action.reason)
        if action is Action.ANSWER:
            return None
        packing, placed = self._chosen(request)
        if placed.aggregator not in self._aggregators:
            return placed.aggregator
        await self._place(request, packing, placed)
        return None

    @contextmanager
    def _waiting(self) -> Iterator[Callable[[int], None]]:
        """Within it, aggregators that it is called with are kept though they have no job."""
        wanted: list[int] = []

        def want(number: int) -> None:
            wanted.append(number)
            self._wanted[number] += 1

        try:
            yield want
        finally:
            self._wanted.subtract(wanted)

    async def end(self, request: AggregationEndRequest) -> AggregationEndReply:
        """Free a job's ranges.

        Raises:
            RequestRefusedError: the claim is another, or its entry cannot be removed now.
            LeadLostError: another instance leads.
        """
        async with self._operation:
            self._check_open()
            known = self._assignments.get(request.job)
            if known is None:
                return AggregationEndReply(known=False)
            if not has_claim(known, request.claim):
                raise RequestRefusedError(403, f"the job {request.job} was placed with another claim")
            try:
                await self._end(known, "its workers have said so")
            except BusError as error:
                raise RequestRefusedError(_UNAVAILABLE, f"ask again: {error}") from error
            return AggregationEndReply(known=True)

    def _check_open(self) -> None:
        if self._closed:
            raise RequestRefusedError(_UNAVAILABLE, "this instance does not lead any more: ask again")

    def _chosen(self, request: AggregationRequest) -> tuple[Packing, Placed]:
        """An aggregator for the job, and all jobs with it there.

        Raises:
            RequestRefusedError: there is none.
        """
        settings = self._settings
        needed = most_bytes(request.ranks, request.optimizer.vectors, request.values)
        if needed > settings.memory_bytes:
            raise RequestRefusedError(
                413,
                f"{request.job} may take {needed} bytes on its aggregator, which has {settings.memory_bytes:d}: "
                "more of TURNBUCKLE_AGGREGATOR__MEMORY_BYTES, fewer ranks or values",
            )
        if request.job not in self._live and len(self._live) >= settings.max_jobs:
            raise RequestRefusedError(_UNAVAILABLE, f"{settings.max_jobs} jobs are aggregated: ask again later")
        before = self._packing.without_job(request.job) if request.job in self._live else self._packing

        def is_full(number: int) -> bool:
            return self._used_bytes(number, but=request.job) + needed > settings.memory_bytes

        full = {number for number in before.jobs if is_full(number)}
        packing, placed = place(before, JobLoad.unmeasured(request.job), settings.loss_limit, full)
        if placed.aggregator >= settings.most_processes or is_full(placed.aggregator):
            raise RequestRefusedError(
                _UNAVAILABLE,
                f"{request.job} cannot be placed: no aggregator has room, and all {settings.most_processes} are at "
                "work: ask again later",
            )
        return packing, placed

    async def _place(self, request: AggregationRequest, packing: Packing, placed: Placed) -> None:
        known = self._assignments.get(request.job)
        if request.job in self._live:
            await self._free(request.job)
        try:
            await self._host(request, known, placed.aggregator)
        except (CommandRefusedError, ProcessLostError, BusError) as error:
            await self._not_placed(request, known, placed, error)
        self._packing = packing
        record = self._live[request.job].record
        change = AggregationChange.RESTORED if known is not None and known.lost else AggregationChange.PLACED
        self._assignments.publish(change, record, _placed_reason(placed, known), bit_identical=known is None)
        self._log.info("job_placed", job=record.job, attempt=record.attempt, aggregator=placed.aggregator)

    async def _host(self, request: AggregationRequest, known: Aggregation | None, number: int) -> None:
        """Ranges on an aggregator, then in the bucket: an answer is given for what is stored only."""
        aggregator = self._aggregators[number]
        version = next_version(known)
        bounds = cut(request.values, self._settings.range_values)
        address = aggregator.process.address
        record = Aggregation(
            job=request.job,
            attempt=request.attempt,
            claim_sha256=digest(request.claim),
            ranks=request.ranks,
            values=request.values,
            optimizer=request.optimizer,
            ranges=tuple(AggregatedRange(first=a, last=b, version=version, address=address) for a, b in bounds),
            incarnation=0,
            time_ns=0,
        )
        keys = secrets.token_hex(_KEY_BYTES), secrets.token_hex(_KEY_BYTES)
        live = _Live(record, *keys, self._clock.monotonic())
        await self._introduce(number, live)
        for index, (first, last) in enumerate(bounds):
            await self._ask(number, "add", job=request.job, range=index, values=last - first, version=version)
        self._live[request.job] = live
        await self._assignments.store(record)

    async def _not_placed(
        self, request: AggregationRequest, known: Aggregation | None, placed: Placed, error: Exception
    ) -> NoReturn:
        """Undo what was done, and refuse."""
        self._live.pop(request.job, None)
        self._check_open()
        await self._forget_everywhere(request.job)
        if (stored := self._assignments.get(request.job)) is not None and not stored.lost:
            freed = f"its ranges were freed for attempt {request.attempt}, which" if stored is known else "it"
            await self._lose(stored, f"{freed} could not be placed: {error}")
        if isinstance(error, ProcessLostError):
            await self._lose_aggregator(placed.aggregator, str(error))
        attempt = f"attempt {known.attempt} is freed; " if known is not None and not known.lost else ""
        raise RequestRefusedError(_UNAVAILABLE, f"{attempt}{request.job} cannot be placed: {error}") from error

    def _used_bytes(self, number: int, but: str = "") -> int:
        """Of an aggregator's jobs, with those that are on their way to or from it; of all but one."""
        here = {load.job for load in self._packing.jobs.get(number, ())}
        here |= {job for job, moving in self._moving.items() if moving.source == number}
        return sum(self._live[job].most_bytes for job in here - {but})

    async def _free(self, job: str) -> None:
        """Take a job off its aggregator."""
        del self._live[job]
        self._moving.pop(job, None)
        self._packing = self._packing.without_job(job)
        await self._forget_everywhere(job)

    async def _end(self, known: Aggregation, reason: str) -> None:
        await self._assignments.remove(known.job)
        if known.job in self._live:
            before = self._packing
            _, moves = end(before, known.job, self._settings.loss_limit)
            await self._free(known.job)
            self._carry_out(moves)
        self._assignments.publish(AggregationChange.ENDED, known, reason)
        self._log.info("job_ended", job=known.job, attempt=known.attempt, reason=reason)

    # -- aggregators -----------------------------------------------------------------------------------------------

    async def _started(self, number: int) -> _Aggregator:
        """The aggregator, started where it does not run: no operation, as it takes seconds.

        Raises:
            ProcessLostError: it cannot be started.
        """
        if self._closed:
            raise ProcessLostError("this instance does not lead any more")
        if number in self._aggregators:
            return self._aggregators[number]
        if number not in self._starting:
            self._starting[number] = asyncio.get_running_loop().create_task(self._start(number))
        starting = self._starting[number]
        await asyncio.wait({starting})
        if starting.cancelled():
            raise ProcessLostError("this instance does not lead any more")
        return starting.result()

    async def _start(self, number: int) -> _Aggregator:
        try:
            process = await self._start_process(self._settings.host, int(self._settings.memory_bytes))
        finally:
            del self._starting[number]
        started = self._aggregators[number] = _Aggregator(process)
        self._log.info("aggregator_started", aggregator=number, address=process.address)
        return started

    async def _ask(self, number: int, command: str, **fields: Any) -> dict[str, Any]:
        return await self._aggregators[number].process.ask(command, **fields)

    async def _introduce(self, number: int, live: _Live) -> None:
        """Give a job's keys to an aggregator that does not have them."""
        aggregator = self._aggregators[number]
        job = live.record.job
        if job in aggregator.hosted:
            return
        await aggregator.process.ask(
            "host",
            job=job,
            ranks=live.record.ranks,
            optimizer=_options(live.record.optimizer),
            worker_key=live.worker_key,
            aggregator_key=live.aggregator_key,
        )
        aggregator.hosted.add(job)

    async def _forget(self, number: int, job: str) -> None:
        aggregator = self._aggregators[number]
        aggregator.left.pop(job, None)
        if job in aggregator.hosted:
            aggregator.hosted.remove(job)
            try:
                await aggregator.process.ask("drop", job=job)
            except (CommandRefusedError, ProcessLostError) as error:  # of one that has died `poll` says more
                self._log.warning("job_not_dropped", job=job, aggregator=number, reason=str(error))

    async def _forget_everywhere(self, job: str) -> None:
        for number in list(self._aggregators):
            await self._forget(number, job)

    async def _close_idle(self) -> None:
        """End aggregators without jobs: the next job starts one."""
        for number, aggregator in list(self._aggregators.items()):
            if not aggregator.hosted and number not in self._packing.jobs and self._wanted[number] <= 0:
                del self._aggregators[number]
                await aggregator.process.end()
                self._log.info("aggregator_ended", aggregator=number, reason="it has no job")

    # -- losses ----------------------------------------------------------------------------------------------------

    async def take_over(self) -> None:
        """Mark what an instance before has left: its aggregators have died with it.

        Raises:
            BusError: the bucket cannot be read.
            LeadLostError: another instance leads.
        """
        for record in await self._assignments.read():
            await self._lose(record, "the aggregator service was started anew")

    async def _lose_aggregator(self, number: int, reason: str) -> None:
        if self._closed:
            return  # `close` has ended it, and says what is lost
        aggregator = self._aggregators.pop(number, None)
        if aggregator is not None:
            await aggregator.process.end()
            self._log.error("aggregator_lost", aggregator=number, reason=reason)
        for job, moving in list(self._moving.items()):
            if moving.source != number and not moving.has_begun and self._packing.aggregator_of(job) == number:
                self._put_back(job)
        jobs = [load.job for load in self._packing.jobs.get(number, ())]
        jobs += [job for job, moving in self._moving.items() if moving.source == number]
        for job in jobs:
            await self._lose_job(job, f"aggregator {number}: {reason}")

    async def _lose_job(self, job: str, reason: str) -> None:
        live = self._live[job]
        await self._free(job)
        await self._lose(live.record, reason)

    async def _lose(self, record: Aggregation, reason: str) -> None:
        self._losses.add()
        self._log.error("job_lost", job=record.job, attempt=record.attempt, reason=reason)
        lost = await self._store_lost(record, reason)
        text = f"{lost.lost}; its workers begin anew as attempt {record.attempt + 1} with parameters that they have"
        self._assignments.publish(AggregationChange.LOST, lost, text, bit_identical=False)

    async def _store_lost(self, record: Aggregation, reason: str) -> Aggregation:
        lost = record.model_copy(update={"lost": reason[:_MOST_REASON]})
        await self._store_or_later(lost)
        return lost

    async def _store_or_later(self, record: Aggregation) -> None:
        """Store it now, or by `poll`."""
        try:
            await self._assignments.store(record)
        except BusError as error:
            self._log.warning("assignment_not_stored", job=record.job, error=str(error), again_s=POLL_S)

    # -- moves -----------------------------------------------------------------------------------------------------

    def _carry_out(self, moves: tuple[Move, ...]) -> None:
        """As far as there are cores and memory; what cannot be moved stays where it is. Ranges go by themselves."""
        for move in moves:
            if move.job not in self._live or self._packing.aggregator_of(move.job) != move.source:
                continue  # lost meanwhile
            if reason := self._stays_because(move):
                self._log.info("job_stays", job=move.job, aggregator=move.source, reason=reason)
                continue
            self._packing = self._packing.moved(move)
            moving = self._moving[move.job] = _Moving(move.source, self._clock.monotonic())
            transfer = asyncio.get_running_loop().create_task(self._move(move, self._live[move.job], moving))
            self._transfers.add(transfer)
            transfer.add_done_callback(self._transfers.discard)

    def _stays_because(self, move: Move) -> str:
        if move.job in self._moving:
            return "it is on its way there"
        needed = self._live[move.job].most_bytes
        full = self._used_bytes(move.target) + needed > self._settings.memory_bytes
        if move.target >= self._settings.most_processes or full:
            return "no core or memory for it"
        if move.target in self._aggregators and move.job in self._aggregators[move.target].left:
            # Ranks may still ask there: were the way back to fail, they would wait at an owner that never gets it.
            return "it has just left there"
        return ""

    async def _move(self, move: Move, live: _Live, moving: _Moving) -> None:
        """The job is on its way until it has come, or it is lost, ended or placed anew meanwhile."""
        with span("aggregator.move", turnbuckle__job=move.job), suppress(LeadLostError):  # `poll` finds that out, too
            try:
                target = await self._started(move.target)
            except ProcessLostError as error:
                async with self._operation:
                    await self._stay(move, moving, error)
                return
            async with self._operation:
                if self._moving.get(move.job) is not moving:
                    return
                try:
                    live.record = await self._expect(move, live, target.process.address)
                except (CommandRefusedError, ProcessLostError, BusError) as error:
                    await self._stay(move, moving, error)
                    return
                moving.has_begun = True
                source = self._aggregators[move.source]
            await self._transfer(move, live.record, moving, (source, target))

    async def _stay(self, move: Move, moving: _Moving, error: Exception) -> None:
        if self._moving.get(move.job) is moving:
            self._put_back(move.job)
            self._log.warning("job_stays", job=move.job, aggregator=move.source, reason=str(error))
        if isinstance(error, ProcessLostError) and move.target in self._aggregators:
            await self._lose_aggregator(move.target, str(error))

    def _put_back(self, job: str) -> None:
        source = self._end_move(job).source
        self._packing = self._packing.moved(Move(job, self._packing.aggregator_of(job), source))

    def _end_move(self, job: str) -> _Moving:
        """The job is where it is: the time on its way, when no step of it is seen, does not count as idle."""
        moving = self._moving.pop(job)
        self._live[job].progress_s += self._clock.monotonic() - moving.since_s
        return moving

    async def _transfer(
        self, move: Move, record: Aggregation, moving: _Moving, owners: tuple[_Aggregator, _Aggregator]
    ) -> None:
        source, target = owners
        try:
            for index, to in enumerate(record.ranges):
                await self._send(source.process, move.job, index, to)
            finished = (await target.process.ask("loads"))["finished"].get(move.job, -1)
        except (CommandRefusedError, ProcessLostError) as error:
            async with self._operation:
                if self._moving.get(move.job) is moving:
                    await self._lose_job(move.job, f"it could not be moved to aggregator {move.target}: {error}")
            return
        async with self._operation:
            if self._moving.get(move.job) is not moving:
                return
            self._end_move(move.job)
            target.left.pop(move.job, None)
            source.left[move.job] = finished
            self._moves.add()
            reason = (
                f"from aggregator {move.source} to {move.target}: fewer aggregators, or jobs that slow each other less"
            )
            self._assignments.publish(AggregationChange.MOVED, record, reason)
            self._log.info("job_moved", job=move.job, source=move.source, target=move.target)

    async def settled(self) -> None:
        """Return once no job is on its way."""
        while self._transfers:
            await asyncio.wait(set(self._transfers))

    async def _expect(self, move: Move, live: _Live, address: str) -> Aggregation:
        """The next owner expects all ranges; then, that they are its own is stored."""
        ranges = tuple(
            each.model_copy(update={"version": each.version + 1, "address": address}) for each in live.record.ranges
        )
        was_there = move.job in self._aggregators[move.target].hosted
        record = live.record.model_copy(update={"ranges": ranges})
        try:
            await self._introduce(move.target, live)
            for index, each in enumerate(ranges):
                fields = {"range": index, "values": each.last - each.first, "version": each.version}
                await self._ask(move.target, "add", job=move.job, moving=True, **fields)
            await self._assignments.store(record)
        except (CommandRefusedError, BusError) as error:
            if not was_there:
                await self._forget(move.target, move.job)
            if isinstance(error, BusError):  # it may be stored, or not
                await self._store_or_later(live.record)
            raise
        return record

    @staticmethod
    async def _send(source: AggregatorPort, job: str, index: int, to: AggregatedRange) -> None:
        """One range from its owner to the next one; sent again where it was not acknowledged."""
        for attempt in range(1, MOVE_ATTEMPTS + 1):
            try:
                fields = {"job": job, "range": index, "version": to.version, "address": to.address}
                await source.ask("move", within_s=TRANSFER_S, **fields)
            except CommandRefusedError:
                if attempt == MOVE_ATTEMPTS:
                    raise
            else:
                return

    # -- watching --------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Notice what has died, and measure; until cancelled.

        Raises:
            LeadLostError: another instance leads.
        """
        while True:
            # Not cancelled midway: half of an operation is none. `close` lets it end.
            self._polling = asyncio.get_running_loop().create_task(self.poll())
            await asyncio.shield(self._polling)
            await self._clock.sleep_until(self._clock.monotonic() + POLL_S)

    async def poll(self) -> None:
        """Check every aggregator once."""
        async with self._operation:
            if self._closed:
                return
            try:
                await self._assignments.store_rest()
            except BusError as error:
                self._log.debug("assignments_not_stored", error=str(error))
            for number, aggregator in list(self._aggregators.items()):
                if ended := aggregator.process.ended:
                    await self._lose_aggregator(number, ended)
                else:
                    await self._measure(number, aggregator)
            now_s = self._clock.monotonic()
            await self._end_idle(now_s)
            if now_s - self._rebalanced_s >= self._settings.rebalance_s:
                self._rebalanced_s = now_s
                _, moves = rebalance(self._packing, self._settings.loss_limit)
                self._carry_out(moves)
            await self._close_idle()

    async def _measure(self, number: int, aggregator: _Aggregator) -> None:
        here = {load.job for load in self._packing.jobs.get(number, ())}
        try:
            answer = await aggregator.process.ask("loads")
        except ProcessLostError as error:
            await self._lose_aggregator(number, str(error))
            return
        except CommandRefusedError as error:  # its jobs go on, and keep the loads that were measured before
            fields = {"aggregator": number, "reason": str(error)}
            log_once(self._log.warning, self._limiter, "loads_not_measured", _LOG_EVERY_S, **fields)
            for job in here - self._moving.keys():  # whether they make steps is not known: none is ended for that
                self._live[job].progress_s = self._clock.monotonic()
            return
        loads = {each["job"]: JobLoad(**each) for each in answer["loads"] if each["job"] in here}
        self._packing = self._packing.measured(loads)
        for job, finished in answer["finished"].items():
            if job in here and finished > self._live[job].finished:
                self._live[job].finished, self._live[job].progress_s = finished, self._clock.monotonic()
        await self._forget_left()

    async def _forget_left(self) -> None:
        for number, aggregator in list(self._aggregators.items()):
            for job, finished in list(aggregator.left.items()):
                if self._live[job].finished > finished + 1:  # ranges differ by one step: each has made one there
                    await self._forget(number, job)

    async def _end_idle(self, now_s: float) -> None:
        idle_s = self._settings.idle_after_s
        idle = [job for job, live in self._live.items() if job not in self._moving and now_s - live.progress_s > idle_s]
        forgotten = self._assignments.lost_before(self._clock.time_ns() - _FORGOTTEN_AFTER_NS)
        try:
            for job in idle:
                live = self._live.get(job)
                if live is not None and job not in self._moving:  # another's end may have it moved, or lost
                    await self._end(live.record, f"no step was finished for {idle_s:g} s")
            for job in forgotten:
                await self._assignments.remove(job)
        except BusError as error:
            log_once(self._log.warning, self._limiter, "assignment_not_removed", _LOG_EVERY_S, error=str(error))

    async def close(self, reason: str = "") -> None:
        """Kill every aggregator.

        Args:
            reason: where this instance ends in order: stored and published for each job; empty: another instance leads.
        """
        self._closed = True
        tasks = {*self._starting.values(), *self._transfers}
        for task in tasks:
            task.cancel()
        for aggregator in list(self._aggregators.values()):
            await aggregator.process.end()  # what an operation waits for is not answered any more, and it ends
        async with self._operation:
            if tasks:
                await asyncio.wait(tasks)
            for aggregator in self._aggregators.values():
                await aggregator.process.end()
            lives, self._live, self._packing = self._live, {}, Packing({})
            self._aggregators, self._moving = {}, {}
            if reason:
                for live in lives.values():
                    await self._lose(live.record, reason)
        if self._polling is not None and not self._polling.cancelled():
            await asyncio.wait({self._polling})
            self._polling.exception()  # a lead that was lost is known where this is called


def _placed_reason(placed: Placed, known: Aggregation | None) -> str:
    how = "new" if placed.opened else f"jobs there become slower by {placed.slowdown:.0%} at most"
    if known is None:
        return f"on aggregator {placed.aggregator}: {how}"
    return (
        f"on aggregator {placed.aggregator} ({how}), after attempt {known.attempt}: begun anew, "
        "with the parameters and moments that its workers give"
    )


def _options(optimizer: AggregationOptimizer) -> dict[str, Any]:
    """As the aggregator's process has them."""
    options: dict[str, Any] = {
        "kind": optimizer.kind.value,
        "lr": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
    }
    if optimizer.kind is OptimizerKind.SGD:
        return options | {"momentum": optimizer.momentum}
    return options | {"betas": (optimizer.beta1, optimizer.beta2)}

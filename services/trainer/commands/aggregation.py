"""A training's aggregation as `turnbuckle train --aggregate` has it: its claim, the ranks' questions, its end.

Ranks have no key of the bus: they ask by a socket in a directory that only this user may enter, and this asks the
aggregator service. The claim, by which a job's name is this training's, stands beside its checkpoints: a command that
was killed could give nothing back, and the same command may free what it has left.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.aggregations import AggregationEndRequest, AggregationReply, AggregationRequest
from schemas.services.aggregator import AGGREGATOR_END, AGGREGATOR_PLACE
from services._runtime.bus.api import Bus, BusError, NotPermittedError, RequestRefusedError
from services._runtime.clock import Clock, SystemClock
from services._runtime.command.errors import BadFileError, CommandError, NoPermissionError, UnavailableError
from services._runtime.exit_code import ExitCode
from services._runtime.file_lock import open_lock_file, try_flock
from services.trainer.commands.publishing import BusPublisher, Publisher
from services.trainer.commands.training import Training
from services.trainer.core.placement import PLACED_WITHIN_S, PlacementAnswer, PlacementQuestion

FOUND_WITHIN_S: Final = 10.0
"""For a service that answers, and has room, as the training begins: what is not there then is not waited for."""
ANSWERED_WITHIN_S: Final = 10.0
"""For questions that start no aggregator."""
_AGAIN_S: Final = 0.5
_UNAVAILABLE, _LOST = 503, 410
CLAIM_FILE: Final = "aggregation-claim"
_CLAIM: Final = re.compile(rb"[0-9a-f]{64}")


class AggregationTakenError(CommandError):
    """The job's name or the directory is another training's; the message says which, and what to do."""


class Aggregation:
    """Of one training."""

    def __init__(self, bus: Bus, clock: Clock, job: tuple[str, int, str], again_within_s: float) -> None:
        """Nothing is asked before `begin`.

        Args:
            bus: by a key of the role ``trainer``.
            clock: of this host.
            job: its name, ranks and claim.
            again_within_s: for lost ranges to be placed anew.
        """
        self._bus, self._clock = bus, clock
        self._job, self._ranks, self._claim = job
        self._again_within_s = again_within_s
        self._asking = asyncio.Lock()
        self._attempt = 0
        """The last one that was placed; 0: none."""

    async def begin(self) -> None:
        """Find the service, and free what an earlier command of this training has left.

        Raises:
            AggregationTakenError: another training has the name.
            NoPermissionError: the key may not ask.
            UnavailableError: no service answers.
        """
        until_s = self._clock.monotonic() + FOUND_WITHIN_S
        while True:
            try:
                await self._request_end()
            except NotPermittedError as error:
                remedy = "run `turnbuckle nats config` of this version, then `nats-server --signal reload`"
                raise NoPermissionError(f"the aggregator service cannot be asked: {error}; {remedy}") from error
            except RequestRefusedError as error:
                if error.code != _UNAVAILABLE:
                    raise AggregationTakenError(
                        f"{error}: end that training, or give this one another --name. Ranges of one that was killed, "
                        "and had no --checkpoint, are freed once they have been idle for an hour"
                    ) from error
                reason = str(error)
            except BusError as error:
                reason = str(error)
            else:
                return
            if self._clock.monotonic() >= until_s:
                raise UnavailableError(
                    f"no aggregator service answers ({reason}): start one with `turnbuckle run aggregator`"
                )
            await self._sleep()

    async def answer(self, question: PlacementQuestion) -> PlacementAnswer:
        """Of one rank. Questions follow one another, so that of a new attempt the first one places it."""
        async with self._asking:
            if question.attempt < self._attempt:
                return PlacementAnswer(lost=f"attempt {self._attempt} has taken its place")
            if question.attempt == self._attempt:
                answer, _ = await self._ask(question, ANSWERED_WITHIN_S)
                return answer or PlacementAnswer()
            is_first = self._attempt == 0
            until_s = self._clock.monotonic() + (FOUND_WITHIN_S if is_first else self._again_within_s)
            while True:
                answer, reason = await self._ask(question, PLACED_WITHIN_S)
                if answer is not None:
                    return answer
                if self._clock.monotonic() >= until_s:
                    return _refused(reason, ExitCode.UNAVAILABLE if is_first else ExitCode.RESUMABLE)
                await self._sleep()

    async def _ask(self, question: PlacementQuestion, within_s: float) -> tuple[PlacementAnswer | None, str]:
        """The service's answer; None: it gives none now, and why."""
        request = AggregationRequest(
            job=self._job,
            attempt=question.attempt,
            claim=self._claim,
            ranks=self._ranks,
            values=question.values,
            optimizer=question.optimizer,
        )
        try:
            reply = await self._bus.request(
                AGGREGATOR_PLACE.template.subject(self._bus.root), request, timeout_s=within_s
            )
        except RequestRefusedError as error:
            if error.code == _UNAVAILABLE:
                return None, str(error)
            if error.code != _LOST:
                return _refused(str(error), ExitCode.UNAVAILABLE), ""
            self._attempt = question.attempt
            return PlacementAnswer(lost=str(error)), ""
        except BusError as error:
            return None, str(error)
        if not isinstance(reply, AggregationReply):
            return _refused(f"the aggregator service answers with {reply.type_name}", ExitCode.INTERNAL), ""
        self._attempt = question.attempt
        return PlacementAnswer(job=self._job, key=reply.key, ranges=reply.ranges), ""

    async def end(self) -> str:
        """Give the ranges back; returns what is wrong, or nothing."""
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                async with self._asking:  # what is being placed is given back, too
                    await self._request_end()
        except (BusError, TimeoutError) as error:
            reason = str(error) or f"no answer within {ANSWERED_WITHIN_S:g} s"
            return f"the ranges were not given back: {reason}; they are freed once they have been idle for an hour"
        return ""

    async def _request_end(self) -> None:
        request = AggregationEndRequest(job=self._job, claim=self._claim)
        subject = AGGREGATOR_END.template.subject(self._bus.root)
        await self._bus.request(subject, request, timeout_s=ANSWERED_WITHIN_S)

    async def _sleep(self) -> None:
        await self._clock.sleep_until(self._clock.monotonic() + _AGAIN_S)


def _refused(reason: str, exit_code: ExitCode) -> PlacementAnswer:
    return PlacementAnswer(refused=f"the job is not aggregated: {reason}", exit_code=exit_code)


@asynccontextmanager
async def aggregated(
    publisher: Publisher | None, training: Training, timeout_s: float, note: Callable[[str], None]
) -> AsyncIterator[Training]:
    """The training with ranks that are aggregated; its ranges are given back at the end, however that comes.

    Raises:
        AggregationTakenError, NoPermissionError, UnavailableError: it is not aggregated.
        BadFileError: its claim cannot be kept.
    """
    if not isinstance(publisher, BusPublisher):
        raise UnavailableError(
            "--aggregate asks the aggregator service on the bus: give --server or --context, or set NATS_URL"
        )
    with claim_of(training.checkpoint) as claim:
        job = training.plan.job, len(training.plan.devices), claim
        aggregation = Aggregation(publisher.bus, SystemClock(), job, timeout_s)
        await aggregation.begin()
        try:
            async with answering(aggregation.answer) as path:
                yield replace(training, worker=(*training.worker, "--aggregate", str(path)), is_aggregated=True)
        finally:
            if problem := await aggregation.end():
                note(problem)


@contextmanager
def claim_of(checkpoint: str) -> Iterator[str]:
    """The claim of a training that saves there, for one command at a time; without a directory a new one.

    Raises:
        AggregationTakenError: another command has it.
        BadFileError: it cannot be read or written.
    """
    if not checkpoint:
        yield secrets.token_hex(32)
        return
    file = Path(checkpoint) / CLAIM_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_lock_file(file)
    except OSError as error:
        raise BadFileError(f"{file} cannot be written: {error.strerror}") from error
    try:
        if not try_flock(descriptor):
            raise AggregationTakenError(
                f"another `turnbuckle train --aggregate` works in {checkpoint}: end it, or give another --checkpoint"
            )
        claim = os.pread(descriptor, 65, 0)
        if _CLAIM.fullmatch(claim) is None:
            claim = secrets.token_hex(32).encode()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, claim, 0)
        yield claim.decode()
    finally:
        os.close(descriptor)


@asynccontextmanager
async def answering(answer: Callable[[PlacementQuestion], Awaitable[PlacementAnswer]]) -> AsyncIterator[Path]:
    """A socket by which ranks ask, in a directory of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # a rank that has ended; a line that is too long
            try:
                question = PlacementQuestion.model_validate_json(await reader.readline())
            except ValidationError as error:
                found = _refused(f"a rank's question is none: {error.errors()[0]['msg']}", ExitCode.INTERNAL)
            else:
                found = await answer(question)
            writer.write(found.model_dump_json().encode() + b"\n")
            await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory(prefix="turnbuckle-aggregate-") as directory:
        path = Path(directory) / "placements"
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            server.close()

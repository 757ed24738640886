"""The aggregator service with aggregators in the test's own process: all that theirs do, without starting one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any

import torch

from schemas.aggregations import (
    Aggregation,
    AggregationEndRequest,
    AggregationEvent,
    AggregationOptimizer,
    AggregationReply,
    AggregationRequest,
    OptimizerKind,
)
from schemas.message import Message
from schemas.services.aggregator import AGGREGATOR_END, AGGREGATOR_PLACE
from schemas.streams import AGGREGATIONS
from schemas.subjects import AGGREGATION_EVENTS
from services._jobs.aggregation_frames import RangePlace
from services._runtime.bus.api import Bus, Delivery
from services._runtime.service.app import Runtime
from services.aggregator.aggregator_process import ANSWER_S, CommandRefusedError, ProcessLostError
from services.aggregator.process import Commands
from services.aggregator.range_state import OptimizerSpec
from services.aggregator.service import AggregatorService
from services.aggregator.settings import AggregatorSettings
from services.aggregator.shard import Shard

CLAIM = "c1" * 32
OTHER_CLAIM = "0f" * 32
ADAMW = AggregationOptimizer(kind=OptimizerKind.ADAMW, lr=1e-2, weight_decay=0.1)
"""As `tests.support.aggregation.ADAMW`."""


class LocalAggregator:
    """Commands to a shard in this event loop."""

    def __init__(self, shard: Shard, measured: Callable[[], dict[str, tuple[int, int]]]) -> None:
        self._shard = shard
        self._measured = measured
        self._commands = Commands(shard)
        self.address = shard.address
        self.asked: list[str] = []
        self.ended = ""

    async def ask(self, command: str, within_s: float = ANSWER_S, **fields: Any) -> dict[str, Any]:
        assert within_s > 0
        if self.ended:
            raise ProcessLostError(self.ended)
        self.asked.append(command)
        answer = await self._commands.answer(json.dumps({"command": command, **fields}).encode())
        if "refused" in answer:
            raise CommandRefusedError(answer["refused"])
        if command == "loads":
            return answer | {"loads": self._loads(answer["finished"])}
        return answer

    def _loads(self, here: Collection[str]) -> list[dict[str, Any]]:
        found = {job: load for job, load in self._measured().items() if job in here}
        return [{"job": job, "iteration_us": load[0], "busy_us": load[1]} for job, load in found.items()]

    async def die(self, how: str = "it has died by signal 9") -> None:
        """As by kill -9."""
        self.ended = how
        await self._shard.stop()

    async def end(self) -> None:
        await self.die(self.ended or "it was ended")


async def listening(host: str, memory_bytes: int) -> Shard:
    """A shard that listens; cancelled it leaves no socket, as a process that is killed."""
    shard = Shard(memory_bytes)
    starting = asyncio.ensure_future(shard.start(host, 0))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        await shard.stop()
        raise
    return shard


class LocalService(AggregatorService):
    """The service; `aggregators` are those that it has started, in order."""

    def __init__(self, runtime: Runtime[AggregatorSettings]) -> None:
        super().__init__(runtime, self._start_local)
        self.aggregators: list[LocalAggregator] = []
        self.cannot_start = ""
        self.measured: dict[str, tuple[int, int]] = {}
        """Iteration and processor time of jobs, in us, in place of what their steps take on this machine."""

    async def _start_local(self, host: str, memory_bytes: int) -> LocalAggregator:
        if self.cannot_start:
            raise ProcessLostError(self.cannot_start)
        OptimizerSpec(kind="sgd", lr=1.0).optimizer(torch.zeros(1))  # as its process does: imports more of torch
        shard = await listening(host, memory_bytes)
        self.aggregators.append(LocalAggregator(shard, lambda: self.measured))
        return self.aggregators[-1]

    @property
    def living(self) -> list[LocalAggregator]:
        """That run."""
        return [each for each in self.aggregators if not each.ended]


def asked(job: str = "job", **fields: Any) -> AggregationRequest:
    """A request of two ranks for 1,500 values."""
    defaults = {"attempt": 1, "claim": CLAIM, "ranks": 2, "values": 1_500, "optimizer": ADAMW}
    return AggregationRequest(job=job, **(defaults | fields))


async def place(bus: Bus, request: Message, timeout_s: float = 60.0) -> AggregationReply:
    reply = await bus.request(AGGREGATOR_PLACE.template.subject("tb"), request, timeout_s=timeout_s)
    assert isinstance(reply, AggregationReply)
    return reply


async def end(bus: Bus, job: str = "job", claim: str = CLAIM) -> Message:
    return await bus.request(
        AGGREGATOR_END.template.subject("tb"), AggregationEndRequest(job=job, claim=claim), timeout_s=60
    )


def places(reply: AggregationReply) -> list[RangePlace]:
    """As a worker takes them."""
    return [RangePlace(each.first, each.last, each.version, each.address) for each in reply.ranges]


async def assignment(bus: Bus, job: str = "job") -> Aggregation | None:
    """What is stored of a job."""
    entry = await bus.bucket(AGGREGATIONS).get(job)
    if entry is None:
        return None
    assert isinstance(entry.message, Aggregation)
    return entry.message


async def listen(bus: Bus) -> list[AggregationEvent]:
    """Events from now on."""
    heard: list[AggregationEvent] = []

    def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, AggregationEvent)
        heard.append(delivery.message)

    await bus.subscribe(AGGREGATION_EVENTS.pattern("tb"), take)
    return heard

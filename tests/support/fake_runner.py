"""A node's runner without processes: it obeys as `WorkOrder` demands, and a test says what its workers do."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from schemas.message import Message
from schemas.scheduling import (
    OrderAction,
    RunnerInfo,
    WorkerChange,
    WorkerState,
    WorkEvent,
    WorkOrder,
    WorkReply,
)
from schemas.streams import RUNNERS
from schemas.subjects import WORK_EVENTS, WORK_ORDERS
from services._runtime.bus.api import Bus, BusError, Delivery, Subscription

HEARTBEAT_S = 5.0
OVER = {WorkerChange.STOPPED, WorkerChange.UNSAVED, WorkerChange.ENDED, WorkerChange.FAILED, WorkerChange.LOST}
Worker = tuple[str, int, int]
"""Job, attempt and rank."""


class FakeRunner:
    """One node."""

    def __init__(self, bus: Bus, node: str = "n1", slots: int = 2) -> None:
        self._bus = bus
        self.node = node
        self.info = RunnerInfo(
            node=node,
            address=f"10.0.0.{node[1:]}",
            incarnation=1,
            time_ns=time.time_ns(),
            slots=slots,
            cores=slots,
            memory_bytes=slots << 30,
        )
        self.orders: list[WorkOrder] = []
        self.starts: Counter[Worker] = Counter()
        self.workers: dict[Worker, WorkEvent] = {}
        """The latest change of each."""
        self.refuses = ""
        """Why it starts nothing; empty: it does."""
        self.stops = True
        """Workers that are asked to stop have stopped at once; else the test says when."""
        self.answers = True
        self.publishes = True
        """Events reach the stream; else only answers tell them."""
        self._obeyed: dict[str, int] = {}
        self._heartbeat: asyncio.Task[None] | None = None
        self._serving: Subscription | None = None
        self._ended = asyncio.Event()

    async def start(self) -> None:
        """Register, and answer orders."""
        self._serving = await self._bus.serve(WORK_ORDERS.subject(self._bus.root, node=self.node), self._on_order)
        await self.register()
        self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    async def stop(self, *, silently: bool = False) -> None:
        """Answer no more; `silently`: as one that is cut off, its registration expires."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self.answers = False
        if self._serving is not None and not silently:
            self._ended.set()
            await self._serving.stop()

    async def restart(self, *, forgetting: bool = False) -> None:
        """Another process takes its place; `forgetting`: its workers are gone."""
        self.info = self.info.model_copy(update={"incarnation": self.info.incarnation + 1})
        if forgetting:
            self.workers = {}
        await self.register()

    async def register(self) -> None:
        """Write the registration."""
        await self._bus.bucket(RUNNERS).put(self.node, self.info)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self.register()
            except BusError:
                continue  # the next heartbeat comes soon

    # -- workers ------------------------------------------------------------------------------------------------------

    def running(self) -> list[Worker]:
        """Workers that hold slots."""
        return [worker for worker, last in self.workers.items() if last.change not in OVER]

    def tell(self, job: str, change: WorkerChange, *ranks: int, **fields: object) -> None:
        """Workers of a job's latest attempt do something; without ranks all of them here."""
        attempt = max(each[1] for each in self.workers if each[0] == job)
        for worker in [each for each in self.workers if each[:2] == (job, attempt)]:
            if not ranks or worker[2] in ranks:
                self._change(worker, change, **fields)

    def _change(self, worker: Worker, change: WorkerChange, **fields: object) -> None:
        job, attempt, rank = worker
        told = {"job": job, "attempt": attempt, "rank": rank, "node": self.node, "change": change, **fields}
        event = WorkEvent.model_validate({"time_ns": time.time_ns(), "incarnation": self.info.incarnation, **told})
        self.workers[worker] = event
        if self.publishes:
            subject = WORK_EVENTS.subject(self._bus.root, job=job, node=self.node)
            self._bus.publish_event(subject, event, message_id=event.message_id)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _on_order(self, delivery: Delivery) -> Message:
        order = delivery.message
        assert isinstance(order, WorkOrder)
        if not self.answers:
            await self._ended.wait()
        self.orders.append(order)
        if order.sequence < self._obeyed.get(order.job, 0):
            return WorkReply(obeyed=False, reason=f"obeyed {self._obeyed[order.job]} already")
        if order.action is OrderAction.RUN and self.refuses:
            return WorkReply(obeyed=False, reason=self.refuses)
        self._obeyed[order.job] = order.sequence
        for rank in order.ranks:
            self._obey(order, (order.job, order.attempt, rank))
        known = [(rank, self.workers.get((order.job, order.attempt, rank))) for rank in order.ranks]
        return WorkReply(obeyed=True, workers=tuple(WorkerState(rank=rank, last=last) for rank, last in known if last))

    def _obey(self, order: WorkOrder, worker: Worker) -> None:
        last = self.workers.get(worker)
        if order.action is OrderAction.RUN and last is None:
            assert order.spec is not None
            self.starts[worker] += 1
            self._change(worker, WorkerChange.STARTED)
        elif order.action is OrderAction.FORGET:
            self.workers.pop(worker, None)
        elif last is not None and last.change not in OVER:
            if order.action is OrderAction.STOP and self.stops:
                self._change(worker, WorkerChange.STOPPED, ran_s=10.0, took_s=1.0)
            elif order.action is OrderAction.KILL:
                self._change(worker, WorkerChange.UNSAVED)

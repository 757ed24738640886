"""Orders to runners, each repeated until it is answered; the events in an answer are passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from schemas.scheduling import JobOutcome, JobSpec, OrderAction, Pace, WorkerChange, WorkEvent, WorkOrder, WorkReply
from schemas.streams import JOB_SPECS
from schemas.subjects import WORK_ORDERS
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.scheduler.core.live import Live
from services.scheduler.core.orders import Order, news, orders, pace_orders, refused_for_good
from services.scheduler.core.state import State
from services.scheduler.deciding import Inbox
from services.scheduler.leading import Lead
from services.scheduler.settings import SchedulerSettings

TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.5
AGAIN_S: Final = 5.0
"""After an answer, while what was asked for has not happened yet, or after none."""
CHECK_S: Final = 60.0
"""So often a worker that runs is asked about: an event that was lost comes with the answer."""
REFUSED_FOR_S: Final = 30.0
"""After so long an attempt that its node refuses to start is given up."""
FINAL_TRIES: Final = 10

Key = tuple[str, int, str, OrderAction]


@dataclass(slots=True)
class _Progress:
    """What is remembered of an order."""

    again_s: float = 0.0
    incarnation: int = -1
    """Of the runner that answered."""
    refused_s: float | None = None
    """Since when."""
    tries: int = 0
    pace: Pace | None = None
    """That was ordered last."""


class Ordering:
    """Sends what `core.orders` asks for while this replica leads. A new leader asks every runner what is true."""

    def __init__(
        self,
        runtime: Runtime[SchedulerSettings],
        lead: Lead,
        inbox: Inbox,
        paces: Callable[[State], Mapping[str, Pace]],
    ) -> None:
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._log = runtime.log
        self._limiter = LogLimiter()
        self._lead = lead
        self._inbox = inbox
        self._paces = paces
        self._progress: dict[Key, _Progress] = {}
        self._flights: dict[Key, asyncio.Task[None]] = {}
        self._final_orders: dict[Key, Order] = {}
        self._specs: dict[str, JobSpec] = {}
        self._changed = asyncio.Event()
        self.sent = runtime.telemetry.counter("turnbuckle_scheduler_orders_total")
        self.unanswered = runtime.telemetry.counter("turnbuckle_scheduler_unanswered_orders_total")

    def on_change(self, before: State, after: State) -> None:
        """Send what is due; attempts that are over are to be forgotten."""
        for order in _over(before, after):
            self._final_orders[order.key] = order
        self._changed.set()

    def on_paces(self) -> None:
        """Send other paces."""
        self._changed.set()

    async def run(self) -> None:
        """Send until cancelled. Answers to an earlier lead of this replica do not count any more."""
        self._progress, self._final_orders, self._specs = {}, {}, {}
        try:
            while True:
                self._changed.clear()
                self._send_due()
                try:
                    async with asyncio.timeout(POLL_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            for flight in self._flights.values():
                flight.cancel()

    def _send_due(self) -> None:
        now_s = self._clock.monotonic()
        state = self._lead.state
        paced = pace_orders(state, self._paces(state)) if state.traffic.shifted else ()
        wanted = {order.key: order for order in (*orders(state), *paced, *self._final_orders.values())}
        self._progress = {key: progress for key, progress in self._progress.items() if key in wanted}
        self._specs = {job: spec for job, spec in self._specs.items() if job in self._lead.state.live}
        for key, order in wanted.items():
            progress = self._progress.setdefault(key, _Progress())
            if key in self._flights or not (now_s >= progress.again_s or self._is_other(order, progress)):
                continue
            flight = asyncio.get_running_loop().create_task(self._send(order, progress), name=f"order {order.node}")
            self._flights[key] = flight
            flight.add_done_callback(partial(self._landed, key))

    def _is_other(self, order: Order, progress: _Progress) -> bool:
        """Whether it asks for another pace, or the runner that answered is gone, and another has taken its place."""
        if progress.incarnation >= 0 and order.pace != progress.pace:
            return True
        node = self._lead.state.nodes.get(order.node)
        return node is not None and 0 <= progress.incarnation != node.incarnation

    def _landed(self, key: Key, done: asyncio.Task[None]) -> None:
        self._flights.pop(key, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            self._log.error("order_failed", order=key, exc_info=error)
        self._changed.set()

    async def _send(self, order: Order, progress: _Progress) -> None:
        progress.again_s = self._clock.monotonic() + AGAIN_S
        progress.tries, progress.incarnation, progress.pace = progress.tries + 1, -1, order.pace
        try:
            message = await self._message(order)
            if message is None:
                return
            self.sent.value += 1
            node = self._lead.state.nodes.get(order.node)
            incarnation = node.incarnation if node is not None else 0
            reply = await self._bus.request(
                WORK_ORDERS.subject(self._bus.root, node=order.node), message, timeout_s=TIMEOUT_S
            )
        except BusError as error:
            self._not_answered(order, progress, str(error))
            return
        if isinstance(reply, WorkReply):
            progress.incarnation = incarnation
            self._answered(order, progress, reply)

    def _not_answered(self, order: Order, progress: _Progress, why: str) -> None:
        self.unanswered.value += 1
        self._give_up(order, progress)
        log_once(
            self._log.warning, self._limiter, "order_not_answered", 10.0, node=order.node, job=order.job, error=why
        )

    def _answered(self, order: Order, progress: _Progress, reply: WorkReply) -> None:
        now_s = self._clock.monotonic()
        if reply.obeyed:
            progress.refused_s = None
            if self._final_orders.pop(order.key, None) is not None and order.action is OrderAction.KILL:
                forget = replace(order, action=OrderAction.FORGET)
                self._final_orders[forget.key] = forget
            if order.action in {OrderAction.CHECK, OrderAction.PACE}:
                progress.again_s = now_s + CHECK_S
        elif order.key in self._final_orders:
            self._give_up(order, progress)
        elif order.action is OrderAction.PACE:  # such as an engine that cannot: the job runs on without
            progress.again_s = now_s + CHECK_S
            self._log.info("pace_refused", node=order.node, job=order.job, why=reply.reason)
        else:
            progress.refused_s = now_s if progress.refused_s is None else progress.refused_s
            self._log.warning(
                "work_order_refused", node=order.node, job=order.job, action=order.action.value, why=reply.reason
            )
        time_ns = self._lead.time_ns()
        self._inbox.put_events(news(self._lead.state, order, reply, time_ns))
        live = self._lead.state.live.get(order.job)
        for_good = progress.refused_s is not None and now_s - progress.refused_s >= REFUSED_FOR_S
        if live is not None and order.action is OrderAction.RUN and for_good:
            self._inbox.put_events(refused_for_good(live, order, reply.reason, time_ns))

    def _give_up(self, order: Order, progress: _Progress) -> None:
        if progress.tries >= FINAL_TRIES and self._final_orders.pop(order.key, None) is not None:
            # The runner removes old attempts by itself, Slurm's engine held jobs, after some days.
            self._log.info("last_order_given_up", node=order.node, job=order.job, action=order.action.value)

    async def _message(self, order: Order) -> WorkOrder | None:
        """The order as it is sent; None: it cannot be any more."""
        plain = WorkOrder(
            sequence=self._lead.sequence,
            leader=self._lead.name,
            job=order.job,
            attempt=order.attempt,
            action=order.action,
            ranks=order.ranks,
            pace=order.pace,
        )
        if order.action is not OrderAction.RUN:
            return plain
        spec = await self._spec(order.job)
        live = self._lead.state.live.get(order.job)
        if live is None or live.attempt != order.attempt or live.start is None:
            return None
        if spec is None:
            self._inbox.put_events(_without_spec(order, self._lead.time_ns()))
            return None
        update = {
            "spec": spec,
            "nodes": live.start.nodes,
            "master_address": live.start.master_address,
            "master_port": live.start.master_port,
            "plan": live.plan,
        }
        return plain.model_copy(update=update)

    async def _spec(self, job: str) -> JobSpec | None:
        """With its secrets."""
        if job not in self._specs:
            entry = await self._bus.bucket(JOB_SPECS).get(job)
            if entry is None or not isinstance(entry.message, JobSpec):
                return None
            self._specs[job] = entry.message
        return self._specs[job]


def _without_spec(order: Order, time_ns: int) -> list[WorkEvent]:
    return [
        WorkEvent(
            job=order.job,
            attempt=order.attempt,
            rank=rank,
            node=order.node,
            change=WorkerChange.FAILED,
            time_ns=time_ns,
            reason="its specification is not in the bucket job_specs any more",
        )
        for rank in order.ranks
    ]


def _over(before: State, after: State) -> Iterable[Order]:
    """The last orders about attempts that hold no slots any more, by node.

    A job that has ended without being done is killed before it is forgotten: an engine may keep what it starts again
    from there, although no worker runs.
    """
    for name, live in before.live.items():
        now = after.live.get(name)
        ended = now is None or now.earlier_attempts != live.earlier_attempts
        gone = live.workers and not (now is not None and now.attempt == live.attempt and now.workers)
        finished = after.finished.get(name)
        if ended and live.job.starts and not (finished is not None and finished.outcome is JobOutcome.ENDED):
            yield from _final_orders_of(live, OrderAction.KILL)
        elif gone:
            yield from _final_orders_of(live, OrderAction.FORGET)


def _final_orders_of(live: Live, action: OrderAction) -> Iterable[Order]:
    """To each node of a job's latest attempt."""
    nodes = live.spans[-1].nodes
    for node in dict.fromkeys(nodes):
        ranks = tuple(rank for rank, where in enumerate(nodes) if where == node)
        yield Order(live.job.name, live.attempt, node, action, ranks)

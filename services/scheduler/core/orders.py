"""Orders that follow from the state: each stays the same until it is answered. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.scheduling import OrderAction, Pace, Preemption, WorkerChange, WorkEvent, WorkReply
from services.scheduler.core.live import Live
from services.scheduler.core.state import State, is_news

_UNKNOWN: Final[frozenset[WorkerChange | None]] = frozenset({None})
_AT_WORK: Final[frozenset[WorkerChange | None]] = frozenset({WorkerChange.STARTED, WorkerChange.READY})


@dataclass(frozen=True, slots=True)
class Order:
    """About one attempt's workers on one node."""

    job: str
    attempt: int
    node: str
    action: OrderAction
    ranks: tuple[int, ...]
    pace: Pace | None = None

    @property
    def key(self) -> tuple[str, int, str, OrderAction]:
        """Two with the same key ask for the same, perhaps of fewer ranks, or at another pace."""
        return (self.job, self.attempt, self.node, self.action)


def orders(state: State) -> Iterator[Order]:
    """All that holds now."""
    for live in state.live.values():
        if live.workers:
            yield from _orders(live)


def _orders(live: Live) -> Iterator[Order]:
    for node in dict.fromkeys(live.job.nodes):
        if live.stopping:
            # What is left of a broken gang has nothing to save: it waits in its collective.
            action = OrderAction.KILL if live.broken else OrderAction.STOP
            yield from _order(live, node, action, live.ranks(node, _UNKNOWN | _AT_WORK))
        else:
            yield from _order(live, node, OrderAction.RUN, live.ranks(node, _UNKNOWN))
            yield from _order(live, node, OrderAction.CHECK, live.ranks(node, _AT_WORK))


def _order(live: Live, node: str, action: OrderAction, ranks: tuple[int, ...]) -> Iterator[Order]:
    if ranks:
        yield Order(live.job.name, live.attempt, node, action, ranks)


def pace_orders(state: State, paces: Mapping[str, Pace]) -> Iterator[Order]:
    """To rank 0's node of each job that is shifted, or was and is not any more.

    Args:
        state: of all jobs.
        paces: of shifted jobs, as far as they are known yet.
    """
    for name, attempt in state.traffic.shifted.items():
        live = state.live.get(name)
        if live is None or not live.workers or live.attempt != attempt or live.stopping:
            continue
        node = live.job.nodes[0]
        ranks = live.ranks(node, _AT_WORK)
        shift = state.traffic.shifts.get(name)
        paced = shift is not None and shift.attempt == attempt
        if ranks and not (paced and name not in paces):
            yield Order(name, attempt, node, OrderAction.PACE, ranks, paces[name] if paced else None)


def news(state: State, order: Order, reply: WorkReply, time_ns: int) -> tuple[WorkEvent, ...]:
    """What is in a reply and not in the log yet.

    Where an obeyed order names a worker that its runner does not know, that one is not there: it is lost, or, where it
    was never started and is to stop, it has stopped.
    """
    live = state.live.get(order.job)
    if live is None or live.attempt != order.attempt:
        return ()
    reported = [worker.last for worker in reply.workers if worker.last is not None and worker.last.node == order.node]
    if reply.obeyed and order.action not in {OrderAction.RUN, OrderAction.PACE}:
        missing = set(order.ranks) - {worker.rank for worker in reply.workers}
        reported += [gone(live, order.node, rank, time_ns) for rank in sorted(missing)]
    return tuple(event for event in reported if event.job == order.job and is_news(live, event))


def gone(live: Live, node: str, rank: int, time_ns: int) -> WorkEvent:
    """Of a worker that its runner does not know."""
    never = live.stopping and live.workers[rank] is None
    return WorkEvent(
        job=live.job.name,
        attempt=live.attempt,
        rank=rank,
        node=node,
        change=WorkerChange.STOPPED if never else WorkerChange.LOST,
        time_ns=time_ns,
        reason="it was not started" if never else f"{node} does not know it any more: it ended then, or before",
    )


def refused_for_good(live: Live, order: Order, why: str, time_ns: int) -> tuple[WorkEvent, ...]:
    """Of workers that their node refuses to start: the attempt is given up, and another place is searched."""
    return tuple(
        WorkEvent(
            job=order.job,
            attempt=order.attempt,
            rank=rank,
            node=order.node,
            change=WorkerChange.LOST,
            time_ns=time_ns,
            reason=f"{order.node} refuses to start it: {why}"[:500],
        )
        for rank in live.ranks(order.node, _UNKNOWN)
        if live.attempt == order.attempt
    )


def lost(state: State, now_s: float, after_s: float, time_ns: int) -> tuple[WorkEvent, ...]:
    """Workers that count as lost because their nodes have been silent for too long.

    By then a runner without a bus has stopped those that may be preempted. Of a job that may not be, only a person
    knows, by asking for its slots.

    Args:
        state: of all jobs.
        now_s: seconds since the epoch, by the log's clock.
        after_s: of silence, and the job's grace period besides.
        time_ns: the events' time.
    """
    found = []
    for live in state.live.values():
        if not live.workers or (live.spec.preemption is Preemption.NEVER and not live.asked):
            continue
        for node in dict.fromkeys(live.job.nodes):
            since_s = state.silent_since_s.get(node)
            if since_s is not None and now_s - since_s >= after_s + live.spec.grace_s:
                found += [
                    WorkEvent(
                        job=live.job.name,
                        attempt=live.attempt,
                        rank=rank,
                        node=node,
                        change=WorkerChange.LOST,
                        time_ns=time_ns,
                        reason=f"{node} has been silent for {now_s - since_s:.0f} s",
                    )
                    for rank in live.ranks(node, _UNKNOWN | _AT_WORK)
                ]
    return tuple(found)


def next_loss_s(state: State, after_s: float) -> float | None:
    """When workers will count as lost if nothing happens; None: none will."""
    due = [
        state.silent_since_s[node] + after_s + live.spec.grace_s
        for live in state.live.values()
        if live.workers and (live.spec.preemption is not Preemption.NEVER or live.asked)
        for node in dict.fromkeys(live.job.nodes)
        if node in state.silent_since_s and live.ranks(node, _UNKNOWN | _AT_WORK)
    ]
    return min(due, default=None)

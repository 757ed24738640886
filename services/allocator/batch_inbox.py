"""Batch inbox: gathers the batches of a period for owned applications, and serves memory requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache

from schemas.cfs import CfsBatch
from schemas.subjects import CFS, MEMORY_REQUESTS, SubjectError
from services._runtime.bus.api import Bus, BusError, Delivery, Responder, Subscription

GATHER_S = 0.003
"""Seconds to wait for more batches of a period, to decide all in one step; none once all have arrived."""
GATHER_WAITS = 8
"""Consecutive waits while batches keep arriving."""


class BatchInbox:
    """Subscriptions per application, and the batches not handed over yet."""

    def __init__(
        self, bus: Bus, on_batches: Callable[[list[CfsBatch]], None], on_request: Responder, expected: Callable[[], int]
    ) -> None:
        """Hand batches over once ``expected`` of them have arrived, or no more come."""
        self.subject_mismatches = 0
        self._bus = bus
        self._on_batches = on_batches
        self._on_request = on_request
        self._expected = expected
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._pending: list[CfsBatch] = []
        self._gathering: asyncio.TimerHandle | None = None

    async def subscribe(self, app: str) -> None:
        """Subscribe to an application; one already subscribed does not change.

        Raises:
            BusError: the subscription failed.
        """
        if app in self._subscriptions:
            return
        subscriptions: list[Subscription] = []
        self._subscriptions[app] = subscriptions
        try:
            subscriptions.append(await self._bus.subscribe(CFS.pattern(self._bus.root, app=app), self.take))
            requests = MEMORY_REQUESTS.subject(self._bus.root, app=app)
            subscriptions.append(await self._bus.serve(requests, self._on_request))
        except BusError:
            await self.unsubscribe(app)
            raise
        if self._subscriptions.get(app) is not subscriptions:  # unsubscribed meanwhile
            await _stop(subscriptions)

    def unsubscribe(self, app: str) -> Coroutine[None, None, None]:
        """Unsubscribe at once; the coroutine ends when the server has confirmed."""
        return _stop(self._subscriptions.pop(app, []))

    async def stop(self) -> None:
        """Unsubscribe from everything."""
        if self._gathering is not None:
            self._gathering.cancel()
        for app in list(self._subscriptions):
            await self.unsubscribe(app)

    def take(self, delivery: Delivery) -> None:
        """Accept a batch."""
        batch = delivery.message
        # A server's permissions are by subject: what a batch says of its origin must agree with it.
        if not isinstance(batch, CfsBatch) or delivery.subject != _batch_subject(self._bus.root, batch.app, batch.node):
            self.subject_mismatches += 1
            return
        self._pending.append(batch)
        if len(self._pending) == self._expected():
            self._hand_over()
        elif self._gathering is None:
            self._gather(0)

    def _gather(self, seen: int, waits: int = GATHER_WAITS) -> None:
        """Wait while batches keep arriving; a step costs as much for few of them as for many."""
        if len(self._pending) > seen and waits:
            again = asyncio.get_running_loop().call_later
            self._gathering = again(GATHER_S, self._gather, len(self._pending), waits - 1)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        batches, self._pending = self._pending, []
        self._on_batches(batches)


async def _stop(subscriptions: list[Subscription]) -> None:
    for subscription in subscriptions:
        await subscription.stop()


@lru_cache(maxsize=1 << 16)
def _batch_subject(root: str, app: str, node: str) -> str | None:
    """None where no subject can carry such names."""
    try:
        return CFS.subject(root, app=app, node=node).text
    except SubjectError:
        return None

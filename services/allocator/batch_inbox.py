"""What agents send about the applications that this replica owns: batches, gathered per tick, and memory requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache

from schemas.cfs import CfsBatch
from schemas.subjects import CFS, MEMORY_REQUESTS, SubjectError
from services._runtime.bus.api import Bus, BusError, Delivery, Responder, Subscription

GATHER_S = 0.003
"""How long the batches of a tick are waited for, to be decided in one step; when all are there, not at all."""
GATHER_WAITS = 8
"""Such waits in a row while batches keep coming."""


class Intake:
    """Subscriptions per application, and the batches of a tick."""

    def __init__(
        self, bus: Bus, on_batches: Callable[[list[CfsBatch]], None], on_request: Responder, expected: Callable[[], int]
    ) -> None:
        """Hand batches over when ``expected`` of them are there, or when no more come."""
        self.misplaced = 0
        self._bus = bus
        self._on_batches = on_batches
        self._on_request = on_request
        self._expected = expected
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._waiting: list[CfsBatch] = []
        self._gathering: asyncio.TimerHandle | None = None

    async def listen(self, app: str) -> None:
        """Hear of an application; of one that is heard already nothing changes.

        Raises:
            BusError: it cannot be heard.
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
            await self.ignore(app)
            raise
        if self._subscriptions.get(app) is not subscriptions:  # it was lost meanwhile
            await _stop(subscriptions)

    def ignore(self, app: str) -> Coroutine[None, None, None]:
        """Hear of it no longer; what is returned ends when the server knows."""
        return _stop(self._subscriptions.pop(app, []))

    async def stop(self) -> None:
        """Hear of nothing."""
        if self._gathering is not None:
            self._gathering.cancel()
        for app in list(self._subscriptions):
            await self.ignore(app)

    def take(self, delivery: Delivery) -> None:
        """A batch has come."""
        batch = delivery.message
        # A server's permissions are by subject: what a batch says of its origin must agree with it.
        if not isinstance(batch, CfsBatch) or delivery.subject != _batch_subject(self._bus.root, batch.app, batch.node):
            self.misplaced += 1
            return
        self._waiting.append(batch)
        if len(self._waiting) == self._expected():
            self._hand_over()
        elif self._gathering is None:
            self._gather(0)

    def _gather(self, seen: int, waits: int = GATHER_WAITS) -> None:
        """Wait for more batches as long as they keep coming; a step costs as much for few of them as for many."""
        if len(self._waiting) > seen and waits:
            again = asyncio.get_running_loop().call_later
            self._gathering = again(GATHER_S, self._gather, len(self._waiting), waits - 1)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        batches, self._waiting = self._waiting, []
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

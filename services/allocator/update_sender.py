"""Orders out, replies in, and what they have freed handed out at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache

from schemas.limits import LimitReply, LimitUpdate
from schemas.message import Message
from schemas.subjects import LIMIT_UPDATES, Subject
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services.allocator.cycle import Allocation
from services.allocator.settings import AllocatorSettings
from services.allocator.state.eligibility import Moment

FUND_S = 0.005
"""Replies of many nodes come close together; one at a time, each would send a little to every node that waits."""
REPLY_TIMEOUT_S = 1.0
"""A reply comes within one period and a deadline (130 ms) unless it is lost."""


class Orders:
    """Delivers orders and takes in their replies."""

    def __init__(
        self,
        runtime: Runtime[AllocatorSettings],
        allocation: Allocation,
        moment: Callable[[], Moment],
        on_reply: Callable[[], None],
        may_send: Callable[[], bool],
    ) -> None:
        """Deliver for one replica.

        Args:
            runtime: of the service.
            allocation: whose orders they are.
            moment: now.
            on_reply: called after replies, soon, for all that come close together at once.
            may_send: whether this replica may still act as an owner; asked when an order goes out.
        """
        self.sent = 0
        self.lost = 0
        self._runtime = runtime
        self._allocation = allocation
        self._moment = moment
        self._on_reply = on_reply
        self._may_send = may_send
        self._awaited = 0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, updates: Iterable[LimitUpdate]) -> None:
        """Send each, in a task of its own."""
        for update in updates:
            self.sent += 1
            self._runtime.spawn(self._deliver(update), name=f"order {update.seq}")

    def stop(self) -> None:
        """Call back no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def _deliver(self, update: LimitUpdate) -> None:
        reply = None
        try:
            if self._may_send():  # decided before the process was stopped, and sent after it, it would be too late
                reply = await self._request(_orders_subject(self._runtime.bus.root, update.node), update)
        except BusError as error:
            self._runtime.log.debug("limit_update_unacknowledged", node=update.node, seq=update.seq, error=str(error))
        if not isinstance(reply, LimitReply):
            self.lost += 1
            self._allocation.take_loss(update)
            return
        self._allocation.take_reply(reply, update, self._moment())
        if reply.refusal:
            self._runtime.log.warning("limit_update_rejected", node=update.node, reason=reply.refusal)
        if reply.node_refusal:
            self._runtime.log.warning(
                "memory_increase_rejected", node=update.node, seq=update.seq, reason=reply.node_refusal
            )
        self._call_back_soon()

    async def _request(self, subject: Subject, update: LimitUpdate) -> Message:
        self._awaited += 1
        try:
            return await self._runtime.bus.request(subject, update, timeout_s=REPLY_TIMEOUT_S)
        finally:
            self._awaited -= 1

    def _call_back_soon(self) -> None:
        """At once where no other reply is awaited."""
        if not self._awaited:
            self._call_back()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FUND_S, self._call_back)

    def _call_back(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_reply()


@lru_cache(maxsize=1 << 16)
def _orders_subject(root: str, node: str) -> Subject:
    return LIMIT_UPDATES.subject(root, node=node)

"""Sends limit updates, records replies, and redistributes what they have freed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache

from schemas.limits import LimitReply, LimitUpdate
from schemas.message import Message
from schemas.subjects import LIMIT_UPDATES, Subject
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services.allocator.cycle import AllocationCycle
from services.allocator.settings import AllocatorSettings
from services.allocator.state.step_context import StepTime

REPLY_GATHER_S = 0.005
"""Replies of many nodes come close together; redistributing after each would send a little to every waiting node."""
REPLY_TIMEOUT_S = 1.0
"""A reply takes at most one period and a deadline (130 ms) unless it is lost."""


class UpdateSender:
    """Delivers limit updates and records the replies."""

    def __init__(
        self,
        runtime: Runtime[AllocatorSettings],
        allocation: AllocationCycle,
        time: Callable[[], StepTime],
        on_reply: Callable[[], None],
        may_send: Callable[[], bool],
    ) -> None:
        """Deliver for one replica.

        Args:
            runtime: of the service.
            allocation: that made the updates.
            time: current time.
            on_reply: called soon after replies, once for those that come close together.
            may_send: whether this replica may still act as an owner; checked when an update goes out.
        """
        self.sent = 0
        self.lost = 0
        self._runtime = runtime
        self._allocation = allocation
        self._step_time = time
        self._on_reply = on_reply
        self._may_send = may_send
        self._outstanding = 0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, updates: Iterable[LimitUpdate]) -> None:
        """Send each update in a task of its own."""
        for update in updates:
            self.sent += 1
            self._runtime.spawn(self._deliver(update), name=f"limit update {update.seq}")

    def stop(self) -> None:
        """Cancel the pending callback."""
        if self._timer is not None:
            self._timer.cancel()

    async def _deliver(self, update: LimitUpdate) -> None:
        reply = None
        try:
            if self._may_send():  # else an update decided before SIGSTOP could go out after it
                reply = await self._request(_update_subject(self._runtime.bus.root, update.node), update)
        except BusError as error:
            self._runtime.log.debug("limit_update_unacknowledged", node=update.node, seq=update.seq, error=str(error))
        if not isinstance(reply, LimitReply):
            self.lost += 1
            self._allocation.record_timeout(update)
            return
        self._allocation.record_reply(reply, update, self._step_time())
        if reply.rejection:
            self._runtime.log.warning("limit_update_rejected", node=update.node, reason=reply.rejection)
        if reply.node_budget_reason:
            self._runtime.log.warning(
                "memory_increase_rejected", node=update.node, seq=update.seq, reason=reply.node_budget_reason
            )
        self._call_back_soon()

    async def _request(self, subject: Subject, update: LimitUpdate) -> Message:
        self._outstanding += 1
        try:
            return await self._runtime.bus.request(subject, update, timeout_s=REPLY_TIMEOUT_S)
        finally:
            self._outstanding -= 1

    def _call_back_soon(self) -> None:
        """Call back at once if no other reply is outstanding."""
        if not self._outstanding:
            self._call_back()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPLY_GATHER_S, self._call_back)

    def _call_back(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_reply()


@lru_cache(maxsize=1 << 16)
def _update_subject(root: str, node: str) -> Subject:
    return LIMIT_UPDATES.subject(root, node=node)

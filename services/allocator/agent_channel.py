"""Agent channel: gathers the batches of a period, sends limit updates and records replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from schemas.cfs import CfsBatch
from schemas.limits import LimitReply, LimitUpdate
from schemas.message import Message
from schemas.subjects import LIMIT_UPDATES
from services._runtime.bus.api import BusError, Delivery, PendingReply
from services._runtime.service.app import Runtime
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle
from services.allocator.settings import AllocatorSettings

GATHER_S = 0.003
"""Seconds to wait for more batches of a period, to decide all in one step; none once all have arrived."""
GATHER_WAITS = 8
"""Consecutive waits while batches keep arriving."""
REPLY_GATHER_S = 0.005
"""Replies of many nodes come close together; redistributing after each would send a little to every waiting node."""
REPLY_TIMEOUT_S = 1.0
"""A reply takes at most one period and a deadline (130 ms) unless it is lost."""


class BatchInbox:
    """The batches not handed over yet."""

    def __init__(self, on_batches: Callable[[list[CfsBatch]], None], expected: Callable[[], int]) -> None:
        """Hand batches over once ``expected`` of them have arrived, or no more come."""
        self.subject_mismatches = 0
        self._on_batches = on_batches
        self._expected = expected
        self._pending: list[CfsBatch] = []
        self._gathering: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Hand nothing over any more."""
        if self._gathering is not None:
            self._gathering.cancel()

    def take(self, delivery: Delivery) -> None:
        """Accept a batch."""
        batch = delivery.message
        if not isinstance(batch, CfsBatch):
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


class UpdateSender:
    """Delivers limit updates and records the replies."""

    def __init__(
        self,
        runtime: Runtime[AllocatorSettings],
        allocation: AllocationCycle,
        time: Callable[[], StepTime],
        on_reply: Callable[[], None],
        may_act: Callable[[], bool],
    ) -> None:
        """Deliver for one replica.

        Args:
            runtime: of the service.
            allocation: that made the updates.
            time: current time.
            on_reply: called soon after replies, once for those that come close together.
            may_act: says whether this replica may still act as an owner; asked when an update goes out.
        """
        self.sent = 0
        self.lost = 0
        self._runtime = runtime
        self._allocation = allocation
        self._step_time = time
        self._on_reply = on_reply
        self._may_act = may_act
        self._outstanding = 0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, updates: Iterable[LimitUpdate]) -> None:
        """Send each update now; its reply is recorded by a task of its own."""
        for update in updates:
            self.sent += 1
            self._runtime.spawn(self._record(update, self._send(update)), name=f"limit update {update.seq}")
        self._runtime.bus.write_now()

    def stop(self) -> None:
        """Cancel the pending callback."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, update: LimitUpdate) -> PendingReply | None:
        """None: not sent."""
        # Else an update decided before SIGSTOP could go out after it.
        if not self._may_act():
            return None
        bus = self._runtime.bus
        subject = LIMIT_UPDATES.subject(bus.root, node=update.node)
        try:
            sent = bus.send_request(subject, update, timeout_s=REPLY_TIMEOUT_S)
        except BusError as error:
            self._note_unacknowledged(update, error)
            return None
        self._outstanding += 1
        return sent

    def _note_unacknowledged(self, update: LimitUpdate, error: BusError) -> None:
        self._runtime.log.debug("limit_update_unacknowledged", node=update.node, seq=update.seq, error=str(error))

    async def _record(self, update: LimitUpdate, sent: PendingReply | None) -> None:
        reply = None
        try:
            reply = await self._reply_to(sent)
        except BusError as error:
            self._note_unacknowledged(update, error)
        if not isinstance(reply, LimitReply) or (reply.node, reply.seq) != (update.node, update.seq):
            # What a node says of another's limits counts as no reply, like that to another update.
            self.lost += 1
            self._allocation.replies.record_timeout(update)
            return
        self._allocation.replies.record(reply, update, self._step_time().now_ns)
        if reply.rejection:
            self._runtime.log.warning("limit_update_rejected", node=update.node, reason=reply.rejection)
        if reply.node_budget_reason:
            self._runtime.log.warning(
                "limit_increase_rejected", node=update.node, seq=update.seq, reason=reply.node_budget_reason
            )
        self._call_back_soon()

    async def _reply_to(self, sent: PendingReply | None) -> Message | None:
        if sent is None:
            return None
        try:
            return await sent()
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

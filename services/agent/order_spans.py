"""Spans of orders that move memory, or fail.

CPU follows usage ten times a second: where that goes well the allocator's span of the request tells all there is, and
one of the agent's beside it would be a third of what tracing costs a host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from schemas.limits import LimitReply, LimitUpdate, RowStatus
from services._runtime.tracing import Span, is_on, leave_out, span

_NOT_APPLIED: Final = frozenset(
    {RowStatus.OLD_ORDER, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.FAILED}
)
_NO_SPAN: Final = Span()


def order_span(node: str, update: LimitUpdate) -> AbstractContextManager[Span]:
    """Around the carrying out of an order."""
    if not update.reserve_given_bytes and not update.column("limit_bytes").any():
        return _NO_SPAN
    return span(
        "agent.apply_limits",
        turnbuckle__node=node,
        turnbuckle__epoch=update.epoch,
        turnbuckle__order_seq=update.seq,
        turnbuckle__rows=update.row_count,
    )


def note_reply(current: Span, reply: LimitReply) -> None:
    """What became of it."""
    if not is_on():
        return
    failed = sum(status in _NOT_APPLIED for status in reply.column("status").tolist())
    if current is _NO_SPAN:
        if not (failed or reply.refusal):
            leave_out()
        return
    if failed:
        current.set(turnbuckle__rows_failed=failed)
        current.fail("rows_failed", f"{failed} of {reply.row_count} rows were not carried out")
    if reply.refusal:
        current.set(turnbuckle__refusal=reply.refusal)
        current.fail("refused", reply.refusal)

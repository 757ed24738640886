"""Spans of orders that move memory. CPU follows usage ten times a second: the command's own span is enough for that."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from schemas.limits import LimitReply, LimitUpdate, RowStatus
from services._runtime.tracing import Span, span

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
    if current is _NO_SPAN:
        return
    if failed := sum(status in _NOT_APPLIED for status in reply.column("status").tolist()):
        current.set(turnbuckle__rows_failed=failed)
    if reply.refusal:
        current.set(turnbuckle__refusal=reply.refusal)

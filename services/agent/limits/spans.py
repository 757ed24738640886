"""Spans of limit updates that change memory, or fail.

CPU follows usage ten times a second: where that succeeds the allocator's span of the request is enough, and
one of the agent's beside it would be a third of what tracing costs a host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from schemas.limits import LimitReply, LimitUpdate, RowStatus
from services._runtime.telemetry.tracing import Span, drop_span, is_on, span

_NOT_APPLIED: Final = frozenset(
    {RowStatus.STALE_SEQ, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.FAILED}
)
_NO_SPAN: Final = Span()


def update_span(node: str, update: LimitUpdate) -> AbstractContextManager[Span]:
    """Around applying an update."""
    if not update.reserve_given_bytes and not update.column("limit_bytes").any():
        return _NO_SPAN
    return _span(node, update.epoch, update.seq, update.row_count)


def record_reply(current: Span, reply: LimitReply) -> None:
    """What became of it; a span of its own where it failed and had none."""
    if not is_on():
        return
    failed = sum(status in _NOT_APPLIED for status in reply.column("status").tolist())
    if current is not _NO_SPAN:
        _note_failure(current, reply, failed)
    elif failed or reply.rejection:
        with _span(reply.node, reply.epoch, reply.seq, reply.row_count) as late:
            _note_failure(late, reply, failed)
    else:
        drop_span()


def _span(node: str, epoch: int, seq: int, rows: int) -> AbstractContextManager[Span]:
    return span(
        "agent.apply_limits",
        turnbuckle__node=node,
        turnbuckle__epoch=epoch,
        turnbuckle__limit_update_seq=seq,
        turnbuckle__rows=rows,
    )


def _note_failure(current: Span, reply: LimitReply, failed: int) -> None:
    if failed:
        current.set(turnbuckle__rows_failed=failed)
        current.fail("rows_failed", f"{failed} of {reply.row_count} rows were not carried out")
    if reply.rejection:
        current.set(turnbuckle__rejection=reply.rejection)
        current.fail("refused", reply.rejection)

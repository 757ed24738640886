"""What is reported of limit updates: spans of those that change memory, or fail, and warnings of rows not applied.

CPU follows usage ten times a second: where that succeeds the allocator's span of the request is enough, and one of the
agent's beside it would be a third of what tracing costs a host. Warnings come once per container and reason, then they
are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from schemas.limits import LimitReply, LimitUpdate, RowStatus
from services._runtime.telemetry.logging import Logger, LogLimiter
from services._runtime.telemetry.tracing import MAX_APPS, Span, drop_span, is_on, span
from services.agent.limits.update_executor import FailedRow

WARN_INTERVAL_S: Final = 60.0
"""The same container and reason are logged again no sooner."""
MAX_NAMED: Final = 5
"""Containers in one warning; more are counted."""


class FailedRows:
    """Logs what failed, grouped by reason."""

    def __init__(self, log: Logger, monotonic: Callable[[], float]) -> None:
        self.count = 0
        """Rows so far."""
        self._log = log
        self._monotonic = monotonic
        self._limiter = LogLimiter(monotonic)
        self._limiter_since_s = monotonic()

    def warn(self, failures: Iterable[FailedRow]) -> None:
        """Log them."""
        by_reason: dict[str, list[str]] = {}
        suppressed = 0
        for failed in failures:
            self.count += 1
            before = self._current_limiter().admit(f"{failed.container} {failed.reason}", WARN_INTERVAL_S)
            if before is not None:
                by_reason.setdefault(failed.reason, []).append(failed.container)
                suppressed += before
        for reason, containers in by_reason.items():
            self._log.warning(
                "limits_not_applied",
                reason=reason,
                containers=containers[:MAX_NAMED],
                rows=len(containers),
                suppressed=suppressed,
            )

    def _current_limiter(self) -> LogLimiter:
        """A new one each hour, so that containers that have gone are forgotten."""
        now_s = self._monotonic()
        if now_s - self._limiter_since_s > 60 * WARN_INTERVAL_S:
            self._limiter, self._limiter_since_s = LogLimiter(self._monotonic), now_s
        return self._limiter


_NOT_APPLIED: Final = frozenset(
    {RowStatus.STALE_SEQ, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.FAILED}
)
_NO_SPAN: Final = Span()


def update_span(node: str, update: LimitUpdate) -> AbstractContextManager[Span]:
    """Around applying an update."""
    if not update.reserve_given_bytes and not update.column("limit_bytes").any():
        return _NO_SPAN
    return _span(node, update, update.apps)


def record_reply(current: Span, reply: LimitReply, apps: Sequence[str]) -> None:
    """What became of an update of these applications; a span of its own where it failed and had none."""
    if not is_on():
        return
    failed = sum(status in _NOT_APPLIED for status in reply.column("status").tolist())
    if current is not _NO_SPAN:
        _note_failure(current, reply, failed)
    elif failed or reply.rejection:
        with _span(reply.node, reply, apps) as late:
            _note_failure(late, reply, failed)
    else:
        drop_span()


def _span(node: str, message: LimitUpdate | LimitReply, apps: Sequence[str]) -> AbstractContextManager[Span]:
    return span(
        "agent.apply_limits",
        turnbuckle__node=node,
        turnbuckle__epoch=message.epoch,
        turnbuckle__limit_update_seq=message.seq,
        turnbuckle__rows=message.row_count,
        turnbuckle__apps=tuple(apps)[:MAX_APPS],
    )


def _note_failure(current: Span, reply: LimitReply, failed: int) -> None:
    if failed:
        current.set(turnbuckle__rows_failed=failed)
        current.fail("rows_failed", f"{failed} of {reply.row_count} rows were not carried out")
    if reply.rejection:
        current.set(turnbuckle__rejection=reply.rejection)
        current.fail("refused", reply.rejection)

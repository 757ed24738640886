"""Warnings of rows of limit updates that were not applied: once per container and reason, then counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from services._runtime.telemetry.logging import Logger, LogLimiter
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

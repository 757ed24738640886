"""SIGTERM as a request to stop at the next boundary between steps."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Made before anything slow is imported, so that the signal never ends a rank between two steps."""

    def __init__(self) -> None:
        self.is_made = False
        signal.signal(signal.SIGTERM, self._take)
        # `turnbuckle train` starts ranks with it blocked: one that comes before this line waits for it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.is_made = True

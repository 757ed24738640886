"""An injectable clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol


class Clock(Protocol):
    """Source of time for everything outside the pure cores."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def monotonic_ns(self) -> int:
        """`monotonic` in whole nanoseconds."""

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, by the host's wall clock."""

    def sleep_until(self, deadline: float) -> Coroutine[Any, Any, None]:
        """Return once `monotonic` has reached ``deadline`` (at once if it has already)."""


class SystemClock:
    """The host's clocks."""

    def __init__(self) -> None:
        self.monotonic = time.monotonic
        """Seconds since an arbitrary start; the interpreter's own function, as services ask many times a period."""
        self.monotonic_ns = time.monotonic_ns
        """The same in nanoseconds."""
        self.time_ns = time.time_ns
        """Nanoseconds since the epoch."""

    def sleep_until(self, deadline: float) -> Coroutine[Any, Any, None]:
        """Sleep on the event loop, from now on."""
        # A sleep of 0 s still yields to other tasks: a late loop must not starve them.
        return asyncio.sleep(max(0.0, deadline - time.monotonic()))

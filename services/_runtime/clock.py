"""An injectable clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for everything outside the pure cores."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, by the host's wall clock."""

    async def sleep_until(self, deadline: float) -> None:
        """Return once `monotonic` has reached ``deadline`` (at once if it has already)."""


def monotonic_ns(clock: Clock) -> int:
    """`Clock.monotonic` in whole nanoseconds."""
    return int(clock.monotonic() * 1e9)


class SystemClock:
    """The host's clocks."""

    def __init__(self) -> None:
        self.monotonic = time.monotonic
        """Seconds since an arbitrary start; the interpreter's own function, as services ask many times a period."""
        self.time_ns = time.time_ns
        """Nanoseconds since the epoch."""

    async def sleep_until(self, deadline: float) -> None:
        """Sleep on the event loop."""
        delay = deadline - time.monotonic()
        # A sleep of 0 s still yields to other tasks: a late loop must not starve them.
        await asyncio.sleep(max(0.0, delay))

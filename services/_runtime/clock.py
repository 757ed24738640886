"""An injectable clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol
from zlib import crc32


def until_multiple_s(period_s: float, now_s: float, service: str) -> float:
    """Seconds until a monotonic clock is at the next whole multiple of a period: above 0, at most the period.

    Periodic work of one process that needs no exact time waits so: all of it is done in common wake-ups. Multiples are
    counted from another instant for each service, or all of a host's would wake at the same one: the kernel's own
    `round_jiffies()` has three ticks between two processors for that.

    Args:
        period_s: of whole seconds.
        now_s: of the monotonic clock, which a host's processes share.
        service: by its name.
    """
    return period_s - (now_s + crc32(service.encode()) / 2**32) % period_s


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

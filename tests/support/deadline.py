"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within_s: float = 60.0, what: str = "the condition") -> None:
    """Return once the condition is true; fail the test if that takes too long."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {within_s:g} s")
        await asyncio.sleep(0.005)

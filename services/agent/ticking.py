"""When to sample: at multiples of the period of the wall clock, so that the ticks of all hosts coincide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from schemas.apps import PERIOD_US
from services._runtime.clock import Clock

PERIOD_S = PERIOD_US / 1e6


class Ticks:
    """Ticks, and looks between two of them."""

    def __init__(self, clock: Clock) -> None:
        self.late = 0
        """Ticks that were left out because the one before took too long."""
        self._clock = clock

    async def run(self, tick: Callable[[], None], between: Callable[[float], Awaitable[None]]) -> None:
        """Call ``tick`` once a period, and await ``between`` after each with the monotonic time it was due at."""
        now_s = self._clock.monotonic()
        next_s = now_s + PERIOD_S - (self._clock.time_ns() / 1e9) % PERIOD_S
        while True:
            await self._clock.sleep_until(next_s)
            tick()
            await between(next_s)
            now_s = self._clock.monotonic()
            next_s += PERIOD_S
            if now_s > next_s:
                missed = int((now_s - next_s) / PERIOD_S) + 1
                self.late += missed
                next_s += missed * PERIOD_S

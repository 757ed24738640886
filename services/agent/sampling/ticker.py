"""When to sample: at multiples of the period of the wall clock, so that the samples of all hosts coincide."""

from __future__ import annotations

from collections.abc import Callable

from schemas.apps import PERIOD_US
from services._runtime.clock import Clock

PERIOD_S = PERIOD_US / 1e6


class Ticker:
    """The sampling loop, and polls between two samples."""

    def __init__(self, clock: Clock) -> None:
        self.skipped = 0
        """Samples that were left out because the one before took too long."""
        self._clock = clock

    async def run(self, sample: Callable[[], bool], poll: Callable[[], None], polls: int) -> None:
        """Until cancelled.

        Args:
            sample: called once a period; returns whether to poll before the next.
            poll: then called between the two.
            polls: how often, evenly spaced; one that is late is left out, as the next shows the same.
        """
        now_s = self._clock.monotonic()
        next_s = now_s + PERIOD_S - (self._clock.time_ns() / 1e9) % PERIOD_S
        while True:
            await self._clock.sleep_until(next_s)
            if sample():
                await self._poll_between(poll, next_s, polls)
            now_s = self._clock.monotonic()
            next_s += PERIOD_S
            if now_s > next_s:
                missed = int((now_s - next_s) / PERIOD_S) + 1
                self.skipped += missed
                next_s += missed * PERIOD_S

    async def _poll_between(self, poll: Callable[[], None], sampled_s: float, polls: int) -> None:
        for number in range(1, polls + 1):
            due_s = sampled_s + number * PERIOD_S / (polls + 1)
            if due_s >= self._clock.monotonic():
                await self._clock.sleep_until(due_s)
                poll()

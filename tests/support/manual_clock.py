"""A clock that tests advance."""

from __future__ import annotations

import asyncio
import heapq


class ManualClock:
    """A clock that stands still until a test calls `advance`."""

    def __init__(self, *, monotonic_s: float = 1_000.0, epoch_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_s = monotonic_s
        self._offset_ns = epoch_ns - int(monotonic_s * 1e9)
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def monotonic(self) -> float:
        """Seconds, as last set."""
        return self._now_s

    def time_ns(self) -> int:
        """Nanoseconds since the epoch; moves with `monotonic`."""
        return self._offset_ns + int(self._now_s * 1e9)

    async def sleep_until(self, deadline: float) -> None:
        """Wait for `advance` to pass the deadline."""
        if deadline <= self._now_s:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (deadline, self._order, waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        """Move on by so many seconds; sleepers wake in order of their deadlines, each at its own time."""
        end = self._now_s + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            deadline, _, waiter = heapq.heappop(self._sleepers)
            self._now_s = max(self._now_s, deadline)
            if not waiter.done():
                waiter.set_result(None)
                await self.settle()
        self._now_s = end
        await self.settle()

    @staticmethod
    async def settle(rounds: int = 20) -> None:
        """Run the tasks that are ready until they wait again."""
        for _ in range(rounds):
            await asyncio.sleep(0)

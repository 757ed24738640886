"""When to sample, and when to poll between two samples.

Samples are taken at multiples of the period of the wall clock, so that those of all hosts coincide. The kernel may
notify that a cgroup was throttled: then it is polled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch
from services._runtime.clock import Clock
from services.agent.ports import Host, ThrottleNotifier

PERIOD_S = PERIOD_US / 1e6


def publish_early(poll: Callable[[int], Iterable[CfsBatch]], publish: Callable[[CfsBatch], None], clock: Clock) -> None:
    """Between two samples: publish what a poll at this time (wall clock, ns) brings; mostly nothing."""
    for batch in poll(clock.time_ns()):
        publish(batch)


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


class ThrottlePoller:
    """Listens to the host's throttle notifier, and polls at once unless it has just polled."""

    def __init__(self, clock: Clock, host: Host, poll: Callable[[], None], max_polls: int) -> None:
        """Begin with `attach`.

        Args:
            clock: the agent's.
            host: its notifier may appear and vanish.
            poll: called on a notification.
            max_polls: polls per period, about: they are at least the period's part apart; 0: notifications are ignored.
        """
        self._clock = clock
        self._host = host
        self._poll = poll
        self._spacing_s = PERIOD_S / (max_polls + 1)
        self._enabled = max_polls > 0
        self._notifier: ThrottleNotifier | None = None
        self._descriptor = -1
        self._polled_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def attach(self) -> bool:
        """Listen to the present notifier; whether there is one."""
        notifier = self._host.throttle_notifier if self._enabled else None
        if notifier is not self._notifier:
            self.stop()
            if notifier is not None:
                self._notifier, self._descriptor = notifier, notifier.fileno()
                asyncio.get_running_loop().add_reader(self._descriptor, self._on_notification, notifier)
        return notifier is not None

    def stop(self) -> None:
        """Listen no more."""
        if self._notifier is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._notifier = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_notification(self, notifier: ThrottleNotifier) -> None:
        notifier.drain()
        if self._timer is not None:
            return
        wait_s = self._polled_s + self._spacing_s - self._clock.monotonic()
        if wait_s > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._poll_now)
        else:
            self._poll_now()

    def _poll_now(self) -> None:
        self._timer = None
        self._polled_s = self._clock.monotonic()
        self._poll()

"""Polls between two samples when the kernel notifies that a cgroup was throttled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services._runtime.clock import Clock
from services.agent.ports import Host, ThrottleNotifier
from services.agent.sampling.ticker import PERIOD_S


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

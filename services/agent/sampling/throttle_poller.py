"""Looks between two samples as soon as somebody is throttled, where the host tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services._runtime.clock import Clock
from services.agent.ports import Bell, Host
from services.agent.sampling.ticker import PERIOD_S


class PromptLooks:
    """Listens to the host's bell, and answers at once if it has been quiet."""

    def __init__(self, clock: Clock, host: Host, look: Callable[[], None], most: int) -> None:
        """Begin with `follow`.

        Args:
            clock: the agent's.
            host: its bell may come and go.
            look: called when it has rung.
            most: looks per period, about: what lies between two is the period's part; 0: the bell is not heard.
        """
        self._clock = clock
        self._host = host
        self._look = look
        self._spacing_s = PERIOD_S / (most + 1)
        self._hears = most > 0
        self._bell: Bell | None = None
        self._descriptor = -1
        self._looked_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def follow(self) -> bool:
        """Listen to the bell that there is now; whether there is one."""
        bell = self._host.bell if self._hears else None
        if bell is not self._bell:
            self.stop()
            if bell is not None:
                self._bell, self._descriptor = bell, bell.fileno()
                asyncio.get_running_loop().add_reader(self._descriptor, self._heard, bell)
        return bell is not None

    def stop(self) -> None:
        """Listen no more."""
        if self._bell is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._bell = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _heard(self, bell: Bell) -> None:
        bell.silence()
        if self._timer is not None:
            return
        wait_s = self._looked_s + self._spacing_s - self._clock.monotonic()
        if wait_s > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look_now)
        else:
            self._look_now()

    def _look_now(self) -> None:
        self._timer = None
        self._looked_s = self._clock.monotonic()
        self._look()

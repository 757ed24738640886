"""Hears other hosts' `evt.route` as it happens, and gives it to `RouteHints`. What was told before is not replayed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from schemas.network import RouteEvent
from schemas.subjects import ROUTE_EVENTS
from services._runtime.bus.api import Bus, BusError, Delivery
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once
from services.reconciler.hints import MOST_PER_S, RouteHints

AGAIN_S: Final = 1.0
"""While there is no bus."""
PAUSE_S: Final = 10.0
"""After a flood nothing is heard for so long: each message costs its decoding."""
_CHECK_S: Final = 0.5


class HintListener:
    """A subscription that a flood closes for a while."""

    def __init__(self, bus: Bus, clock: Clock, log: Logger, hints: RouteHints) -> None:
        self._bus = bus
        self._clock = clock
        self._log = log
        self._limiter = LogLimiter(clock.monotonic)
        self.hints = hints
        self.paused = False
        """After a flood; nothing is heard."""
        self.vteps: Callable[[], Collection[str]] = tuple
        self.on_hint: Callable[[], None] = lambda: None

    def suspects(self) -> dict[str, str]:
        """By VTEP: which other hosts call it in trouble."""
        return self.hints.suspects(self._clock.monotonic())

    async def run(self) -> None:
        """For ever; cancel to stop."""
        while True:
            try:
                subscription = await self._bus.subscribe(ROUTE_EVENTS.pattern(self._bus.root), self._take)
            except BusError as error:
                log_once(self._log.debug, self._limiter, "route_hints_not_subscribed", 60.0, error=str(error))
                await self._sleep(AGAIN_S)
                continue
            try:
                while not self.hints.flooded:
                    await self._sleep(_CHECK_S)
            finally:
                await subscription.stop()
            self.paused = True
            self._log.warning("route_hints_paused", most_per_s=MOST_PER_S, pause_s=PAUSE_S)
            await self._sleep(PAUSE_S)
            self.hints.rested()
            self.paused = False

    def _take(self, delivery: Delivery) -> None:
        event = delivery.message
        if not isinstance(event, RouteEvent):
            return
        node = ROUTE_EVENTS.parse(self._bus.root, delivery.subject)["node"]
        if self.hints.take(node, event, self.vteps(), self._clock.monotonic()):
            self.on_hint()

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic() + seconds)

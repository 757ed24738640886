"""Subscribes to other hosts' `evt.route` for `RouteHints`; earlier events are not replayed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from schemas.network import RouteEvent
from schemas.subjects import ROUTE_EVENTS
from services._runtime.bus.api import Bus, BusError, Delivery
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once
from services.reconciler.hints import MAX_EVENTS_PER_S, RouteHints

RETRY_S: Final = 1.0
"""While the bus is unreachable."""
FLOOD_PAUSE_S: Final = 10.0
"""After a flood the subscription stays closed this long: each message costs its decoding."""
_CHECK_S: Final = 0.5


class HintListener:
    """A subscription that pauses after a flood."""

    def __init__(self, bus: Bus, clock: Clock, log: Logger, hints: RouteHints) -> None:
        self._bus = bus
        self._clock = clock
        self._log = log
        self._limiter = LogLimiter(clock.monotonic)
        self.hints = hints
        self.paused = False
        """Whether the subscription is closed after a flood."""
        self.vteps: Callable[[], Collection[str]] = tuple
        self.on_hint: Callable[[], None] = lambda: None

    def suspects(self) -> dict[str, str]:
        """By VTEP: the reports of other hosts."""
        return self.hints.suspects(self._clock.monotonic())

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                subscription = await self._bus.subscribe(ROUTE_EVENTS.pattern(self._bus.root), self._take)
            except BusError as error:
                log_once(self._log.debug, self._limiter, "route_hints_not_subscribed", 60.0, error=str(error))
                await self._sleep(RETRY_S)
                continue
            try:
                while not self.hints.flooded:
                    await self._sleep(_CHECK_S)
            finally:
                await subscription.stop()
            self.paused = True
            self._log.warning("route_hints_paused", most_per_s=MAX_EVENTS_PER_S, pause_s=FLOOD_PAUSE_S)
            await self._sleep(FLOOD_PAUSE_S)
            self.hints.resume()
            self.paused = False

    def _take(self, delivery: Delivery) -> None:
        event = delivery.message
        if not isinstance(event, RouteEvent):
            return
        node = ROUTE_EVENTS.parse(self._bus.root, delivery.subject)["node"]
        if self.hints.add(node, event, self.vteps(), self._clock.monotonic()):
            self.on_hint()

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep_until(self._clock.monotonic() + seconds)

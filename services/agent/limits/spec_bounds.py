"""What is announced of the applications that have containers here: no order goes beyond it.

Read from the bucket `apps`, seldom: when an application's first container comes, every half minute, and before an order
is judged that would pass what is known: an application may have been announced, or raised, since it was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from schemas.apps import AppSpec
from schemas.limits import LimitUpdate
from schemas.streams import APPS
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import LogLimiter
from services.agent.limits.bounds import Bound, Bounds
from services.agent.node import Node
from services.agent.settings import AgentSettings

LOOK_EVERY_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.05
"""Orders beyond what is known have it read again no sooner; those of an allocator come a period apart."""
_ANSWER_WITHIN_S: Final = 1.0
_TOLD_EVERY_S: Final = 10.0


class AnnouncedLimits:
    """Keeps a node's bounds up to date."""

    def __init__(self, runtime: Runtime[AgentSettings], node: Node) -> None:
        self.refused_orders = 0
        self._runtime = runtime
        self._clock = runtime.clock
        self._node = node
        self._bounds = Bounds()
        self._looked_s: dict[str, float] = {}
        self._reading: dict[str, asyncio.Event] = {}
        """Reads under way; set when they end."""
        self._limiter = LogLimiter(runtime.clock.monotonic)
        node.orders.bounds = self._bounds
        runtime.telemetry.observe("turnbuckle_agent_rejected_limit_updates_total", lambda: self.refused_orders)

    def expect(self, app: str) -> None:
        """A container of it has come."""
        if app not in self._looked_s:
            self._begin([app])

    async def learn(self, update: LimitUpdate) -> None:
        """To be awaited before each order: read again what it would pass."""
        for app in sorted(self._node.orders.would_pass(update)):
            if (under_way := self._reading.get(app)) is not None:
                await under_way.wait()
            else:
                await self._look(app, after_s=self._looked_s.get(app, 0.0) + LOOK_AGAIN_S)

    def follow_up(self) -> None:
        """To be called after each order."""
        beyond = self._node.orders.take_beyond()
        self.refused_orders += bool(beyond)
        for app in sorted(beyond):
            self._tell(app)

    async def run(self) -> None:
        """Look at everything from time to time; cancel to stop."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + LOOK_EVERY_S)
            here = {found.app for found in self._node.containers}
            for app in self._looked_s.keys() - here:
                del self._looked_s[app]
                self._bounds.known.pop(app, None)
            self.look()

    def look(self) -> None:
        """At every application that has containers here: the bus has come, say."""
        self._begin(sorted({found.app for found in self._node.containers}))

    def _tell(self, app: str) -> None:
        if self._limiter.admit(app, _TOLD_EVERY_S) is not None:
            reason = (
                "beyond its announced limits" if self._bounds.known.get(app) else "not announced, as far as is known"
            )
            self._runtime.log.warning("limit_update_rejected", app=app, reason=reason, orders=self.refused_orders)

    def _begin(self, apps: Iterable[str]) -> None:
        for app in apps:
            if app not in self._reading:
                self._looked_s[app] = self._clock.monotonic()
                self._runtime.spawn(self._look(app), name=f"announced limits {app}")

    async def _look(self, app: str, after_s: float = 0.0) -> None:
        """Not before ``after_s`` (monotonic). What cannot be read leaves what is known."""
        self._reading[app] = ended = asyncio.Event()
        try:
            if after_s > self._clock.monotonic():
                await self._clock.sleep_until(after_s)
            self._looked_s[app] = self._clock.monotonic()
            await self._read(app)
        finally:
            if self._reading.get(app) is ended:
                del self._reading[app]
            ended.set()

    async def _read(self, app: str) -> None:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                entry = await self._runtime.bus.bucket(APPS).get(app)
        except (BusError, TimeoutError) as error:
            self._runtime.log.debug("app_spec_not_read", app=app, error=str(error))
            return
        spec = entry.message if entry is not None else None
        if isinstance(spec, AppSpec) and spec.name == app:
            self._bounds.known[app] = Bound(spec.cpu_limit_us, int(spec.memory_limit))
        else:
            self._bounds.known[app] = None

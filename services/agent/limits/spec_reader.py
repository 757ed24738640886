"""Reads the AppSpecs of the applications that have containers here: no limit update passes their limits.

Read from the bucket `apps`, seldom: when an application's first container starts, every half minute, and before an
update that would pass the known limits: the AppSpec may have been written, or raised, since it was read.
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
from services.agent.containers import ContainerSet
from services.agent.limits.accepted_updates import SpecLimit, SpecLimits
from services.agent.limits.update_executor import LimitExecutor
from services.agent.settings import AgentSettings

READ_INTERVAL_S: Final = 30.0
MIN_READ_INTERVAL_S: Final = 0.05
"""Updates over the known limits have it read again no sooner; those of an allocator come a period apart."""
_READ_TIMEOUT_S: Final = 1.0
_WARN_INTERVAL_S: Final = 10.0


class SpecReader:
    """Keeps a node's bounds up to date."""

    def __init__(self, runtime: Runtime[AgentSettings], containers: ContainerSet, executor: LimitExecutor) -> None:
        self.rejected_updates = 0
        self._runtime = runtime
        self._clock = runtime.clock
        self._containers = containers
        self._executor = executor
        self._limits = SpecLimits()
        self._read_s: dict[str, float] = {}
        self._reading: dict[str, asyncio.Event] = {}
        """Reads under way; set when they end."""
        self._limiter = LogLimiter(runtime.clock.monotonic)
        executor.spec_limits = self._limits
        runtime.telemetry.observe("turnbuckle_agent_rejected_limit_updates_total", lambda: self.rejected_updates)

    def read_soon(self, app: str) -> None:
        """A container of it has started."""
        if app not in self._read_s:
            self._spawn_reads([app])

    async def refresh(self, update: LimitUpdate) -> None:
        """To be awaited before each update: read again the AppSpecs whose limits it would pass."""
        for app in sorted(self._executor.over_limit_apps(update)):
            if (under_way := self._reading.get(app)) is not None:
                await under_way.wait()
            else:
                await self._read_once(app, after_s=self._read_s.get(app, 0.0) + MIN_READ_INTERVAL_S)

    def count_rejections(self) -> None:
        """To be called after each update."""
        over_limit = self._executor.take_over_limit()
        self.rejected_updates += bool(over_limit)
        for app in sorted(over_limit):
            self._warn(app)

    async def run(self) -> None:
        """Read every AppSpec from time to time; cancel to stop."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + READ_INTERVAL_S)
            here = self._containers.apps
            for app in self._read_s.keys() - here:
                del self._read_s[app]
                self._limits.by_app.pop(app, None)
            self.read_all()

    def read_all(self) -> None:
        """Read the AppSpecs of all applications that have containers here, say after the bus has connected."""
        self._spawn_reads(sorted(self._containers.apps))

    def _warn(self, app: str) -> None:
        if self._limiter.admit(app, _WARN_INTERVAL_S) is not None:
            reason = (
                "beyond its announced limits" if self._limits.by_app.get(app) else "not announced, as far as is known"
            )
            self._runtime.log.warning("limit_update_rejected", app=app, reason=reason, orders=self.rejected_updates)

    def _spawn_reads(self, apps: Iterable[str]) -> None:
        for app in apps:
            if app not in self._reading:
                self._read_s[app] = self._clock.monotonic()
                self._runtime.spawn(self._read_once(app), name=f"announced limits {app}")

    async def _read_once(self, app: str, after_s: float = 0.0) -> None:
        """Not before ``after_s`` (monotonic). What cannot be read leaves what is known."""
        self._reading[app] = ended = asyncio.Event()
        try:
            if after_s > self._clock.monotonic():
                await self._clock.sleep_until(after_s)
            self._read_s[app] = self._clock.monotonic()
            await self._read(app)
        finally:
            if self._reading.get(app) is ended:
                del self._reading[app]
            ended.set()

    async def _read(self, app: str) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                entry = await self._runtime.bus.bucket(APPS).get(app)
        except (BusError, TimeoutError) as error:
            self._runtime.log.debug("app_spec_not_read", app=app, error=str(error))
            return
        spec = entry.message if entry is not None else None
        if isinstance(spec, AppSpec) and spec.name == app:
            self._limits.by_app[app] = SpecLimit(spec.cpu_limit_us, int(spec.memory_limit))
        else:
            self._limits.by_app[app] = None

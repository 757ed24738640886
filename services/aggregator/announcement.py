"""The application of the aggregators on the bus: announced where there is none; one that is there is kept."""

from __future__ import annotations

from typing import Final

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._runtime.bus.api import Bus, BusError, RevisionConflictError
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once

AGAIN_S: Final = 5.0
_LOG_EVERY_S: Final = 60.0


class Announcement:
    """Writes the application once. It stays, and so do the limits of containers, until it is deleted."""

    def __init__(self, bus: Bus, clock: Clock, log: Logger) -> None:
        self._apps = bus.bucket(APPS)
        self._clock = clock
        self._log = log
        self._limiter = LogLimiter()

    async def announce(self, spec: AppSpec) -> None:
        """Return once it is announced, by this call or before; what fails is tried again."""
        while True:
            try:
                entry = await self._apps.get(spec.name)
                if entry is None:
                    await self._apps.create(spec.name, spec)
                    self._log.info("application_announced", app=spec.name, cpu_limit=spec.cpu_limit)
                elif entry.message != spec:
                    kept = f"`turnbuckle delete {spec.name}` and a start of this service announce it by its settings"
                    self._log.info("application_kept", app=spec.name, remedy=kept)
            except RevisionConflictError:
                continue  # another has announced it meanwhile
            except BusError as error:
                log_once(self._log.warning, self._limiter, "not_announced", _LOG_EVERY_S, error=str(error))
            else:
                return
            await self._clock.sleep_until(self._clock.monotonic() + AGAIN_S)

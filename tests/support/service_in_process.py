"""A service inside a test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from services._runtime.bus.api import Bus
from services._runtime.clock import Clock, SystemClock
from services._runtime.service.app import Runtime, Service
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Telemetry

ServiceT = TypeVar("ServiceT", bound=Service)


@asynccontextmanager
async def run_in_process(
    service_class: type[ServiceT], settings: CommonSettings, bus: Bus, *, clock: Clock | None = None
) -> AsyncIterator[ServiceT]:
    """A started service; stopped at the end, the bus stays open.

    Raises:
        BaseException: the exception of a spawned task, at the end of the block.
    """
    runtime = Runtime(settings, bus, clock or SystemClock(), Telemetry(), get_logger(service_class.name))
    service = service_class(runtime)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        await runtime.cancel_tasks()
    if runtime.crashed.done():
        raise runtime.crashed.result()

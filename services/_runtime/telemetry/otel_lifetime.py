"""Lifetime of a process' telemetry export; nothing is imported if none is configured."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from services._runtime.telemetry.otel_settings import Origin, OtelSettings
from services._runtime.telemetry.telemetry import Sample, Telemetry

if TYPE_CHECKING:
    from services._runtime.telemetry.otel_export import Export


@asynccontextmanager
async def exporting(
    settings: OtelSettings | None, origin: Origin, telemetry: Telemetry, collect: Callable[[], list[Sample]]
) -> AsyncIterator[None]:
    """Export the spans and metrics of a service; flushed at the end, with a timeout.

    Args:
        settings: the exporters; None: nothing is exported.
        origin: the service.
        telemetry: registers what becomes of the export itself.
        collect: reads all metrics, from any thread; `TimeoutError`: the event loop does not answer.
    """
    if settings is None:
        yield
        return
    export = _export(settings, origin, collect)
    export.observe(telemetry)
    try:
        yield
    finally:
        await _in_thread(export.close)


@contextmanager
def exporting_spans(settings: OtelSettings | None, origin: Origin) -> Iterator[None]:
    """Export the spans of a command; flushed at the end, with a timeout."""
    if settings is None:
        yield
        return
    export = _export(settings, origin, None)
    try:
        yield
    finally:
        export.close()


def _export(settings: OtelSettings, origin: Origin, collect: Callable[[], list[Sample]] | None) -> Export:
    from services._runtime.telemetry.otel_export import Export  # noqa: PLC0415 - 20 MB that most processes do not use

    return Export(settings, origin, collect)


async def _in_thread(work: Callable[[], object]) -> None:
    """Run a blocking function in a daemon thread, which does not delay the interpreter's exit."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="telemetry end", daemon=True).start()
    await done.wait()

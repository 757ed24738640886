"""The real agent or allocator, whose export can be switched: ``BENCH_SERVICE=agent python -m tests.bench.switched``.

SIGUSR1 exports spans, as the ``OTEL_*`` variables say. SIGUSR2 sends what is left, and makes no more. SIGHUP exports
the metrics once. What OpenTelemetry takes by being there is there in all cases, so that two neighbouring windows differ
in the export alone.

Between the two signals it also notes where its processor time goes: to spans in the event loop, to the thread that
exports. A share of one process's time in one window depends little on what else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from nats.aio.client import Client

from services._runtime.service.app import main
from services._runtime.telemetry import otel_export as otel
from services._runtime.telemetry import tracing
from services._runtime.telemetry.otel_spans import OtelSpan, OtelTracing
from tests.bench.trace import leave_trace

_SERVICES = {"agent": "Agent", "allocator": "Allocator"}


@dataclass(slots=True)
class Spent:
    """Processor time, ns."""

    in_loop: int = 0
    """By spans and headers; the stamps cost some of it."""
    depth: int = 0
    begun: tuple[int, int, int] = (0, 0, 0)
    windows: list[dict[str, int]] = field(default_factory=list)


class KeptExport(otel.Export):
    """An export that can be reached."""

    latest: ClassVar[KeptExport]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        KeptExport.latest = self

    def flush(self, which: int) -> None:
        """Send spans (0) or metrics (1) now, beside everything else."""
        threading.Thread(target=self._providers[which].force_flush, daemon=True).start()

    @property
    def thread_ns(self) -> int:
        """Processor time of the thread that exports spans."""
        processors: Any = self._providers[0]._active_span_processor._span_processors  # type: ignore[union-attr]
        thread = processors[0]._batch_processor._worker_thread
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))


def stamped(spent: Spent, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work, its time noted; work within noted work counts once."""

    def noted(*arguments: Any, **keywords: Any) -> Any:
        spent.depth += 1
        begun_ns = time.thread_time_ns()
        try:
            return work(*arguments, **keywords)
        finally:
            spent.depth -= 1
            if not spent.depth:
                spent.in_loop += time.thread_time_ns() - begun_ns

    return noted


def stamp(spent: Spent) -> None:
    """All that tracing does in the event loop."""
    for owner, names in (
        (OtelTracing, ("begin", "inject", "untraced", "ids")),
        (OtelSpan, ("__enter__", "__exit__", "set", "fail")),
        (Client, ("_parse_header_lines",)),
    ):
        for name in names:
            noted = stamped(spent, getattr(owner, name))
            setattr(owner, name, staticmethod(noted) if isinstance(vars(owner)[name], staticmethod) else noted)


def switched(name: str) -> type[Any]:
    """The service's class, with the switch."""
    original: type[Any] = getattr(import_module(f"services.{name}.service"), _SERVICES[name])
    spent = Spent()
    stamp(spent)

    def now() -> tuple[int, int, int]:
        return time.process_time_ns(), spent.in_loop, KeptExport.latest.thread_ns

    class Switched(original):  # type: ignore[misc,valid-type]
        """Obeys the signals."""

        async def start(self) -> None:
            """Start with the export on."""
            made = tracing._Installed.tracing

            def on() -> None:
                tracing.install(made)
                spent.begun = now()

            def off() -> None:
                if spent.begun != (0, 0, 0):
                    values = (after - before for after, before in zip(now(), spent.begun, strict=True))
                    spent.windows.append(dict(zip(("process_ns", "loop_ns", "thread_ns"), values, strict=True)))
                tracing.install(None)
                KeptExport.latest.flush(0)

            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, on)
            loop.add_signal_handler(signal.SIGUSR2, off)
            loop.add_signal_handler(signal.SIGHUP, KeptExport.latest.flush, 1)
            await super().start()

        async def stop(self) -> None:
            """Stop, and leave what was noted."""
            await super().stop()
            leave_trace({"windows": spent.windows})

    return Switched


if __name__ == "__main__":
    otel.Export = KeptExport  # type: ignore[misc]
    main(switched(os.environ["BENCH_SERVICE"]), [])

"""The real agent or allocator, whose export can be switched: ``BENCH_SERVICE=agent python -m tests.bench.switched``.

SIGUSR1 exports spans, as the ``OTEL_*`` variables say. SIGUSR2 sends what is left, and makes no more. SIGHUP exports
the metrics once. What OpenTelemetry takes by being there is there in all cases, so that two neighbouring windows differ
in the export alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from importlib import import_module
from typing import Any

from services._runtime import otel, tracing
from services._runtime.app import main

_SERVICES = {"agent": "Agent", "allocator": "Allocator"}


class KeptExport(otel.Export):
    """An export that can be reached."""

    latest: KeptExport

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        KeptExport.latest = self

    def flush(self, which: int) -> None:
        """Send spans (0) or metrics (1) now, beside everything else."""
        threading.Thread(target=self._providers[which].force_flush, daemon=True).start()


def switched(name: str) -> type[Any]:
    """The service's class, with the switch."""
    original: type[Any] = getattr(import_module(f"services.{name}.service"), _SERVICES[name])

    class Switched(original):  # type: ignore[misc,valid-type]
        """Obeys SIGUSR1 and SIGUSR2."""

        async def start(self) -> None:
            """Start with the export on."""
            made = tracing._Installed.tracing

            def off() -> None:
                tracing.install(None)
                KeptExport.latest.flush(0)

            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, tracing.install, made)
            loop.add_signal_handler(signal.SIGUSR2, off)
            loop.add_signal_handler(signal.SIGHUP, KeptExport.latest.flush, 1)
            await super().start()

    return Switched


if __name__ == "__main__":
    otel.Export = KeptExport  # type: ignore[misc]
    main(switched(os.environ["BENCH_SERVICE"]), [])

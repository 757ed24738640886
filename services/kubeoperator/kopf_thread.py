"""kopf in a thread and a loop of its own: in the main thread it would take over the process' signals."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any, Final

import kopf

from services.kubeoperator.handlers import FINALIZER, GROUP, Reconciler, build_registry

_STOP_S: Final = 5.0


class KopfThread:
    """Runs kopf until stopped. `ended` is set when it ends by itself, which it does only where it fails."""

    def __init__(self, service: Reconciler, interval_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._registry = build_registry(service, self._across, interval_s)
        self._stop = threading.Event()
        self._failed = False
        self.ready = threading.Event()
        self.ended: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Begin to list and to watch."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set() and not self._failed

    async def stop(self) -> None:
        """End handlers and the thread. Finalizers stay: the next operator withdraws what is deleted meanwhile."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.wait({self.ended}, timeout=_STOP_S)

    async def _across(self, work: Awaitable[Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._live())
        except BaseException as failure:  # noqa: BLE001 - reported to the service, which ends the process
            error = failure
        self._loop.call_soon_threadsafe(self._end, error)

    async def _live(self) -> None:
        operator = asyncio.ensure_future(
            kopf.operator(
                registry=self._registry,
                settings=_settings(),
                standalone=True,
                clusterwide=True,
                ready_flag=self.ready,
            )
        )
        stop = asyncio.ensure_future(asyncio.to_thread(self._stop.wait))
        await asyncio.wait({operator, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not operator.done():
            operator.cancel()  # its own flag would give handlers 5 s; ours can be repeated
            await asyncio.wait({operator})
        elif not self._stop.is_set():
            self._failed = True
            self._stop.set()
            operator.result()

    def _end(self, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP, key="last-handled-spec")
    settings.posting.reporting_component = "turnbuckle-kubeoperator"
    settings.process.ultimate_exiting_timeout = None  # it would kill the process, which has a bound of its own
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    return settings


async def _as_coroutine(work: Awaitable[Any]) -> Any:
    if isinstance(work, Coroutine):
        return await work
    return await work

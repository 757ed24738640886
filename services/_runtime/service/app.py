"""Lifecycle of a service process: settings, logs, health, bus, start, signals, drain, exit code.

A service's ``__main__`` is ``main(TheService)``. Exit codes: 0 clean, 2 a wrong command line; of sysexits.h 78 bad
settings, 69 a dependency is unavailable, 70 an internal error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeVar

from schemas.registry import CHANNELS
from services._runtime.bus.api import Bus, BusError, BusUnavailableError
from services._runtime.bus.nats import NatsBus
from services._runtime.clock import Clock, SystemClock, until_multiple_s
from services._runtime.exit_code import ExitCode
from services._runtime.service.health import HEARTBEAT_S, Health, HealthServer
from services._runtime.service.settings import CommonSettings
from services._runtime.service.systemd import READY, STOPPING, Systemd
from services._runtime.settings_error import SettingsError, UnusableSettingsError
from services._runtime.stdout import print_text
from services._runtime.task_cancellation import cancel_all
from services._runtime.telemetry.logging import Logger, get_logger, setup_logging
from services._runtime.telemetry.otel_lifetime import exporting
from services._runtime.telemetry.otel_settings import Origin, OtelSettings, read_otel_settings
from services._runtime.telemetry.telemetry import Telemetry, observe_bus

_LAST_RESORT_S: Final = 2.0
"""Seconds after the grace period at which the process is ended unconditionally."""
_SAME_SIGNAL_S: Final = 1.0
"""The kernel sends the signal of a parent's death once per thread that the parent had (`reparent_leader`)."""

SettingsT = TypeVar("SettingsT", bound=CommonSettings)


def compile_messages(service: str) -> None:
    """Compile what a service sends and receives before its work begins: some 5 ms together, too many in a period."""
    for channel in CHANNELS:
        if service in (*channel.senders, *channel.receivers):
            for model in (channel.message, channel.reply):
                if model is not None:
                    model.model_rebuild()


@dataclass(slots=True)
class Runtime(Generic[SettingsT]):
    """Dependencies of a service."""

    settings: SettingsT
    bus: Bus
    clock: Clock
    telemetry: Telemetry
    log: Logger
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _crash: asyncio.Future[BaseException] | None = None

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a background task until shutdown. If it raises, that is logged and the process ends with 70.

        `UnusableSettingsError` is a refusal: its text is logged without a traceback, and the process ends with 78.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, UnusableSettingsError):
            self.log.error("settings_unusable", task=task.get_name(), error=str(error))
        else:
            self.log.error("task_crashed", task=task.get_name(), exc_info=error)
        if not self.crashed.done():
            self.crashed.set_result(error)

    @property
    def crashed(self) -> asyncio.Future[BaseException]:
        """Done, with the exception, once a spawned task has raised."""
        if self._crash is None:
            self._crash = asyncio.get_running_loop().create_future()
        return self._crash

    async def cancel_tasks(self, timeout_s: float = 2.0) -> list[str]:
        """Cancel the spawned tasks; returns the names of those that did not end in time."""
        unfinished = await cancel_all(self._tasks, timeout_s, again_s=timeout_s / 2)
        return sorted(task.get_name() for task in unfinished)


class Service(Protocol):
    """Interface of a service. Its constructor takes the `Runtime` and does nothing that may fail or block.

    A class that declares ``bus_wait_s`` is started after so many seconds even without a connection; it then has to
    subscribe by itself later.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    settings_class: ClassVar[type[CommonSettings]]

    def __init__(self, runtime: Runtime[Any]) -> None: ...

    async def start(self) -> None:
        """Subscribe and spawn; the bus is connected, unless the class declares ``bus_wait_s``."""

    async def stop(self) -> None:
        """Finish pending work; the bus is still open. Called once, also if `start` failed."""

    def not_ready(self) -> str | None:
        """Why the service is not ready, in a sentence, or None."""


def main(service_class: type[Service], arguments: list[str] | None = None) -> NoReturn:
    """Run a service as this process."""
    sys.exit(run(service_class, sys.argv[1:] if arguments is None else arguments))


def run(service_class: type[Service], arguments: list[str]) -> int:
    """As `main`, returning the exit code."""
    name = service_class.name
    if "--help" in arguments or "-h" in arguments:
        print_text(_help(service_class))
        return ExitCode.OK
    if "--version" in arguments:
        print_text(f"turnbuckle-{name} {service_class.version}")
        return ExitCode.OK
    unknown = [argument for argument in arguments if argument != "--print-config"]
    if unknown:
        print(f"unknown argument {unknown[0]!r}; see --help", file=sys.stderr)  # noqa: T201 - logs are not set up yet
        return ExitCode.USAGE
    try:
        settings = service_class.settings_class.load()
        settings.bus_options()
        otel = read_otel_settings(name, os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as above
        return ExitCode.BAD_CONFIG
    if "--print-config" in arguments:
        print_text(settings.print_config())
        return ExitCode.OK
    setup_logging(name, level=settings.log_level, log_format=settings.log_format)
    return asyncio.run(_Process(service_class, settings, otel).live())


def _help(service_class: type[Service]) -> str:
    lines = [
        f"turnbuckle-{service_class.name} {service_class.version}",
        (service_class.__doc__ or "").strip().partition("\n")[0],
        "",
        "Options: --help, --version, --print-config (the settings in force, secrets masked)",
        "Settings are environment variables; NATS_URL, NATS_CONTEXT and the selected NATS context are honoured:",
        "",
    ]
    for setting in service_class.settings_class.describe():
        lines.append(f"  {setting.variable}  ({setting.type}; default: {setting.default})")
        lines.append(f"      {setting.description}")
    return "\n".join(lines)


class _Process:
    """One service in one process."""

    def __init__(
        self, service_class: type[Service], settings: CommonSettings, otel: OtelSettings | None = None
    ) -> None:
        self._service_class = service_class
        self._settings = settings
        self._otel = otel
        self._log = get_logger(service_class.name)
        self._telemetry = Telemetry()
        self._health = Health(self._reasons_not_ready, self._telemetry, service_class.name)
        self._systemd = Systemd.from_environment()
        self._stop = asyncio.Event()
        self._bus: NatsBus | None = None
        self._service: Service | None = None
        self._started = False
        self._stopping_s: float | None = None
        """When the first signal to stop came, by CLOCK_MONOTONIC."""

    def _reasons_not_ready(self) -> list[str]:
        reasons = []
        if self._stop.is_set():
            reasons.append("draining")
        if self._bus is None or not self._bus.connected:
            reasons.append(f"no connection to NATS at {self._settings.bus_options().address}")
        if not self._started:
            reasons.append("not started")
        elif self._service is not None and (reason := self._service.not_ready()):
            reasons.append(reason)
        return reasons

    async def live(self) -> int:
        """Run until a stop signal; returns the exit code."""
        self._handle_signals()
        self._observe()
        loop = asyncio.get_running_loop()
        heartbeats = [
            loop.create_task(work, name="heartbeat") for work in (self._health.beat(), self._notify_watchdog())
        ]
        server: HealthServer | None = None
        try:
            if self._settings.health_port is not None:
                server = HealthServer(self._health, self._settings.health_host, self._settings.health_port)
                try:
                    port = server.start()
                except OSError as error:
                    self._log.error("cannot_listen", setting="TURNBUCKLE_HEALTH_PORT", error=str(error))
                    return ExitCode.UNAVAILABLE
                self._log.info("health_listening", host=self._settings.health_host, port=port)
            origin = Origin(self._service_class.name, self._service_class.version)
            async with exporting(self._otel, origin, self._telemetry, self._health.samples):
                return await self._live_on_bus()
        finally:
            for heartbeat in heartbeats:
                heartbeat.cancel()
            if server is not None:
                server.stop()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if self._stopping_s is not None:
            if now_s - self._stopping_s < _SAME_SIGNAL_S:
                return
            self._log.error("forced_exit", signal=number.name)
            os._exit(ExitCode.INTERNAL)
        self._stopping_s = now_s
        self._log.info("stopping", signal=number.name, grace_s=self._settings.shutdown_grace_s)
        self._systemd.notify(STOPPING)
        self._stop.set()

    async def _notify_watchdog(self) -> None:
        """Notify systemd's watchdog while the event loop runs; cancel to stop."""
        while True:
            self._systemd.notify_watchdog()
            await asyncio.sleep(until_multiple_s(HEARTBEAT_S, time.monotonic(), self._service_class.name))

    def _observe(self) -> None:
        name, version = self._service_class.name, self._service_class.version
        self._telemetry.observe("turnbuckle_build_info", lambda: 1, service=name, version=version)
        self._telemetry.observe("turnbuckle_event_loop_lag_seconds", lambda: self._health.beat_age_s)

    async def _live_on_bus(self) -> int:
        options = self._settings.bus_options()
        self._log.info("starting", version=self._service_class.version, nats=options.address, nats_from=options.origin)
        self._systemd.status(f"connecting to NATS at {options.address}")
        compile_messages(self._service_class.name)
        try:
            wait_s = getattr(self._service_class, "bus_wait_s", None)
            bus = await _unless(self._stop, NatsBus.connect(options, wait_s=wait_s))
        except BusError as error:
            self._log.error("bus_unusable", error=str(error))
            return ExitCode.BAD_CONFIG
        if bus is None:
            return ExitCode.OK
        self._bus = bus
        observe_bus(self._telemetry, lambda: bus.connected, lambda: bus.counters)
        runtime = Runtime(self._settings, bus, SystemClock(), self._telemetry, self._log)
        self._service = self._service_class(runtime)
        code = await self._work(self._service, runtime, bus)
        self._stop.set()  # not ready any more, even without a signal
        self._start_exit_timer()
        clean = await self._drain(self._service, runtime, bus)
        self._log.info("stopped", clean=clean)
        return code or (ExitCode.OK if clean else ExitCode.INTERNAL)

    def _start_exit_timer(self) -> None:
        """Bound the shutdown, though a thread never returns or a task ignores its cancellation."""
        timer = threading.Timer(self._settings.shutdown_grace_s + _LAST_RESORT_S, os._exit, (ExitCode.INTERNAL,))
        timer.daemon = True
        timer.start()

    async def _work(self, service: Service, runtime: Runtime[Any], bus: NatsBus) -> int:
        """Start and run until a signal, a crash, or the loss of the bus."""
        stop = asyncio.ensure_future(self._stop.wait())
        start = asyncio.ensure_future(service.start())
        try:
            endings: set[asyncio.Future[Any]] = {stop, bus.lost, runtime.crashed}
            await asyncio.wait({start, *endings}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                self._started = True
                self._log.info("started")
                self._systemd.notify(READY, "STATUS=at work")
                await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        except BusUnavailableError as error:
            self._log.error("start_failed", error=str(error))
            return ExitCode.UNAVAILABLE
        except UnusableSettingsError as error:
            self._log.error("start_failed", error=str(error))
            return ExitCode.BAD_CONFIG
        except Exception:  # noqa: BLE001 - logged, and ends the process
            self._log.exception("start_failed")
            return ExitCode.INTERNAL
        finally:
            for waiting in (start, stop):
                waiting.cancel()
            await asyncio.wait({start, stop})
        if runtime.crashed.done():
            return (
                ExitCode.BAD_CONFIG
                if isinstance(runtime.crashed.result(), UnusableSettingsError)
                else ExitCode.INTERNAL
            )
        return self._why_lost(bus) if bus.lost.done() else ExitCode.OK

    def _why_lost(self, bus: NatsBus) -> int:
        error = bus.lost.exception()
        if error is None:
            return ExitCode.UNAVAILABLE
        self._log.error("bus_unusable", error=str(error))
        return ExitCode.UNAVAILABLE if isinstance(error, BusUnavailableError) else ExitCode.BAD_CONFIG

    async def _drain(self, service: Service, runtime: Runtime[Any], bus: NatsBus) -> bool:
        """Stop the service, its tasks, then the bus, each within its share of the grace; True: all succeeded."""
        grace_s = self._settings.shutdown_grace_s
        clean = True
        try:
            async with asyncio.timeout(0.6 * grace_s):
                await service.stop()
        except TimeoutError:
            self._log.error("shutdown_timed_out", grace_s=grace_s)
            clean = False
        except Exception:  # noqa: BLE001 - the rest must be stopped anyway
            self._log.exception("stop_failed")
            clean = False
        for name in await runtime.cancel_tasks(0.1 * grace_s):
            self._log.error("task_ignores_cancellation", task=name)
            clean = False
        undelivered = await bus.close(0.3 * grace_s)
        if undelivered:
            self._log.warning("undelivered", **undelivered)
        return clean


T = TypeVar("T")


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work, or None if `stop` is set first."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, stopping):
            each.cancel()
        await asyncio.wait({task, stopping})

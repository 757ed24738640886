"""Supervises the data-plane process and its watchdog: starts both, restarts either when it exits.

All three hold one lock, through one open file (flock(2)): a second fast path cannot start before the last of them has
exited, and by then the table is empty.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from services._edge.override_tables import OverrideSocket
from services._host.instance_lock import AnotherInstanceError, InstanceLock, namespace_lock_path, namespace_words
from services._host.netlink.attributes import NetlinkError
from services._runtime.child_process import start_bare
from services._runtime.settings_error import UnusableSettingsError
from services.fastpath.config import Config
from services.fastpath.control import MAX_MESSAGE_BYTES, Command

_DAEMON: Final = "services.fastpath.daemon"
_WATCHDOG: Final = "services.fastpath.watchdog"
_BLOCKED_SIGNALS: Final = (signal.SIGINT, signal.SIGHUP)
_LOCK_TIMEOUT_S: Final = 2.0
"""A watchdog may still be emptying the table of a fast path that was killed."""
_PAUSE_S: Final = 0.02
_END_TIMEOUT_S: Final = 1.0
_MIN_RUNTIME_S: Final = 2.0
_MIN_RESTART_S: Final = 0.05
_MAX_RESTART_S: Final = 1.0


async def take_lock(state_directory: Path, netns: str | None, node: str) -> int:
    """Open and lock the lock file of a namespace.

    Raises:
        UnusableSettingsError: another fast path holds it, or it cannot be written.
    """
    try:
        path = namespace_lock_path(state_directory, netns, "fast-path")
    except OSError as error:
        raise UnusableSettingsError(
            f"there is no network namespace {netns!r} ({error.strerror}): correct TURNBUCKLE_FAST_PATH__NETNS"
        ) from error
    ends_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            return InstanceLock(
                path,
                role="fast path",
                node=node,
                managed=namespace_words(netns),
                remedy="stop it",
                setting="TURNBUCKLE_FAST_PATH__STATE_DIRECTORY",
                attempts=1,  # the event loop turns meanwhile
            ).detach()
        except AnotherInstanceError:
            if time.monotonic() >= ends_s:
                raise
            await asyncio.sleep(_PAUSE_S)


class _Child:
    """A child process and its end, watched on the event loop: polling would cost milliseconds without a data plane."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.started_s = time.monotonic()
        self.ended = asyncio.Event()
        self.killed = False
        """Whether it did not end by itself."""
        self._pidfd = os.pidfd_open(self.process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.process.wait()
        self.ended.set()

    async def end_within(self, seconds: float) -> None:
        """Wait for its end this long, then kill it."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            self.killed = True
            self.process.kill()
            await self.ended.wait()


class Supervisor:
    """Keeps both running, and forwards the data-plane process's messages."""

    def __init__(self, config: Config, lock: int, on_message: Callable[[dict[str, Any]], None]) -> None:
        self._config = config
        self._lock = lock
        self._on_message = on_message
        self._daemon: _Child | None = None
        self._watchdog: _Child | None = None
        self._control: socket.socket | None = None
        self._router_ids: dict[str, str] = {}
        self.daemon_starts = 0
        self.watchdog_starts = 0

    @property
    def pids(self) -> tuple[int, int]:
        """Of the data-plane process and of the watchdog; 0: not running."""
        daemon, watchdog = (c.process.pid if c is not None else 0 for c in (self._daemon, self._watchdog))
        return daemon, watchdog

    async def run(self) -> None:
        """Start both, and restart either when it exits. Raises OSError if one cannot be started."""
        restart_s = _MIN_RESTART_S
        while True:
            await self._wait_for_end()
            daemon = self._start()
            while not daemon.ended.is_set() and self._watchdog is not None:
                await _first_of(daemon.ended, self._watchdog.ended)
                if not daemon.ended.is_set():
                    self._replace_watchdog()
            short_run = time.monotonic() - daemon.started_s < _MIN_RUNTIME_S
            restart_s = min(2 * restart_s, _MAX_RESTART_S) if short_run else _MIN_RESTART_S
            self._on_message({"ended": daemon.process.returncode})
            await self._wait_for_end()
            await asyncio.sleep(restart_s if short_run else 0)

    def _start(self) -> _Child:
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        with own_end, child_end:
            try:
                self._watchdog = self._start_watchdog(read_end)
                descriptors = (child_end.fileno(), write_end, self._lock)
                arguments = [str(child_end.fileno()), str(write_end)]
                process = start_bare(_DAEMON, arguments, blocked=_BLOCKED_SIGNALS, descriptors=descriptors)
                self._daemon = daemon = _Child(process)
            finally:
                os.close(read_end)
                os.close(write_end)
            own_end.send(self._config.text().encode())
            own_end.setblocking(False)  # noqa: FBT003 - its only parameter
            self._control = socket.socket(fileno=own_end.detach())
        asyncio.get_running_loop().add_reader(self._control, self._read)
        self.daemon_starts += 1
        if self._router_ids:
            self.send_router_ids(self._router_ids)
        return daemon

    def _start_watchdog(self, read_end: int) -> _Child:
        config, tables = self._config, self._config.override_tables
        # One above the data-plane process, so that it also acts if that process spins.
        realtime = config.realtime_priority + 1 if config.realtime_priority else 0
        values = (config.netns or "-", tables.table, tables.priority, config.silence_s, realtime)
        arguments = [str(value) for value in values]
        blocked = (*_BLOCKED_SIGNALS, signal.SIGTERM)  # a SIGTERM to the group ends it last
        self.watchdog_starts += 1
        return _Child(start_bare(_WATCHDOG, arguments, blocked=blocked, stdin=read_end, descriptors=(self._lock,)))

    def _replace_watchdog(self) -> None:
        """Restart a dead watchdog, and send its pipe to the data-plane process."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._watchdog = self._start_watchdog(read_end)
            if self._control is not None:
                command = json.dumps({"command": Command.WATCHDOG.value}).encode()
                with suppress(OSError):
                    socket.send_fds(self._control, [command], [write_end])
        finally:
            os.close(read_end)
            os.close(write_end)

    def _read(self) -> None:
        while self._control is not None:
            try:
                data = self._control.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_control()
                return
            self._on_message(json.loads(data))

    def _close_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    def send_router_ids(self, router_ids: dict[str, str]) -> None:
        """Send the switches' router ids by uplink, now and after each restart of the data-plane process."""
        self._router_ids = router_ids
        self._send_command(Command.TORS, tors=router_ids)

    def _send_command(self, command: Command, **content: Any) -> None:
        if self._control is not None:
            with suppress(OSError):  # it has just exited, or does not read: it is restarted, and gets them again
                self._control.send(json.dumps({"command": command.value, **content}).encode())

    async def stop(self, reason: str) -> None:
        """Stop both; no override is left in the kernel."""
        self._send_command(Command.STOP, reason=reason)
        children = [child for child in (self._daemon, self._watchdog) if child is not None]
        if self._daemon is not None:
            await self._daemon.end_within(_END_TIMEOUT_S)
        self._read()
        await self._wait_for_end()
        if any(child.killed for child in children):
            self._empty_tables()
        os.close(self._lock)

    def _empty_tables(self) -> None:
        """Instead of children that were too slow for it."""
        try:
            with OverrideSocket(self._config.netns, self._config.override_tables) as kernel:
                kernel.clear()
        except FileNotFoundError:
            pass  # without its namespace there are no tables either
        except (OSError, NetlinkError) as error:
            self._on_message({"not_emptied": str(error)})

    async def _wait_for_end(self) -> None:
        """Wait for both to end; the watchdog exits once it has emptied the table."""
        self._close_control()
        for child in (self._daemon, self._watchdog):
            if child is not None:
                await child.end_within(_END_TIMEOUT_S)
        self._daemon = self._watchdog = None


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)

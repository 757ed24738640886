"""The hot process and its watchdog as the service sees them: started together, each started again when it dies.

All three hold one lock, through one open file (flock(2)): a second fast path cannot begin before the last of them has
ended, and by then the table is empty.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from services._host.namespace_lock import lock_path
from services._runtime.service.app import UnusableSettingsError
from services.fastpath.config import Config
from services.fastpath.control import LONGEST, Order

_PACKAGE: Final = "services.fastpath"
_IMPORT_ROOT: Final = Path(__file__).parents[2]
_NOT_FOR_THEM: Final = (signal.SIGINT, signal.SIGHUP)
_LOCK_WITHIN_S: Final = 2.0
"""A watchdog may still be emptying the table of a fast path that was killed."""
_PAUSE_S: Final = 0.02
_END_S: Final = 1.0
_SHORT_LIFE_S: Final = 2.0
_FIRST_RESTART_S: Final = 0.05
_LAST_RESTART_S: Final = 1.0


async def take_lock(state_directory: Path, netns: str | None, node: str) -> int:
    """The open and locked file of a namespace.

    Raises:
        UnusableSettingsError: another fast path holds it, or it cannot be written.
    """
    try:
        path = lock_path(state_directory, netns, "fast-path")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnusableSettingsError(
            f"the lock of the network namespace {netns or 'of this host'} cannot be taken ({error}): run as root, "
            "and check TURNBUCKLE_FAST_PATH__NETNS and TURNBUCKLE_FAST_PATH__STATE_DIRECTORY"
        ) from error
    ends_s = time.monotonic() + _LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() < ends_s:
                await asyncio.sleep(_PAUSE_S)
                continue
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise UnusableSettingsError(
                f"another fast path manages this network namespace ({holder or 'unknown'}; lock {path}): stop it"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "node": node}).encode(), 0)
        return descriptor


class _Child:
    """A process, and when it ends."""

    def __init__(self, module: str, arguments: list[str], descriptors: tuple[int, ...], beats: int | None) -> None:
        """Start it, in a session of its own. Raises OSError."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_THEM)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [sys.executable, "-S", "-P", "-m", f"{_PACKAGE}.{module}", *arguments],
                stdin=beats if beats is not None else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"PYTHONPATH": str(_IMPORT_ROOT), "PATH": os.environ.get("PATH", os.defpath)},
                pass_fds=descriptors,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.started_s = time.monotonic()
        self.ended = asyncio.Event()
        self._pidfd = os.pidfd_open(self.process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.process.wait()
        self.ended.set()

    async def end_within(self, seconds: float) -> None:
        """Wait for its end; then do not wait any longer."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            self.process.kill()
            await self.ended.wait()


class Supervisor:
    """Keeps both alive, and passes on what the hot process says."""

    def __init__(self, config: Config, lock: int, on_said: Callable[[dict[str, Any]], None]) -> None:
        self._config = config
        self._lock = lock
        self._on_said = on_said
        self._daemon: _Child | None = None
        self._watchdog: _Child | None = None
        self._control: socket.socket | None = None
        self._tors: dict[str, str] = {}
        self.daemon_starts = 0
        self.watchdog_starts = 0

    @property
    def pids(self) -> tuple[int, int]:
        """Of the hot process and of the watchdog; 0: not running."""
        daemon, watchdog = (c.process.pid if c is not None else 0 for c in (self._daemon, self._watchdog))
        return daemon, watchdog

    async def run(self) -> None:
        """Start both, and start again whatever ends. Raises OSError where they cannot be started."""
        restart_s = _FIRST_RESTART_S
        while True:
            await self._clear()
            daemon = self._start()
            while not daemon.ended.is_set() and self._watchdog is not None:
                await _first_of(daemon.ended, self._watchdog.ended)
                if not daemon.ended.is_set():
                    self._replace_watchdog()
            short = time.monotonic() - daemon.started_s < _SHORT_LIFE_S
            restart_s = min(2 * restart_s, _LAST_RESTART_S) if short else _FIRST_RESTART_S
            self._on_said({"ended": daemon.process.returncode})
            await self._clear()
            await asyncio.sleep(restart_s if short else 0)

    def _start(self) -> _Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        with ours, theirs:
            try:
                self._watchdog = self._start_watchdog(read_end)
                descriptors = (theirs.fileno(), write_end, self._lock)
                arguments = [str(theirs.fileno()), str(write_end)]
                self._daemon = daemon = _Child("daemon", arguments, descriptors, None)
            finally:
                os.close(read_end)
                os.close(write_end)
            ours.send(self._config.text().encode())
            ours.setblocking(False)  # noqa: FBT003 - its only parameter
            self._control = socket.socket(fileno=ours.detach())
        asyncio.get_running_loop().add_reader(self._control, self._read)
        self.daemon_starts += 1
        if self._tors:
            self.tell_tors(self._tors)
        return daemon

    def _start_watchdog(self, read_end: int) -> _Child:
        config, own = self._config, self._config.ownership
        # One above the hot process, so that it acts also where that one runs in circles.
        realtime = config.realtime_priority + 1 if config.realtime_priority else 0
        values = (config.netns or "-", own.table, own.priority, config.silence_s, realtime)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # whoever ends a group ends it last
        try:
            self.watchdog_starts += 1
            return _Child("watchdog", [str(value) for value in values], (self._lock,), read_end)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _replace_watchdog(self) -> None:
        """The old one has died: a new one, whose pipe the hot process is handed."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._watchdog = self._start_watchdog(read_end)
            if self._control is not None:
                order = json.dumps({"order": Order.WATCHDOG.value}).encode()
                with suppress(OSError):
                    socket.send_fds(self._control, [order], [write_end])
        finally:
            os.close(read_end)
            os.close(write_end)

    def _read(self) -> None:
        while self._control is not None:
            try:
                data = self._control.recv(LONGEST)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._hang_up()
                return
            self._on_said(json.loads(data))

    def _hang_up(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None

    def tell_tors(self, tors: dict[str, str]) -> None:
        """Router ids of the switches by uplink; told again to a hot process that is started later."""
        self._tors = tors
        self._order(Order.TORS, tors=tors)

    def _order(self, order: Order, **content: Any) -> None:
        if self._control is not None:
            with suppress(OSError):  # it has just died, or does not read: then it is started anew, and told again
                self._control.send(json.dumps({"order": order.value, **content}).encode())

    async def stop(self, reason: str) -> None:
        """End both; nothing of ours is in the kernel then."""
        self._order(Order.STOP, reason=reason)
        if self._daemon is not None:
            await self._daemon.end_within(_END_S)
        self._read()
        await self._clear()
        os.close(self._lock)

    async def _clear(self) -> None:
        """Let go of what has ended; the watchdog ends by itself once it has emptied the table."""
        self._hang_up()
        for child in (self._daemon, self._watchdog):
            if child is not None:
                await child.end_within(_END_S)
        self._daemon = self._watchdog = None


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)

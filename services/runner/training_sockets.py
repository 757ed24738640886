"""What jobs say of their trainings: a datagram socket in each worker's directory, read ten times a second at most.

A job has no key to the bus, and needs none: it says what it measures, and its runner, which knows whose socket it is,
says whose it is. Whatever a job sends, it costs some datagrams per look: the rest waits in the kernel, which keeps few.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from schemas.codec import CodecError, decode
from schemas.trainings import StepBatch, TrainingEvent
from services._runtime.deep_sockets import socket_address
from services._runtime.telemetry.logging import Logger, LogLimiter, log_once
from services.runner.wakeups import WakeUps
from services.runner.worker import Worker, WorkerKey

MOST_PER_POLL: Final = 10
"""Datagrams of one worker. A training sends one per rank and second."""
MOST_AT_END: Final = 1_000
"""Once it has ended: all that the kernel keeps (net.unix.max_dgram_qlen, 10, or 512 by systemd)."""
MOST_BYTES: Final = 32 << 10
"""Of a datagram: as much as the stream takes of an event."""
_MODE: Final = 0o600
_LOG_EVERY_S: Final = 60.0


class TrainingSockets:
    """The sockets of one node's workers."""

    def __init__(
        self, node: str, publish: Callable[[StepBatch | TrainingEvent], None], log: Logger, wakeups: WakeUps
    ) -> None:
        self._node = node
        self._wakeups = wakeups
        self._publish = publish
        self._log = log
        self._limiter = LogLimiter()
        self._sockets: dict[WorkerKey, tuple[socket.socket, Path]] = {}

    def poll(self, living: Sequence[Worker]) -> None:
        """Take what has come, open sockets of workers that are new, close those of others."""
        keys = {worker.key for worker in living}
        for worker in living:
            if worker.key not in self._sockets:
                self._open(worker)
        for key, (opened, path) in list(self._sockets.items()):
            self._read(key, opened, MOST_PER_POLL if key in keys else MOST_AT_END)
            if key not in keys:
                self._close(key, opened, path)

    def close(self) -> None:
        """Close all: the workers live on, and what they say waits for the next runner."""
        for opened, _ in self._sockets.values():
            self._wakeups.remove(opened.fileno())
            opened.close()
        self._sockets.clear()

    def _open(self, worker: Worker) -> None:
        """Make it anew, for the worker's user only; no other can replace it in the runner's directory."""
        assert worker.intent is not None
        path = worker.files.training_socket
        try:
            path.unlink(missing_ok=True)
            opened = _bound(path, worker.intent.user)
        except OSError as error:
            log_once(self._log.warning, self._limiter, "no_training_socket", _LOG_EVERY_S, error=str(error))
            return
        self._wakeups.add(opened.fileno())
        self._sockets[worker.key] = opened, path

    def _close(self, key: WorkerKey, opened: socket.socket, path: Path) -> None:
        self._wakeups.remove(opened.fileno())
        opened.close()
        with suppress(OSError):  # its directory has been removed
            path.unlink(missing_ok=True)
        del self._sockets[key]

    def _read(self, key: WorkerKey, opened: socket.socket, most: int) -> None:
        for datagram in _received(opened, most):
            try:
                message = decode(datagram)
            except CodecError as error:
                self._refuse(key, str(error))
                continue
            if not isinstance(message, StepBatch | TrainingEvent):
                self._refuse(key, f"a {message.type_name}")
                continue
            whose = {"job": key.job, "node": self._node, "generation": key.attempt}
            self._publish(message.model_copy(update=whose))

    def _refuse(self, key: WorkerKey, reason: str) -> None:
        log_once(self._log.warning, self._limiter, "training_report_refused", _LOG_EVERY_S, job=key.job, reason=reason)


def _bound(path: Path, user: Sequence[Any] | None) -> socket.socket:
    """A socket that never blocks, bound at a path that is this user's; none is left open where that fails."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(made.fileno(), _MODE)  # the file gets the mode that the socket has (unix_bind_bsd)
        with socket_address(path) as address:
            made.bind(address)
        if user is not None:
            _, uid, gid, _ = user
            os.chown(path, uid, gid, follow_symlinks=False)
    except OSError:
        made.close()
        raise
    return made


def _received(opened: socket.socket, most: int) -> Iterator[bytes]:
    """What waits, up to so many; a larger datagram comes cut off, and is refused as what it is then."""
    for _ in range(most):
        try:
            yield opened.recv(MOST_BYTES)
        except BlockingIOError:
            return

"""Worker process: forked from the fork server into its sandbox, released together with the others by a ready barrier.

It sends ``ready``, waits for a byte, trains, sends its end time by the monotonic clock, and waits for another byte, so
that no connection is closed while a slower worker still reads from it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch.utils.data import TensorDataset

from services._jobs.sandbox.sandbox import Sandbox
from services.collector.emulator.tasks.task import TrainingTask
from services.collector.emulator.training import Place, train


@dataclass(slots=True)
class Worker:
    """The parent's side of one worker."""

    sandbox: Sandbox
    pid: int
    line: socket.socket
    ready: bool = False
    end_ns: int | None = None
    loss: float | None = None
    error: str = ""
    exit_code: int | None = None
    """Negative: killed by that signal."""
    _unread: bytes = b""

    def read_messages(self) -> None:
        """Read its messages; at end of file, its exit code."""
        data = self.line.recv(1 << 16)
        if not data:
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            self.ready = self.ready or "ready" in fields
            self.end_ns = fields.get("end_ns", self.end_ns)
            self.loss = fields.get("loss", self.loss)
            self.error = fields.get("error", self.error)

    def resume(self) -> None:
        """Let the worker continue. It may have exited meanwhile."""
        try:
            self.line.send(b"!")
        except (BrokenPipeError, ConnectionResetError):
            return


@dataclass(frozen=True, slots=True)
class Training:
    """Parameters common to all workers of a run."""

    task: TrainingTask
    data: TensorDataset
    batch_size: int
    seed: int


def start_worker(sandbox: Sandbox, training: Training, place: Place) -> Worker:
    """Fork a worker into a sandbox."""
    parent_end, child_end = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        parent_end.close()
        _run_worker(sandbox, training, place, child_end)
    child_end.close()
    return Worker(sandbox, pid, parent_end)


def _run_worker(sandbox: Sandbox, training: Training, place: Place, line: socket.socket) -> NoReturn:
    """Run the child; never returns into the parent's stack."""
    code = 1
    try:
        sandbox.enter()
        _detach_from_parent(line.fileno())
        torch.manual_seed(training.seed)

        def wait_for_release() -> None:
            _send(line, ready=True)
            line.recv(1)

        loss = train(training.task, training.data, training.batch_size, place, wait_for_release)
        _send(line, end_ns=time.monotonic_ns(), loss=loss)
        line.recv(1)
        code = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent reports it
        _send_error(line, f"{type(error).__name__}: {error}"[:500])
    finally:
        os._exit(code)


def _detach_from_parent(child_end: int) -> None:
    """Close the parent's pipes, whose readers must not wait for this process. Discards errors of torch's threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (sys.stdin.fileno(), 1, 2):
        if descriptor != child_end:
            os.dup2(null, descriptor)


def _send(line: socket.socket, **fields: object) -> None:
    line.sendall(json.dumps(fields).encode() + b"\n")


def _send_error(line: socket.socket, error: str) -> None:
    try:
        _send(line, error=error)
    except OSError:  # the parent has gone
        return

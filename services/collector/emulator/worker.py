"""A worker's process: forked from the warm parent into its cell, released together with the others.

It says ``ready``, waits for a byte, trains, says when it ended by the clock that all processes share, and waits for
another byte, so that nobody's connection is closed while a slower worker still reads from it.
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

from services._host.sandbox.sandbox import Cell
from services.collector.emulator.tasks.task import TrainingTask
from services.collector.emulator.training import Place, train


@dataclass(slots=True)
class Worker:
    """The parent's side of one worker."""

    cell: Cell
    pid: int
    line: socket.socket
    ready: bool = False
    end_ns: int | None = None
    loss: float | None = None
    error: str = ""
    exit_code: int | None = None
    """Negative: killed by that signal."""
    _unread: bytes = b""

    def listen(self) -> None:
        """Take in what it said; at the end of the line, its exit code."""
        said = self.line.recv(1 << 16)
        if not said:
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)
            return
        *lines, self._unread = (self._unread + said).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            self.ready = self.ready or "ready" in fields
            self.end_ns = fields.get("end_ns", self.end_ns)
            self.loss = fields.get("loss", self.loss)
            self.error = fields.get("error", self.error)

    def tell(self) -> None:
        """Let it go on. It may have died meanwhile."""
        try:
            self.line.send(b"!")
        except (BrokenPipeError, ConnectionResetError):
            return


@dataclass(frozen=True, slots=True)
class Training:
    """What all workers of a run have in common."""

    task: TrainingTask
    data: TensorDataset
    batch_size: int
    seed: int


def start_worker(cell: Cell, training: Training, place: Place) -> Worker:
    """Fork one into a cell."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _be_a_worker(cell, training, place, theirs)
    theirs.close()
    return Worker(cell, pid, ours)


def _be_a_worker(cell: Cell, training: Training, place: Place, line: socket.socket) -> NoReturn:
    """Never returns: what the parent has on its stack is none of ours."""
    code = 1
    try:
        cell.enter()
        _let_go_of_the_parent(line.fileno())
        torch.manual_seed(training.seed)

        def wait_for_the_release() -> None:
            _say(line, ready=True)
            line.recv(1)

        loss = train(training.task, training.data, training.batch_size, place, wait_for_the_release)
        _say(line, end_ns=time.monotonic_ns(), loss=loss)
        line.recv(1)
        code = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells of it
        _say_quietly(line, f"{type(error).__name__}: {error}"[:500])
    finally:
        os._exit(code)


def _let_go_of_the_parent(ours: int) -> None:
    """Its pipes: their other ends must see the parent's end, not ours. Errors of torch's threads go nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (sys.stdin.fileno(), 1, 2):
        if descriptor != ours:
            os.dup2(nowhere, descriptor)


def _say(line: socket.socket, **fields: object) -> None:
    line.sendall(json.dumps(fields).encode() + b"\n")


def _say_quietly(line: socket.socket, error: str) -> None:
    try:
        _say(line, error=error)
    except OSError:  # the parent has gone
        return

"""What each step of a rank took, as columns: a JSON line a second, to a file or a datagram socket of this host.

The bus is no matter of this process, which runs the user's code: what reads the file or the socket sends them on. A
reader that is slow or gone never holds a step up: its lines are dropped, and counted in the next one.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

from services.trainer.worker.step_clock import StepTimes

SOCKET: Final = "unix:"
_EVERY_S: Final = 1.0


class Sink(Protocol):
    """Where lines go."""

    def write(self, line: bytes) -> bool:
        """Whether it was taken; does not block."""

    def close(self) -> None:
        """Release its descriptor."""


class _File:
    """Appends: lines of several ranks may go to one file, each is one write."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, line: bytes) -> bool:
        try:
            return os.write(self._descriptor, line) == len(line)
        except OSError:  # a full disk
            return False

    def close(self) -> None:
        os.close(self._descriptor)


class _Datagrams:
    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0.0)
        self._path = path

    def write(self, line: bytes) -> bool:
        try:
            return self._socket.sendto(line, self._path) == len(line)
        except OSError:  # its queue is full, or nothing listens: it may come later
            return False

    def close(self) -> None:
        self._socket.close()


def open_sink(place: str) -> Sink:
    """A file's path, or ``unix:PATH`` of a datagram socket.

    Raises:
        OSError: the file cannot be opened.
    """
    return _Datagrams(place.removeprefix(SOCKET)) if place.startswith(SOCKET) else _File(place)


@dataclass(slots=True)
class StepReports:
    """Steps of one rank since the last line."""

    rank: int
    sink: Sink
    generation: int = 0
    """Of an elastic training."""
    lost_lines: int = 0
    _rows: list[dict[str, int | float | None]] = field(default_factory=list)
    _sent_s: float = field(default_factory=time.monotonic)

    def add(self, step: int, times: StepTimes, samples: int, memory_bytes: int, loss: float | None) -> None:
        """Take a step that has just ended; writes a line once a second.

        Args:
            step: from 0.
            times: of the step.
            samples: that this rank computed.
            memory_bytes: the largest that this process has used: resident, or allocated on its GPU.
            loss: of the global batch, the same on all ranks; None: it is no finite number.
        """
        own = {"end_us": time.monotonic_ns() // 1_000, "samples": samples, "memory_bytes": memory_bytes, "loss": loss}
        self._rows.append({"step": step, **asdict(times), **own})
        if time.monotonic() >= self._sent_s + _EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if not self._rows:
            return
        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        own = {"generation": self.generation} if self.generation else {}
        line = json.dumps({"rank": self.rank, "lost_lines": self.lost_lines, **own, **columns}) + "\n"
        self.lost_lines = 0 if self.sink.write(line.encode()) else self.lost_lines + 1
        self._rows, self._sent_s = [], time.monotonic()

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self.sink.close()

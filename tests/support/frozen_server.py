"""An embedded NATS server that hangs: connections stay open and nothing answers."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from services._runtime.bus.embedded_server import EmbeddedNats

_STOPPED_WITHIN_S = 60.0


def freeze(server: EmbeddedNats) -> None:
    """Stop it with SIGSTOP. Returns once every thread is stopped."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    deadline = time.monotonic() + _STOPPED_WITHIN_S
    while not _is_stopped(server.pid):
        assert time.monotonic() < deadline, "the server is not stopped"
        time.sleep(0.001)  # at most a few scheduler ticks


def thaw(server: EmbeddedNats) -> None:
    """Undo `freeze`; nothing where it has ended."""
    if server.pid is not None:
        os.kill(server.pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    """Whether every thread is stopped; a signal reaches threads on other processors a little later."""
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if status.read_text().rpartition(")")[2].split()[0] != "T":
                return False
    return True

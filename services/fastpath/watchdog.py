"""Watchdog process: empties the override table when the data-plane process sends no heartbeat or has died.

`Heartbeats` is the data-plane process' side: a byte to the watchdog, a netlink message to the reconciler.

It reads a byte per tenth of a second from its standard input. Without heartbeats, overrides would hide FRR's routes:
they are deleted, rule first. At the end of the input the data-plane process has died: they are deleted, and the
watchdog exits. It holds the lock meanwhile, through an inherited descriptor, so that a successor starts afterwards.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._edge.fast_path_heartbeat import HeartbeatSender
from services._edge.override_tables import OverrideSocket, OverrideTables
from services._host.netlink.attributes import NetlinkError

CLEAN_EXIT: Final = b"q"
_RETRY_S: Final = 0.02
"""After a failed flush."""
_ATTEMPTS: Final = 50


class Heartbeats:
    """Sends both heartbeats. Non-blocking."""

    def __init__(self, watchdog: int, sender: HeartbeatSender) -> None:
        """Take over the pipe and the socket.

        Args:
            watchdog: the writing end of its pipe.
            sender: of the heartbeat to the reconciler.
        """
        self._watchdog = watchdog
        self._sender = sender
        self._error = ""

    def send(self) -> str:
        """Send both. Returns the error of the one to the reconciler if it is a new one; else an empty string."""
        with suppress(BlockingIOError, BrokenPipeError):  # the watchdog is being restarted
            os.write(self._watchdog, b".")
        before, self._error = self._error, ""
        try:
            self._sender.send()
        except OSError as error:
            self._error = str(error)
        return self._error if self._error != before else ""

    def replace(self, watchdog: int) -> None:
        """Switch to the pipe of a restarted watchdog."""
        os.close(self._watchdog)
        self._watchdog = watchdog

    def clean_exit(self) -> None:
        """Report a clean exit: the table is already empty."""
        with suppress(OSError):
            os.write(self._watchdog, CLEAN_EXIT)


def watch(heartbeats: int, timeout_s: float, kernel: OverrideSocket) -> None:
    """Run until the data-plane process reports a clean exit, or has died.

    Raises:
        OSError, NetlinkError: the table could not be emptied after `_ATTEMPTS` attempts.
    """
    poll = select.poll()
    poll.register(heartbeats, select.POLLIN)
    flushed = False
    while True:
        if not poll.poll(timeout_s * 1000):
            if not flushed:
                _flush(kernel)
            flushed = True  # a stopped process cannot add overrides
            continue
        flushed = False
        received = os.read(heartbeats, 4096)
        if not received:
            _flush(kernel)
            return
        if received.endswith(CLEAN_EXIT):
            return


def _flush(kernel: OverrideSocket) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            found = kernel.clear()
        except (OSError, NetlinkError):
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_RETRY_S)
        else:
            print(f"watchdog: the daemon is silent or dead: {found} overrides deleted", file=sys.stderr)  # noqa: T201
            return


def main(arguments: list[str]) -> None:
    """Run with: namespace (``-``: this one), table, priority of the rule, silence (seconds), real-time priority."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-900", encoding="ascii")
    netns, table, priority, timeout_s, realtime = arguments
    if int(realtime):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(int(realtime)))
    with OverrideSocket(None if netns == "-" else netns, OverrideTables(int(table), int(priority))) as kernel:
        watch(sys.stdin.fileno(), float(timeout_s), kernel)


if __name__ == "__main__":
    main(sys.argv[1:])

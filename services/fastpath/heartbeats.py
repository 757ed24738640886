"""Heartbeats of the data-plane process: a byte to its watchdog, a netlink message to the reconciler."""

from __future__ import annotations

import os
from contextlib import suppress

from services._host.fast_path_heartbeat import HeartbeatSender
from services.fastpath.watchdog import CLEAN_EXIT


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

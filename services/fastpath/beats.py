"""The hot process' signs of life: a byte to its watchdog, a message to whoever else looks after the namespace."""

from __future__ import annotations

import os
from contextlib import suppress

from services.fastpath.heartbeat import HeartbeatSender
from services.fastpath.watchdog import BYE


class Beats:
    """Both of them. Never waits."""

    def __init__(self, watchdog: int, sender: HeartbeatSender) -> None:
        """Begin.

        Args:
            watchdog: the writing end of its pipe.
            sender: for the reconciler.
        """
        self._watchdog = watchdog
        self._sender = sender
        self._trouble = ""

    def beat(self) -> str:
        """Say that we are at work. Returns why the reconciler could not be told, where that is news; else nothing."""
        with suppress(BlockingIOError, BrokenPipeError):  # a new watchdog is on its way
            os.write(self._watchdog, b".")
        before, self._trouble = self._trouble, ""
        try:
            self._sender.send()
        except OSError as error:
            self._trouble = str(error)
        return self._trouble if self._trouble != before else ""

    def replace(self, watchdog: int) -> None:
        """There is a new watchdog."""
        os.close(self._watchdog)
        self._watchdog = watchdog

    def bye(self) -> None:
        """We have cleared up ourselves."""
        with suppress(OSError):
            os.write(self._watchdog, BYE)

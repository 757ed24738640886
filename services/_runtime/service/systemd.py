"""State notifications to systemd (sd_notify(3)) from a unit with ``Type=notify``.

Elsewhere every call does nothing. Errors are ignored: a service does not depend on its manager.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"
_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")


class Systemd:
    """The service manager that started this process, if any."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        """Read the socket's address, and whether the watchdog is enabled."""
        self._address = _address(environ.get(_SOCKET, ""))
        period_us, watched_pid = (environ.get(variable, "") for variable in _WATCHDOG)
        self._watched = period_us.isdigit() and int(period_us) > 0 and watched_pid in {"", str(pid)}

    @classmethod
    def from_environment(cls) -> Systemd:
        """From the environment, whose variables are removed: children must not notify for this process."""
        systemd = cls(os.environ, os.getpid())
        for variable in (_SOCKET, *_WATCHDOG):
            os.environ.pop(variable, None)
        return systemd

    def notify(self, *states: str) -> None:
        """Send one message of ``NAME=value`` lines."""
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(0)
            connection.sendto("\n".join(states).encode(), self._address)

    def notify_watchdog(self) -> None:
        """Send a keep-alive if the watchdog is enabled (``WatchdogSec=``)."""
        if self._watched:
            self.notify(WATCHDOG)

    def status(self, words: str) -> None:
        """Set the line that `systemctl status` shows."""
        self.notify("STATUS=" + " ".join(words.split()))


def _address(text: str) -> str | None:
    """The address of a path or an abstract socket (``@``); vsock addresses are for virtual machines."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None

"""What a service tells systemd about itself (sd_notify(3)), where it runs in a unit with ``Type=notify``.

Anywhere else every call does nothing. Nothing here raises: a service goes on, whether it is heard or not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")


class Systemd:
    """The manager that started this process, if one did."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        """Remember whom to tell, and whether a sign of life is waited for."""
        self._address = _address(environ.get(_SOCKET, ""))
        period_us, watched_pid = (environ.get(variable, "") for variable in _WATCHDOG)
        self._watched = period_us.isdigit() and int(period_us) > 0 and watched_pid in {"", str(pid)}

    @classmethod
    def from_environment(cls) -> Systemd:
        """Of this process. Children must not speak for it, so the variables are taken out."""
        systemd = cls(os.environ, os.getpid())
        for variable in (_SOCKET, *_WATCHDOG):
            os.environ.pop(variable, None)
        return systemd

    def tell(self, *states: str) -> None:
        """One message of ``NAME=value`` lines."""
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(0)
            connection.sendto("\n".join(states).encode(), self._address)

    def alive(self) -> None:
        """A sign of life, where one is waited for (``WatchdogSec=``)."""
        if self._watched:
            self.tell(ALIVE)

    def status(self, words: str) -> None:
        """What `systemctl status` shows; one line."""
        self.tell("STATUS=" + " ".join(words.split()))


def _address(text: str) -> str | None:
    """Of a path, or of an abstract socket (``@``); systemd's other kinds (vsock) are for machines, not services."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None

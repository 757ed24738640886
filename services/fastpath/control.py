"""Socket between the data-plane process and its service: commands in, event records out, one JSON text per packet.

Both ends are non-blocking: while the service does not read, records are queued, up to a limit.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import time
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

MAX_MESSAGE_BYTES: Final = 1 << 16


class Command(Enum):
    """Commands of the service."""

    STOP = "stop"
    TORS = "tors"
    WATCHDOG = "watchdog"
    """Carries the pipe of a restarted watchdog."""


class ReceivedCommand(NamedTuple):
    """One received command."""

    kind: Command
    reason: str = ""
    tors: dict[str, str] = {}  # noqa: RUF012 - never written to
    descriptor: int = -1


class ControlLink:
    """The data-plane process's end. The end of the service counts as a stop command."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(0.0)
        self.wants_router_ids = True

    def fileno(self) -> int:
        """For epoll."""
        return self._end.fileno()

    def receive(self) -> list[ReceivedCommand]:
        """Received commands."""
        commands: list[ReceivedCommand] = []
        while True:
            try:
                data, ancillary, _, _ = self._end.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return commands
            except OSError as error:
                return [*commands, ReceivedCommand(Command.STOP, f"the service is gone: {error}")]
            if not data:
                return [*commands, ReceivedCommand(Command.STOP, "the service is gone")]
            message = json.loads(data)
            kind = Command(message["command"])
            descriptor = _descriptor(ancillary) if kind is Command.WATCHDOG else -1
            if kind is not Command.WATCHDOG or descriptor >= 0:
                commands.append(ReceivedCommand(kind, message.get("reason", ""), message.get("tors", {}), descriptor))

    def send(self, records: deque[dict[str, Any]], *, within_s: float = 0.0) -> None:
        """Send records, oldest first, as many as the socket accepts, and remove them from the queue."""
        ends_s = time.monotonic() + within_s
        while records:
            try:
                self._end.send(json.dumps({"event": records[0]}).encode())
            except BlockingIOError:
                left_s = ends_s - time.monotonic()
                if left_s <= 0 or not _writable(self._end, left_s):
                    return
                continue
            except OSError:  # the service has exited: `receive` reports it
                return
            records.popleft()

    def send_state(self, state: dict[str, Any]) -> None:
        """Send the state; if the socket is full, a newer one follows."""
        state["wants_router_ids"] = self.wants_router_ids
        with suppress(OSError):
            self._end.send(json.dumps({"state": state}).encode())
            self.wants_router_ids = False


def _writable(end: socket.socket, within_s: float) -> bool:
    """Wait until the socket is writable or broken. Not `select.select`, which is limited to descriptor 1,023."""
    poll = select.poll()
    poll.register(end, select.POLLOUT)
    return bool(poll.poll(within_s * 1_000))


def _descriptor(ancillary: list[tuple[int, int, bytes]]) -> int:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for descriptor in found:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only parameter
        os.set_blocking(descriptor, False)
    return found[0] if found else -1

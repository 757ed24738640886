"""The socket between the hot process and its service: orders in, records out, a text of JSON per packet.

Neither end waits: while the service does not read, records stay where they are, up to a limit.
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

LONGEST: Final = 1 << 16


class Order(Enum):
    """What the service says."""

    STOP = "stop"
    TORS = "tors"
    WATCHDOG = "watchdog"
    """A new watchdog's pipe comes with it."""


class Received(NamedTuple):
    """One order."""

    kind: Order
    reason: str = ""
    tors: dict[str, str] = {}  # noqa: RUF012 - never written to
    descriptor: int = -1


class ControlLink:
    """The hot process' end. Once the service is gone, that is an order to stop."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(0.0)
        self.ask_for_tors = True

    def fileno(self) -> int:
        """For epoll."""
        return self._end.fileno()

    def receive(self) -> list[Received]:
        """Orders that have come."""
        orders: list[Received] = []
        while True:
            try:
                data, ancillary, _, _ = self._end.recvmsg(LONGEST, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return orders
            except OSError as error:
                return [*orders, Received(Order.STOP, f"the service is gone: {error}")]
            if not data:
                return [*orders, Received(Order.STOP, "the service is gone")]
            said = json.loads(data)
            kind = Order(said["order"])
            descriptor = _descriptor(ancillary) if kind is Order.WATCHDOG else -1
            if kind is not Order.WATCHDOG or descriptor >= 0:
                orders.append(Received(kind, said.get("reason", ""), said.get("tors", {}), descriptor))

    def send(self, records: deque[dict[str, Any]], *, within_s: float = 0.0) -> None:
        """Send records, oldest first, as many as the service takes; they leave the queue."""
        ends_s = time.monotonic() + within_s
        while records:
            try:
                self._end.send(json.dumps({"event": records[0]}).encode())
            except BlockingIOError:
                left_s = ends_s - time.monotonic()
                if left_s <= 0 or not _writable(self._end, left_s):
                    return
                continue
            except OSError:  # it is gone: `receive` says so
                return
            records.popleft()

    def send_state(self, state: dict[str, Any]) -> None:
        """Send numbers; where the service does not take them, newer ones follow."""
        state["ask_for_tors"] = self.ask_for_tors
        with suppress(OSError):
            self._end.send(json.dumps({"state": state}).encode())
            self.ask_for_tors = False


def _writable(end: socket.socket, within_s: float) -> bool:
    """Whether it takes something, or is broken, within so long. Not `select.select`, which ends at descriptor 1,023."""
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

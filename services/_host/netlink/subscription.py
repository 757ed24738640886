"""Events of the kernel: sockets that have joined groups of rtnetlink(7), and which namespace a name stands for."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from services._host.netlink.attributes import MalformedError
from services._host.netlink.messages import Message, framed
from services._host.netns import netns_path, socket_in

RECEIVE_BYTES: Final = 32 << 20
"""Measured: 20,000 events at once fit, where the default loses all but a few hundred."""
LARGEST_DATAGRAM: Final = 1 << 17
"""Of what the kernel sends: dumps come in at most 32 KiB."""
SOL_NETLINK: Final = 270
_SO_RCVBUFFORCE: Final = 33
_ADD_MEMBERSHIP: Final = 1


class Received(NamedTuple):
    """What a subscription had."""

    messages: list[Message]
    overrun: bool
    """Events were lost (ENOBUFS): only a new look at everything helps."""
    more: bool
    """`most` was reached, there may be more."""


class Namespace:
    """Which network namespace a name stood for when this was made."""

    def __init__(self, netns: str | None) -> None:
        self.netns = netns
        self._identity = _identity(netns)

    def present(self) -> bool:
        """Whether the name still stands for the same namespace: a deleted one goes on living with our sockets."""
        if self.netns is None:
            return True
        try:
            return _identity(self.netns) == self._identity
        except OSError:
            return False


def _identity(netns: str | None) -> tuple[int, int]:
    found = netns_path(netns).stat() if netns is not None else os.stat("/proc/thread-self/ns/net")  # noqa: PTH116 - same
    return found.st_dev, found.st_ino


def open_netlink(netns: str | None, receive_bytes: int, protocol: int = socket.NETLINK_ROUTE) -> socket.socket:
    """A bound netlink socket with a receive buffer of that size, limits or not.

    Raises:
        OSError: no such namespace, or no right to enter it.
    """
    opened = socket_in(netns, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes)
        except PermissionError:  # without CAP_NET_ADMIN, up to net.core.rmem_max
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        opened.bind((0, 0))
    except OSError:
        opened.close()
        raise
    return opened


class Subscription:
    """Events of some groups (RTNLGRP_*); never waits: watch `fileno` for reading."""

    def __init__(self, groups: Sequence[int], netns: str | None = None, *, receive_bytes: int = RECEIVE_BYTES) -> None:
        self._socket = open_netlink(netns, receive_bytes)
        self._buffer = bytearray(LARGEST_DATAGRAM)
        self._socket.settimeout(0.0)
        for group in groups:
            self._socket.setsockopt(SOL_NETLINK, _ADD_MEMBERSHIP, group)

    def fileno(self) -> int:
        """For epoll and ``loop.add_reader``."""
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go; twice does no harm."""
        self._socket.close()

    def read(self, most: int = 4_096) -> Received:
        """Events that are there, up to about `most`. Lost ones are a value, and so is a message that makes no sense.

        Raises:
            OSError: the socket itself failed (not ENOBUFS).
        """
        messages: list[Message] = []
        overrun = False
        while len(messages) < most:
            try:
                size, sender = self._socket.recvfrom_into(self._buffer, 0, socket.MSG_TRUNC)
            except BlockingIOError:
                return Received(messages, overrun, more=False)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True
                continue
            if sender[0] != 0:
                continue
            data = bytes(memoryview(self._buffer)[: min(size, len(self._buffer))])
            try:
                messages += [Message(kind, flags, pid, data[i:j]) for kind, flags, _, pid, i, j in framed(data)]
            except MalformedError:  # cut short, or worse: as good as lost
                overrun = True
        return Received(messages, overrun, more=True)

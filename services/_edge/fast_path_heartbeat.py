"""Heartbeat of the fast path's data-plane process to other processes of its network namespace, by netlink multicast.

A multicast message (netlink(7)) reaches every listener in the same network namespace, also in another container, and
no others: exactly where the routes are, without a shared file or directory. It uses a group of NETLINK_ROUTE that the
kernel reserves and does not send to. Only CAP_NET_ADMIN may send there: a process that can forge it can delete the
routes as well. The message is an NLMSG_NOOP, which the kernel skips. Sending is non-blocking. Standard library only.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final, NamedTuple

from services._edge.override_tables import OverrideTables
from services._host.netns import socket_in

GROUP: Final = 14
"""RTNLGRP_NOP2 (linux/rtnetlink.h)."""
_GROUPS: Final = 1 << (GROUP - 1)
_NOOP: Final = 1
_BEAT: Final = struct.Struct("=IHHII8sIId")
"""nlmsghdr: length, type, flags, sequence, port; then the payload."""
_MAGIC: Final = b"TBFPLIFE"
_MAX_READS: Final = 1_024
"""Messages per read."""


class Beat(NamedTuple):
    """Content of a heartbeat, sent ten times a second."""

    tables: OverrideTables
    """The sender's tables."""
    silence_s: float
    """Timeout of its own watchdog."""


def encode_beat(beat: Beat) -> bytes:
    """The message."""
    return _BEAT.pack(_BEAT.size, _NOOP, 0, 0, 0, _MAGIC, beat.tables.table, beat.tables.priority, beat.silence_s)


def decode_beat(data: bytes) -> Beat | None:
    """Decode a message; None: not a heartbeat."""
    if len(data) != _BEAT.size:
        return None
    _, kind, _, _, _, magic, table, priority, silence_s = _BEAT.unpack(data)
    return Beat(OverrideTables(table, priority), silence_s) if (kind, magic) == (_NOOP, _MAGIC) else None


class HeartbeatSender:
    """The data-plane process's end."""

    def __init__(self, netns: str | None, beat: Beat) -> None:
        """Open it. Raises OSError."""
        self._message = encode_beat(beat)
        self._socket = socket_in(netns, socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)

    def send(self) -> None:
        """Send one heartbeat; without a listener this is no error.

        Raises:
            OSError: no CAP_NET_ADMIN, or the socket itself failed.
        """
        try:
            self._socket.sendto(self._message, (0, _GROUPS))
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.ENOBUFS}:
                raise


class HeartbeatReceiver:
    """The reconciler's end. Non-blocking; `fileno` is for epoll and ``loop.add_reader``."""

    def __init__(self, netns: str | None) -> None:
        """Open the socket.

        Raises:
            OSError: no such namespace, or no right to enter it.
        """
        self._socket = socket_in(netns, socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind((0, _GROUPS))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def read(self) -> Beat | None:
        """The last heartbeat; None: none since the last call.

        Raises:
            OSError: the socket itself failed (not ENOBUFS).
        """
        last: Beat | None = None
        for _ in range(_MAX_READS):
            try:
                data, (port, _) = self._socket.recvfrom(_BEAT.size + 1)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue
            if port:  # 0: the kernel itself
                last = decode_beat(data) or last
        return last

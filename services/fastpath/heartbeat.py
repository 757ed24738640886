"""The hot process' sign of life for whoever else looks after the network namespace: the reconciler, another process.

A netlink multicast (netlink(7)) from process to process: seen by everybody who listens in the same network namespace,
be it in another unit or container, and by nobody else; so it is exactly where the routes are, without a file or
directory that both would have to share. It goes to a group of NETLINK_ROUTE that the kernel has reserved and never
speaks in, as the kernel lets only CAP_NET_ADMIN send there: whoever could forge it could delete the routes as well. The
message is an NLMSG_NOOP, which the kernel skips. Sending never waits. Standard library only.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final, NamedTuple

from services._host.netns import socket_in
from services.fastpath.values import Ownership

GROUP: Final = 14
"""RTNLGRP_NOP2 (linux/rtnetlink.h)."""
_GROUPS: Final = 1 << (GROUP - 1)
_NOOP: Final = 1
_BEAT: Final = struct.Struct("=IHHII8sIId")
"""nlmsghdr: length, type, flags, sequence, port; then ours."""
_MAGIC: Final = b"TBFPLIFE"
_MOST: Final = 1_024
"""Read in one go."""


class Beat(NamedTuple):
    """What is said ten times a second."""

    own: Ownership
    """What the sender writes to."""
    silence_s: float
    """After which its own watchdog empties that."""


def encode_beat(beat: Beat) -> bytes:
    """The message."""
    return _BEAT.pack(_BEAT.size, _NOOP, 0, 0, 0, _MAGIC, beat.own.table, beat.own.priority, beat.silence_s)


def decode_beat(data: bytes) -> Beat | None:
    """What a message says; None: it is none of ours."""
    if len(data) != _BEAT.size:
        return None
    _, kind, _, _, _, magic, table, priority, silence_s = _BEAT.unpack(data)
    return Beat(Ownership(table, priority), silence_s) if (kind, magic) == (_NOOP, _MAGIC) else None


class HeartbeatSender:
    """Of the hot process."""

    def __init__(self, netns: str | None, beat: Beat) -> None:
        """Open it. Raises OSError."""
        self._message = encode_beat(beat)
        self._socket = socket_in(netns, socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)

    def send(self) -> None:
        """Say it once; that nobody listens is no error.

        Raises:
            OSError: no CAP_NET_ADMIN, or the socket itself failed.
        """
        try:
            self._socket.sendto(self._message, (0, _GROUPS))
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.ENOBUFS}:
                raise


class HeartbeatReceiver:
    """Of who looks after the fast path. Never waits; `fileno` is for epoll and ``loop.add_reader``."""

    def __init__(self, netns: str | None) -> None:
        """Listen.

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
        """Let go."""
        self._socket.close()

    def read(self) -> Beat | None:
        """The last beat that came; None: none since the last call.

        Raises:
            OSError: the socket itself failed (not ENOBUFS).
        """
        last: Beat | None = None
        for _ in range(_MOST):
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

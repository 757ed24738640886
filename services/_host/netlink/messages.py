"""Messages of netlink(7): header, answers, and datagrams that hold many of them. No sockets here."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from services._host.netlink.attributes import MalformedError, each_attribute, string

HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, sequence number, port id."""
REQUEST: Final = 0x001
ACK: Final = 0x004
DUMP: Final = 0x300
REPLACE: Final = 0x100
EXCLUSIVE: Final = 0x200
CREATE: Final = 0x400

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
FIRST_OWN: Final = 0x10
"""NLMSG_MIN_TYPE: below are netlink's own messages."""
DUMP_INTERRUPTED: Final = 0x10
_ACK_TLVS: Final = 0x200
_EXT_ACK_TEXT: Final = 1
_INT: Final = struct.Struct("=i")


class Request(NamedTuple):
    """One message to the kernel; its sequence number and REQUEST are the socket's matter."""

    kind: int
    """RTM_*."""
    flags: int
    """CREATE, EXCLUSIVE, REPLACE..."""
    payload: bytes
    """Family header and attributes."""


class Message(NamedTuple):
    """One message of the kernel."""

    kind: int
    """RTM_*."""
    flags: int
    port_id: int
    """Event: `NetlinkSocket.port_id` of who caused it, 0 for the kernel itself."""
    payload: bytes
    """Family header and attributes."""


class Ack(NamedTuple):
    """How a request ended."""

    errno: int
    """0: done. ENOBUFS: nobody knows, the answer was lost."""
    reason: str = ""
    """The kernel's own words, where it has some (NETLINK_EXT_ACK)."""


def framed(data: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Kind, flags, sequence, port id, start and end of the payload of each message in a datagram.

    Raises:
        MalformedError: a length is below the header's, or beyond the datagram.
    """
    start, size = 0, len(data)
    while size - start >= 16:
        length, kind, flags, sequence, port_id = HEADER.unpack_from(data, start)
        if length < 16 or length > size - start:
            raise MalformedError(f"message {kind} says {length} bytes, {size - start} are left")
        yield kind, flags, sequence, port_id, start + 16, start + length
        start += (length + 3) & ~3
    if start < size:
        raise MalformedError(f"{size - start} bytes after the last message")


def leading_int(data: bytes, start: int, end: int) -> int:
    """The signed integer that an answer begins with.

    Raises:
        MalformedError: the answer is too short for one.
    """
    if end - start < 4:
        raise MalformedError(f"an answer of {end - start} bytes")
    return int(_INT.unpack_from(data, start)[0])


def read_ack(data: bytes, flags: int, start: int, end: int) -> Ack:
    """The outcome in an NLMSG_ERROR of a socket with NETLINK_CAP_ACK and NETLINK_EXT_ACK.

    Raises:
        MalformedError: cut short.
    """
    number = -leading_int(data, start, end)
    if not number or not flags & _ACK_TLVS or end - start < 20:
        return Ack(number)
    # NETLINK_CAP_ACK: only the header of the request comes back between the number and the attributes.
    for kind, payload in each_attribute(data, start + 20, end):
        if kind == _EXT_ACK_TEXT:
            return Ack(number, string(payload))
    return Ack(number)

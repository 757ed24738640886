"""Netlink attributes: type, length, value, padded to four bytes (include/uapi/linux/netlink.h, ``struct nlattr``).

What comes in may be cut short or be nonsense: reading always advances or raises `MalformedError`, and never reads
beyond the end that it was given.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import Final

NESTED: Final = 0x8000
"""NLA_F_NESTED: the payload is attributes again."""
_TYPE_MASK: Final = 0x3FFF
_HEADER: Final = struct.Struct("=HH")
_U32: Final = struct.Struct("=I")
_LONGEST: Final = 0xFFFF


class NetlinkError(Exception):
    """Talking to the kernel did not work; the message says what came instead."""


class MalformedError(NetlinkError):
    """A message that no kernel sends: cut short, or lengths that contradict each other."""


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute with its padding.

    Raises:
        ValueError: the payload does not fit into the 16 bit length.
    """
    length = 4 + len(payload)
    if length > _LONGEST:
        raise ValueError(f"attribute {kind} of {len(payload)} bytes: the most is {_LONGEST - 4}")
    return _HEADER.pack(length, kind) + payload + bytes(-length % 4)


def nested(kind: int, *children: bytes) -> bytes:
    """An attribute made of attributes."""
    return attribute(kind | NESTED, b"".join(children))


def u8(kind: int, value: int) -> bytes:
    """One byte."""
    return attribute(kind, value.to_bytes(1, "big"))


def u16(kind: int, value: int) -> bytes:
    """Two bytes in the machine's order."""
    return attribute(kind, struct.pack("=H", value))


def u32(kind: int, value: int) -> bytes:
    """Four bytes in the machine's order."""
    return attribute(kind, _U32.pack(value))


def be16(kind: int, value: int) -> bytes:
    """Two bytes in network order, as in headers of packets."""
    return attribute(kind, value.to_bytes(2, "big"))


def be32(kind: int, value: int) -> bytes:
    """Four bytes in network order."""
    return attribute(kind, value.to_bytes(4, "big"))


def text(kind: int, value: str) -> bytes:
    """A string with its NUL."""
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes, start: int = 0, end: int | None = None) -> dict[int, bytes]:
    """Payloads by type, without flags; of a type that comes twice the last one.

    Raises:
        MalformedError: a length is below its own header, or beyond `end`.
    """
    return dict(each_attribute(data, start, end))


def each_attribute(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Type and payload of each in order, for lists in which types repeat.

    Raises:
        MalformedError: as `attributes`.
    """
    for kind, (at, until) in spans(data, start, len(data) if end is None else end):
        yield kind, data[at:until]


def spans(data: bytes, start: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Type, and start and end of the payload, of each.

    Raises:
        MalformedError: as `attributes`.
    """
    if not 0 <= start <= end <= len(data):
        raise MalformedError(f"attributes from {start} to {end} in {len(data)} bytes")
    unpack = _HEADER.unpack_from
    while end - start >= 4:
        length, kind = unpack(data, start)
        if length < 4 or length > end - start:
            raise MalformedError(f"attribute {kind & _TYPE_MASK} says {length} bytes, {end - start} are left")
        yield kind & _TYPE_MASK, (start + 4, start + length)
        start += (length + 3) & ~3
    if start < end:
        raise MalformedError(f"{end - start} bytes after the last attribute")


def number(payload: bytes) -> int:
    """An unsigned integer in the machine's order, of the width that came (1, 2, 4 or 8 bytes).

    Raises:
        MalformedError: another width.
    """
    if len(payload) not in {1, 2, 4, 8}:
        raise MalformedError(f"a number of {len(payload)} bytes")
    return int.from_bytes(payload, _ORDER)


def network_number(payload: bytes, width: int) -> int:
    """An unsigned integer in network order.

    Raises:
        MalformedError: not `width` bytes.
    """
    if len(payload) != width:
        raise MalformedError(f"{len(payload)} bytes instead of a number of {width}")
    return int.from_bytes(payload, "big")


def string(payload: bytes) -> str:
    """Text up to the first NUL; bytes that are no UTF-8 (names of devices may hold any) are escaped."""
    return payload.split(b"\0", 1)[0].decode(errors="backslashreplace")


def mac_text(payload: bytes) -> str:
    """``02:00:00:00:00:01``; hardware addresses of other lengths (6 is Ethernet) likewise."""
    return payload.hex(":")


def mac_bytes(mac: str) -> bytes:
    """The six bytes of a MAC address.

    Raises:
        ValueError: it is none.
    """
    found = bytes.fromhex(mac.replace(":", ""))
    if len(found) != 6:
        raise ValueError(f"{mac!r} is no MAC address")
    return found


def address_text(payload: bytes) -> str:
    """An IPv4 or IPv6 address in canonical form.

    Raises:
        MalformedError: neither 4 nor 16 bytes.
    """
    if len(payload) == 4:
        return socket.inet_ntoa(payload)
    if len(payload) == 16:
        return str(ipaddress.IPv6Address(payload))
    raise MalformedError(f"an address of {len(payload)} bytes")


def address_bytes(address: str) -> bytes:
    """4 or 16 bytes of an address.

    Raises:
        ValueError: it is none.
    """
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError as error:
        raise ValueError(f"{address!r} is no IP address") from error


_ORDER: Final = "little" if struct.pack("=H", 1)[0] else "big"

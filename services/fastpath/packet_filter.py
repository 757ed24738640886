"""Socket filters in classic BPF (Documentation/networking/filter.rst): packets dropped before the queue."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Iterable
from typing import Final

from services.fastpath.protocol import SIZE, TAG_BYTES

LOAD_WORD, LOAD_HALF, LOAD_BYTE, LOAD_LENGTH = 0x20, 0x28, 0x30, 0x80
EQUAL, ANY_BIT, AND, RETURN = 0x15, 0x45, 0x54, 0x06
NETWORK_HEADER: Final = 0xFFF0_0000
"""SKF_NET_OFF: from here on offsets count from the IP header."""
EVERYTHING: Final = 0xFFFF_FFFF
_SO_ATTACH_FILTER: Final = 26
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")
_INSTRUCTION: Final = struct.Struct("=HBBI")
_UDP_BYTES: Final = 8
_SOURCE_OFFSET: Final = {4: 12, 6: 8}

Instruction = tuple[int, int, int, int]


def assemble(instructions: Iterable[Instruction]) -> bytes:
    """The program: opcode, jump if true, jump if false, operand."""
    return b"".join(_INSTRUCTION.pack(*row) for row in instructions)


def datagram_filter(tag: bytes, denied: Iterable[str]) -> bytes:
    """Accepts datagrams of the right length and tag, except from denied sources.

    A UDP socket's program sees a packet from its UDP header on.
    """
    refuse: Instruction = (RETURN, 0, 0, 0)
    high, low = struct.unpack("!II", tag)
    program: list[Instruction] = [
        (LOAD_LENGTH, 0, 0, 0),
        (EQUAL, 1, 0, _UDP_BYTES + SIZE),
        refuse,
        (LOAD_WORD, 0, 0, _UDP_BYTES),
        (EQUAL, 1, 0, high),
        refuse,
        (LOAD_WORD, 0, 0, _UDP_BYTES + TAG_BYTES // 2),
        (EQUAL, 1, 0, low),
        refuse,
    ]
    for source in denied:
        program += [*_not_from(source), refuse]
    return assemble([*program, (RETURN, 0, 0, EVERYTHING)])


def _not_from(source: str) -> list[Instruction]:
    """Skip the next instruction unless the packet is from this source."""
    address = ipaddress.ip_address(source)
    words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
    program: list[Instruction] = []
    for index, word in enumerate(words):
        rest = 2 * (len(words) - index - 1) + 1
        program.append((LOAD_WORD, 0, 0, NETWORK_HEADER + _SOURCE_OFFSET[address.version] + 4 * index))
        program.append((EQUAL, 0, rest, word))
    return program


def attach(filtered: socket.socket, program: bytes) -> None:
    """Attach a filter program, replacing the previous one.

    Raises:
        OSError: the kernel refuses it.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    filtered.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("@HP", len(program) // _INSTRUCTION.size, ctypes.addressof(buffer)),
    )


def dropped_by(filtered: socket.socket) -> int:
    """Packets that the kernel has dropped for this socket since it was made: filtered, or its queue was full.

    Raises:
        OSError: not supported by this kernel (before 4.12).
    """
    return int(_MEMINFO.unpack(filtered.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[8])

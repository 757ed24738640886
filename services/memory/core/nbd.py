"""Messages of the NBD protocol: what server and client send in handshake and transmission. Pure.

Source: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md, fixed newstyle negotiation and simple
replies. Numbers are in network byte order.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

MAGIC: Final = 0x4E42444D41474943
"""NBDMAGIC"""
OPTION_MAGIC: Final = 0x49484156454F5054
"""IHAVEOPT"""
REPLY_MAGIC: Final = 0x3E889045565A9
REQUEST_MAGIC: Final = 0x25609513
SIMPLE_REPLY_MAGIC: Final = 0x67446698

MOST_NAME_BYTES: Final = 4096
"""Of a string of the protocol."""
MOST_OPTION_BYTES: Final = MOST_NAME_BYTES + 64
"""Content of an option that is read; a name and some requests for information."""
BLOCK_BYTES: Final = 4096
"""Preferred size of a request: a page."""
MOST_PAYLOAD_BYTES: Final = 32 << 20
"""Of one read or write; what proto.md lets clients assume that every server takes."""

GREETING: Final = struct.Struct(">QQH")
CLIENT_FLAGS: Final = struct.Struct(">I")
OPTION: Final = struct.Struct(">QII")
OPTION_REPLY: Final = struct.Struct(">QIII")
REQUEST: Final = struct.Struct(">IHHQQI")
SIMPLE_REPLY: Final = struct.Struct(">IIQ")
_EXPORT: Final = struct.Struct(">QH")
_INFO_EXPORT: Final = struct.Struct(">HQH")
_INFO_BLOCK_SIZE: Final = struct.Struct(">HIII")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")


class NbdError(Exception):
    """A peer that does not follow the protocol, or refuses."""


class HandshakeFlag(IntFlag):
    """Of the server, and with the same values of the client."""

    FIXED_NEWSTYLE = 1
    NO_ZEROES = 2


KNOWN_CLIENT_FLAGS: Final = HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES


class TransmissionFlag(IntFlag):
    """What an export can do."""

    HAS_FLAGS = 1
    READ_ONLY = 2
    SEND_FLUSH = 4
    SEND_FUA = 8
    ROTATIONAL = 16
    SEND_TRIM = 32
    SEND_WRITE_ZEROES = 64


class Option(IntEnum):
    """NBD_OPT_*, as far as they are answered otherwise than by `ERR_UNSUP`."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    INFO = 6
    GO = 7


class Reply(IntEnum):
    """NBD_REP_*."""

    ACK = 1
    INFO = 3
    ERR_UNSUP = (1 << 31) + 1
    ERR_POLICY = (1 << 31) + 2
    ERR_INVALID = (1 << 31) + 3
    ERR_UNKNOWN = (1 << 31) + 6
    ERR_TOO_BIG = (1 << 31) + 9


class Info(IntEnum):
    """NBD_INFO_*."""

    EXPORT = 0
    BLOCK_SIZE = 3


class Command(IntEnum):
    """NBD_CMD_*."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    WRITE_ZEROES = 6


class CommandFlag(IntFlag):
    """NBD_CMD_FLAG_*, as far as an export here takes them."""

    FUA = 1
    NO_HOLE = 2


class Error(IntEnum):
    """Errors of replies, with the values of errno(3) on Linux."""

    NONE = 0
    IO = 5
    INVAL = 22
    NOSPC = 28
    OVERFLOW = 75
    NOTSUP = 95


class Request(NamedTuple):
    """One request of the transmission phase."""

    flags: int
    kind: int
    cookie: int
    """Comes back in the reply."""
    offset: int
    length: int
    """In bytes; of a write that many follow."""


def greeting() -> bytes:
    """With which a server begins."""
    return GREETING.pack(MAGIC, OPTION_MAGIC, KNOWN_CLIENT_FLAGS)


def option(kind: Option, content: bytes = b"") -> bytes:
    """One option of a client."""
    return OPTION.pack(OPTION_MAGIC, kind, len(content)) + content


def option_reply(kind: int, reply: Reply, content: bytes = b"") -> bytes:
    """One reply of a server to an option."""
    return OPTION_REPLY.pack(REPLY_MAGIC, kind, reply, len(content)) + content


def name_request(name: bytes, infos: tuple[Info, ...] = ()) -> bytes:
    """Content of NBD_OPT_INFO and NBD_OPT_GO."""
    return _U32.pack(len(name)) + name + _U16.pack(len(infos)) + b"".join(map(_U16.pack, infos))


def requested_name(content: bytes) -> bytes:
    """The export's name in the content of NBD_OPT_INFO or NBD_OPT_GO.

    Raises:
        NbdError: lengths that contradict each other, or a name that is too long.
    """
    if len(content) < 6:
        raise NbdError("the option is too short for a name")
    [length] = _U32.unpack_from(content)
    if length > MOST_NAME_BYTES or 6 + length > len(content):
        raise NbdError("the name is longer than the option, or than 4096 bytes")
    [infos] = _U16.unpack_from(content, 4 + length)
    if 6 + length + 2 * infos != len(content):
        raise NbdError("the option's length does not match its number of requests for information")
    return content[4 : 4 + length]


def export_reply(size_bytes: int, flags: TransmissionFlag, *, zeroes: bool) -> bytes:
    """The server's answer to NBD_OPT_EXPORT_NAME; `zeroes`: with 124 reserved bytes."""
    return _EXPORT.pack(size_bytes, flags) + bytes(124 if zeroes else 0)


def export_info(size_bytes: int, flags: TransmissionFlag) -> bytes:
    """Content of the NBD_REP_INFO that every client waits for."""
    return _INFO_EXPORT.pack(Info.EXPORT, size_bytes, flags)


def block_size_info() -> bytes:
    """Content of the NBD_REP_INFO about request sizes: any, a page preferred, and the most."""
    return _INFO_BLOCK_SIZE.pack(Info.BLOCK_SIZE, 1, BLOCK_BYTES, MOST_PAYLOAD_BYTES)


def read_export_info(content: bytes) -> tuple[int, TransmissionFlag] | None:
    """Size in bytes and flags of an NBD_INFO_EXPORT; None: it is another information.

    Raises:
        NbdError: cut short.
    """
    if len(content) < 2:
        raise NbdError("an information without its kind")
    if _U16.unpack_from(content)[0] != Info.EXPORT:
        return None
    if len(content) != _INFO_EXPORT.size:
        raise NbdError(f"NBD_INFO_EXPORT of {len(content)} bytes")
    _, size_bytes, flags = _INFO_EXPORT.unpack(content)
    return size_bytes, TransmissionFlag(flags)


def request(kind: Command, cookie: int, offset: int = 0, length: int = 0, flags: int = 0) -> bytes:
    """A request's header."""
    return REQUEST.pack(REQUEST_MAGIC, flags, kind, cookie, offset, length)


def read_request(header: bytes) -> Request:
    """A request from its 28 bytes.

    Raises:
        NbdError: they do not begin as a request does: the connection is out of step.
    """
    magic, flags, kind, cookie, offset, length = REQUEST.unpack(header)
    if magic != REQUEST_MAGIC:
        raise NbdError(f"a request begins with {magic:#x}")
    return Request(flags, kind, cookie, offset, length)


def simple_reply(cookie: int, error: Error = Error.NONE) -> bytes:
    """A reply's header; of a read without an error its data follow."""
    return SIMPLE_REPLY.pack(SIMPLE_REPLY_MAGIC, error, cookie)


_TAKEN_FLAGS: Final[dict[int, CommandFlag]] = {
    Command.READ: CommandFlag(0),
    Command.WRITE: CommandFlag.FUA,
    Command.FLUSH: CommandFlag(0),
    Command.TRIM: CommandFlag.FUA,
    Command.WRITE_ZEROES: CommandFlag.FUA | CommandFlag.NO_HOLE,
}


def check(request: Request, size_bytes: int) -> Error:
    """Whether an export of this size can carry a request out: proto.md, "Error values"."""
    taken_flags = _TAKEN_FLAGS.get(request.kind)
    if taken_flags is None or request.flags & ~int(taken_flags):
        return Error.INVAL
    if request.kind == Command.FLUSH:
        return Error.NONE if request.offset == request.length == 0 else Error.INVAL
    return _check_range(request, size_bytes)


def _check_range(request: Request, size_bytes: int) -> Error:
    if request.length == 0:
        return Error.INVAL
    if request.kind in {Command.READ, Command.WRITE} and request.length > MOST_PAYLOAD_BYTES:
        return Error.OVERFLOW if request.kind == Command.READ else Error.INVAL
    if request.offset + request.length > size_bytes:
        return Error.INVAL if request.kind in {Command.READ, Command.TRIM} else Error.NOSPC
    return Error.NONE

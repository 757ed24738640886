"""The client's side of the NBD handshake, after which the kernel has the connection (drivers/block/nbd.c)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from services.memory.core import nbd
from services.memory.core.nbd import HandshakeFlag, Info, NbdError, Option, Reply, TransmissionFlag

MOST_PORT: Final = 65_535
_MOST_REPLY_BYTES: Final = 1 << 16


class NbdConnection(NamedTuple):
    """A connection whose handshake is done."""

    socket: socket.socket
    size_bytes: int
    flags: TransmissionFlag


def connect(address: str, name: str, within_s: float) -> NbdConnection:
    """Connect to an export; the caller closes the socket, or hands it to the kernel.

    Args:
        address: HOST:PORT.
        name: the export's; not in any message of an error.
        within_s: for all of it.

    Raises:
        NbdError: the address is none, or the server does not follow the protocol or has no free export of this name.
        OSError: it cannot be reached, or the connection has ended (TimeoutError, ConnectionError).
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MOST_PORT:
        raise NbdError(f"{address!r} is no HOST:PORT")
    deadline_s = time.monotonic() + within_s
    opened = socket.create_connection((host.strip("[]"), int(port)), timeout=within_s)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size_bytes, flags = _go(opened, name.encode(), lambda size: _receive(opened, size, deadline_s))
        opened.settimeout(None)
    except BaseException:
        opened.close()
        raise
    return NbdConnection(opened, size_bytes, flags)


def _go(opened: socket.socket, name: bytes, receive: Callable[[int], bytes]) -> tuple[int, TransmissionFlag]:
    magic, option_magic, handshake_flags = nbd.GREETING.unpack(receive(nbd.GREETING.size))
    if magic != nbd.MAGIC or option_magic != nbd.OPTION_MAGIC or not handshake_flags & HandshakeFlag.FIXED_NEWSTYLE:
        raise NbdError("no NBD server with fixed newstyle negotiation is there")
    request = nbd.option(Option.GO, nbd.name_request(name, (Info.EXPORT,)))
    opened.sendall(nbd.CLIENT_FLAGS.pack(HandshakeFlag.FIXED_NEWSTYLE) + request)
    found = None
    while True:
        magic, kind, reply, length = nbd.OPTION_REPLY.unpack(receive(nbd.OPTION_REPLY.size))
        if magic != nbd.REPLY_MAGIC or kind != Option.GO or length > _MOST_REPLY_BYTES:
            raise NbdError("the server's answer to NBD_OPT_GO is none")
        content = receive(length)
        if reply == Reply.INFO:
            found = nbd.read_export_info(content) or found
        elif reply == Reply.ACK and found is not None:
            return found
        elif reply == Reply.ERR_UNKNOWN:
            raise NbdError("the server has no such export: its name is wrong, it is in use, or it has ended")
        else:
            raise NbdError(f"the server answers NBD_OPT_GO by reply {reply:#x}")


def _receive(opened: socket.socket, size: int, deadline_s: float) -> bytes:
    content = b""
    while len(content) < size:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the handshake takes too long")
        opened.settimeout(left_s)
        part = opened.recv(size - len(content))
        if not part:
            raise ConnectionError("the server has closed the connection")
        content += part
    return content

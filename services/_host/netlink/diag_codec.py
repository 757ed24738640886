"""TCP sockets of a network namespace and their counters: sock_diag(7), tcp(7) (``struct tcp_info``). No sockets here.

A dump walks the kernel's whole table of connections; a single one is found by its identity at once.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from services._host.netlink.attributes import MalformedError, address_text, number, spans, string
from services._host.netlink.messages import Request

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
_TCP: Final = 6
_ESTABLISHED, _CLOSE_WAIT = 1, 8
_MAY_SEND: Final = 1 << _ESTABLISHED | 1 << _CLOSE_WAIT
_INFO, _CONGESTION = 2, 4
_REQUEST: Final = struct.Struct("=BBBxI")
"""Family, protocol, wanted attributes, states; then the identity."""
_MESSAGE_BYTES: Final = 72
_STATE_AT: Final = 1
_IDENTITY: Final = slice(4, 52)
"""Ports, addresses, device, cookie (``struct inet_diag_sockid``)."""
_PORTS: Final = struct.Struct("!HH")
_INODE_AT: Final = 68
_ANY: Final = bytes(40) + b"\xff" * 8
"""No port, address or device; any cookie."""
_QUIET_AT, _RETRANSMITTED_AT, _ACKED_AT, _BUSY_AT, _SENT_AT = 44, 100, 120, 168, 200
_QUIET, _BUSY = struct.Struct("=I"), struct.Struct("=Q")
_SENT: Final = struct.Struct("=QQ")
"""All payload bytes, and of these what was sent again; since Linux 4.19."""
_ADDRESS_BYTES: Final = {2: 4, 10: 16}


class TcpCounters(NamedTuple):
    """What a connection has sent since its begin."""

    sent_bytes: int
    """Payload, without what was sent again."""
    retransmitted: int
    """Segments that were sent again."""
    busy_us: int | None = None
    """For so long it has had something to send, or that was not acknowledged; None: a kernel before 4.19."""
    quiet_ms: int = 0
    """Since it has sent payload last; only where `busy_us` is known. Both are as exact as the kernel's ticks."""


class TcpSocket(NamedTuple):
    """A connection."""

    family: int
    identity: bytes
    """By which the kernel finds it again, and no later one of the same addresses."""
    local: tuple[str, int]
    """Address and port."""
    remote: tuple[str, int]
    inode: int
    """0: not accepted by its program yet."""
    counters: TcpCounters
    congestion_control: str
    """Empty: not asked for."""


def dump_request(family: int) -> Request:
    """All connections of a family (AF_INET, AF_INET6) that may send; for `NetlinkSocket.dump`."""
    wanted = 1 << (_INFO - 1) | 1 << (_CONGESTION - 1)
    return Request(SOCK_DIAG_BY_FAMILY, 0, _REQUEST.pack(family, _TCP, wanted, _MAY_SEND) + _ANY)


def counters_request(found: TcpSocket) -> Request:
    """The counters of one of them; for `NetlinkSocket.ask`."""
    return Request(
        SOCK_DIAG_BY_FAMILY, 0, _REQUEST.pack(found.family, _TCP, 1 << (_INFO - 1), _MAY_SEND) + found.identity
    )


def read_socket(payload: bytes) -> TcpSocket:
    """A message of a dump.

    Raises:
        MalformedError: cut short, or without counters.
    """
    if len(payload) < _MESSAGE_BYTES or payload[0] not in _ADDRESS_BYTES:
        raise MalformedError(f"a socket of {len(payload)} bytes, family {payload[0] if payload else None}")
    size = _ADDRESS_BYTES[payload[0]]
    local_port, remote_port = _PORTS.unpack_from(payload, 4)
    found = dict(spans(payload, _MESSAGE_BYTES, len(payload)))
    congestion = found.get(_CONGESTION)
    return TcpSocket(
        payload[0],
        payload[_IDENTITY],
        (address_text(payload[8 : 8 + size]), local_port),
        (address_text(payload[24 : 24 + size]), remote_port),
        number(payload[_INODE_AT : _INODE_AT + 4]),
        _counters(payload, found),
        string(payload[slice(*congestion)]) if congestion is not None else "",
    )


def read_counters(payload: bytes) -> TcpCounters | None:
    """The answer about one connection; None: it is closed, and the kernel keeps but its address (TIME-WAIT, RFC 9293).

    Raises:
        MalformedError: as `read_socket`.
    """
    if len(payload) < _MESSAGE_BYTES:
        raise MalformedError(f"a socket of {len(payload)} bytes")
    found = dict(spans(payload, _MESSAGE_BYTES, len(payload)))
    if _INFO not in found and not _MAY_SEND >> payload[_STATE_AT] & 1:
        return None
    return _counters(payload, found)


def _counters(payload: bytes, found: dict[int, tuple[int, int]]) -> TcpCounters:
    start, end = found.get(_INFO, (0, 0))
    if end - start < _ACKED_AT + 8:
        raise MalformedError(f"a tcp_info of {end - start} bytes")
    retransmitted = number(payload[start + _RETRANSMITTED_AT : start + _RETRANSMITTED_AT + 4])
    if end - start < _SENT_AT + _SENT.size:
        return TcpCounters(number(payload[start + _ACKED_AT : start + _ACKED_AT + 8]), retransmitted)
    sent_bytes, again_bytes = _SENT.unpack_from(payload, start + _SENT_AT)
    (busy_us,) = _BUSY.unpack_from(payload, start + _BUSY_AT)
    (quiet_ms,) = _QUIET.unpack_from(payload, start + _QUIET_AT)
    return TcpCounters(sent_bytes - again_bytes, retransmitted, busy_us, quiet_ms)

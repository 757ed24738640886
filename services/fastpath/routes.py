"""Codec of the rtnetlink(7) routes and links that the fast path reads and writes.

The only code that writes routes. Gateways are kept as received bytes, so that an override has exactly FRR's, without
decoding and encoding between a fault and its override.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, NamedTuple

from services._edge.override_tables import PROTOCOL, OverrideTables
from services._host.netlink.attributes import MalformedError, attribute, attributes, number, u32
from services._host.netlink.constants import (
    IFF_LOWER_UP,
    IFF_UP,
    RT_TABLE_MAIN,
    RTM_F_CLONED,
    RTN_UNICAST,
    RTNH_F_ONLINK,
    Rtm,
)
from services._host.netlink.route_codec import delete_host_route
from services._host.netlink.socket import CREATE, REPLACE, Message, Request
from services.fastpath.mirror import Row
from services.fastpath.values import FrrRoute, Hop, Write

_ROUTE: Final = struct.Struct("=BBBBBBBBI")
"""rtmsg: family, destination and source length, TOS, table, protocol, scope, type, flags."""
_HOP: Final = struct.Struct("=HBBi")
"""rtnexthop: length, flags, hops, ifindex."""
_LINK: Final = struct.Struct("=BxHiII")
_DST, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _MULTIPATH, _TABLE, _VIA, _ENCAP_TYPE = 1, 4, 5, 6, 7, 9, 15, 18, 21
_IFLA_IFNAME = 3
_BITS: Final = {socket.AF_INET: 32, socket.AF_INET6: 128}
FAMILIES: Final = tuple(_BITS)


class LinkRow(NamedTuple):
    """A link."""

    name: str
    ifindex: int
    carrier: bool
    """IFF_UP and IFF_LOWER_UP."""


class OverrideRow(NamedTuple):
    """A route of the fast path's tables."""

    destination: str
    table: int


def read_link(message: Message) -> LinkRow | None:
    """A link; None: a message of AF_BRIDGE, which has no carrier.

    Raises:
        MalformedError: cut short.
    """
    if len(message.payload) < _LINK.size:
        raise MalformedError(f"a link of {len(message.payload)} bytes")
    family, _, ifindex, flags, _ = _LINK.unpack_from(message.payload)
    if family != socket.AF_UNSPEC:
        return None
    name = attributes(message.payload, _LINK.size).get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
    return LinkRow(name, ifindex, bool(flags & IFF_UP and flags & IFF_LOWER_UP))


def read_route(message: Message, tables: OverrideTables) -> Row | OverrideRow | None:
    """A unicast host route of the main table or of the fast path's tables; None: another route.

    Raises:
        MalformedError: cut short.
    """
    payload = message.payload
    if len(payload) < _ROUTE.size:
        raise MalformedError(f"a route of {len(payload)} bytes")
    family, bits, _, tos, table, protocol, _, kind, flags = _ROUTE.unpack_from(payload)
    if bits != _BITS.get(family) or flags & RTM_F_CLONED:
        return None
    found = attributes(payload, _ROUTE.size)
    if _TABLE in found:
        table = number(found[_TABLE])
    if _DST not in found:
        return None
    if protocol == PROTOCOL and table in tables.numbers:
        return OverrideRow(socket.inet_ntop(family, found[_DST]), table)
    if table != RT_TABLE_MAIN:
        return None
    metric = number(found[_PRIORITY]) if _PRIORITY in found else 0
    hops = _read_hops(found, flags) if kind == RTN_UNICAST else None
    route = FrrRoute(hops, found.get(_PREFSRC, b"")) if hops else None
    return Row(socket.inet_ntop(family, found[_DST]), protocol, metric, tos, route)


def _read_hops(found: dict[int, bytes], flags: int) -> tuple[Hop, ...] | None:
    """None: it has a hop that cannot be copied."""
    if _MULTIPATH not in found:
        if _OIF not in found or _ENCAP_TYPE in found:
            return None
        return (Hop(number(found[_OIF]), _via(found), flags & RTNH_F_ONLINK),)
    data, start = found[_MULTIPATH], 0
    hops: list[Hop] = []
    while len(data) - start >= _HOP.size:
        length, hop_flags, weight, ifindex = _HOP.unpack_from(data, start)
        if length < _HOP.size or length > len(data) - start:
            raise MalformedError(f"a next hop says {length} bytes, {len(data) - start} are left")
        inner = attributes(data, start + _HOP.size, start + length)
        if _ENCAP_TYPE in inner:
            return None
        hops.append(Hop(ifindex, _via(inner), hop_flags & RTNH_F_ONLINK, weight))
        start += (length + 3) & ~3
    return tuple(hops)


def _via(found: dict[int, bytes]) -> bytes:
    return b"".join(attribute(kind, found[kind]) for kind in (_GATEWAY, _VIA) if kind in found)


def gateway_text(hop: Hop) -> str:
    """The gateway's address, or an empty string."""
    try:
        found = attributes(hop.via)
        if _GATEWAY in found:
            value = found[_GATEWAY]
        elif _VIA in found:
            value = found[_VIA][2:]
        else:
            return ""
        return socket.inet_ntop(socket.AF_INET if len(value) == 4 else socket.AF_INET6, value)
    except (MalformedError, ValueError):
        return hop.via.hex()


def override_request(write: Write, table: int) -> Request:
    """The request that installs or deletes an override."""
    if write.route is None:
        return delete_host_route(write.destination, table, PROTOCOL)
    family = socket.AF_INET6 if ":" in write.destination else socket.AF_INET
    body = attribute(_DST, socket.inet_pton(family, write.destination)) + u32(_TABLE, table)
    in_header = table if table < 256 else 0
    hops, flags = write.route.hops, 0
    if write.route.source:
        body += attribute(_PREFSRC, write.route.source)
    if len(hops) == 1:
        flags = hops[0].flags
        body += u32(_OIF, hops[0].ifindex) + hops[0].via
    else:
        ways = (_HOP.pack(_HOP.size + len(h.via), h.flags, h.weight, h.ifindex) + h.via for h in hops)
        body += attribute(_MULTIPATH, b"".join(ways))
    head = _ROUTE.pack(family, _BITS[family], 0, 0, in_header, PROTOCOL, 0, RTN_UNICAST, flags)
    return Request(Rtm.NEWROUTE, CREATE | REPLACE, head + body)


def all_links() -> Request:
    """Dump every link."""
    return Request(Rtm.GETLINK, 0, _LINK.pack(0, 0, 0, 0, 0))

"""Routes and nexthop objects as the kernel tells of them, for tests of what reads them."""

from __future__ import annotations

import struct

from services._host.netlink.attributes import address_bytes, attribute, u32
from services._host.netlink.constants import AF_INET, AF_INET6, RTNH_F_ONLINK
from services._host.netlink.route_codec import Hop, KernelRoute, NexthopObject


def route_message(route: KernelRoute) -> bytes:
    """Payload of RTM_NEWROUTE."""
    address, _, length = route.destination.partition("/")
    body = attribute(1, address_bytes(address)) + u32(15, route.table)
    body += attribute(7, address_bytes(route.source)) if route.source is not None else b""
    body += u32(6, route.metric) if route.metric else b""
    flags = 0
    if route.nexthop_id:
        body += u32(30, route.nexthop_id)
    elif len(route.hops) == 1:
        [hop] = route.hops
        flags = RTNH_F_ONLINK if hop.onlink else 0
        body += u32(4, hop.ifindex) + _gateway(hop, route.family)
    elif route.hops:
        body += attribute(9, b"".join(_way(hop, route.family) for hop in route.hops))
    table = route.table if route.table < 256 else 0
    numbers = (route.family, int(length), 0, route.tos, table, route.protocol, route.scope, route.kind, flags)
    return struct.pack("=8BI", *numbers) + body


def _way(hop: Hop, family: int) -> bytes:
    gateway = _gateway(hop, family)
    flags = RTNH_F_ONLINK if hop.onlink else 0
    return struct.pack("=HBBi", 8 + len(gateway), flags, hop.weight - 1, hop.ifindex) + gateway


def _gateway(hop: Hop, family: int) -> bytes:
    """RTA_GATEWAY, or RTA_VIA where it is of the other family."""
    if hop.gateway is None:
        return b""
    own = AF_INET6 if ":" in hop.gateway else AF_INET
    if own == family:
        return attribute(5, address_bytes(hop.gateway))
    return attribute(18, struct.pack("=H", own) + address_bytes(hop.gateway))


def nexthop_message(nexthop: NexthopObject) -> bytes:
    """Payload of RTM_NEWNEXTHOP, which also writes one."""
    family, flags, body = 0, 0, u32(1, nexthop.id)
    if nexthop.group:
        members = (struct.pack("=IBBH", i, (weight - 1) & 0xFF, (weight - 1) >> 8, 0) for i, weight in nexthop.group)
        body += attribute(2, b"".join(members))
    elif nexthop.blackhole:
        family = AF_INET
        body += attribute(4, b"")
    elif nexthop.hop is not None:
        address = address_bytes(nexthop.hop.gateway) if nexthop.hop.gateway is not None else b""
        family = AF_INET6 if len(address) == 16 else AF_INET
        flags = RTNH_F_ONLINK if nexthop.hop.onlink else 0
        body += u32(5, nexthop.hop.ifindex) if nexthop.hop.ifindex else b""
        body += attribute(6, address) if address else b""
    body += attribute(11, b"") if nexthop.fdb else b""
    return struct.pack("=4BI", family, 0, nexthop.protocol, 0, flags) + body

"""Routes of rtnetlink(7), nexthop objects (linux/nexthop.h), and rules that choose tables (linux/fib_rules.h).

Encapsulations (MPLS, SRv6) and metrics of routes are not kept.

The fast path has a codec of its own, which keeps next hops as bytes: see `services.fastpath.routes`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from services._host.netlink.attributes import (
    MalformedError,
    address_bytes,
    address_text,
    attribute,
    attributes,
    number,
    u8,
    u32,
)
from services._host.netlink.constants import (
    AF_INET,
    AF_INET6,
    RT_TABLE_MAIN,
    RTM_F_CLONED,
    RTN_UNICAST,
    RTNH_F_DEAD,
    RTNH_F_LINKDOWN,
    RTNH_F_ONLINK,
    Rtm,
)
from services._host.netlink.messages import CREATE, EXCLUSIVE, Request

_RTMSG: Final = struct.Struct("=8BI")
_RTNEXTHOP: Final = struct.Struct("=HBBi")
_SCOPE_NOWHERE: Final = 255
"""RT_SCOPE_NOWHERE: in a deletion, any scope."""
_DST, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _MULTIPATH, _TABLE, _VIA, _NH_ID = 1, 4, 5, 6, 7, 9, 15, 18, 30


@dataclass(frozen=True, slots=True)
class Hop:
    """One next hop as the kernel holds it."""

    ifindex: int
    gateway: str | None = None
    """Of the route's family or, for IPv4 through IPv6 (RFC 8950), of the other: RTA_VIA."""
    onlink: bool = False
    """The gateway is on the link, whatever the addresses there say: FRR's 169.254.0.1 of unnumbered sessions."""
    weight: int = 1
    """1-256; kept only where a route has several hops."""
    dead: bool = False
    linkdown: bool = False


@dataclass(frozen=True, slots=True)
class KernelRoute:
    """One route."""

    destination: str
    """Prefix."""
    hops: tuple[Hop, ...] = ()
    table: int = RT_TABLE_MAIN
    protocol: int = 0
    metric: int = 0
    source: str | None = None
    """Preferred source address."""
    nexthop_id: int = 0
    """Nexthop object that `hops` are of; 0: none."""
    kind: int = RTN_UNICAST
    """RTN_*."""
    scope: int = 0
    tos: int = 0

    @property
    def family(self) -> int:
        """AF_INET or AF_INET6."""
        return AF_INET6 if ":" in self.destination else AF_INET

    @property
    def is_host(self) -> bool:
        """Whether the destination is a single address."""
        return self.destination.endswith("/128" if ":" in self.destination else "/32")


def decode_route(payload: bytes) -> KernelRoute | None:
    """From RTM_NEWROUTE or RTM_DELROUTE; None where it is no entry of a table (cached, or neither IPv4 nor IPv6).

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _RTMSG.size:
        raise MalformedError(f"a route of {len(payload)} bytes")
    family, prefix, _, tos, table, protocol, scope, kind, flags = _RTMSG.unpack_from(payload)
    if family not in {AF_INET, AF_INET6} or flags & RTM_F_CLONED:
        return None
    found = attributes(payload, _RTMSG.size)
    width = 4 if family == AF_INET else 16
    destination = found.get(_DST, bytes(width))
    if len(destination) != width or prefix > width * 8:
        raise MalformedError(f"a destination of {len(destination)} bytes with prefix length {prefix}")
    if _MULTIPATH in found:
        hops = tuple(_hops(found[_MULTIPATH]))
    elif _OIF in found:
        hops = (_hop(number(found[_OIF]), flags, 1, found),)
    else:
        hops = ()
    return KernelRoute(
        destination=f"{address_text(destination)}/{prefix}",
        hops=hops,
        table=number(found[_TABLE]) if _TABLE in found else table,
        protocol=protocol,
        metric=number(found[_PRIORITY]) if _PRIORITY in found else 0,
        source=address_text(found[_PREFSRC]) if _PREFSRC in found else None,
        nexthop_id=number(found[_NH_ID]) if _NH_ID in found else 0,
        kind=kind,
        scope=scope,
        tos=tos,
    )


def dump_routes(family: int, *, table: int = 0, protocol: int = 0, kind: int = 0) -> Request:
    """Ask for the routes of a family; the kernel leaves out other tables, protocols and kinds where they are not 0.

    The kernel answers ENOENT where there is no such table.
    """
    header = _RTMSG.pack(family, 0, 0, 0, table if table < 256 else 0, protocol, 0, kind, 0)
    return Request(Rtm.GETROUTE, 0, header + (u32(_TABLE, table) if table else b""))


def delete_host_route(address: str, table: int, protocol: int) -> Request:
    """Remove a route to a single address, of any scope; ESRCH where there is none.

    Raises:
        ValueError: not an IP address.
    """
    destination = address_bytes(address)
    family = AF_INET if len(destination) == 4 else AF_INET6
    in_header = table if table < 256 else 0
    header = _RTMSG.pack(family, len(destination) * 8, 0, 0, in_header, protocol, _SCOPE_NOWHERE, 0, 0)
    return Request(Rtm.DELROUTE, 0, header + attribute(_DST, destination) + u32(_TABLE, table))


def _hops(payload: bytes) -> Iterator[Hop]:
    start, size = 0, len(payload)
    while size - start >= _RTNEXTHOP.size:
        length, flags, weight, ifindex = _RTNEXTHOP.unpack_from(payload, start)
        if length < _RTNEXTHOP.size or length > size - start:
            raise MalformedError(f"a next hop says {length} bytes, {size - start} are left")
        yield _hop(ifindex, flags, weight + 1, attributes(payload, start + _RTNEXTHOP.size, start + length))
        start += (length + 3) & ~3
    if start < size:
        raise MalformedError(f"{size - start} bytes after the last next hop")


def _hop(ifindex: int, flags: int, weight: int, found: dict[int, bytes]) -> Hop:
    gateway = None
    if _GATEWAY in found:
        gateway = address_text(found[_GATEWAY])
    elif _VIA in found:
        gateway = address_text(found[_VIA][2:])
    return Hop(
        ifindex,
        gateway,
        onlink=bool(flags & RTNH_F_ONLINK),
        weight=weight,
        dead=bool(flags & RTNH_F_DEAD),
        linkdown=bool(flags & RTNH_F_LINKDOWN),
    )


_NHMSG: Final = struct.Struct("=4BI")
_NHA_ID, _NHA_GROUP, _NHA_BLACKHOLE, _NHA_OIF, _NHA_GATEWAY, _NHA_FDB = 1, 2, 4, 5, 6, 11
_NH_MEMBER: Final = struct.Struct("=IBBH")


@dataclass(frozen=True, slots=True)
class NexthopObject:
    """What routes of kernels from 5.3 on can refer to by id: one hop, or a group of other objects."""

    id: int
    hop: Hop | None = None
    group: tuple[tuple[int, int], ...] = ()
    """Id and weight of each member."""
    protocol: int = 0
    blackhole: bool = False
    fdb: bool = False
    """For forwarding databases (EVPN multihoming), not for routes."""


def decode_nexthop(payload: bytes) -> NexthopObject:
    """From RTM_NEWNEXTHOP or RTM_DELNEXTHOP.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _NHMSG.size:
        raise MalformedError(f"a nexthop object of {len(payload)} bytes")
    _, _, protocol, _, flags = _NHMSG.unpack_from(payload)
    found = attributes(payload, _NHMSG.size)
    if _NHA_ID not in found:
        raise MalformedError("a nexthop object without id")
    hop = None
    if _NHA_OIF in found or _NHA_GATEWAY in found:
        hop = Hop(
            number(found[_NHA_OIF]) if _NHA_OIF in found else 0,
            address_text(found[_NHA_GATEWAY]) if _NHA_GATEWAY in found else None,
            onlink=bool(flags & RTNH_F_ONLINK),
            dead=bool(flags & RTNH_F_DEAD),
            linkdown=bool(flags & RTNH_F_LINKDOWN),
        )
    return NexthopObject(
        number(found[_NHA_ID]),
        hop,
        _members(found.get(_NHA_GROUP, b"")),
        protocol,
        blackhole=_NHA_BLACKHOLE in found,
        fdb=_NHA_FDB in found,
    )


def _members(payload: bytes) -> tuple[tuple[int, int], ...]:
    if len(payload) % _NH_MEMBER.size:
        raise MalformedError(f"a nexthop group of {len(payload)} bytes")
    return tuple((member, low + (high << 8) + 1) for member, low, high, _ in _NH_MEMBER.iter_unpack(payload))


def dump_nexthops() -> Request:
    """Ask for all nexthop objects."""
    return Request(Rtm.GETNEXTHOP, 0, _NHMSG.pack(0, 0, 0, 0, 0))


_RULE: Final = struct.Struct("=8BI")
"""fib_rule_hdr: family, destination and source length, TOS, table, two reserved, action, flags."""
_FRA_PRIORITY, _FRA_TABLE, _FRA_PROTOCOL = 6, 15, 21
_TO_TABLE: Final = 1


class Rule(NamedTuple):
    """A table is looked up at this point of the order: ``ip rule add pref P lookup T protocol N``."""

    family: int
    table: int
    """0: the rule does something else."""
    priority: int
    protocol: int


def decode_rule(payload: bytes) -> Rule:
    """From RTM_NEWRULE or RTM_DELRULE, without what it selects packets by.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _RULE.size:
        raise MalformedError(f"a rule of {len(payload)} bytes")
    family, _, _, _, table, _, _, _, _ = _RULE.unpack_from(payload)
    found = attributes(payload, _RULE.size)
    return Rule(
        family,
        number(found[_FRA_TABLE]) if _FRA_TABLE in found else table,
        number(found.get(_FRA_PRIORITY, b"\0")),
        number(found.get(_FRA_PROTOCOL, b"\0")),
    )


def add_rule(rule: Rule) -> Request:
    """Write a rule for all packets; EEXIST where there is the same."""
    return Request(Rtm.NEWRULE, CREATE | EXCLUSIVE, _encode_rule(rule))


def delete_rule(rule: Rule) -> Request:
    """Remove a rule; ENOENT where there is none."""
    return Request(Rtm.DELRULE, 0, _encode_rule(rule))


def dump_rules(family: int) -> Request:
    """Ask for the rules of a family; EAFNOSUPPORT where the kernel has none for it."""
    return Request(Rtm.GETRULE, 0, _RULE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))


def _encode_rule(rule: Rule) -> bytes:
    head = _RULE.pack(rule.family, 0, 0, 0, rule.table if rule.table < 256 else 0, 0, 0, _TO_TABLE, 0)
    return head + u32(_FRA_PRIORITY, rule.priority) + u32(_FRA_TABLE, rule.table) + u8(_FRA_PROTOCOL, rule.protocol)

"""Nexthop objects and routing policy rules, to and from messages (linux/nexthop.h, linux/fib_rules.h)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from services.reconciler.adapters.attributes import (
    MalformedError,
    address_bytes,
    address_text,
    attribute,
    attributes,
    number,
    u8,
    u32,
)
from services.reconciler.adapters.framing import CREATE, EXCLUSIVE, REPLACE, Request
from services.reconciler.adapters.route_codec import Hop
from services.reconciler.adapters.rtnetlink import (
    AF_INET,
    AF_INET6,
    RTNH_F_DEAD,
    RTNH_F_LINKDOWN,
    RTNH_F_ONLINK,
    Rtm,
)

_NHMSG: Final = struct.Struct("=4BI")
_NH_ID, _NH_GROUP, _NH_BLACKHOLE, _NH_OIF, _NH_GATEWAY, _NH_FDB = 1, 2, 4, 5, 6, 11
_NH_MEMBER: Final = struct.Struct("=IBBH")
_RULE: Final = struct.Struct("=8BI")
_FRA_PRIORITY, _FRA_TABLE, _FRA_PROTOCOL = 6, 15, 21
_TO_TABLE: Final = 1


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
    if _NH_ID not in found:
        raise MalformedError("a nexthop object without id")
    hop = None
    if _NH_OIF in found or _NH_GATEWAY in found:
        hop = Hop(
            number(found[_NH_OIF]) if _NH_OIF in found else 0,
            address_text(found[_NH_GATEWAY]) if _NH_GATEWAY in found else None,
            onlink=bool(flags & RTNH_F_ONLINK),
            dead=bool(flags & RTNH_F_DEAD),
            linkdown=bool(flags & RTNH_F_LINKDOWN),
        )
    return NexthopObject(
        number(found[_NH_ID]),
        hop,
        _members(found.get(_NH_GROUP, b"")),
        protocol,
        blackhole=_NH_BLACKHOLE in found,
        fdb=_NH_FDB in found,
    )


def _members(payload: bytes) -> tuple[tuple[int, int], ...]:
    if len(payload) % _NH_MEMBER.size:
        raise MalformedError(f"a nexthop group of {len(payload)} bytes")
    return tuple((member, low + (high << 8) + 1) for member, low, high, _ in _NH_MEMBER.iter_unpack(payload))


def add_nexthop(nexthop: NexthopObject, *, replace: bool = False) -> Request:
    """Write a nexthop object; a replaced one changes every route that refers to it at once.

    Raises:
        ValueError: an address is none.
    """
    family, flags = 0, 0
    body = u32(_NH_ID, nexthop.id)
    if nexthop.group:
        members = (_NH_MEMBER.pack(i, (weight - 1) & 0xFF, (weight - 1) >> 8, 0) for i, weight in nexthop.group)
        body += attribute(_NH_GROUP, b"".join(members))
    elif nexthop.blackhole:
        family = AF_INET
        body += attribute(_NH_BLACKHOLE, b"")
    elif nexthop.hop is not None:
        address = address_bytes(nexthop.hop.gateway) if nexthop.hop.gateway is not None else b""
        family = AF_INET6 if len(address) == 16 else AF_INET
        flags = RTNH_F_ONLINK if nexthop.hop.onlink else 0
        body += u32(_NH_OIF, nexthop.hop.ifindex) if nexthop.hop.ifindex else b""
        body += attribute(_NH_GATEWAY, address) if address else b""
    if nexthop.fdb:
        body += attribute(_NH_FDB, b"")
    how = CREATE | (REPLACE if replace else EXCLUSIVE)
    return Request(Rtm.NEWNEXTHOP, how, _NHMSG.pack(family, 0, nexthop.protocol, 0, flags) + body)


def delete_nexthop(nexthop_id: int) -> Request:
    """Remove a nexthop object, and with it the routes that refer to it."""
    return Request(Rtm.DELNEXTHOP, 0, _NHMSG.pack(0, 0, 0, 0, 0) + u32(_NH_ID, nexthop_id))


def dump_nexthops() -> Request:
    """Ask for all nexthop objects."""
    return Request(Rtm.GETNEXTHOP, 0, _NHMSG.pack(0, 0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Rule:
    """Look up a table for everything, at some point of the order: ``ip rule add pref P lookup T``."""

    priority: int
    table: int
    family: int = AF_INET
    protocol: int = 0
    plain: bool = True
    """Decoded: it selects by nothing (source, mark, device...) and does nothing but look up; only such are written."""


def decode_rule(payload: bytes) -> Rule:
    """From RTM_NEWRULE or RTM_DELRULE.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _RULE.size:
        raise MalformedError(f"a rule of {len(payload)} bytes")
    family, to, from_, tos, table, _, _, action, flags = _RULE.unpack_from(payload)
    found = attributes(payload, _RULE.size)
    # FRA_SUPPRESS_PREFIXLEN (14) of -1 stands in every dump, and so does FRA_L3MDEV (19) of 0 never.
    others = {kind for kind in found if kind not in {_FRA_PRIORITY, _FRA_TABLE, _FRA_PROTOCOL, 14}}
    suppressed = found.get(14, b"\xff" * 4) != b"\xff" * 4
    return Rule(
        priority=number(found[_FRA_PRIORITY]) if _FRA_PRIORITY in found else 0,
        table=number(found[_FRA_TABLE]) if _FRA_TABLE in found else table,
        family=family,
        protocol=number(found[_FRA_PROTOCOL]) if _FRA_PROTOCOL in found else 0,
        plain=action == _TO_TABLE and not (to or from_ or tos or flags & ~0x3 or others or suppressed),
    )


def add_rule(rule: Rule) -> Request:
    """Write a rule; EEXIST where there is the same."""
    return Request(Rtm.NEWRULE, CREATE | EXCLUSIVE, _encode_rule(rule))


def delete_rule(rule: Rule) -> Request:
    """Remove the first rule of that priority, table and, where not 0, protocol."""
    return Request(Rtm.DELRULE, 0, _encode_rule(rule))


def dump_rules(family: int) -> Request:
    """Ask for the rules of a family."""
    return Request(Rtm.GETRULE, 0, _RULE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))


def _encode_rule(rule: Rule) -> bytes:
    if not rule.plain:
        raise ValueError(f"{rule} selects by more than is known here")
    table = rule.table if rule.table < 256 else 0
    body = u32(_FRA_PRIORITY, rule.priority) + u32(_FRA_TABLE, rule.table)
    body += u8(_FRA_PROTOCOL, rule.protocol) if rule.protocol else b""
    return _RULE.pack(rule.family, 0, 0, 0, table, 0, 0, _TO_TABLE, 0) + body

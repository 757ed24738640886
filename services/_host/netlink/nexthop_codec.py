"""Nexthop objects, from messages (linux/nexthop.h)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from services._host.netlink.attributes import MalformedError, address_text, attributes, number
from services._host.netlink.constants import RTNH_F_DEAD, RTNH_F_LINKDOWN, RTNH_F_ONLINK, Rtm
from services._host.netlink.messages import Request
from services._host.netlink.route_codec import Hop

_NHMSG: Final = struct.Struct("=4BI")
_NH_ID, _NH_GROUP, _NH_BLACKHOLE, _NH_OIF, _NH_GATEWAY, _NH_FDB = 1, 2, 4, 5, 6, 11
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


def dump_nexthops() -> Request:
    """Ask for all nexthop objects."""
    return Request(Rtm.GETNEXTHOP, 0, _NHMSG.pack(0, 0, 0, 0, 0))

"""The congestion control of a route (``congctl`` of ip-route(8)): read and changed with all else of the route kept.

A route is taken as the kernel dumps it, byte for byte, so that its metrics, next hops and encapsulations stay. A name
that no algorithm is registered by any more is not dumped. Source: rtnetlink(7), RTAX_CC_ALGO in linux/rtnetlink.h.
"""

from __future__ import annotations

import struct
from typing import Final

from services._host.netlink.attributes import MalformedError, attribute, attributes, each_attribute, nested, text
from services._host.netlink.constants import Rtm
from services._host.netlink.messages import CREATE, REPLACE, Request

_RTMSG: Final = struct.Struct("=8BI")
_OIF, _GATEWAY, _METRICS, _MULTIPATH, _CACHEINFO, _VIA, _NH_ID = 4, 5, 8, 9, 12, 18, 30
_CC_ALGO: Final = 16
_WRITTEN_FLAGS: Final = 4
"""RTNH_F_ONLINK; the other flags say how its device is, and cannot be written."""


def congestion_control_of(route: bytes) -> str:
    """The name in a route; empty: it has none.

    Raises:
        MalformedError: no route.
    """
    found = attributes(_attributes_of(route))
    name = attributes(found[_METRICS]).get(_CC_ALGO, b"") if _METRICS in found else b""
    return name.rstrip(b"\0").decode(errors="replace")


def with_congestion_control(route: bytes, name: str) -> bytes:
    """The same route with another congestion control; empty: without.

    Raises:
        MalformedError: no route.
    """
    parts, metrics = [], [text(_CC_ALGO, name)] if name else []
    kept = list(each_attribute(_attributes_of(route), 0, len(route) - _RTMSG.size))
    by_object = _NH_ID in dict(kept)
    for kind, payload in kept:
        if kind == _METRICS:
            metrics += [attribute(*one) for one in each_attribute(payload, 0, len(payload)) if one[0] != _CC_ALGO]
        elif kind != _CACHEINFO and not (by_object and kind in {_OIF, _GATEWAY, _MULTIPATH, _VIA}):
            parts.append(attribute(kind, payload))
    if metrics:
        parts.append(nested(_METRICS, *metrics))
    *header, flags = _RTMSG.unpack_from(route)
    return _RTMSG.pack(*header, flags & _WRITTEN_FLAGS) + b"".join(parts)


def replace_route(route: bytes) -> Request:
    """Write it in the place of the one to the same destination with the same metric."""
    return Request(Rtm.NEWROUTE, CREATE | REPLACE, route)


def _attributes_of(route: bytes) -> bytes:
    if len(route) < _RTMSG.size:
        raise MalformedError(f"a route of {len(route)} bytes")
    return route[_RTMSG.size :]

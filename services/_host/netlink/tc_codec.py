"""Writes of tc rules: clsact, actions tunnel_key and mirred, flower filters (linux/pkt_cls.h, linux/tc_act/*.h).

Reading is `tc_decode`'s. Actions stand in a table of the namespace under their index, and filters refer to them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from services._host.netlink.attributes import (
    address_bytes,
    attribute,
    be16,
    be32,
    mac_bytes,
    nested,
    text,
    u8,
    u32,
)
from services._host.netlink.constants import Rtm
from services._host.netlink.messages import CREATE, EXCLUSIVE, REPLACE, Request
from services._host.netlink.objects import Action, ActionKind, Filter, Tunnel

TCMSG: Final = struct.Struct("=BxxxiIII")
TCAMSG: Final = struct.Struct("=Bxxx")
CLSACT_PARENT: Final = 0xFFFFFFF1
CLSACT_HANDLE: Final = 0xFFFF0000
INGRESS: Final = 0xFFFFFFF2
"""TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)."""

TCA_KIND, TCA_OPTIONS, TCA_CHAIN, TCA_DUMP_FLAGS = 1, 2, 11, 15
ACT_TABLE, ACT_ROOT_FLAGS = 1, 2
ACT_KIND, ACT_OPTIONS, ACT_INDEX, ACT_STATS, ACT_COOKIE, ACT_FLAGS = 1, 2, 3, 4, 6, 7
FLOWER_ACT, FLOWER_ETH_DST, FLOWER_ETH_DST_MASK, FLOWER_FLAGS, FLOWER_IN_HW_COUNT = 3, 4, 5, 22, 86
PARMS: Final = 2
"""TCA_TUNNEL_KEY_PARMS and TCA_MIRRED_PARMS alike."""
KEY_IPV4_SRC, KEY_IPV4_DST, KEY_IPV6_SRC, KEY_IPV6_DST, KEY_ID, KEY_PORT, KEY_NO_CSUM = 3, 4, 5, 6, 7, 9, 10

GENERIC: Final = struct.Struct("=IIiii")
"""tc_gen: index, capabilities, what follows, references, bindings."""
_TUNNEL_PARMS: Final = struct.Struct("=IIiiii")
_MIRRED_PARMS: Final = struct.Struct("=IIiiiiI")
_BITFIELD: Final = struct.Struct("=II")
_PIPE, _STOLEN = 3, 4
_SET, _EGRESS_REDIRECT = 1, 1
SKIP_HW, SKIP_SW, IN_HW, NOT_IN_HW = 0x1, 0x2, 0x4, 0x8
TERSE: Final = 0x1
_LARGE_DUMP: Final = 0x1
_EXACT_MAC: Final = b"\xff" * 6
LONGEST_COOKIE: Final = 16


def add_clsact(ifindex: int) -> Request:
    """The hooks that filters hang on; EEXIST where there are some."""
    header = TCMSG.pack(0, ifindex, CLSACT_HANDLE, CLSACT_PARENT, 0)
    return Request(Rtm.NEWQDISC, CREATE | EXCLUSIVE, header + text(TCA_KIND, "clsact"))


def delete_clsact(ifindex: int) -> Request:
    """The hooks with every filter on them, whichever process made it."""
    header = TCMSG.pack(0, ifindex, CLSACT_HANDLE, CLSACT_PARENT, 0)
    return Request(Rtm.DELQDISC, 0, header + text(TCA_KIND, "clsact"))


def dump_qdiscs() -> Request:
    """Ask for all queueing disciplines; the kernel knows no choice by device here."""
    return Request(Rtm.GETQDISC, 0, TCMSG.pack(0, 0, 0, 0, 0))


def add_action(action: Action, *, replace: bool = False) -> Request:
    """Write an action of its own; replacing changes it for every filter that refers to it at once.

    Raises:
        ValueError: a cookie or an address that is none.
    """
    table = nested(ACT_TABLE, nested(1, *_action(action)))
    return Request(Rtm.NEWACTION, CREATE | (REPLACE if replace else EXCLUSIVE), TCAMSG.pack(0) + table)


def delete_action(kind: str, index: int) -> Request:
    """Remove an action; EPERM while a filter refers to it."""
    table = nested(ACT_TABLE, nested(1, text(ACT_KIND, kind), u32(ACT_INDEX, index)))
    return Request(Rtm.DELACTION, 0, TCAMSG.pack(0) + table)


def dump_actions(kind: str) -> Request:
    """Ask for the actions of a kind, many per message; none where the kernel does not know the kind."""
    flags = attribute(ACT_ROOT_FLAGS, _BITFIELD.pack(_LARGE_DUMP, _LARGE_DUMP))
    return Request(Rtm.GETACTION, 0, TCAMSG.pack(0) + nested(ACT_TABLE, nested(1, text(ACT_KIND, kind))) + flags)


def add_filter(rule: Filter, *, replace: bool = False) -> Request:
    """A flower filter on an exact destination MAC.

    Its actions have to be there already, only their indexes are written: a filter without offload flag binds them. One
    with skip_hw or skip_sw is written with its actions in full: the first makes them, the others bind them.

    Raises:
        ValueError: not flower, or without MAC: such a filter is not ours to write.
    """
    if rule.kind != "flower" or rule.mac is None:
        raise ValueError(f"{rule} is no flower filter on a destination MAC")
    flags = (SKIP_HW if rule.skip_hw else 0) | (SKIP_SW if rule.skip_sw else 0)
    options = nested(
        TCA_OPTIONS,
        attribute(FLOWER_ETH_DST, mac_bytes(rule.mac)),
        attribute(FLOWER_ETH_DST_MASK, _EXACT_MAC),
        u32(FLOWER_FLAGS, flags) if flags else b"",
        nested(FLOWER_ACT, *_in_order(rule.actions, in_full=bool(flags))),
    )
    payload = _filter_header(rule) + options
    return Request(Rtm.NEWTFILTER, CREATE if replace else CREATE | EXCLUSIVE, payload)


def delete_filter(rule: Filter) -> Request:
    """Remove one filter; ENOENT where it, its preference or its chain is not there."""
    return Request(Rtm.DELTFILTER, 0, _filter_header(rule))


def dump_filters(ifindex: int, *, pref: int = 0, terse: bool = False, chain: int | None = None) -> Request:
    """Ask for a port's ingress filters, of one preference where it is not 0.

    Terse (from 5.9): handle, cookies and counters only, no keys and no meaning of actions; EOPNOTSUPP from kinds
    other than flower.
    """
    payload = TCMSG.pack(0, ifindex, 0, INGRESS, pref << 16)
    if chain is not None:
        payload += u32(TCA_CHAIN, chain)
    if terse:
        payload += attribute(TCA_DUMP_FLAGS, _BITFIELD.pack(TERSE, TERSE))
    return Request(Rtm.GETTFILTER, 0, payload)


def _filter_header(rule: Filter) -> bytes:
    information = (rule.pref << 16) | socket.htons(rule.protocol)
    chain = u32(TCA_CHAIN, rule.chain) if rule.chain else b""
    return TCMSG.pack(0, rule.ifindex, rule.handle, INGRESS, information) + text(TCA_KIND, rule.kind) + chain


def _in_order(actions: Sequence[Action], *, in_full: bool) -> list[bytes]:
    return [
        nested(order, *(_action(action) if in_full else _reference(action)))
        for order, action in enumerate(actions, start=1)
    ]


@lru_cache(maxsize=4_096)
def _reference(action: Action) -> tuple[bytes, ...]:
    options = attribute(PARMS, _parms(action.kind, action.index, redirect_to=0))
    return (text(ACT_KIND, action.kind), nested(ACT_OPTIONS, options))


def _action(action: Action) -> list[bytes]:
    parts = [text(ACT_KIND, action.kind)]
    if action.kind is ActionKind.TUNNEL_KEY:
        if action.tunnel is None:
            raise ValueError(f"{action} sets no tunnel")
        parts.append(nested(ACT_OPTIONS, attribute(PARMS, _parms(action.kind, action.index)), _tunnel(action.tunnel)))
    else:
        parms = _parms(action.kind, action.index, redirect_to=action.redirect_to)
        parts.append(nested(ACT_OPTIONS, attribute(PARMS, parms)))
    if len(action.cookie) > LONGEST_COOKIE:
        raise ValueError(f"a cookie of {len(action.cookie)} bytes: the most is {LONGEST_COOKIE}")
    if action.cookie:
        parts.append(attribute(ACT_COOKIE, action.cookie))
    if action.flags:
        parts.append(attribute(ACT_FLAGS, _BITFIELD.pack(action.flags, action.flags)))
    return parts


def _parms(kind: ActionKind, index: int, *, redirect_to: int = 0) -> bytes:
    if kind is ActionKind.TUNNEL_KEY:
        return _TUNNEL_PARMS.pack(index, 0, _PIPE, 0, 0, _SET)
    return _MIRRED_PARMS.pack(index, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, redirect_to)


def _tunnel(tunnel: Tunnel) -> bytes:
    source, destination = address_bytes(tunnel.source), address_bytes(tunnel.destination)
    if len(source) != len(destination):
        raise ValueError(f"a tunnel from {tunnel.source} to {tunnel.destination}")
    of_source, of_destination = (KEY_IPV4_SRC, KEY_IPV4_DST) if len(source) == 4 else (KEY_IPV6_SRC, KEY_IPV6_DST)
    return (
        attribute(of_source, source)
        + attribute(of_destination, destination)
        + be32(KEY_ID, tunnel.vni)
        + be16(KEY_PORT, tunnel.port)
        # Without it the kernel takes checksums for wanted.
        + (b"" if tunnel.checksum else u8(KEY_NO_CSUM, 1))
    )

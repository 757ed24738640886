"""Links, forwarding databases and neighbours, to and from messages (linux/if_link.h, linux/neighbour.h)."""

from __future__ import annotations

import struct
from typing import Final

from services._host.netlink.attributes import (
    MalformedError,
    address_bytes,
    address_text,
    attribute,
    attributes,
    be16,
    mac_bytes,
    mac_text,
    network_number,
    number,
    spans,
    string,
    u16,
    u32,
)
from services._host.netlink.constants import (
    AF_BRIDGE,
    AF_INET,
    AF_INET6,
    IFF_LOWER_UP,
    IFF_UP,
    NTF_EXT_LEARNED,
    NTF_MASTER,
    NTF_SELF,
    NUD_NOARP,
    NUD_PERMANENT,
    NUD_REACHABLE,
    NUD_VALID,
    Rtm,
)
from services._host.netlink.dump_cache import Varying
from services._host.netlink.messages import CREATE, EXCLUSIVE, REPLACE, Request
from services._host.netlink.objects import FdbEntry, Link, Neighbour, Vxlan

_IFINFO: Final = struct.Struct("=BxHiII")
_NDMSG: Final = struct.Struct("=BxxxiHBB")
_NDA_DST, _NDA_LLADDR, _NDA_CACHEINFO, _NDA_VLAN, _NDA_PORT, _NDA_VNI = 1, 2, 3, 5, 6, 7
_NDA_IFINDEX, _NDA_MASTER, _NDA_NH_ID = 8, 9, 13
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_EXT_MASK = 1, 3, 4, 10, 18, 29
_INFO_KIND, _INFO_DATA = 1, 2
_VXLAN_ID, _VXLAN_LOCAL, _VXLAN_PORT, _VXLAN_LOCAL6, _VXLAN_EXTERNAL = 1, 4, 15, 17, 25
_SKIP_STATISTICS: Final = 1 << 3


def dump_links() -> Request:
    """Ask for all links, without their counters."""
    return Request(Rtm.GETLINK, 0, _IFINFO.pack(0, 0, 0, 0, 0) + u32(_IFLA_EXT_MASK, _SKIP_STATISTICS))


def set_link_up(ifindex: int, *, up: bool) -> Request:
    """Set a link administratively up or down."""
    return Request(Rtm.NEWLINK, 0, _IFINFO.pack(0, 0, ifindex, IFF_UP if up else 0, IFF_UP))


def decode_link(payload: bytes) -> Link | None:
    """From RTM_NEWLINK or RTM_DELLINK; None for a message of a bridge about a port (AF_BRIDGE), which is no link.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _IFINFO.size:
        raise MalformedError(f"a link of {len(payload)} bytes")
    family, _, ifindex, flags, _ = _IFINFO.unpack_from(payload)
    if family == AF_BRIDGE:
        return None
    found = attributes(payload, _IFINFO.size)
    information = attributes(found.get(_IFLA_LINKINFO, b""))
    kind = string(information.get(_INFO_KIND, b""))
    return Link(
        ifindex=ifindex,
        name=string(found.get(_IFLA_IFNAME, b"")),
        kind=kind,
        mac=mac_text(found.get(_IFLA_ADDRESS, b"")),
        mtu=number(found[_IFLA_MTU]) if _IFLA_MTU in found else 0,
        up=bool(flags & IFF_UP),
        carrier=bool(flags & IFF_LOWER_UP),
        master=number(found[_IFLA_MASTER]) if _IFLA_MASTER in found else 0,
        vxlan=_vxlan(information.get(_INFO_DATA, b"")) if kind == "vxlan" else None,
    )


def _vxlan(payload: bytes) -> Vxlan:
    found = attributes(payload)
    local = found.get(_VXLAN_LOCAL) or found.get(_VXLAN_LOCAL6)
    return Vxlan(
        vni=number(found[_VXLAN_ID]) if _VXLAN_ID in found else 0,
        local=address_text(local) if local is not None and any(local) else None,
        port=network_number(found[_VXLAN_PORT], 2) if _VXLAN_PORT in found else 0,
        external=bool(number(found[_VXLAN_EXTERNAL])) if _VXLAN_EXTERNAL in found else False,
    )


def dump_fdb(*, bridge: int = 0, port: int = 0) -> Request:
    """Ask for forwarding databases: all, those of one bridge's ports, or of one port."""
    header = _NDMSG.pack(AF_BRIDGE, port, 0, 0, 0)
    return Request(Rtm.GETNEIGH, 0, header + (u32(_NDA_MASTER, bridge) if bridge else b""))


def decode_fdb(payload: bytes) -> FdbEntry | None:
    """From RTM_NEWNEIGH or RTM_DELNEIGH; None where it is no row of a forwarding database.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _NDMSG.size:
        raise MalformedError(f"a forwarding entry of {len(payload)} bytes")
    family, ifindex, state, flags, _ = _NDMSG.unpack_from(payload)
    if family != AF_BRIDGE:
        return None
    found = attributes(payload, _NDMSG.size)
    own = bool(flags & NTF_SELF)
    return FdbEntry(
        ifindex=ifindex,
        mac=mac_text(found.get(_NDA_LLADDR, b"")),
        own=own,
        destination=address_text(found[_NDA_DST]) if _NDA_DST in found else None,
        vlan=number(found[_NDA_VLAN]) if _NDA_VLAN in found else 0,
        static=bool(state & (NUD_NOARP | NUD_PERMANENT)),
        local=not own and bool(state & NUD_PERMANENT),
        extern_learn=bool(flags & NTF_EXT_LEARNED),
        nexthop_id=number(found[_NDA_NH_ID]) if _NDA_NH_ID in found else 0,
        vni=number(found[_NDA_VNI]) if own and _NDA_VNI in found else 0,
        port=network_number(found[_NDA_PORT], 2) if own and _NDA_PORT in found else 0,
    )


def ages(payload: bytes) -> list[Varying]:
    """Where a forwarding entry or a neighbour holds how long ago it was used (NDA_CACHEINFO)."""
    found = spans(payload, _NDMSG.size, len(payload))
    return [Varying(start - 4, end) for kind, (start, end) in found if kind == _NDA_CACHEINFO]


def add_fdb(entry: FdbEntry, *, replace: bool = False) -> Request:
    """Write a row: into the bridge's table of a port, or into a VXLAN device's own.

    Raises:
        ValueError: no MAC address, or no address.
    """
    state = NUD_PERMANENT if entry.local or (entry.own and entry.static) else NUD_NOARP
    return Request(
        Rtm.NEWNEIGH,
        CREATE | (REPLACE if replace else EXCLUSIVE),
        _encode_fdb(entry, state if entry.static else NUD_REACHABLE),
    )


def delete_fdb(entry: FdbEntry) -> Request:
    """Remove a row."""
    return Request(Rtm.DELNEIGH, 0, _encode_fdb(entry, 0))


def _encode_fdb(entry: FdbEntry, state: int) -> bytes:
    flags = (NTF_SELF if entry.own else NTF_MASTER) | (NTF_EXT_LEARNED if entry.extern_learn else 0)
    body = attribute(_NDA_LLADDR, mac_bytes(entry.mac))
    if entry.destination is not None:
        body += attribute(_NDA_DST, address_bytes(entry.destination))
    if entry.nexthop_id:
        body += u32(_NDA_NH_ID, entry.nexthop_id)
    if entry.vlan:
        body += u16(_NDA_VLAN, entry.vlan)
    if entry.vni:
        body += u32(_NDA_VNI, entry.vni)
    if entry.port:
        body += be16(_NDA_PORT, entry.port)
    return _NDMSG.pack(AF_BRIDGE, entry.ifindex, state, flags, 0) + body


def dump_neighbours(*, ifindex: int = 0) -> Request:
    """Ask for the neighbour tables of IPv4 and IPv6, of one link or of all."""
    return Request(Rtm.GETNEIGH, 0, _NDMSG.pack(0, 0, 0, 0, 0) + (u32(_NDA_IFINDEX, ifindex) if ifindex else b""))


def decode_neighbour(payload: bytes) -> Neighbour | None:
    """From RTM_NEWNEIGH or RTM_DELNEIGH; None where it is neither IPv4 nor IPv6.

    Raises:
        MalformedError: nonsense.
    """
    if len(payload) < _NDMSG.size:
        raise MalformedError(f"a neighbour of {len(payload)} bytes")
    family, ifindex, state, _, _ = _NDMSG.unpack_from(payload)
    if family not in {AF_INET, AF_INET6}:
        return None
    found = attributes(payload, _NDMSG.size)
    if _NDA_DST not in found:
        raise MalformedError("a neighbour without address")
    mac = found.get(_NDA_LLADDR)
    return Neighbour(
        ifindex=ifindex,
        address=address_text(found[_NDA_DST]),
        mac=mac_text(mac) if mac is not None else None,
        resolved=bool(state & NUD_VALID) and mac is not None,
    )

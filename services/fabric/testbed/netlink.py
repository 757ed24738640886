"""The little netlink that the lab needs, raw: links up and down, packets dropped at a port, next hops read.

A fault is one write to one socket, so it happens at one moment: `tc` and `ip` would take milliseconds between the two
directions of a blackhole. Constants are those of linux/rtnetlink.h, linux/pkt_sched.h and linux/pkt_cls.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from services._host.netns import inside, socket_in

_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_REQUEST: Final = 1
_NLM_F_ACK: Final = 4
_NLM_F_EXCL: Final = 0x200
_NLM_F_CREATE: Final = 0x400
_NLM_F_DUMP: Final = 0x300
_RTM_NEWLINK: Final = 16
_RTM_GETROUTE: Final = 26
_RTM_GETRULE: Final = 34
_RTM_NEWQDISC: Final = 36
_RTM_NEWTFILTER: Final = 44
_RTM_DELTFILTER: Final = 45
_IFF_UP: Final = 1

_TCA_KIND: Final = 1
_TCA_OPTIONS: Final = 2
_TCA_BPF_OPS_LEN: Final = 4
_TCA_BPF_OPS: Final = 5
_TCA_BPF_FLAGS: Final = 8
_BPF_FLAG_ACT_DIRECT: Final = 1
_CLSACT_PARENT: Final = 0xFFFFFFF1
_CLSACT_HANDLE: Final = 0xFFFF0000
_INGRESS: Final = 0xFFFFFFF2
_EGRESS: Final = 0xFFFFFFF3
_FAULT_PREF: Final = 7
"""Ours among the filters of a port: whatever else somebody put there is left alone."""
_EVERY_PROTOCOL: Final = 0x0300
"""ETH_P_ALL in network byte order."""
_DROP_ALL: Final = struct.pack("=HBBI", 6, 0, 0, 2)
"""One classic BPF instruction: return TC_ACT_SHOT."""

_FRA_PROTOCOL: Final = 21
_RTA_DST: Final = 1
_RTA_OIF: Final = 4
_RTA_MULTIPATH: Final = 9
_RT_TABLE_MAIN: Final = 254
_RTNH_F_DEAD: Final = 1
_RTNH_F_LINKDOWN: Final = 16
_FLAG_MASK: Final = 0x3FFF


@dataclass(frozen=True, slots=True)
class PortState:
    """What a port of a switch is made to do."""

    up: bool = True
    drops_from_cable: bool = False
    """Silently, whatever arrives."""
    drops_to_cable: bool = False
    """Silently, whatever would leave."""


class LabNetlink:
    """A netlink socket in one namespace. Not for several threads."""

    def __init__(self, netns: str) -> None:
        """Open it.

        Raises:
            OSError: there is no such namespace, or no right.
        """
        self._netns = netns
        self._socket = socket_in(netns, socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def set_ports(self, ports: Mapping[str, tuple[PortState, PortState]]) -> None:
        """Bring each port from its first state to its second, all in one write.

        Raises:
            OSError: the kernel refused one of them.
        """
        messages: list[tuple[int, int, bytes, frozenset[int]]] = []
        indices = self._indices(ports)
        for port, (before, after) in ports.items():
            messages += _port_messages(indices[port], before, after)
        self._write(messages)

    def next_hops(self, destination: str) -> frozenset[str]:
        """Devices through which the main table sends to an IPv4 /32 and that are usable; empty: no route."""
        wanted = socket.inet_aton(destination)
        found: set[int] = set()
        for body in self._dump(_RTM_GETROUTE, struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)):
            bits, table = body[1], body[4]
            attributes = dict(_attributes(body[12:]))
            if bits == 32 and table == _RT_TABLE_MAIN and attributes.get(_RTA_DST) == wanted:
                found |= _usable_devices(body, attributes)
        with inside(self._netns):
            return frozenset(socket.if_indextoname(index) for index in found)

    def rule_protocols(self) -> frozenset[int]:
        """Who has made rules of IPv4 routing (RTPROT_*)."""
        rules = self._dump(_RTM_GETRULE, struct.pack("=8BI", socket.AF_INET, *bytes(7), 0))
        return frozenset(dict(_attributes(body[12:])).get(_FRA_PROTOCOL, b"\0")[0] for body in rules)

    def _indices(self, names: Mapping[str, object]) -> dict[str, int]:
        with inside(self._netns):
            return {name: socket.if_nametoindex(name) for name in names}

    def _write(self, messages: list[tuple[int, int, bytes, frozenset[int]]]) -> None:
        """Each message: type, flags, body, errors that mean "already so"."""
        if not messages:
            return
        first = self._sequence + 1
        self._socket.send(b"".join(self._message(kind, flags | _NLM_F_ACK, body) for kind, flags, body, _ in messages))
        waited_for = {first + place: harmless for place, (_, _, _, harmless) in enumerate(messages)}
        failed = 0
        while waited_for:
            for kind, sequence, body in _messages(self._socket.recv(1 << 16)):
                if kind == _NLMSG_ERROR and sequence in waited_for:
                    number = -struct.unpack_from("=i", body)[0]
                    harmless = waited_for.pop(sequence)
                    if number and number not in harmless:
                        failed = failed or number
        if failed:
            raise OSError(failed, f"{self._netns}: {os.strerror(failed)}")

    def _dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        self._socket.send(self._message(kind, _NLM_F_DUMP, body))
        sequence = self._sequence
        while True:
            for answer, answered, content in _messages(self._socket.recv(1 << 17)):
                if answered != sequence:
                    continue
                if answer == _NLMSG_DONE:
                    return
                if answer == _NLMSG_ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    raise OSError(number, f"{self._netns}: {os.strerror(number)}")
                if answer == kind - 2:  # RTM_NEW* of RTM_GET*
                    yield content

    def _message(self, kind: int, flags: int, body: bytes) -> bytes:
        self._sequence += 1
        return struct.pack("=IHHII", 16 + len(body), kind, flags | _NLM_F_REQUEST, self._sequence, 0) + body


def _port_messages(index: int, before: PortState, after: PortState) -> Iterator[tuple[int, int, bytes, frozenset[int]]]:
    sides = ((_INGRESS, before.drops_from_cable, after.drops_from_cable),
             (_EGRESS, before.drops_to_cable, after.drops_to_cable))  # fmt: skip
    if any(now and not was for _, was, now in sides):
        clsact = _traffic(index, _CLSACT_HANDLE, _CLSACT_PARENT, 0, _attribute(_TCA_KIND, b"clsact\0"))
        yield _RTM_NEWQDISC, _NLM_F_CREATE | _NLM_F_EXCL, clsact, frozenset({errno.EEXIST})
    for parent, was, now in sides:
        info = _FAULT_PREF << 16 | _EVERY_PROTOCOL
        if now and not was:
            body = _traffic(index, 0, parent, info, _attribute(_TCA_KIND, b"bpf\0") + _drop_program())
            yield _RTM_NEWTFILTER, _NLM_F_CREATE | _NLM_F_EXCL, body, frozenset({errno.EEXIST})
        elif was and not now:
            body = _traffic(index, 0, parent, info, _attribute(_TCA_KIND, b"bpf\0"))
            yield _RTM_DELTFILTER, 0, body, frozenset({errno.ENOENT, errno.EINVAL})
    if before.up != after.up:
        flags = _IFF_UP if after.up else 0
        yield _RTM_NEWLINK, 0, struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, _IFF_UP), frozenset()


def _drop_program() -> bytes:
    options = (
        _attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", 1))
        + _attribute(_TCA_BPF_OPS, _DROP_ALL)
        + _attribute(_TCA_BPF_FLAGS, struct.pack("=I", _BPF_FLAG_ACT_DIRECT))
    )
    return _attribute(_TCA_OPTIONS, options)


def _traffic(index: int, handle: int, parent: int, info: int, attributes: bytes) -> bytes:
    """A struct tcmsg."""
    return struct.pack("=BxxxiIII", socket.AF_UNSPEC, index, handle, parent, info) + attributes


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind & _FLAG_MASK, data[offset + 4 : offset + length]
        offset += length + -length % 4


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, sequence number and body of each message."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, _, sequence, _ = struct.unpack_from("=IHHII", data, offset)
        yield kind, sequence, data[offset + 16 : offset + length]
        offset += max(length + -length % 4, 16)


def _usable_devices(body: bytes, attributes: Mapping[int, bytes]) -> set[int]:
    """Ifindices of a route's next hops (struct rtmsg, struct rtnexthop)."""
    if _RTA_MULTIPATH not in attributes:
        flags = struct.unpack_from("=I", body, 8)[0]
        single = attributes.get(_RTA_OIF)
        usable = single is not None and not flags & (_RTNH_F_DEAD | _RTNH_F_LINKDOWN)
        return {struct.unpack("=i", single)[0]} if usable and single is not None else set()
    found, data, offset = set(), attributes[_RTA_MULTIPATH], 0
    while offset + 8 <= len(data):
        length, flags, _, index = struct.unpack_from("=HBBi", data, offset)
        if not flags & (_RTNH_F_DEAD | _RTNH_F_LINKDOWN):
            found.add(index)
        offset += max(length + -length % 4, 8)
    return found

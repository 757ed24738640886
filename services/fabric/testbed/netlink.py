"""Faults and checks of the testbed over netlink: links up and down, packets dropped at a port, next hops read.

All changes of a fault are one batch on one socket, so that they take effect together: `tc` and `ip` would take
milliseconds between the two directions of a blackhole.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Self

from services._host.netlink.attributes import attribute, text, u16, u32
from services._host.netlink.constants import AF_INET, RT_TABLE_MAIN, Rtm
from services._host.netlink.link_codec import set_link_up
from services._host.netlink.messages import CREATE, EXCLUSIVE, Message, Request
from services._host.netlink.objects import ETH_P_ALL
from services._host.netlink.route_codec import decode_route, decode_rule, dump_routes, dump_rules
from services._host.netlink.socket import NetlinkSocket
from services._host.netlink.tc_codec import INGRESS, TCA_KIND, TCA_OPTIONS, TCMSG, add_clsact
from services._host.netns import inside
from services.fabric.testbed.topology import PortState

_BPF_OPS_LEN, _BPF_OPS, _BPF_FLAGS = 4, 5, 8
"""TCA_BPF_* (linux/pkt_cls.h)."""
_ACT_DIRECT: Final = 1
_EGRESS: Final = 0xFFFFFFF3
"""TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)."""
_FAULT_PREF: Final = 7
"""Preference of the filters of faults; filters of other preferences are left alone."""
_DROP_ALL: Final = struct.pack("=HBBI", 6, 0, 0, 2)
"""One classic BPF instruction: return TC_ACT_SHOT."""

_TIMEOUT_S: Final = 60.0
"""Of the kernel's reply: other namespaces that are made meanwhile hold the RTNL mutex."""
_DUMP_ATTEMPTS: Final = 50
"""FRR may change routes during a dump."""


class _Write(NamedTuple):
    """A request, and the errors that mean that its effect is already in place."""

    request: Request
    harmless: frozenset[int] = frozenset()


class LabNetlink:
    """Netlink access to one namespace of the testbed. Not thread-safe.

    All methods raise `OSError` where the kernel refuses, and `NetlinkError` where it does not answer.
    """

    def __init__(self, netns: str) -> None:
        """Open the socket.

        Raises:
            OSError: there is no such namespace, or no right to enter it.
        """
        self._netns = netns
        self._netlink = NetlinkSocket(netns, within_s=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def set_ports(self, ports: Mapping[str, tuple[PortState, PortState]]) -> None:
        """Bring each port from its first state to its second, all in one batch."""
        indices = self._indices(ports)
        writes = [write for port, states in ports.items() for write in _port_writes(indices[port], *states)]
        acks = self._netlink.write([write.request for write in writes])
        for write, ack in zip(writes, acks, strict=True):
            if ack.errno and ack.errno not in write.harmless:
                raise OSError(ack.errno, f"{self._netns}: {os.strerror(ack.errno)}")

    def next_hops(self, destination: str) -> frozenset[str]:
        """Devices of the live next hops to an IPv4 /32 in the main table; empty: no route."""
        routes = [decode_route(message.payload) for message in self._dump(dump_routes(AF_INET, table=RT_TABLE_MAIN))]
        found = {
            hop.ifindex
            for route in routes
            if route is not None and route.destination == f"{destination}/32"
            for hop in route.hops
            if not (hop.dead or hop.linkdown)
        }
        with inside(self._netns):
            return frozenset(socket.if_indextoname(index) for index in found)

    def rule_protocols(self) -> frozenset[int]:
        """RTPROT_* of the IPv4 routing policy rules."""
        return frozenset(decode_rule(message.payload).protocol for message in self._dump(dump_rules(AF_INET)))

    def _indices(self, names: Mapping[str, object]) -> dict[str, int]:
        with inside(self._netns):
            return {name: socket.if_nametoindex(name) for name in names}

    def _dump(self, request: Request) -> list[Message]:
        try:
            return self._netlink.dump(request, attempts=_DUMP_ATTEMPTS)
        except OSError as error:
            raise OSError(error.errno, f"{self._netns}: {error.strerror}") from error


def _port_writes(index: int, before: PortState, after: PortState) -> Iterator[_Write]:
    sides = (
        (INGRESS, before.drops_from_cable, after.drops_from_cable),
        (_EGRESS, before.drops_to_cable, after.drops_to_cable),
    )
    if any(now and not was for _, was, now in sides):
        yield _Write(add_clsact(index), frozenset({errno.EEXIST}))
    for hook, was, now in sides:
        header = TCMSG.pack(0, index, 0, hook, _FAULT_PREF << 16 | socket.htons(ETH_P_ALL)) + text(TCA_KIND, "bpf")
        if now and not was:
            drop = Request(Rtm.NEWTFILTER, CREATE | EXCLUSIVE, header + _drop_program())
            yield _Write(drop, frozenset({errno.EEXIST}))
        elif was and not now:
            yield _Write(Request(Rtm.DELTFILTER, 0, header), frozenset({errno.ENOENT, errno.EINVAL}))
    if before.up != after.up:
        yield _Write(set_link_up(index, up=after.up))


def _drop_program() -> bytes:
    program = u16(_BPF_OPS_LEN, 1) + attribute(_BPF_OPS, _DROP_ALL) + u32(_BPF_FLAGS, _ACT_DIRECT)
    return attribute(TCA_OPTIONS, program)

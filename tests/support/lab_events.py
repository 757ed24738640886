"""What the kernel tells about one namespace while a test goes on, counted by what matters: routes, FDB, tc."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from typing import Final

from services._host.netlink.constants import AF_BRIDGE, Group, Rtm
from services._host.netlink.subscription import Subscription
from services._host.netns import inside

OVERLAY: Final = ("br0", "vx100", "vxenc0", "rep0")
_ROUTES: Final = frozenset({Rtm.NEWROUTE, Rtm.DELROUTE})
_RULES: Final = frozenset({Rtm.NEWRULE, Rtm.DELRULE})
_NEIGHBOURS: Final = frozenset({Rtm.NEWNEIGH, Rtm.DELNEIGH})


class LabEvents:
    """Listens from its making on. The underlay's neighbours are told apart: the kernel ages them as it likes."""

    def __init__(self, netns: str) -> None:
        self._netns = netns
        groups = (Group.NEIGH, Group.TC, Group.IPV4_ROUTE, Group.IPV4_RULE, Group.NEXTHOP)
        self._subscription = Subscription(groups, netns)

    def counted(self) -> Counter[str]:
        """Since the last call: ``route``, ``rule``, ``fdb``, ``neigh`` (overlay), ``underlay``, ``tc and nexthop``."""
        names = self._names()
        found: Counter[str] = Counter()
        received = self._subscription.read(100_000)
        assert not received.overrun, "events were lost: nothing can be said"
        for message in received.messages:
            if message.kind in _ROUTES:
                found["route"] += 1
            elif message.kind in _RULES:
                found["rule"] += 1
            elif message.kind in _NEIGHBOURS:
                family, index = struct.unpack_from("=Bxxxi", message.payload)
                overlay = names.get(index) in OVERLAY
                found["fdb" if family == AF_BRIDGE else "neigh" if overlay else "underlay"] += 1
            else:
                found["tc and nexthop"] += 1
        return found

    def close(self) -> None:
        self._subscription.close()

    def _names(self) -> dict[int, str]:

        with inside(self._netns):
            return dict(socket.if_nameindex())

"""Numbers of include/uapi/linux/{rtnetlink,if_link,neighbour,nexthop,pkt_sched}.h, under their names there."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

AF_INET: Final = 2
AF_BRIDGE: Final = 7
AF_INET6: Final = 10


class Rtm(IntEnum):
    """Message types."""

    NEWLINK = 16
    DELLINK = 17
    GETLINK = 18
    NEWADDR = 20
    DELADDR = 21
    GETADDR = 22
    NEWROUTE = 24
    DELROUTE = 25
    GETROUTE = 26
    NEWNEIGH = 28
    DELNEIGH = 29
    GETNEIGH = 30
    NEWRULE = 32
    DELRULE = 33
    GETRULE = 34
    NEWQDISC = 36
    DELQDISC = 37
    GETQDISC = 38
    NEWTFILTER = 44
    DELTFILTER = 45
    GETTFILTER = 46
    NEWACTION = 48
    DELACTION = 49
    GETACTION = 50
    NEWCHAIN = 100
    DELCHAIN = 101
    NEWNEXTHOP = 104
    DELNEXTHOP = 105
    GETNEXTHOP = 106


class Group(IntEnum):
    """Multicast groups, RTNLGRP_*."""

    LINK = 1
    NEIGH = 3
    TC = 4
    IPV4_IFADDR = 5
    IPV4_ROUTE = 7
    IPV4_RULE = 8
    IPV6_IFADDR = 9
    IPV6_ROUTE = 11
    IPV6_RULE = 19
    NEXTHOP = 32


WATCHED: Final = (
    *(Group.LINK, Group.NEIGH, Group.TC, Group.NEXTHOP),
    *(Group.IPV4_ROUTE, Group.IPV6_ROUTE, Group.IPV4_RULE, Group.IPV6_RULE),
)
"""What a change of tc rules can follow from, those rules themselves, and what a change of paths can follow from."""

IFF_UP: Final = 0x1
IFF_LOWER_UP: Final = 0x10000

NTF_SELF: Final = 0x02
NTF_MASTER: Final = 0x04
NTF_EXT_LEARNED: Final = 0x10
NUD_REACHABLE: Final = 0x02
NUD_NOARP: Final = 0x40
NUD_PERMANENT: Final = 0x80
NUD_VALID: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT: the MAC may be used."""

RTNH_F_DEAD: Final = 0x01
RTNH_F_ONLINK: Final = 0x04
RTNH_F_LINKDOWN: Final = 0x10
RTM_F_CLONED: Final = 0x200

RT_TABLE_MAIN: Final = 254
RTPROT_BGP: Final = 186
RTN_UNICAST: Final = 1

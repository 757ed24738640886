"""What the kernel holds, as values: one `Snapshot` has links, forwarding tables, routes and tc rules.

Addresses are text in their canonical form (``ipaddress``, MAC addresses in lower case with colons). An ifindex of 0
means none. Order of rows carries no meaning (invariant I8).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

COOKIE_MAGIC: Final = b"THRN"
"""First bytes of the cookie on every managed action; at most 16 bytes in all (TCA_ACT_COOKIE)."""

ACTION_SKIP_HW: Final = 1 << 1
"""TCA_ACT_FLAGS_SKIP_HW (linux/pkt_cls.h): never in hardware. Fixed when the action is made."""
ACTION_SKIP_SW: Final = 1 << 2
"""TCA_ACT_FLAGS_SKIP_SW: only in hardware."""
ETH_P_ALL: Final = 3


@dataclass(frozen=True, slots=True)
class Vxlan:
    """A VXLAN device's own settings (RFC 7348)."""

    vni: int
    """0 where the device takes it from each packet (external)."""
    local: str | None
    """Source address of what it sends: this host's VTEP."""
    port: int
    """UDP destination port."""
    external: bool
    """Takes VNI and destination from each packet's tunnel metadata."""


@dataclass(frozen=True, slots=True)
class Link:
    """A network device."""

    ifindex: int
    name: str
    kind: str
    """IFLA_INFO_KIND: bridge, vxlan, veth...; empty for hardware."""
    mac: str
    mtu: int
    up: bool
    """IFF_UP: somebody wants it up."""
    carrier: bool
    """IFF_LOWER_UP."""
    master: int = 0
    """Ifindex of the bridge that it is a port of."""
    vxlan: Vxlan | None = None


@dataclass(frozen=True, slots=True)
class FdbEntry:
    """A row of a forwarding database (AF_BRIDGE): a bridge's (MAC to port) or a VXLAN device's own (MAC to VTEP)."""

    ifindex: int
    """The port, or the VXLAN device."""
    mac: str
    own: bool
    """NTF_SELF: the device's own table; else the bridge's."""
    destination: str | None = None
    """VTEP; only in a VXLAN device's own table."""
    vlan: int = 0
    static: bool = False
    """NUD_NOARP or NUD_PERMANENT: does not age."""
    local: bool = False
    """NUD_PERMANENT in the bridge's table: the MAC of a port itself."""
    extern_learn: bool = False
    """NTF_EXT_LEARNED: entered by a control plane, here zebra."""
    nexthop_id: int = 0
    """NDA_NH_ID: destination is a nexthop group (EVPN multihoming), which has no single VTEP."""
    vni: int = 0
    """NDA_VNI of a VXLAN device's own row: instead of the device's; 0: the device's."""
    port: int = 0
    """NDA_PORT of such a row: UDP destination port instead of the device's; 0: the device's."""


@dataclass(frozen=True, slots=True)
class NextHop:
    """One way to a destination."""

    ifindex: int
    gateway: str | None = None
    dead: bool = False
    """RTNH_F_DEAD or RTNH_F_LINKDOWN: the kernel does not use it."""


@dataclass(frozen=True, slots=True)
class Route:
    """A unicast route."""

    destination: str
    """Prefix, such as 10.255.0.2/32."""
    table: int
    protocol: int
    """RTPROT_*; 186 is BGP."""
    next_hops: tuple[NextHop, ...]
    """Those of its nexthop object are filled in."""
    nexthop_id: int = 0
    metric: int = 0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A row of the neighbour table: IP address to MAC on a link. A NIC offloads a tunnel only where it is resolved."""

    ifindex: int
    address: str
    mac: str | None
    resolved: bool


class ActionKind(StrEnum):
    """Kinds of tc actions that managed rules use."""

    TUNNEL_KEY = "tunnel_key"
    MIRRED = "mirred"


@dataclass(frozen=True, slots=True, order=True)
class Tunnel:
    """What a tunnel_key action sets as metadata: thesis 3.4.1, tc action 1."""

    source: str
    destination: str
    vni: int
    port: int
    checksum: bool = True


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the host's table (RTM_NEWACTION), shared by filters through its index."""

    kind: ActionKind
    index: int
    cookie: bytes = b""
    """A managed action's begins with `COOKIE_MAGIC`."""
    tunnel: Tunnel | None = None
    """TUNNEL_KEY that sets exactly this and goes on (pipe); None where it does anything else or more (TOS, options)."""
    redirect_to: int = 0
    """MIRRED, egress redirect: the ifindex; 0 where it does anything else, and where that device is gone (a silent
    black hole)."""
    bound: int = 0
    """How many filters refer to it (bindcnt)."""
    flags: int = 0
    """TCA_ACT_FLAGS, of them `ACTION_SKIP_HW` and `ACTION_SKIP_SW`."""
    standalone: bool = True
    """Made by RTM_NEWACTION (refcnt above bindcnt): it stays when its last filter goes."""

    @property
    def managed(self) -> bool:
        """Whether the reconciler made it, by its cookie."""
        return self.cookie.startswith(COOKIE_MAGIC)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter on a device's clsact ingress hook."""

    ifindex: int
    pref: int
    handle: int
    kind: str
    """flower, u32, bpf..."""
    mac: str | None = None
    """flower: exact destination MAC, and nothing else matched; None: it matches by something else."""
    actions: tuple[Action, ...] = ()
    """In order, as in the dump; unknown kinds are left out, see `foreign_actions`."""
    foreign_actions: bool = False
    """Holds an action whose kind is not in `ActionKind`."""
    chain: int = 0
    protocol: int = ETH_P_ALL
    skip_hw: bool = False
    """As `skip_sw`: such a filter binds no standalone action without the same flag ("Mismatch between action and filter
    offload flags"), and a NIC refuses standalone ones with it. So it has to be written with its actions in full, index
    and cookie included: the first filter makes the action, the others bind it."""
    skip_sw: bool = False
    in_hw: bool | None = None
    """As the kernel reports: in hardware, not in hardware, unknown."""
    edited: bool = field(default=False, compare=False)
    """A managed filter whose actions were replaced externally (`ownership.KnownFilters`)."""

    @property
    def managed(self) -> bool:
        """Whether the reconciler made it, by its actions: flower has no cookie of its own. See also `ownership`."""
        return self.kind == "flower" and (self.edited or any(action.managed for action in self.actions))


@dataclass(frozen=True, slots=True)
class Clsact:
    """A clsact qdisc, where filters can hang."""

    ifindex: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the kernel, dumped once. Rows are in no order."""

    links: tuple[Link, ...] = ()
    fdb: tuple[FdbEntry, ...] = ()
    routes: tuple[Route, ...] = ()
    lookups: tuple[int, ...] = ()
    """Routing tables that rules let packets look into, each once, the first one first. Here order matters."""
    neighbours: tuple[Neighbour, ...] = ()
    clsact: frozenset[int] = frozenset()
    """Ifindexes with a clsact qdisc."""
    ingress: frozenset[int] = frozenset()
    """Ifindexes with an ingress qdisc, which takes clsact's place."""
    filters: tuple[Filter, ...] = ()
    """On clsact ingress of every managed port."""
    actions: tuple[Action, ...] = ()
    """Of the kinds in `ActionKind`, of the whole namespace."""

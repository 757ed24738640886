"""The dual-ToR topology as values: names, addresses and cables. Pure; who builds it stands in `build`.

Every host has two uplinks, ``p1`` to switch 1 and ``p2`` to switch 2; the switches are joined by one link. Each node is
a network namespace, and each host's application another one, which sees a single device (thesis 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from services.fabric.model import Bfd

SWITCHES: Final = (1, 2)
MAX_HOSTS: Final = 4
INTER_SWITCH_LINK: Final = "isl"
"""Port of the inter-switch link, on both switches."""
APPLICATION_DEVICE: Final = "app"
UNDERLAY_MTU_BYTES: Final = 9_000
APPLICATION_MTU_BYTES: Final = 8_900
"""Room for VXLAN over IPv4: 50 bytes (RFC 7348)."""
DEFAULT_PREFIX: Final = "tb"


@dataclass(frozen=True, slots=True)
class PortState:
    """State of a switch port."""

    up: bool = True
    drops_from_cable: bool = False
    """Silently drops what arrives."""
    drops_to_cable: bool = False
    """Silently drops what is sent."""


class LabSettings(BaseModel):
    """What a lab is like. Stored with the lab, so that other commands find it again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,9}$")] = DEFAULT_PREFIX
    """Of every namespace's name, so that several labs can stand side by side."""
    hosts: Annotated[int, Field(ge=2, le=MAX_HOSTS)] = 2
    bfd: Bfd | None = Bfd()
    """None: only BGP's own timers find a silent fault."""
    keepalive_s: Annotated[int, Field(ge=1)] = 3
    hold_s: Annotated[int, Field(ge=3)] = 9
    realtime: bool = True
    """Run FRR under SCHED_RR where that is permitted."""
    fast_path: bool = False
    """Run the fast path on every host."""
    reconciler: bool = False
    """Run a reconciler for every host: needs cls_flower, and NATS for its audit."""


@dataclass(frozen=True, slots=True)
class HostNode:
    """One host and its application."""

    number: int
    netns: str
    application_netns: str
    asn: int
    vtep: str
    """Address on its loopback device: BGP router id and VXLAN tunnel endpoint."""
    application_address: str
    """Without prefix length; it is a /24."""
    application_mac: str

    @property
    def name(self) -> str:
        """As people write it: ``h1``."""
        return f"h{self.number}"

    @property
    def uplinks(self) -> tuple[str, ...]:
        """``p1`` leads to switch 1."""
        return tuple(f"p{switch}" for switch in SWITCHES)


@dataclass(frozen=True, slots=True)
class SwitchNode:
    """One top-of-rack switch."""

    number: int
    netns: str
    asn: int
    router_id: str
    host_ports: tuple[str, ...]
    """``d1`` leads to host 1."""

    @property
    def name(self) -> str:
        """As people write it: ``s1``."""
        return f"s{self.number}"

    @property
    def ports(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.host_ports, INTER_SWITCH_LINK)


@dataclass(frozen=True, slots=True)
class CableEnd:
    """Where a cable is plugged in."""

    netns: str
    port: str


@dataclass(frozen=True, slots=True)
class Cable:
    """A veth pair."""

    first: CableEnd
    second: CableEnd


@dataclass(frozen=True, slots=True)
class DualTor:
    """The whole topology."""

    settings: LabSettings
    hosts: tuple[HostNode, ...]
    switches: tuple[SwitchNode, ...]

    @classmethod
    def of(cls, settings: LabSettings) -> Self:
        """The topology that the settings ask for."""
        numbers = range(1, settings.hosts + 1)
        return cls(
            settings,
            tuple(_host(settings.prefix, number) for number in numbers),
            tuple(_switch(settings.prefix, number, numbers) for number in SWITCHES),
        )

    @property
    def cables(self) -> tuple[Cable, ...]:
        """Every host to both switches, and the switches to each other."""
        uplinks = [
            Cable(CableEnd(host.netns, f"p{switch.number}"), CableEnd(switch.netns, f"d{host.number}"))
            for host in self.hosts
            for switch in self.switches
        ]
        first, second = self.switches
        return (*uplinks, Cable(CableEnd(first.netns, INTER_SWITCH_LINK), CableEnd(second.netns, INTER_SWITCH_LINK)))

    @property
    def routers(self) -> tuple[str, ...]:
        """Namespaces in which FRR runs; its pathspace has the same name."""
        return (*(host.netns for host in self.hosts), *(switch.netns for switch in self.switches))

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of them, applications included."""
        return (*self.routers, *(host.application_netns for host in self.hosts))

    def host(self, number: int) -> HostNode:
        """A host by its number, from 1.

        Raises:
            ValueError: there is none.
        """
        if not 1 <= number <= len(self.hosts):
            raise ValueError(f"there is no host {number}: this lab has {len(self.hosts)}")
        return self.hosts[number - 1]

    def switch(self, number: int) -> SwitchNode:
        """A switch by its number, from 1.

        Raises:
            ValueError: there is none.
        """
        if not 1 <= number <= len(self.switches):
            raise ValueError(f"there is no switch {number}: this lab has {len(self.switches)}")
        return self.switches[number - 1]


def _host(prefix: str, number: int) -> HostNode:
    return HostNode(
        number,
        f"{prefix}-h{number}",
        f"{prefix}-a{number}",
        65_000 + number,
        f"10.255.0.{number}",
        f"172.16.0.{number}",
        f"02:00:00:00:00:{number:02x}",
    )


def _switch(prefix: str, number: int, hosts: range) -> SwitchNode:
    return SwitchNode(
        number,
        f"{prefix}-s{number}",
        65_100 + number,
        f"10.255.0.{100 + number}",
        tuple(f"d{host}" for host in hosts),
    )

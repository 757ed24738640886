"""A host at the network edge in a `ModelKernel`: bridges, VTEPs, ports, and what zebra writes and withdraws there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import count
from random import Random

from services._host.netlink.objects import FdbEntry, Link, Snapshot, Tunnel, Vxlan
from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.desired import Desired, desired
from services.reconciler.core.errno_actions import RejectedRules, compensating_deletes
from services.reconciler.core.operation import Operation
from services.reconciler.core.ownership import KnownFilters
from services.reconciler.core.plan import plan
from tests.support.model_kernel import ModelKernel

LOCAL = "10.255.0.1"
ENCAPSULATION = "vxenc0"
APPLICATION = "02:00:00:00:00:01"
"""Behind rep0."""


def remote_mac(number: int) -> str:
    """MAC of a remote application."""
    return f"02:11:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"


def vtep(number: int) -> str:
    """Address of a remote host."""
    return f"10.255.{number >> 8 & 255}.{number & 255}"


def tunnel_to(destination: str, vni: int = 100, source: str = LOCAL) -> Tunnel:
    """What a rule for a MAC behind this VTEP sets."""
    return Tunnel(source, destination, vni, 4789)


@dataclass
class EdgeHost:
    """br0 with vx100, rep0 and rep1; br1 with vx200 and rep2; the external vxenc0 beside them."""

    kernel: ModelKernel = field(default_factory=ModelKernel)
    config: ForwardingConfig = field(
        default_factory=lambda: ForwardingConfig(
            ENCAPSULATION, {"rep0": (APPLICATION,), "rep1": (), "rep2": ("02:00:00:00:00:02",)}
        )
    )
    local: str = LOCAL
    _numbers: Iterable[int] = field(default_factory=lambda: count(2))
    _places: KnownFilters = field(init=False)

    def __post_init__(self) -> None:
        self.restart_reconciler()
        self.make("br0", "bridge")
        self.make("vx100", "vxlan", "br0", Vxlan(100, self.local, 4789, external=False))
        self.make("rep0", "veth", "br0")
        self.make("rep1", "veth", "br0")
        self.make("br1", "bridge")
        self.make("vx200", "vxlan", "br1", Vxlan(200, self.local, 4789, external=False))
        self.make("rep2", "veth", "br1")
        self.make(ENCAPSULATION, "vxlan", None, Vxlan(0, self.local, 4790, external=True))

    def make(self, name: str, kind: str, master: str | None = None, vxlan: Vxlan | None = None) -> Link:
        """A device, up, with a new ifindex, and the bridge's permanent entry for its MAC."""
        number = next(iter(self._numbers))
        mac = f"0e:00:00:00:{number >> 8:02x}:{number & 255:02x}"
        bridge = self.index(master) if master is not None else 0
        link = self.kernel.add_link(Link(number, name, kind, mac, 1500, True, True, bridge, vxlan))  # noqa: FBT003 - Link's fields
        if bridge:
            self.kernel.put_row(FdbEntry(number, mac, own=False, static=True, local=True))
        return link

    def link(self, name: str) -> Link | None:
        """A device by name."""
        return next((link for link in self.kernel.links.values() if link.name == name), None)

    def index(self, name: str) -> int:
        """Its ifindex; 0 where there is none."""
        found = self.link(name)
        return found.ifindex if found is not None else 0

    def recreate(self, name: str) -> Link:
        """Delete a device and make it again: the same, but with another ifindex and nothing on it."""
        old = self.link(name)
        assert old is not None
        members = [link.name for link in self.kernel.links.values() if link.master == old.ifindex]
        master = self.kernel.links[old.master].name if old.master else None
        self.kernel.delete_link(old.ifindex)
        new = self.make(name, old.kind, master, old.vxlan)
        for member in members:
            self.kernel.set_link(self.index(member), master=new.ifindex)
        return new

    def announce(self, mac: str, destination: str, device: str = "vx100", *, vlans: Iterable[int] = (0, 1)) -> None:
        """Zebra installs a remote MAC: in the VXLAN device, and in the bridge once for each VLAN."""
        index = self.index(device)
        if not index:
            return
        self.kernel.drop_rows(index, mac, own=True)
        self.kernel.put_row(FdbEntry(index, mac, own=True, destination=destination, extern_learn=True))
        for vlan in vlans if self.kernel.links[index].master else ():
            self.kernel.put_row(FdbEntry(index, mac, own=False, vlan=vlan, extern_learn=True))

    def withdraw(self, mac: str, device: str = "vx100") -> None:
        """Zebra deletes a remote MAC."""
        self.kernel.drop_rows(self.index(device), mac, own=True)
        self.kernel.drop_rows(self.index(device), mac, own=False)

    def learn(self, mac: str, port: str) -> None:
        """The bridge learns a MAC on a local port, whatever zebra said: it moved here."""
        if self.index(port) and self.kernel.links[self.index(port)].master:
            for vlan in (0, 1):
                self.kernel.put_row(FdbEntry(self.index(port), mac, own=False, vlan=vlan))

    def restart_reconciler(self) -> None:
        """Another process, which knows only the dump."""
        self._places = KnownFilters(self.config.pref)

    def observe(self, random: Random | None = None) -> tuple[Snapshot, Desired]:
        """A dump, and what should be there."""
        snapshot = self._places.recognise(self.kernel.snapshot(random))
        return snapshot, desired(snapshot, self.config)

    def due(self) -> tuple[Operation, ...]:
        """What a pass would write."""
        return plan(*self.observe()).operations

    def run(self, refusals: RejectedRules | None = None) -> tuple[tuple[Operation, ...], list[int]]:
        """One whole pass: what was written, and the errnos."""
        self.kernel.age()
        operations = (refusals or RejectedRules()).without_rejected(self.due())
        errnos = self.kernel.apply(operations)
        more = compensating_deletes(operations, errnos)
        return (*operations, *more), [*errnos, *self.kernel.apply(more)]

    def settle(self, passes: int = 4) -> int:
        """Passes until nothing is due and the kernel has let go of what was deleted; how many there were before."""
        for number in range(passes):
            if not self.run()[0] and not self.kernel.lingering:
                return number
        assert not self.due(), self.due()
        return passes

    def expected(self) -> dict[tuple[str, str], Tunnel]:
        """By port and MAC: where a packet should be put, worked out row by row from what the kernel holds now."""
        found = {}
        for port in self.config.application_macs:
            link = self.link(port)
            for mac in {row.mac for row in self.kernel.fdb.values()}:
                tunnel = self._expected(link, mac) if link is not None else None
                if tunnel is not None:
                    found[port, mac] = tunnel
        return found

    def _expected(self, port: Link, mac: str) -> Tunnel | None:
        encapsulation = self.link(self.config.encapsulation_device)
        if encapsulation is None or not encapsulation.up or encapsulation.vxlan is None or encapsulation.master:
            return None
        members = {link.ifindex: link for link in self.kernel.links.values() if link.master == port.master}
        vxlans = [link for link in members.values() if link.vxlan is not None]
        if not port.master or len(vxlans) != 1 or int(mac[:2], 16) % 2:
            return None
        device = vxlans[0]
        assert device.vxlan is not None
        places = {row.ifindex for row in self.kernel.fdb.values() if row.mac == mac and not row.own}
        ours = {m for link in members.values() for m in self.config.application_macs.get(link.name, ())}
        if places & {*members, port.master} != {device.ifindex} or mac in {*ours, device.mac}:
            return None
        remote = [
            row for row in self.kernel.fdb.values() if (row.ifindex, row.mac, row.own) == (device.ifindex, mac, True)
        ]
        addresses = {row.destination for row in remote}
        bad = any(row.nexthop_id for row in remote) or len(addresses) != 1 or addresses == {device.vxlan.local}
        address = next(iter(addresses)) if not bad else None
        if address is None or device.vxlan.local is None:
            return None
        if ip_address(address).version != ip_address(device.vxlan.local).version:
            return None
        return Tunnel(device.vxlan.local, address, device.vxlan.vni, device.vxlan.port, self.config.checksum)

    def installed(self) -> dict[tuple[str, str], Tunnel | str | None]:
        """By port and MAC: where the kernel puts a packet, for the MACs that it has a rule of our preference for."""
        found = {}
        for (ifindex, chain, pref, _), rule in self.kernel.filters.items():
            if rule.mac is not None and (chain, pref) == (0, self.config.pref):
                name = self.kernel.links[ifindex].name
                found[name, rule.mac] = self.kernel.leads(ifindex, rule.mac, pref)
        return found


def failing(code: int, times: int, which: Callable[[Operation], bool] = lambda _: True) -> Callable[[Operation], int]:
    """A fault: the next so many writes of this kind fail."""
    left = [times]

    def fault(operation: Operation) -> int:
        if left[0] > 0 and which(operation):
            left[0] -= 1
            return code
        return 0

    return fault


def another(config: ForwardingConfig, **changes: object) -> ForwardingConfig:
    """The same settings but for these."""
    return replace(config, **changes)  # type: ignore[arg-type]


def one_port(**changes: object) -> EdgeHost:
    """A host that manages rep0 only, whose application MAC is in place already: nothing is due but rules."""
    host = EdgeHost()
    host.config = another(host.config, **{"application_macs": {"rep0": (APPLICATION,)}, **changes})
    host.kernel.put_row(FdbEntry(host.index("rep0"), APPLICATION, own=False, static=True))
    return host


def shape(operations: Iterable[Operation]) -> list[tuple[str, str]]:
    """What is done to what."""
    return [(operation.kind.value, operation.key[0]) for operation in operations]

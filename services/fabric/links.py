"""Network devices of one namespace, read and written by name. A vanished device is None."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import singledispatchmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyroute2 import IPRoute, NetlinkError  # type: ignore[import-untyped]  # it has no py.typed

from services._host.netns import inside, netns_path
from services.fabric.resources import (
    PRESENT,
    Address,
    Device,
    LinkAttribute,
    MovedFunction,
    PortFlag,
    StaticEntry,
    bridge_text,
    veth_text,
    vxlan_text,
)

LinkResource = Device | LinkAttribute | PortFlag | Address | StaticEntry | MovedFunction
"""Resources that a network namespace's netlink socket reads and writes."""
_ADDRESS_MODES: Final = {"eui64": 0, "none": 1, "stable_secret": 2, "random": 3}
_IFF_UP: Final = 1
_NUD_NOARP: Final = 0x40
"""A static row of a bridge's table."""
_NTF_MASTER: Final = 0x04
"""The bridge's table, not the port's own."""
_SWITCHES: Final = {"on": 1, "off": 0}


class _Route:
    """pyroute2's requests, with the kernel's refusals as OSError."""

    def __init__(self) -> None:
        self._route: Any = IPRoute()

    def __getattr__(self, name: str) -> Any:
        """One of pyroute2's requests."""
        request = getattr(self._route, name)

        def attempt(*words: Any, **fields: Any) -> Any:
            try:
                answer = request(*words, **fields)
                return list(answer) if answer is not None else None
            except NetlinkError as error:
                raise OSError(error.code, _reason(error)) from error

        return attempt

    def close(self) -> None:
        """Close the socket."""
        self._route.close()


def _reason(error: Any) -> str:
    """The kernel's own words where it sends some (extended acknowledgement)."""
    words = [str(word) for word in error.args[1:] if word]
    return words[0] if words else os.strerror(error.code)


def unsupported_devices(wanted: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Make devices in the calling thread's namespace: error number per name, 0 where it could be made."""
    route = _Route()
    outcome = dict.fromkeys(wanted, 0)
    for name, parameters in wanted.items():
        try:
            route.link("add", ifname=name, **parameters)
        except OSError as error:
            outcome[name] = error.errno or errno.EIO
    route.close()
    return outcome


class Links:
    """One netlink socket in a namespace (None: our own)."""

    def __init__(self, netns: str | None) -> None:
        self._netns = netns
        with inside(netns):
            self._route = _Route()

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the socket."""
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._route.close()

    def find(self, name: str) -> Any | None:
        """The link message of a device."""
        try:
            found = self._route.link("get", ifname=name)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise
        return found[0]

    def every(self) -> list[Any]:
        """The link messages of all devices."""
        return list(self._route.get_links())

    def addresses(self) -> list[tuple[str, str]]:
        """Device and address with prefix, of all devices."""
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in self.every()}
        return [(names.get(row["index"], "?"), f"{_ip_of(row)}/{row['prefixlen']}") for row in self._route.get_addr()]

    def has_address(self, name: str, address: str) -> bool:
        """Whether a device has this address with this prefix."""
        return (name, address) in self.addresses()

    def entries(self) -> list[tuple[str, str, bool, str | None]]:
        """The forwarding tables: device, MAC, whether static in a bridge's table, VTEP if in a tunnel's."""
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in self.every()}
        return [
            (
                names.get(row["ifindex"], "?"),
                row.get_attr("NDA_LLADDR"),
                bool(row["state"] & _NUD_NOARP and row.get_attr("NDA_MASTER")),
                row.get_attr("NDA_DST"),
            )
            for row in self._route.fdb("dump")
        ]

    def has_static_entry(self, name: str, mac: str) -> bool:
        """Whether the bridge holds this MAC on this port and will not forget it."""
        return any(entry[:3] == (name, mac, True) for entry in self.entries())

    def rename(self, name: str, new_name: str) -> None:
        """Rename a device; it is down afterwards, as the kernel wants it for that.

        Raises:
            OSError: the kernel refuses, or there is no such device.
        """
        index = self._index(name)
        self._route.link("set", index=index, state="down")
        self._route.link("set", index=index, ifname=new_name)

    def move(self, name: str, netns: Path, new_name: str) -> None:
        """Move a device to another namespace, under the name that it is to have there.

        Raises:
            OSError: the kernel refuses, or there is no such device or namespace.
        """
        with _opened(netns) as place:
            self._route.link("set", index=self._index(name), net_ns_fd=place, ifname=new_name)

    def attribute(self, name: str, attribute: str) -> str | None:
        """One of a device's changeable properties; the master's name is empty where there is none."""
        link = self.find(name)
        if link is None:
            return None
        match attribute:
            case "state":
                return "up" if link["flags"] & _IFF_UP else "down"
            case "mtu":
                return str(link.get_attr("IFLA_MTU"))
            case "address":
                return str(link.get_attr("IFLA_ADDRESS"))
            case "master":
                index = link.get_attr("IFLA_MASTER")
                return str(self._route.get_links(index)[0].get_attr("IFLA_IFNAME")) if index else ""
            case _:
                return _address_mode(link)

    def _index(self, name: str) -> int:
        link = self.find(name)
        if link is None:
            raise OSError(errno.ENODEV, f"there is no device {name}")
        return int(link["index"])

    # -- resources -------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def read(self, resource: LinkResource) -> str | None:
        """A resource's value; None if it is absent."""
        raise TypeError(f"cannot read {resource!r}")

    @singledispatchmethod
    def write(self, resource: LinkResource) -> None:
        """Give a resource its value.

        Raises:
            OSError: the kernel refuses, or there is no such device.
        """
        raise TypeError(f"cannot write {resource!r}")

    @singledispatchmethod
    def remove(self, resource: LinkResource) -> None:
        """Make a resource absent, if it is there. What has no absence (an attribute) is left."""

    @read.register
    def _read_device(self, device: Device) -> str | None:
        link = self.find(device.name)
        if device.peer_netns and not netns_path(device.peer_netns).exists():
            return None if link is None else "veth whose peer is gone"
        if link is None:
            return None
        kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "hardware"
        if kind == "vxlan":
            return _describe_vxlan(link)
        if kind == "veth" and device.kind == "veth":
            return self._describe_veth(link, device)
        return bridge_text() if kind == "bridge" else str(kind)

    def _describe_veth(self, link: Any, device: Device) -> str:
        with Links(device.peer_netns or None) as inner:
            peer = inner.find(device.peer)
        is_peer = peer is not None and peer.get_attr("IFLA_LINK") == link["index"]
        return veth_text(device.peer, device.peer_netns or None) if is_peer else "veth with another peer"

    @write.register
    def _write_device(self, device: Device) -> None:
        if device.kind == "bridge":
            self._route.link("add", ifname=device.name, kind="bridge")
        elif device.kind == "vxlan":
            tunnel: dict[str, Any] = {"vxlan_collect_metadata": 1} if device.external else {"vxlan_id": device.vni}
            tunnel |= {"vxlan_local": device.local, "vxlan_port": device.port, "vxlan_learning": 0}
            self._route.link("add", ifname=device.name, kind="vxlan", **tunnel)
        else:
            with _opened(netns_path(device.peer_netns)) as place:
                peer = {"ifname": device.peer, "net_ns_fd": place}
                self._route.link("add", ifname=device.name, kind="veth", peer=peer)

    @remove.register
    def _remove_device(self, device: Device) -> None:
        if link := self.find(device.name):
            self._route.link("del", index=link["index"])

    @read.register
    def _read_attribute(self, resource: LinkAttribute) -> str | None:
        return self.attribute(resource.device, resource.attribute)

    @write.register
    def _write_attribute(self, resource: LinkAttribute) -> None:
        value: Any = resource.value
        if resource.attribute == "mtu":
            value = int(value)
        elif resource.attribute == "master":
            value = self._index(value) if value else 0
        changed = {resource.attribute: value}
        if resource.attribute == "addrgenmode":
            mode = {"attrs": [["IFLA_INET6_ADDR_GEN_MODE", _ADDRESS_MODES[value]]]}
            changed = {"IFLA_AF_SPEC": {"attrs": [["AF_INET6", mode]]}}
        self._route.link("set", index=self._index(resource.device), **changed)

    @read.register
    def _read_flag(self, resource: PortFlag) -> str | None:
        link = self.find(resource.device)
        if link is None or link.get_nested("IFLA_LINKINFO", "IFLA_INFO_SLAVE_KIND") != "bridge":
            return None
        found = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_SLAVE_DATA", f"IFLA_BRPORT_{resource.flag.upper()}")
        return None if found is None else ("on" if found else "off")

    @write.register
    def _write_flag(self, resource: PortFlag) -> None:
        switched = {resource.flag: _SWITCHES[resource.value]}
        self._route.brport("set", index=self._index(resource.device), **switched)

    @read.register
    def _read_address(self, resource: Address) -> str | None:
        return PRESENT if self.has_address(resource.device, resource.address) else None

    @write.register
    def _write_address(self, resource: Address) -> None:
        self._change_address("add", resource)

    @remove.register
    def _remove_address(self, resource: Address) -> None:
        if self.has_address(resource.device, resource.address):
            self._change_address("del", resource)

    def _change_address(self, verb: str, resource: Address) -> None:
        text, _, length = resource.address.partition("/")
        self._route.addr(verb, index=self._index(resource.device), address=text, prefixlen=int(length))

    @read.register
    def _read_entry(self, resource: StaticEntry) -> str | None:
        return PRESENT if self.has_static_entry(resource.device, resource.mac) else None

    @write.register
    def _write_entry(self, resource: StaticEntry) -> None:
        # Also one that was learned becomes static.
        place = {"ifindex": self._index(resource.device), "lladdr": resource.mac}
        self._route.fdb("replace", **place, flags=_NTF_MASTER, state=_NUD_NOARP)

    @remove.register
    def _remove_entry(self, resource: StaticEntry) -> None:
        if self.has_static_entry(resource.device, resource.mac):
            self._route.fdb("del", ifindex=self._index(resource.device), lladdr=resource.mac, flags=_NTF_MASTER)

    @read.register
    def _read_function(self, resource: MovedFunction) -> str | None:
        return PRESENT if self.find(resource.device) else None

    @remove.register
    def _remove_function(self, resource: MovedFunction) -> None:
        self.move(resource.device, Path("/proc/self/ns/net"), resource.home_name)


@contextmanager
def _opened(netns: Path) -> Iterator[int]:
    place = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield place
    finally:
        os.close(place)


def _ip_of(row: Any) -> str:
    return str(row.get_attr("IFA_LOCAL") or row.get_attr("IFA_ADDRESS"))


def _describe_vxlan(link: Any) -> str:
    def parameter(name: str) -> Any:
        return link.get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA", f"IFLA_VXLAN_{name}")

    return vxlan_text(
        parameter("ID") or 0,
        parameter("LOCAL") or parameter("LOCAL6"),
        parameter("PORT"),
        external=bool(parameter("COLLECT_METADATA")),
        learning=bool(parameter("LEARNING")),
    )


def _address_mode(link: Any) -> str | None:
    mode = link.get_nested("IFLA_AF_SPEC", "AF_INET6", "IFLA_INET6_ADDR_GEN_MODE")
    return next((name for name, number in _ADDRESS_MODES.items() if number == mode), None)

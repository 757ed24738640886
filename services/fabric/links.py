"""Network devices of one namespace, read and written by name. A vanished device is None."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyroute2 import IPRoute, NetlinkError  # type: ignore[import-untyped]  # it has no py.typed

from services._host.netns import inside, netns_path
from services.fabric.resources import Device, bridge_text, veth_text, vxlan_text

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

    def describe(self, device: Device) -> str | None:
        """A device's kind and parameters, as `Device.value` has them."""
        link = self.find(device.name)
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

    def add(self, device: Device) -> None:
        """Make a device.

        Raises:
            OSError: the kernel refuses.
        """
        if device.kind == "bridge":
            self._route.link("add", ifname=device.name, kind="bridge")
        elif device.kind == "vxlan":
            self._add_vxlan(device)
        else:
            self._add_veth(device)

    def _add_vxlan(self, device: Device) -> None:
        parameters: dict[str, Any] = {"vxlan_collect_metadata": 1} if device.external else {"vxlan_id": device.vni}
        self._route.link(
            "add",
            ifname=device.name,
            kind="vxlan",
            vxlan_local=device.local,
            vxlan_port=device.port,
            vxlan_learning=0,
            **parameters,
        )

    def _add_veth(self, device: Device) -> None:
        place = os.open(netns_path(device.peer_netns), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._route.link("add", ifname=device.name, kind="veth", peer={"ifname": device.peer, "net_ns_fd": place})
        finally:
            os.close(place)

    def delete(self, name: str) -> None:
        """Remove a device, if it is there."""
        if link := self.find(name):
            self._route.link("del", index=link["index"])

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
        place = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._route.link("set", index=self._index(name), net_ns_fd=place, ifname=new_name)
        finally:
            os.close(place)

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
                return self._name_of(link.get_attr("IFLA_MASTER"))
            case _:
                return _address_mode(link)

    def _name_of(self, index: int | None) -> str:
        return str(self._route.get_links(index)[0].get_attr("IFLA_IFNAME")) if index else ""

    def set_attribute(self, name: str, attribute: str, value: str) -> None:
        """Change one of a device's properties.

        Raises:
            OSError: the kernel refuses, or there is no such device.
        """
        index = self._index(name)
        match attribute:
            case "state":
                self._route.link("set", index=index, state=value)
            case "mtu":
                self._route.link("set", index=index, mtu=int(value))
            case "address":
                self._route.link("set", index=index, address=value)
            case "master":
                self._route.link("set", index=index, master=self._index(value) if value else 0)
            case _:
                mode = {"attrs": [["IFLA_INET6_ADDR_GEN_MODE", _ADDRESS_MODES[value]]]}
                self._route.link("set", index=index, IFLA_AF_SPEC={"attrs": [["AF_INET6", mode]]})

    def _index(self, name: str) -> int:
        link = self.find(name)
        if link is None:
            raise OSError(errno.ENODEV, f"there is no device {name}")
        return int(link["index"])

    def port_flag(self, name: str, flag: str) -> str | None:
        """A bridge port's switch; None where the device is no bridge's port."""
        link = self.find(name)
        if link is None or link.get_nested("IFLA_LINKINFO", "IFLA_INFO_SLAVE_KIND") != "bridge":
            return None
        found = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_SLAVE_DATA", f"IFLA_BRPORT_{flag.upper()}")
        return None if found is None else ("on" if found else "off")

    def set_port_flag(self, name: str, flag: str, value: str) -> None:
        """Set a bridge port's switch.

        Raises:
            OSError: the kernel refuses, or there is no such device.
        """
        self._route.brport("set", index=self._index(name), **{flag: _SWITCHES[value]})

    def has_address(self, name: str, address: str) -> bool:
        """Whether a device has this address with this prefix."""
        return (name, address) in self.addresses()

    def add_address(self, name: str, address: str) -> None:
        """Give a device an address.

        Raises:
            OSError: the kernel refuses, or there is no such device.
        """
        self._change_address("add", name, address)

    def delete_address(self, name: str, address: str) -> None:
        """Take an address away, if it is there."""
        if self.has_address(name, address):
            self._change_address("del", name, address)

    def _change_address(self, verb: str, name: str, address: str) -> None:
        text, _, length = address.partition("/")
        self._route.addr(verb, index=self._index(name), address=text, prefixlen=int(length))

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

    def add_static_entry(self, name: str, mac: str) -> None:
        """Enter a MAC; one that was learned becomes static.

        Raises:
            OSError: the kernel refuses, or there is no such device.
        """
        self._route.fdb("replace", ifindex=self._index(name), lladdr=mac, flags=_NTF_MASTER, state=_NUD_NOARP)

    def delete_static_entry(self, name: str, mac: str) -> None:
        """Remove a MAC, if it is there."""
        if self.has_static_entry(name, mac):
            self._route.fdb("del", ifindex=self._index(name), lladdr=mac, flags=_NTF_MASTER)


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

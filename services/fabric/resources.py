"""What a host can have: each resource has a key, a desired value, and the shell commands that make and remove it. Pure.

A resource whose value is None on the host is absent. Undoing one that was absent removes it, another gets its earlier
value back. A resource with a ``parent`` disappears with it. Of SR-IOV see Documentation/networking/switchdev.rst and
representors.rst of the kernel, and devlink-dev(8).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import ClassVar, Final

PRESENT: Final = "present"
SWITCHDEV: Final = "switchdev"
_NAME_LIMIT: Final = 15


def ip_command(netns: str | None, tool: str = "ip") -> str:
    """How `ip`, or another tool of iproute2, is called for a namespace."""
    if netns is None:
        return tool
    return f"nsenter --net={netns} {tool}" if "/" in netns else f"{tool} -n {netns}"


def _within(netns: str | None) -> str:
    if netns is None:
        return ""
    return f"nsenter --net={netns} " if "/" in netns else f"ip netns exec {netns} "


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The base of all. Templates may use ``{self.FIELD}``, and of the namespace ``{where}{ip}{bridge}{within}``."""

    value: str = PRESENT
    """What it should be."""
    parent: str | None = None
    """Key of the resource with which it disappears."""

    exclusive: ClassVar[bool] = False
    """Cannot be changed in place: one that differs is made anew if we made it, and is a conflict if not."""
    key_template: ClassVar[str]
    command_template: ClassVar[str] = ""
    removal_template: ClassVar[str] = ""
    """Empty: it cannot be absent while its device is there."""

    def _filled(self, template: str) -> str:
        netns: str | None = getattr(self, "netns", None)
        words = {"ip": ip_command(netns), "bridge": ip_command(netns, "bridge"), "within": _within(netns)}
        return template.format(self=self, where=f"{netns}: " if netns else "", **words)

    @property
    def key(self) -> str:
        """Names it among a host's resources."""
        return self._filled(self.key_template)

    def is_managed(self, current: str) -> bool:
        """Whether this value is what we gave it, so that it may be undone."""
        return current == self.value

    def show(self, value: str | None) -> str:
        """A value in a few words."""
        return "absent" if value is None else value or "none"

    def commands(self) -> tuple[str, ...]:
        """Shell commands that have the same effect."""
        return (self._filled(self.command_template),)

    def removal(self) -> tuple[str, ...]:
        """Shell commands that remove it."""
        return (self._filled(self.removal_template),) if self.removal_template else ()

    def undo_commands(self, before: str | None) -> tuple[str, ...]:
        """Shell commands that undo it, given the value that it had (None: it was absent)."""
        return self.removal() if before is None else replace(self, value=before).commands()


@dataclass(frozen=True, slots=True)
class Entry:
    """One act: a resource as it was made or changed, and its value before (None: it was absent)."""

    resource: Resource
    before: str | None
    former: str | None = None
    """What an earlier `up` had written: it stands until the act that this entry announces has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace(Resource):
    """A named network namespace."""

    key_template = "network namespace {self.name}"
    command_template = "ip netns add {self.name}"
    removal_template = "ip netns del {self.name}"

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Resource):
    """A virtual network device; its value is its kind and parameters as `ip link add` takes them."""

    exclusive = True
    key_template = "{where}device {self.name}"
    command_template = "{ip} link add {self.name} type {self.value}"
    removal_template = "{ip} link del {self.name}"

    netns: str | None
    name: str
    kind: str
    vni: int = 0
    local: str = ""
    port: int = 0
    external: bool = False
    peer: str = ""
    peer_netns: str = ""

    def is_managed(self, current: str) -> bool:
        """As in the base; the application may have renamed its end of a pair, or moved it."""
        return current == self.value or (self.kind == "veth" and current.startswith("veth"))


def bridge_text() -> str:
    """A bridge's value."""
    return "bridge"


def vxlan_text(vni: int, local: str | None, port: int, *, external: bool, learning: bool) -> str:
    """A VXLAN device's value."""
    first = "external" if external else f"id {vni}"
    source = f" local {local}" if local else ""
    return f"vxlan {first}{source} dstport {port} {'learning' if learning else 'nolearning'}"


def veth_text(peer: str, netns: str | None) -> str:
    """A veth device's value."""
    return f"veth peer name {peer}" + (f" netns {netns}" if netns else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAttribute(Resource):
    """One changeable property of a device: ``up``, ``mtu``, ``address``, ``addrgenmode`` or ``master``."""

    key_template = "{where}{self.attribute} of {self.device}"
    command_template = "{ip} link set {self.device} {self.words}"

    netns: str | None
    device: str
    attribute: str

    @property
    def words(self) -> str:
        """The property as `ip link set` takes it."""
        if self.attribute == "state":
            return self.value
        return f"{self.attribute} {self.value}" if self.value or self.attribute != "master" else "nomaster"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFlag(Resource):
    """A switch of a bridge's port: ``learning``, ``neigh_suppress``; on or off."""

    key_template = "{where}{self.flag} on port {self.device}"
    command_template = "{bridge} link set dev {self.device} {self.flag} {self.value}"

    netns: str | None
    device: str
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Address(Resource):
    """An address of a device."""

    key_template = "{where}address {self.address} on {self.device}"
    command_template = "{ip} address add {self.address} dev {self.device}"
    removal_template = "{ip} address del {self.address} dev {self.device}"

    netns: str | None
    device: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticEntry(Resource):
    """A MAC that a bridge need not learn on a port, and does not forget.

    Rules bypass the bridge, so it would see no packet of the application, age its MAC out after 300 s, and EVPN would
    withdraw it from every host (measured).
    """

    key_template = "{where}entry {self.mac} on {self.device}"
    command_template = "{bridge} fdb replace {self.mac} dev {self.device} master static"
    removal_template = "{bridge} fdb del {self.mac} dev {self.device} master"

    netns: str | None
    device: str
    mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysctl(Resource):
    """A kernel setting of the network namespace; ``name`` with slashes, as device names may hold dots."""

    key_template = "{where}{self.name}"
    command_template = "{within}sysctl -w {self.name}={self.value}"

    netns: str | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory(Resource):
    """A directory of FRR's; undone with all that daemons have put into it if ``volatile``, else only when empty.

    Its value is who may enter it, as `access.access_text` writes it; PRESENT: one that is there is left as it is.
    """

    key_template = "directory {self.path}"

    path: str
    mode: int = 0o750
    owner: str = "frr"
    group: str = "frr"
    volatile: bool = False

    @property
    def access(self) -> tuple[int, str, str]:
        """Mode, owner and group that it should have."""
        if self.value == PRESENT:
            return self.mode, self.owner, self.group
        mode, _, names = self.value.partition(" ")
        owner, _, group = names.partition(":")
        return int(mode, 8), owner, group

    def is_managed(self, current: str) -> bool:
        """As in the base; also with other permissions: its content belongs to the daemons that `up` started."""
        return bool(current)

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        mode, owner, group = self.access
        return (f"install -d -m {mode:o} -o {owner} -g {group} {self.path}",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"rm -r {self.path}" if self.volatile else f"rmdir {self.path}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile(Resource):
    """A file; its value is its text."""

    key_template = "file {self.path}"
    removal_template = "rm {self.path}"

    path: str
    mode: int = 0o640
    owner: str = "frr"

    def show(self, value: str | None) -> str:
        """As in the base."""
        return "absent" if value is None else f"{len(value.splitlines())} lines"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        text = self.value.rstrip("\n")
        made = f"cat > {self.path} <<'EOF'\n{text}\nEOF" if text else f": > {self.path}"
        return (made, f"chown {self.owner}:{self.owner} {self.path} && chmod {self.mode:o} {self.path}")

    def undo_commands(self, before: str | None) -> tuple[str, ...]:
        """As in the base, without the text."""
        return self.removal() if before is None else (f"# {self.path}: its earlier text again",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon(Resource):
    """A running FRR daemon; its value is a digest of command line and configuration, which its environment carries."""

    exclusive = True
    key_template = "{where}daemon {self.name}"
    removal_template = "kill $(cat {self.pid_file})"

    netns: str | None
    name: str
    pathspace: str
    command: tuple[str, ...]
    """Without the words that put it into the namespace and give it its scheduling class."""
    priority: int = 0
    """SCHED_RR; 0: default scheduling."""
    pid_file: str

    def show(self, value: str | None) -> str:
        """As in the base."""
        if value is None:
            return "not running"
        return "running" if value == self.value else "running with another configuration"

    @property
    def launch(self) -> tuple[str, ...]:
        """The whole command line, but for the namespace."""
        scheduled = ("chrt", "--rr", str(self.priority)) if self.priority else ()
        return (*scheduled, *self.command)

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{_within(self.netns)}{shlex.join(self.launch)}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchMode(Resource):
    """The mode of a NIC's embedded switch: legacy, or switchdev, in which each function has a representor."""

    key_template = "switch mode of {self.nic}"
    command_template = (
        "devlink dev eswitch set pci/$(basename $(readlink /sys/class/net/{self.nic}/device)) mode {self.value}"
    )

    value: str = SWITCHDEV
    nic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFunctions(Resource):
    """How many virtual functions a NIC has; more than the value are as good, none is absent."""

    key_template = "virtual functions of {self.nic}"
    command_template = "echo {self.value} > /sys/class/net/{self.nic}/device/sriov_numvfs"
    removal_template = "echo 0 > /sys/class/net/{self.nic}/device/sriov_numvfs"

    nic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Representor(Resource):
    """The device in this host that stands for a virtual function; its value is its name."""

    key_template = "representor of function {self.number} of {self.nic}"
    command_template = (
        "ip link set $(grep -lx 'pf[0-9]*vf{self.number}' /sys/class/net/*/phys_port_name | cut -d/ -f5)"
        " name {self.value}"
    )

    nic: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(Resource):
    """An offload of a device, on or off."""

    key_template = "{self.feature} of {self.device}"
    command_template = "ethtool -K {self.device} {self.feature} {self.value}"

    device: str
    feature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFunction(Resource):
    """A virtual function's device in the application's network namespace, under the name that it has there."""

    key_template = "{self.netns}: function {self.number} of {self.nic} as {self.device}"
    command_template = (
        "ip link set $(ls /sys/class/net/{self.nic}/device/virtfn{self.number}/net)"
        " netns {self.netns} name {self.device}"
    )
    removal_template = "ip -n {self.netns} link set {self.device} netns 1 name {self.home_name}"

    nic: str
    number: int
    netns: str
    device: str

    @property
    def home_name(self) -> str:
        """Its name once it is back, as systemd would name it."""
        suffix = f"v{self.number}"
        return self.nic[: _NAME_LIMIT - len(suffix)] + suffix

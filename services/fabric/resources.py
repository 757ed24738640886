"""What a host can have: each resource has a key, a value that it should have, and the command that gives it. Pure.

A resource whose value is None on the host is absent. Undoing one that was absent removes it, another gets its earlier
value back. A resource with a ``parent`` disappears with it.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Final

PRESENT: Final = "present"


def _where(netns: str | None) -> str:
    return f"{netns}: " if netns else ""


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
class Resource(ABC):
    """The base of all."""

    value: str = PRESENT
    """What it should be."""
    parent: str | None = None
    """Key of the resource with which it disappears."""

    exclusive: ClassVar[bool] = False
    """Cannot be changed in place: one that differs is made anew if we made it, and is a conflict if not."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Names it among a host's resources."""

    def is_managed(self, current: str) -> bool:
        """Whether this value is what we gave it, so that it may be undone."""
        return current == self.value

    def show(self, value: str | None) -> str:
        """A value in a few words."""
        return "absent" if value is None else value or "none"

    @abstractmethod
    def commands(self) -> tuple[str, ...]:
        """Shell commands that have the same effect."""

    def removal(self) -> tuple[str, ...]:
        """Shell commands that remove it; none for what cannot be absent while its device is there."""
        return ()

    def undo_commands(self, before: str | None) -> tuple[str, ...]:
        """Shell commands that undo it, given the value that it had (None: it was absent)."""
        return self.removal() if before is None else replace(self, value=before).commands()


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace(Resource):
    """A named network namespace."""

    name: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"network namespace {self.name}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"ip netns add {self.name}",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"ip netns del {self.name}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Resource):
    """A virtual network device; its value is its kind and parameters as `ip link add` takes them."""

    exclusive: ClassVar[bool] = True

    netns: str | None
    name: str
    kind: str
    vni: int = 0
    local: str = ""
    port: int = 0
    external: bool = False
    peer: str = ""
    peer_netns: str = ""

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}device {self.name}"

    def is_managed(self, current: str) -> bool:
        """As in the base; the application may have renamed its end of a pair, or moved it."""
        return current == self.value or (self.kind == "veth" and current.startswith("veth"))

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns)} link add {self.name} type {self.value}",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns)} link del {self.name}",)


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

    netns: str | None
    device: str
    attribute: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}{self.attribute} of {self.device}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        if self.attribute == "state":
            words = self.value
        elif self.attribute == "master":
            words = f"master {self.value}" if self.value else "nomaster"
        else:
            words = f"{self.attribute} {self.value}"
        return (f"{ip_command(self.netns)} link set {self.device} {words}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFlag(Resource):
    """A switch of a bridge's port: ``learning``, ``neigh_suppress``; on or off."""

    netns: str | None
    device: str
    flag: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}{self.flag} on port {self.device}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns, 'bridge')} link set dev {self.device} {self.flag} {self.value}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address(Resource):
    """An address of a device."""

    netns: str | None
    device: str
    address: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}address {self.address} on {self.device}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns)} address add {self.address} dev {self.device}",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns)} address del {self.address} dev {self.device}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticEntry(Resource):
    """A MAC that a bridge need not learn on a port, and does not forget.

    Rules bypass the bridge, so it would see no packet of the application, age its MAC out after 300 s, and EVPN would
    withdraw it from every host (measured).
    """

    netns: str | None
    device: str
    mac: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}entry {self.mac} on {self.device}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns, 'bridge')} fdb replace {self.mac} dev {self.device} master static",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{ip_command(self.netns, 'bridge')} fdb del {self.mac} dev {self.device} master",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sysctl(Resource):
    """A kernel setting of the network namespace; ``name`` with slashes, as device names may hold dots."""

    netns: str | None
    name: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}{self.name}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"{_within(self.netns)}sysctl -w {self.name}={self.value}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory(Resource):
    """A directory of FRR's; undone with all that daemons have put into it if ``volatile``, else only when empty.

    Its value is who may enter it, as `access.access_text` writes it; PRESENT: one that is there is left as it is.
    """

    path: str
    mode: int = 0o750
    owner: str = "frr"
    group: str = "frr"
    volatile: bool = False

    @property
    def key(self) -> str:
        """As in the base."""
        return f"directory {self.path}"

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

    path: str
    mode: int = 0o640
    owner: str = "frr"

    @property
    def key(self) -> str:
        """As in the base."""
        return f"file {self.path}"

    def show(self, value: str | None) -> str:
        """As in the base."""
        return "absent" if value is None else f"{len(value.splitlines())} lines"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        text = self.value.rstrip("\n")
        made = f"cat > {self.path} <<'EOF'\n{text}\nEOF" if text else f": > {self.path}"
        return (made, f"chown {self.owner}:{self.owner} {self.path} && chmod {self.mode:o} {self.path}")

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"rm {self.path}",)

    def undo_commands(self, before: str | None) -> tuple[str, ...]:
        """As in the base, without the text."""
        return self.removal() if before is None else (f"# {self.path}: its earlier text again",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon(Resource):
    """A running FRR daemon; its value is a digest of command line and configuration, which its environment carries."""

    exclusive: ClassVar[bool] = True

    netns: str | None
    name: str
    pathspace: str
    command: tuple[str, ...]
    """Without the words that put it into the namespace and give it its scheduling class."""
    priority: int = 0
    """SCHED_RR; 0: as everybody."""
    pid_file: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{_where(self.netns)}daemon {self.name}"

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

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"kill $(cat {self.pid_file})",)


KINDS: Final[tuple[type[Resource], ...]] = (
    Namespace,
    Device,
    LinkAttribute,
    PortFlag,
    Address,
    StaticEntry,
    Sysctl,
    Directory,
    TextFile,
    Daemon,
)
"""All of this module."""

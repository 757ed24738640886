"""Resources of a NIC with SR-IOV in switchdev mode: virtual functions, and a representor of each in this host. Pure.

See Documentation/networking/switchdev.rst and representors.rst of the kernel, and devlink-dev(8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.fabric.resources import Resource

SWITCHDEV: Final = "switchdev"
_NAME_LIMIT: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchMode(Resource):
    """The mode of a NIC's embedded switch: legacy, or switchdev, in which each function has a representor."""

    value: str = SWITCHDEV
    nic: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"switch mode of {self.nic}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        device = f"pci/$(basename $(readlink /sys/class/net/{self.nic}/device))"
        return (f"devlink dev eswitch set {device} mode {self.value}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFunctions(Resource):
    """How many virtual functions a NIC has; more than the value are as good, none is absent."""

    nic: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"virtual functions of {self.nic}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"echo {self.value} > /sys/class/net/{self.nic}/device/sriov_numvfs",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"echo 0 > /sys/class/net/{self.nic}/device/sriov_numvfs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Representor(Resource):
    """The device in this host that stands for a virtual function; its value is its name."""

    nic: str
    number: int

    @property
    def key(self) -> str:
        """As in the base."""
        return f"representor of function {self.number} of {self.nic}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        found = f"$(grep -lx 'pf[0-9]*vf{self.number}' /sys/class/net/*/phys_port_name | cut -d/ -f5)"
        return (f"ip link set {found} name {self.value}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(Resource):
    """An offload of a device, on or off."""

    device: str
    feature: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{self.feature} of {self.device}"

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"ethtool -K {self.device} {self.feature} {self.value}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFunction(Resource):
    """A virtual function's device in the application's network namespace, under the name that it has there."""

    nic: str
    number: int
    netns: str
    device: str

    @property
    def key(self) -> str:
        """As in the base."""
        return f"{self.netns}: function {self.number} of {self.nic} as {self.device}"

    @property
    def home_name(self) -> str:
        """Its name once it is back, as systemd would name it."""
        suffix = f"v{self.number}"
        return self.nic[: _NAME_LIMIT - len(suffix)] + suffix

    def commands(self) -> tuple[str, ...]:
        """As in the base."""
        found = f"$(ls /sys/class/net/{self.nic}/device/virtfn{self.number}/net)"
        return (f"ip link set {found} netns {self.netns} name {self.device}",)

    def removal(self) -> tuple[str, ...]:
        """As in the base."""
        return (f"ip -n {self.netns} link set {self.device} netns 1 name {self.home_name}",)


KINDS: Final[tuple[type[Resource], ...]] = (SwitchMode, VirtualFunctions, Representor, Feature, MovedFunction)
"""All of this module."""

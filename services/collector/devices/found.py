"""Devices as they were found: what is not known is None, and says how it becomes known."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.devices import LinkRate
from services.collector.layers.block_times import Spread


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """One device, or some that are alike."""

    kind: str
    count: int
    memory_bytes: int | None
    """Of each; None: not known."""
    about: str
    """What it is, or how what is not known becomes known."""
    torch_device: str = ""
    """Of the first, by torch's name: ``cpu``, ``cuda:0``; empty: it is a sandbox, or of another machine."""
    speed: Spread | None = None
    """Of the reference layer (`speed.py`); None: not measured."""


@dataclass(frozen=True, slots=True)
class FoundMachine:
    """One machine."""

    name: str
    devices: tuple[FoundDevice, ...]
    node: str = ""
    """Its name on the bus; empty: not known."""
    inside: LinkRate | None = None
    """Between its devices; None: not measured."""
    notes: tuple[str, ...] = ()
    """What else was found."""

    @property
    def count(self) -> int:
        """Devices that can be planned with."""
        return sum(device.count for device in self.devices if device.memory_bytes is not None)


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """All machines, in the order of their ranks, and what was measured between them."""

    machines: tuple[FoundMachine, ...]
    between: dict[tuple[str, str], LinkRate] = field(default_factory=dict)
    """By the names of both machines."""

    @property
    def fastest_us(self) -> float | None:
        """Of the reference layer, by the median; None: no device was measured."""
        speeds = [device.speed for machine in self.machines for device in machine.devices]
        return min((speed.median_us for speed in speeds if speed is not None), default=None)

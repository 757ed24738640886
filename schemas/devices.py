"""Devices that a training job may use, and what connects their machines: the planner's view of hardware."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from schemas.jobs import Name, NonNegativeFloat, PositiveFloat
from schemas.message import Message

MAX_DEVICES: Final = 1_024
DeviceRank = Annotated[int, Field(ge=0, lt=MAX_DEVICES)]
"""Of the process that uses a device, as torchrun counts."""
DeviceMemory = Annotated[int, Field(ge=1, le=1 << 62)]
Factor = Annotated[float, Field(ge=1, le=100)]


class Device(Message):
    """One GPU, or one control group that stands for one."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.Device"

    rank: DeviceRank
    kind: Name
    """Such as ``l4``, ``cpu`` or ``sandbox:0.5``: devices of one kind have the same layer profile."""
    machine: Name
    node: str = ""
    """The machine's name on the bus; empty: not known."""
    memory_bytes: DeviceMemory
    usd_per_hour: NonNegativeFloat = 0.0
    """0: not known."""


class LinkRate(Message):
    """What a connection carries, as processes see it."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.LinkRate"

    bytes_per_s: PositiveFloat
    latency_us: NonNegativeFloat
    """Of a message of 10 MB (10^7 bytes)."""


class Link(LinkRate):
    """Between two machines, both ways; with the same machine twice: between devices inside it."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.Link"

    first: Name
    second: Name


class Cluster(Message):
    """Devices in the order of their ranks, and the links of their machines."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.Cluster"

    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    links: tuple[Link, ...] = ()
    inside: LinkRate | None = None
    """Of machines for which no link is given; None: not known."""
    between: LinkRate | None = None
    """Of pairs of machines for which no link is given; None: not known."""
    ring_factor: Factor = 1.15
    """By so much a ring collective takes longer than its transfers: measured, or as the authors of Zorse assume."""
    uneven_factor: Factor = 1.25
    """By so much a collective over uneven shards takes longer: measured, or as the authors of Cephalo assume."""

    @property
    def machines(self) -> tuple[str, ...]:
        """In the order of their first device."""
        return tuple(dict.fromkeys(device.machine for device in self.devices))

    @model_validator(mode="after")
    def _ranks_in_order(self) -> Self:
        ranks = [device.rank for device in self.devices]
        if ranks != list(range(len(ranks))):
            raise ValueError(f"devices have to be listed by rank from 0 to {len(ranks) - 1}")
        apart = Counter(machine for machine, _ in groupby(self.devices, key=lambda device: device.machine))
        divided = next((machine for machine, count in apart.items() if count > 1), None)
        if divided is not None:  # torchrun numbers processes machine by machine
            raise ValueError(f"ranks of machine {divided} have to follow one another")
        return self

    @model_validator(mode="after")
    def _links_of_machines(self) -> Self:
        machines = set(self.machines)
        unknown = {name for link in self.links for name in (link.first, link.second)} - machines
        if unknown:
            raise ValueError(f"a link names machine {min(unknown)}, which has no device")
        pairs = Counter(tuple(sorted((link.first, link.second))) for link in self.links)
        twice = next((pair for pair, count in pairs.items() if count > 1), None)
        if twice is not None:
            raise ValueError("the link of {} and {} is given twice".format(*twice))
        return self

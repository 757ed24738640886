"""cluster.yaml: devices by machine, and how fast the machines are connected.

Such as::

    machines:
      a:
        devices: [{kind: l4, count: 2, memory: 22.5GiB}, {kind: a6000, memory: 48GiB}]
        inside: {rate: 88Gbit, latency_ms: 0.01}
        usd_per_hour: 3.1
      b: {devices: [{kind: p40, memory: 22.5GiB}], node: host-b}
    between:
      default: {rate: 10Gbit, latency_ms: 0.5}
      links: [{machines: [a, b], rate: 40Gbit, latency_ms: 0.2}]

Ranks count devices in the order of the file. Only `machines`, `devices`, `kind` and `memory` have to be given, and the
rates of all connections that a plan needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from schemas.devices import MAX_DEVICES, Cluster, Device, Factor, Link, LinkRate
from schemas.jobs import Name, NonNegativeFloat
from schemas.rates import parse_rate
from schemas.sizes import MemorySize
from services._runtime.command.errors import BadFileError
from services._runtime.command.yaml_file import YamlSource, read_yaml, validate

_BITS_PER_BYTE = 8
_US_PER_MS = 1_000
_MOST_LATENCY_MS = 1e9
"""Days: what is longer is a mistake, and near the largest number no longer one in microseconds."""


def _to_rate(value: Any) -> Any:
    return parse_rate(value) if isinstance(value, str) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceSection(_Section):
    """Devices that are alike."""

    kind: Name
    count: Annotated[int, Field(ge=1, le=MAX_DEVICES)] = 1
    memory: Annotated[MemorySize, Field(ge=1, le=1 << 62)]
    """Of each."""


class RateSection(_Section):
    """A connection."""

    rate: Annotated[int, BeforeValidator(_to_rate), Field(ge=1, le=1 << 62)]
    """Bits per second."""
    latency_ms: Annotated[float, Field(ge=0, le=_MOST_LATENCY_MS, allow_inf_nan=False)] = 0.0
    """Of a message of 10 MB."""

    def as_link_rate(self) -> LinkRate:
        """As in messages."""
        return LinkRate(bytes_per_s=self.rate / _BITS_PER_BYTE, latency_us=self.latency_ms * _US_PER_MS)


class MachineSection(_Section):
    """One machine."""

    devices: Annotated[tuple[DeviceSection, ...], Field(min_length=1)]
    inside: RateSection | None = None
    """Between its devices."""
    usd_per_hour: NonNegativeFloat = 0.0
    """Of the whole machine; 0: not known."""
    node: str = ""
    """Its name on the bus."""


class PairSection(RateSection):
    """A connection of two machines."""

    machines: tuple[Name, Name]


class BetweenSection(_Section):
    """Connections between machines."""

    default: RateSection | None = None
    """Of pairs that `links` does not name."""
    links: tuple[PairSection, ...] = ()


class ClusterFile(_Section):
    """A whole cluster.yaml."""

    machines: Annotated[dict[Name, MachineSection], Field(min_length=1)]
    between: BetweenSection = BetweenSection()
    ring_factor: Factor = Cluster.model_fields["ring_factor"].default
    uneven_factor: Factor = Cluster.model_fields["uneven_factor"].default


def read_cluster(file: Path) -> Cluster:
    """The cluster.

    Raises:
        MissingFileError: the file does not exist.
        BadFileError: with every mistake on a line of its own, each with file, line, field and what to do.
    """
    source = read_yaml(file)
    content = validate(source, ClusterFile)
    _check_links(content, source)
    devices = _devices(content)
    if len(devices) > MAX_DEVICES:
        raise BadFileError(
            f"{source.place(('machines',))}: {len(devices)} devices, at most {MAX_DEVICES} can be planned"
        )
    default = content.between.default
    return Cluster(
        devices=tuple(devices),
        links=tuple(_links(content)),
        between=default.as_link_rate() if default else None,
        ring_factor=content.ring_factor,
        uneven_factor=content.uneven_factor,
    )


def _check_links(content: ClusterFile, source: YamlSource) -> None:
    """Each link names two machines of the file, and no other link the same two."""
    seen: set[frozenset[str]] = set()
    for index, pair in enumerate(content.between.links):
        place = source.place(("between", "links", index, "machines"))
        unknown = [name for name in pair.machines if name not in content.machines]
        if unknown:
            raise BadFileError(f"{place}: no machine {unknown[0]!r}: there are {', '.join(content.machines)}")
        if pair.machines[0] == pair.machines[1]:
            raise BadFileError(f"{place}: the rate inside of {pair.machines[0]} belongs to its field 'inside'")
        if frozenset(pair.machines) in seen:
            raise BadFileError(f"{place}: {' and '.join(pair.machines)} stand here a second time")
        seen.add(frozenset(pair.machines))


def _devices(content: ClusterFile) -> list[Device]:
    devices: list[Device] = []
    for name, machine in content.machines.items():
        count = sum(section.count for section in machine.devices)
        devices += [
            Device(
                rank=0,
                kind=section.kind,
                machine=name,
                node=machine.node,
                memory_bytes=section.memory,
                usd_per_hour=machine.usd_per_hour / count,
            )
            for section in machine.devices
            for _ in range(section.count)
        ]
    return [device.model_copy(update={"rank": rank}) for rank, device in enumerate(devices)]


def _links(content: ClusterFile) -> list[Link]:
    inside = [
        Link(first=name, second=name, **machine.inside.as_link_rate().model_dump())
        for name, machine in content.machines.items()
        if machine.inside is not None
    ]
    return inside + [
        Link(first=pair.machines[0], second=pair.machines[1], **pair.as_link_rate().model_dump())
        for pair in content.between.links
    ]

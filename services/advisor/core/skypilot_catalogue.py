"""SkyPilot's ``vms.csv`` (github.com/skypilot-org/skypilot-catalog, schemas v5 to v8) as a price snapshot.

Rows are of three kinds. An instance type without an accelerator is a machine. One with an accelerator is a machine
with its accelerators built in, and the price is that of both (AWS, Azure and others). A row with an accelerator and no
instance type is Google Cloud's price of the accelerators alone: they are added to the n1 machines that they can be
attached to, and to the a2, a3 and g2 machines that always have them, whose own rows are without their accelerators'
price.
"""

from __future__ import annotations

import ast
import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from schemas.accelerators import (
    GCP_ATTACHABLE,
    GCP_BUILT_IN,
    canonical_name,
    find_accelerator,
    gcp_misfit,
    gcp_needs_accelerators,
    interconnect_of,
    with_attached,
)
from schemas.jobs import MAX_NAME_CHARACTERS
from services.advisor.core.catalogue import BadCatalogueError, Machine, Snapshot, checked_snapshot, counted

_KeyT = TypeVar("_KeyT")
_COLUMNS: Final = ("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "Region", "Price", "SpotPrice")
_HOSTS: Final = (
    "n1-standard-4",
    "n1-standard-8",
    "n1-standard-16",
    "n1-standard-32",
    "n1-standard-64",
    "n1-standard-96",
)
"""Machines that accelerators are combined with; all n1 types would be hundreds of machines that hardly differ."""
_LEAST_VCPU: Final = 2
"""Of such a machine, per accelerator: fewer feed none."""
_GIB_PER_MIB: Final = 1 / 1024
_LARGEST_GB: Final = 1024.0
"""Of one accelerator's memory: a larger figure is not in MiB."""


@dataclass(slots=True)
class _Rows:
    """Rows of one region, by zone, and what is left out of them by reason."""

    machines: defaultdict[str, dict[str, Machine]] = field(default_factory=lambda: defaultdict(dict))
    """By zone and name."""
    attached: defaultdict[str, dict[tuple[str, int], Machine]] = field(default_factory=lambda: defaultdict(dict))
    """Accelerators alone, by zone, name and number."""
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def parse_skypilot(text: str, snapshot: Snapshot, where: str) -> Snapshot:
    """Read a ``vms.csv``: the machines of the snapshot's region, with and without accelerators.

    Zones of one region may differ in price: the lowest is used, as SkyPilot would choose it. What is not used is
    counted in `Snapshot.left_out`.

    Raises:
        BadCatalogueError: it is no such file, or holds nothing for the region.
    """
    rows, regions = _Rows(), set()
    for line, row in _lines(text, where):
        regions.add(row["Region"])
        if row["Region"] == snapshot.region:
            _take(row, rows, f"line {line}")
    if snapshot.region not in regions:
        near = ", ".join(sorted(regions)[:8])
        raise BadCatalogueError(f"{where}: no price for region {snapshot.region!r} (there are {near} ...)")
    found: dict[str, Machine] = {}
    for zone, machines in rows.machines.items():
        for machine in _combined(machines, rows.attached[zone], rows.left_out):
            known = found.get(machine.instance_type)
            found[machine.instance_type] = machine if known is None else _cheaper(known, machine)
    for one in found.values():
        if one.spot_usd_per_hour is not None and one.spot_usd_per_hour > one.usd_per_hour:
            rows.left_out["kept with a spot price above the price on demand"].append(one.instance_type)
    left_out = tuple(counted(names, what) for what, names in sorted(rows.left_out.items()))
    machines_found = tuple(found[name] for name in sorted(found))
    return checked_snapshot(replace(snapshot, machines=machines_found, left_out=left_out), where)


def _lines(text: str, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines with their number; missing cells are empty."""
    rows = csv.DictReader(io.StringIO(text), restval="")
    try:
        if missing := set(_COLUMNS) - set(rows.fieldnames or ()):
            raise BadCatalogueError(
                f"{where} is no vms.csv of SkyPilot's catalogue: no column {', '.join(sorted(missing))}"
            )
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise BadCatalogueError(f"{where}:{rows.line_num} is no line of a CSV file: {error}") from error


def _take(row: dict[str, str], rows: _Rows, line: str) -> None:
    """Sort a row in, or count why it is left out."""
    instance_type, accelerator = row["InstanceType"].strip(), row["AcceleratorName"].strip()
    name = instance_type or accelerator or line
    try:
        price, spot = _number(row["Price"]), _number(row["SpotPrice"])
        vcpu, memory_gb = _number(row["vCPUs"]), _number(row["MemoryGiB"])
        count = _number(row.get("AcceleratorCount", "")) if accelerator else 0.0
    except ValueError as error:
        rows.left_out["unreadable"].append(f"{name} ({line}: {error})")
        return
    reason = "unreadable" if len(name) > MAX_NAME_CHARACTERS else _unusable(accelerator, instance_type, price, count)
    if reason:
        rows.left_out[reason].append(name[:MAX_NAME_CHARACTERS])
        return
    known = find_accelerator(accelerator)
    memory = _memory_gb(row.get("GpuInfo", "")) or (known.memory_gb if known else 0.0)
    machine = Machine(
        instance_type,
        vcpu,
        memory_gb,
        price,
        spot or None,
        accelerator=canonical_name(accelerator),
        accelerators=int(count),
        accelerator_memory_gb=float(memory) if accelerator else 0.0,
        interconnect=interconnect_of(accelerator, int(count)) if accelerator else "",
    )
    zone = row.get("AvailabilityZone", "") or row["Region"]
    if not instance_type:
        _keep(rows.attached[zone], (machine.accelerator, machine.accelerators), machine)
    else:
        if accelerator and instance_type.startswith("n1-"):
            machine = replace(
                machine, instance_type=with_attached(instance_type, machine.accelerator, machine.accelerators)
            )
        _keep(rows.machines[zone], machine.instance_type, machine)


def _unusable(accelerator: str, instance_type: str, price: float, count: float) -> str:
    """Return why a row is not used; empty: it is."""
    if accelerator.casefold().startswith("tpu"):
        return "TPUs, which are not read"
    if not accelerator and not instance_type:
        return "without a name"
    if not price:
        return "without a price"
    if accelerator and (count < 1 or not count.is_integer()):
        return "with a part of an accelerator"
    return ""


def _number(text: str | None) -> float:
    """Return 0 for an empty cell.

    Raises:
        ValueError: it is no finite number, or negative.
    """
    value = float(text or 0)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text} must be a number that is not negative")
    return value


def _memory_gb(info: str | None) -> float:
    """Return GiB of one accelerator from ``GpuInfo`` (JSON, or a Python literal as pandas writes it); 0: not known."""
    try:
        size_mib = ast.literal_eval(info or "")["Gpus"][0]["MemoryInfo"]["SizeInMiB"]
        found = float(size_mib) * _GIB_PER_MIB
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, RecursionError, MemoryError, OverflowError):
        return 0.0
    return found if 0 < found <= _LARGEST_GB else 0.0


def _keep(found: dict[_KeyT, Machine], key: _KeyT, machine: Machine) -> None:
    known = found.get(key)
    found[key] = machine if known is None else _cheaper(known, machine)


def _combined(
    machines: dict[str, Machine], attached: dict[tuple[str, int], Machine], left_out: dict[str, list[str]]
) -> Iterator[Machine]:
    """Yield the machines of one zone, with the accelerators that they have or may have."""
    for name, machine in machines.items():
        if machine.accelerators or not gcp_needs_accelerators(name):
            yield machine
            continue
        built_in = GCP_BUILT_IN.get(name)
        accelerators = attached.get(built_in) if built_in is not None else None
        if accelerators is None:
            left_out["without the price of their accelerators"].append(name)
            continue
        yield _sum(name, machine, accelerators)
    for (accelerator, count), accelerators in attached.items():
        if accelerator not in GCP_ATTACHABLE:
            if accelerator not in {kind for kind, _ in GCP_BUILT_IN.values()}:
                left_out["accelerators of no known machine"].append(f"{count} x {accelerator}")
            continue
        for name in _HOSTS:
            host = machines.get(name)
            if host is None or host.vcpu < _LEAST_VCPU * count or gcp_misfit(name, accelerator, count):
                continue
            yield _sum(with_attached(name, accelerator, count), host, accelerators)


def _sum(name: str, machine: Machine, accelerators: Machine) -> Machine:
    spots = (machine.spot_usd_per_hour, accelerators.spot_usd_per_hour)
    return replace(
        accelerators,
        instance_type=name,
        vcpu=machine.vcpu,
        memory_gb=machine.memory_gb,
        usd_per_hour=round(machine.usd_per_hour + accelerators.usd_per_hour, 9),
        spot_usd_per_hour=round(spots[0] + spots[1], 9) if spots[0] is not None and spots[1] is not None else None,
    )


def _cheaper(one: Machine, other: Machine) -> Machine:
    spots = [spot for spot in (one.spot_usd_per_hour, other.spot_usd_per_hour) if spot is not None]
    return replace(
        one, usd_per_hour=min(one.usd_per_hour, other.usd_per_hour), spot_usd_per_hour=min(spots) if spots else None
    )

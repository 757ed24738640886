"""Price catalogue: dated snapshots of machine prices, and the listing of a day."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

from schemas.apps import NAME_PATTERN
from schemas.jobs import MAX_NAME_CHARACTERS, JobRecord, Price

FORMAT: Final = 1
_DIGEST_CHARACTERS: Final = 16
_SKYPILOT_COLUMNS: Final = ("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "Region", "Price", "SpotPrice")


class BadCatalogueError(ValueError):
    """A price file cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One type of machine and its price."""

    instance_type: str
    vcpu: float
    memory_gb: float
    usd_per_hour: float
    spot_usd_per_hour: float | None = None
    network_gbps: float = 0.0
    """0: not known."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All prices of one source on one day."""

    source: str
    """Such as ``gcp-vertex``."""
    provider: str
    as_of: date
    region: str
    note: str
    """Origin and reliability of the figures."""
    machines: tuple[Machine, ...]
    made: str = ""
    """When the file was written, in ISO 8601: of two snapshots of one day the later one wins."""
    checked: bool = True
    """Whether the figures were read in a catalogue; else answers that use them have a warning."""
    digest: str = field(default="", compare=False)


def digest_of(snapshot: Snapshot) -> str:
    """Return a digest of the prices themselves: the same text is the same snapshot."""
    rows = sorted(
        (one.instance_type, one.vcpu, one.memory_gb, one.usd_per_hour, one.spot_usd_per_hour or -1.0)
        for one in snapshot.machines
    )
    canonical = json.dumps([snapshot.source, snapshot.as_of.isoformat(), snapshot.region, rows])
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def to_plain(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as plain JSON types: the content of its file."""
    return {
        "format": FORMAT,
        "source": snapshot.source,
        "provider": snapshot.provider,
        "region": snapshot.region,
        "as_of": snapshot.as_of.isoformat(),
        "made": snapshot.made,
        "note": snapshot.note,
        "checked": snapshot.checked,
        "machines": [{name: getattr(one, name) for name in Machine.__dataclass_fields__} for one in snapshot.machines],
    }


def parse_snapshot(text: str, where: str) -> Snapshot:
    """Read a snapshot's file.

    Raises:
        BadCatalogueError: it is no snapshot file.
    """
    try:
        fields = json.loads(text)
        _check_format(fields["format"], where)
        machines = tuple(_machine(dict(row), f"{where}: machine {at}") for at, row in enumerate(fields["machines"]))
        snapshot = Snapshot(
            str(fields["source"]),
            str(fields["provider"]),
            date.fromisoformat(fields["as_of"]),
            str(fields["region"]),
            str(fields["note"]),
            machines,
            str(fields.get("made", "")),
            bool(fields.get("checked", True)),
        )
    except BadCatalogueError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCatalogueError(f"{where} is no price snapshot: {type(error).__name__}: {error}") from error
    return _checked(snapshot, where)


def _check_format(found: object, where: str) -> None:
    if found != FORMAT:
        raise BadCatalogueError(f"{where}: format {found!r} is not {FORMAT}: a newer version wrote it")


def parse_skypilot(text: str, snapshot: Snapshot, where: str) -> Snapshot:
    """Read SkyPilot's ``vms.csv`` (schemas v5 to v8): machines without accelerators, of the snapshot's region.

    Zones of one region may differ in price: the lowest is used, as SkyPilot would choose it.

    Raises:
        BadCatalogueError: it is no such file, or holds nothing for the region.
    """
    found: dict[str, Machine] = {}
    regions: set[str] = set()
    for at, row in _skypilot_rows(text, where):
        regions.add(row["Region"])
        if row["Region"] != snapshot.region or not row["InstanceType"] or row["AcceleratorName"] or not row["Price"]:
            continue
        machine = _machine(
            {
                "instance_type": row["InstanceType"],
                "vcpu": row["vCPUs"] or 0,
                "memory_gb": row["MemoryGiB"] or 0,
                "usd_per_hour": row["Price"],
                "spot_usd_per_hour": row["SpotPrice"] or None,
            },
            f"{where}:{at}",
        )
        known = found.get(machine.instance_type)
        found[machine.instance_type] = machine if known is None else _cheaper(known, machine)
    if not found:
        near = ", ".join(sorted(regions)[:8])
        raise BadCatalogueError(f"{where}: no price for region {snapshot.region!r} (there are {near} ...)")
    return _checked(replace(snapshot, machines=tuple(found[name] for name in sorted(found))), where)


def _skypilot_rows(text: str, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines with their number; missing cells are empty."""
    rows = csv.DictReader(io.StringIO(text), restval="")
    try:
        if missing := set(_SKYPILOT_COLUMNS) - set(rows.fieldnames or ()):
            raise BadCatalogueError(
                f"{where} is no vms.csv of SkyPilot's catalogue: no column {', '.join(sorted(missing))}"
            )
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise BadCatalogueError(f"{where}:{rows.line_num} is no line of a CSV file: {error}") from error


def _cheaper(one: Machine, other: Machine) -> Machine:
    spots = [spot for spot in (one.spot_usd_per_hour, other.spot_usd_per_hour) if spot is not None]
    return replace(
        one, usd_per_hour=min(one.usd_per_hour, other.usd_per_hour), spot_usd_per_hour=min(spots) if spots else None
    )


def _machine(row: dict[str, Any], where: str) -> Machine:
    def number(name: str) -> float:
        value = float(row[name])
        if not math.isfinite(value) or value < 0:
            raise BadCatalogueError(f"{where}: {name} is {row[name]}: it must be a number that is not negative")
        return value

    try:
        spot = number("spot_usd_per_hour") if row.get("spot_usd_per_hour") is not None else None
        network = number("network_gbps") if row.get("network_gbps") else 0.0
        name = str(row["instance_type"])
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise BadCatalogueError(f"{where}: instance_type is empty, or longer than {MAX_NAME_CHARACTERS} characters")
        return Machine(name, number("vcpu"), number("memory_gb"), number("usd_per_hour"), spot, network)
    except (KeyError, TypeError) as error:
        raise BadCatalogueError(f"{where}: {error} is missing") from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, BadCatalogueError):
            raise
        raise BadCatalogueError(f"{where}: {error}") from error


def _checked(snapshot: Snapshot, where: str) -> Snapshot:
    if not re.fullmatch(NAME_PATTERN, snapshot.source):  # it becomes part of a file's name
        raise BadCatalogueError(f"{where}: source {snapshot.source!r} must be letters, digits, '_', '.', '-'")
    counts = Counter(one.instance_type for one in snapshot.machines)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise BadCatalogueError(f"{where}: listed twice: {', '.join(twice)}")
    if not counts:
        raise BadCatalogueError(f"{where}: holds no machine")
    return replace(snapshot, digest=digest_of(snapshot))


@dataclass(frozen=True, slots=True)
class Listing:
    """Machines with the price used for each."""

    machines: Mapping[tuple[str, str], tuple[Machine, Price]]
    """By provider and instance type."""
    unchecked: frozenset[str] = frozenset()
    """Sources whose prices were not checked against a catalogue."""

    def providers_of(self, instance_type: str) -> list[str]:
        """Providers of such a machine."""
        return [provider for provider, name in self.machines if name == instance_type]

    def providers(self) -> frozenset[str]:
        """Providers of the listed machines."""
        return frozenset(provider for provider, _ in self.machines)


def listing(
    snapshots: Iterable[Snapshot], preferred: Sequence[str], as_of: date | None, records: Iterable[JobRecord] = ()
) -> Listing:
    """Return the prices of a day: per source the newest snapshot of that day or before it.

    Args:
        snapshots: Of any source and day.
        preferred: Sources, best first: of a machine in several, the first one's price is used. Others come last:
            checked ones before unchecked ones, in the order of their names.
        as_of: A day; None: the newest.
        records: For machines in no snapshot, the newest record's own price is used.
    """
    newest: dict[str, Snapshot] = {}
    for one in sorted(snapshots, key=lambda each: (each.as_of, each.made)):
        if as_of is None or one.as_of <= as_of:
            newest[one.source] = one
    order = {source: at for at, source in enumerate(preferred)}
    machines: dict[tuple[str, str], tuple[Machine, Price]] = {}
    ranked = sorted(
        newest.values(), key=lambda each: (order.get(each.source, len(order)), not each.checked, each.source)
    )
    for snapshot in ranked:
        for machine in snapshot.machines:
            price = Price(
                usd_per_hour=machine.usd_per_hour,
                spot_usd_per_hour=machine.spot_usd_per_hour,
                as_of=snapshot.as_of,
                source=snapshot.source,
                snapshot=snapshot.digest,
            )
            machines.setdefault((snapshot.provider, machine.instance_type), (machine, price))
    unchecked = frozenset(source for source, snapshot in newest.items() if not snapshot.checked)
    return Listing(_recorded(records, as_of) | machines, unchecked)


def _recorded(records: Iterable[JobRecord], as_of: date | None) -> dict[tuple[str, str], tuple[Machine, Price]]:
    found: dict[tuple[str, str], tuple[Machine, Price]] = {}
    for record in records:
        where, price = record.configuration, record.price
        if price is None or (as_of is not None and price.as_of > as_of):
            continue
        key = (where.provider, where.instance_type)
        if key not in found or found[key][1].as_of < price.as_of:
            machine = Machine(
                where.instance_type,
                where.vcpu,
                where.memory_gb,
                price.usd_per_hour,
                price.spot_usd_per_hour,
                where.network_gbps,
            )
            found[key] = (machine, price)
    return found

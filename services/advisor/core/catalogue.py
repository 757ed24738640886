"""Price catalogue: dated snapshots of machine prices, and the listing of a day."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

from schemas.apps import NAME_PATTERN
from schemas.jobs import MAX_NAME_CHARACTERS, Configuration, JobRecord, Price, without_zero_prices

FORMAT: Final = 1
FORMAT_WITH_ACCELERATORS: Final = 2
"""Of files that list machines with accelerators: a version without them would take these for plain machines."""
_DIGEST_CHARACTERS: Final = 16
_SHOWN: Final = 5
"""Names in a sentence about what is left out."""
_VERTEX: Final = "gcp-vertex"


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
    accelerator: str = ""
    """Its name in `schemas.accelerators`, or what the source calls it; empty: none."""
    accelerators: int = 0
    """Per machine; `usd_per_hour` is with them."""
    accelerator_memory_gb: float = 0.0
    """Of one; 0: not known."""
    interconnect: str = ""
    """Between the accelerators: ``nvlink``, ``pcie``, or ``none`` for a single one; empty: not known."""


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
    left_out: tuple[str, ...] = field(default=(), compare=False)
    """Sentences about rows of the source that are not used, each with their number. Not part of the file."""
    digest: str = field(default="", compare=False)


def digest_of(snapshot: Snapshot) -> str:
    """Return a digest of the prices themselves: the same text is the same snapshot."""
    rows = sorted(
        (one.instance_type, one.vcpu, one.memory_gb, one.usd_per_hour, one.spot_usd_per_hour or -1.0)
        # Nothing is added for machines without: the digests in stored records stay valid.
        + ((one.accelerator, one.accelerators, one.accelerator_memory_gb) if one.accelerators else ())
        for one in snapshot.machines
    )
    canonical = json.dumps([snapshot.source, snapshot.as_of.isoformat(), snapshot.region, rows])
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def to_plain(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as plain JSON types: the content of its file."""
    has_accelerators = any(one.accelerators for one in snapshot.machines)
    return {
        "format": FORMAT_WITH_ACCELERATORS if has_accelerators else FORMAT,
        "source": snapshot.source,
        "provider": snapshot.provider,
        "region": snapshot.region,
        "as_of": snapshot.as_of.isoformat(),
        "made": snapshot.made,
        "note": snapshot.note,
        "checked": snapshot.checked,
        "machines": [_plain_machine(one) for one in snapshot.machines],
    }


def _plain_machine(one: Machine) -> dict[str, Any]:
    names = list(Machine.__dataclass_fields__)
    return {name: getattr(one, name) for name in (names if one.accelerators else names[: names.index("accelerator")])}


def parse_snapshot(text: str, where: str) -> Snapshot:
    """Read a snapshot's file.

    Raises:
        BadCatalogueError: it is no snapshot file.
    """
    try:
        fields = json.loads(text)
        _check_format(fields["format"], where)
        rows = [_machine(dict(row), f"{where}: machine {at}") for at, row in enumerate(fields["machines"])]
        machines, left_out = _with_price(rows)
        snapshot = Snapshot(
            str(fields["source"]),
            str(fields["provider"]),
            date.fromisoformat(fields["as_of"]),
            str(fields["region"]),
            str(fields["note"]),
            machines,
            str(fields.get("made", "")),
            bool(fields.get("checked", True)),
            left_out,
        )
    except BadCatalogueError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCatalogueError(f"{where} is no price snapshot: {type(error).__name__}: {error}") from error
    return checked_snapshot(snapshot, where)


def _check_format(found: object, where: str) -> None:
    if found not in (FORMAT, FORMAT_WITH_ACCELERATORS):
        raise BadCatalogueError(
            f"{where}: format {found!r} is not {FORMAT} or {FORMAT_WITH_ACCELERATORS}: a newer version wrote it"
        )


def _with_price(found: Iterable[Machine]) -> tuple[tuple[Machine, ...], tuple[str, ...]]:
    """Return the machines that have a price, and sentences about prices: 0 is what catalogues write for none."""
    machines: list[Machine] = []
    unpriced: list[str] = []
    dear: list[str] = []
    for one in found:
        if not one.usd_per_hour:
            unpriced.append(one.instance_type)
            continue
        spot = one.spot_usd_per_hour or None
        if spot is not None and spot > one.usd_per_hour:
            dear.append(one.instance_type)  # kept: it happens where spot capacity is short
        machines.append(replace(one, spot_usd_per_hour=spot))
    sentences = [counted(unpriced, "without a price")] if unpriced else []
    sentences += [counted(dear, "kept with a spot price above the price on demand")] if dear else []
    return tuple(machines), tuple(sentences)


def times_factor(snapshot: Snapshot, factor: float) -> Snapshot:
    """Return a snapshot with all prices times a factor, which is added to its note."""
    if factor == 1.0:
        return snapshot
    machines = tuple(
        replace(
            one,
            usd_per_hour=round(one.usd_per_hour * factor, 9),
            spot_usd_per_hour=None if one.spot_usd_per_hour is None else round(one.spot_usd_per_hour * factor, 9),
        )
        for one in snapshot.machines
    )
    found = replace(snapshot, machines=machines, note=f"{snapshot.note} All prices times {factor:g}.")
    return replace(found, digest=digest_of(found))


def counted(names: Sequence[str], what: str) -> str:
    """Return such as ``2 without a price: a, b``."""
    unique = list(dict.fromkeys(names))
    shown = ", ".join(unique[:_SHOWN]) + (" ..." if len(unique) > _SHOWN else "")
    return f"{len(names)} {what}: {shown}"


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
        machine = Machine(name, number("vcpu"), number("memory_gb"), number("usd_per_hour"), spot, network)
        if not row.get("accelerators"):
            return machine
        count = number("accelerators")
        if not count.is_integer():
            raise BadCatalogueError(f"{where}: accelerators is {row['accelerators']}: it must be a whole number")
        return replace(
            machine,
            accelerator=str(row["accelerator"])[:MAX_NAME_CHARACTERS],
            accelerators=int(count),
            accelerator_memory_gb=number("accelerator_memory_gb"),
            interconnect=str(row.get("interconnect", "")),
        )
    except (KeyError, TypeError) as error:
        raise BadCatalogueError(f"{where}: {error} is missing") from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, BadCatalogueError):
            raise
        raise BadCatalogueError(f"{where}: {error}") from error


def checked_snapshot(snapshot: Snapshot, where: str) -> Snapshot:
    """Return a snapshot with its digest.

    Raises:
        BadCatalogueError: its source is no name, or it lists no machine, or one twice.
    """
    if not re.fullmatch(NAME_PATTERN, snapshot.source):  # it becomes part of a file's name
        raise BadCatalogueError(f"{where}: source {snapshot.source!r} must be letters, digits, '_', '.', '-'")
    counts = Counter(one.instance_type for one in snapshot.machines)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise BadCatalogueError(f"{where}: listed twice: {', '.join(twice)}")
    if not counts:
        left_out = f" with a price ({'; '.join(snapshot.left_out)})" if snapshot.left_out else ""
        raise BadCatalogueError(f"{where}: holds no machine{left_out}")
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

    def sources(self, configurations: Iterable[Configuration]) -> tuple[str, ...]:
        """Sources of the prices of some configurations, without repetition, in the order of their names."""
        found = (self.machines.get((one.provider, one.instance_type)) for one in configurations)
        return tuple(sorted({pair[1].source for pair in found if pair is not None}))

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
            checked ones before unchecked ones, then Vertex AI's, because jobs are submitted there, then by name.
        as_of: A day; None: the newest.
        records: For machines in no snapshot, the newest record's own price is used.
    """
    newest: dict[str, Snapshot] = {}
    for one in sorted(snapshots, key=lambda each: (each.as_of, each.made)):
        if as_of is None or one.as_of <= as_of:
            newest[one.source] = one
    order = {source: at for at, source in enumerate(preferred)}
    machines: dict[tuple[str, str], tuple[Machine, Price]] = {}

    def place(each: Snapshot) -> tuple[int, bool, bool, str]:
        return order.get(each.source, len(order)), not each.checked, not each.source.startswith(_VERTEX), each.source

    ranked = sorted(newest.values(), key=place)
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
        where, price = record.configuration, without_zero_prices(record.price)
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
                where.accelerator if where.accelerators else "",
                where.accelerators,
                where.accelerator_memory_gb if where.accelerators else 0.0,
            )
            found[key] = (machine, price)
    return found

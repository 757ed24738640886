"""How rows of a foreign table become job records: which column is which field, in which unit, and what is refused.

A mapping names every field's source; what a row lacks or has wrong rejects that row, with the reason, and no other.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from schemas.accelerators import canonical_name, find_accelerator
from schemas.jobs import (
    Configuration,
    JobRecord,
    NonNegativeFloat,
    Price,
    TaskFeatures,
    implausible_field,
    without_zero_prices,
)
from schemas.message import Message

Row = Mapping[str, str | None]
"""A row's cells by column name, as text; None: no value."""

FILE_COLUMN: Final = "file"
"""In templates: the file's name without its ending."""
_PLACE: Final = re.compile(r"\{([^{}]+)\}")
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE
)
"""Python's own reading would take ``1_000`` and full-width digits, too."""
_DECIMAL_COMMA: Final = re.compile(r"[+-]?[0-9]+,[0-9]+")
_CLOCK_TIME: Final = re.compile(
    r"(?:(?:(?P<days>[0-9]+)-)?(?P<hours>[0-9]+):)?(?P<minutes>[0-9]{1,2}):(?P<seconds>[0-9]{2}(?:[.,][0-9]+)?)"
)
"""As sacct prints times: ``MM:SS``, ``HH:MM:SS``, ``D-HH:MM:SS``, each with a fraction or without."""
_NO_TIME: Final = frozenset({"unlimited", "partition_limit", "invalid"})
"""Slurm's words where there is no time."""
_TIMES: Final = frozenset({"duration_s", "restoring_s", "lost_s"})
_UNITS: Final = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "minutes": 60.0,
    "h": 3_600.0,
    "hours": 3_600.0,
    "usd": 1.0,
    "cents": 0.01,
    "gb": 1.0,
    "gib": 1.073741824,
    "mb": 1e-3,
    "mib": 1.048576e-3,
    "gbps": 1.0,
    "mbps": 1e-3,
}
_PARTS: Final[dict[str, type[Message]]] = {"task": TaskFeatures, "configuration": Configuration}


class RowError(Exception):
    """Why a row is rejected."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Threshold(_Part):
    """A number becomes one of two texts."""

    limit: float
    then: str
    """From the limit on."""
    otherwise: str


class Rule(_Part):
    """Where a value comes from. Exactly one of column, template and constant. In short: a column's name."""

    column: str | None = None
    template: str | None = None
    """Text with ``{column}``; a missing cell leaves nothing."""
    constant: str | None = None
    unit: str | None = None
    """Of the table: seconds, dollars and gigabytes are ours."""
    scale: float = 1.0
    values: dict[str, str] = Field(default_factory=dict)
    """Texts to put in place of texts."""
    otherwise: str | None = None
    """For a text that is not among `values`; without it, such a text stays."""
    at_least: Threshold | None = None
    split: str | None = None
    """For `task.layers`: what separates the elements."""
    number: bool = False
    """Of an attribute: a number rather than a category."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(it is not None for it in (self.column, self.template, self.constant)) != 1:
            raise ValueError("one of column, template and constant is needed")
        if self.unit is not None and self.unit.lower() not in _UNITS:
            raise ValueError(f"unknown unit {self.unit!r}: one of {', '.join(_UNITS)}")
        return self

    def columns(self) -> Iterator[str]:
        """Names of the columns that it reads."""
        if self.column is not None:
            yield self.column
        yield from _PLACE.findall(self.template or "")


class Instance(_Part):
    """What is known of an instance type."""

    vcpu: NonNegativeFloat = 0.0
    memory_gb: NonNegativeFloat = 0.0
    disk_gb: NonNegativeFloat = 0.0
    network_gbps: NonNegativeFloat = 0.0
    accelerator: str = ""
    accelerators: Annotated[int, Field(ge=0)] = 0
    """Per machine."""
    accelerator_memory_gb: NonNegativeFloat = 0.0


class PriceRule(_Part):
    """Of which day the prices are; what they are comes from a column, or from cost, machines and time."""

    as_of: date
    source: Annotated[str, Field(min_length=1)]
    snapshot: str = ""
    usd_per_hour: Rule | None = None
    from_cost: bool = False


class TableMapping(_Part):
    """A mapping file."""

    dataset: Annotated[str, Field(min_length=1, max_length=100)]
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    encoding: str = ""
    """Of a CSV file, such as ``latin-1``; empty: UTF-8, or what its byte order mark says."""
    decimal: Literal[".", ","] = "."
    """What stands before the fraction of a number."""
    empty: tuple[str, ...] = ("",)
    """Texts that mean: no value."""
    job: Rule | None = None
    """None: the dataset's name and a hash of the row, columns to be ignored left out."""
    fields: dict[str, Rule]
    """By the field's path, such as ``task.parameter_count`` or ``duration_s``."""
    attributes: dict[str, dict[str, Rule]] = Field(default_factory=dict)
    """Below ``task`` and ``configuration``, by attribute."""
    instances: dict[str, Instance] = Field(default_factory=dict)
    """The instance types that there are: any other rejects its row."""
    any_instance: bool = False
    """Take every instance type."""
    price: PriceRule | None = None
    ignore: tuple[str, ...] = ()
    """Columns that are known, and left out on purpose."""

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        try:
            "".encode(name or "utf-8")
        except (LookupError, UnicodeError, ValueError) as error:
            raise ValueError(f"{name!r} is no encoding: write such as latin-1, cp1252 or utf-16") from error
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if unknown := sorted(set(self.fields) - set(FIELD_TYPES)):
            raise ValueError(f"no such field: {', '.join(unknown)}; there are {', '.join(FIELD_TYPES)}")
        if missing := [name for name in _NEEDED if name not in self.fields]:
            raise ValueError(f"fields that every record needs are not mapped: {', '.join(missing)}")
        if unknown := sorted(set(self.attributes) - set(_PARTS)):
            raise ValueError(f"attributes belong to task or configuration, not to {', '.join(unknown)}")
        if not self.instances and not self.any_instance:
            raise ValueError("name the instances that there are, or write any_instance: true")
        return self

    def rules(self) -> list[Rule]:
        """Every rule."""
        rules = [*self.fields.values(), *(rule for part in self.attributes.values() for rule in part.values())]
        return rules + [it for it in (self.job, self.price.usd_per_hour if self.price else None) if it is not None]

    def columns(self) -> set[str]:
        """Every column that a rule reads."""
        return {name for rule in self.rules() for name in rule.columns()} - {FILE_COLUMN}


_NEEDED: Final = ("task.task", "configuration.instance_type", "configuration.workers", "state")
_OWN: Final = frozenset({"job", "dataset", "task", "configuration", "price"})


def _base(annotation: Any) -> Any:
    """The plain type below bounds and options."""
    while typing.get_origin(annotation) in (typing.Annotated, types.UnionType, typing.Union):
        annotation = next(part for part in typing.get_args(annotation) if part is not types.NoneType)
    return typing.get_origin(annotation) or annotation


def _field_types() -> dict[str, Any]:
    found = {name: _base(field.annotation) for name, field in JobRecord.model_fields.items() if name not in _OWN}
    for part, model in _PARTS.items():
        found |= {
            f"{part}.{name}": _base(field.annotation)
            for name, field in model.model_fields.items()
            if name != "attributes"
        }
    return found


FIELD_TYPES: Final[dict[str, Any]] = _field_types()
"""Every field that can be mapped, and its plain type."""


def job_record(mapping: TableMapping, row: Row, file: str) -> JobRecord:
    """The record that a row stands for, with repeat 0.

    Raises:
        RowError: the row is rejected; the text says why.
    """
    cells = {name: None if cell is None or cell in mapping.empty else cell for name, cell in row.items()}
    if bad := next((name for name, cell in cells.items() if cell is not None and "\0" in cell), None):
        raise RowError(f"column {bad}: holds a NUL character")
    cells[FILE_COLUMN] = file
    fields: dict[str, Any] = {"task": {}, "configuration": {}, "job": _job(mapping, cells), "dataset": mapping.dataset}
    for path, rule in mapping.fields.items():
        if (value := _typed(mapping, rule, cells, path)) is not None:
            part, _, name = path.rpartition(".")
            (fields[part] if part else fields)[name] = value
    for part, rules in mapping.attributes.items():
        fields[part]["attributes"] = dict(_attributes(mapping, rules, cells, part))
    _add_instance(mapping, fields["configuration"])
    _name_accelerator(fields["configuration"])
    record = _validated(fields)
    record = record.model_copy(update={"price": _price(mapping, record, cells)})
    if wrong := implausible_field(record):
        raise RowError(f"{wrong}{_unit_remedy(mapping, wrong.partition(':')[0])}")
    return record.model_copy(update={"price": without_zero_prices(record.price)})


def _unit_remedy(mapping: TableMapping, path: str) -> str:
    rule = mapping.fields.get(path)
    if path not in _TIMES or rule is None:
        return ""
    said = f"unit: {rule.unit}" if rule.unit is not None else "no `unit:`, so it is read as seconds"
    return f" (the mapping says {said}: is it in nanoseconds, `unit: ns`, or milliseconds, `unit: ms`?)"


def _job(mapping: TableMapping, cells: Row) -> str:
    if mapping.job is None:
        return f"{mapping.dataset}-{_content_hash(mapping, cells)}"
    name = _text(mapping, mapping.job, cells)
    if not name:
        raise RowError("job: no value")
    return name


def _content_hash(mapping: TableMapping, cells: Row) -> str:
    """16 hexadecimal digits of the row: its place in the file does not matter, nor what the mapping makes of it."""
    content = {name: cell for name, cell in cells.items() if name not in mapping.ignore and name != FILE_COLUMN}
    if any(FILE_COLUMN in rule.columns() for rule in mapping.rules()):
        content[FILE_COLUMN] = cells[FILE_COLUMN]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _text(mapping: TableMapping, rule: Rule, cells: Row) -> str | None:
    """The rule's text; None: no value."""
    if rule.template is not None:
        text: str | None = _PLACE.sub(lambda match: cells[match[1]] or "", rule.template)
    else:
        text = rule.constant if rule.column is None else cells[rule.column]
    if text is None:
        return None
    if rule.at_least is not None:
        limit = rule.at_least
        number = _number(text, mapping.decimal, str(rule.column))
        return limit.then if number >= limit.limit else limit.otherwise
    if text in rule.values:
        return rule.values[text]
    return text if rule.otherwise is None else rule.otherwise


def _typed(mapping: TableMapping, rule: Rule, cells: Row, path: str) -> Any:
    text = _text(mapping, rule, cells)
    if text is None:
        return None
    kind = FIELD_TYPES[path]
    if kind in (int, float):
        number = _clock_time_s(text, rule, path) if path in _TIMES else None
        if number is None:
            number = _scaled(_number(text, mapping.decimal, path), rule, text, path)
        if kind is int and not number.is_integer():
            raise RowError(f"{path}: {text!r} is no whole number")
        return int(number) if kind is int else number
    if kind is tuple:
        return tuple(part.strip() for part in text.split(rule.split or ",") if part.strip())
    return text


def _clock_time_s(text: str, rule: Rule, path: str) -> float | None:
    """Return the seconds of a time as sacct prints it; None: it has another form.

    Raises:
        RowError: it is no time, or the mapping gives it a unit.
    """
    word = text.strip()
    if word.casefold() in _NO_TIME:
        raise RowError(
            f"{path}: {word} is Slurm's word for no time: list it under `empty:`, or map ElapsedRaw (seconds)"
        )
    if ":" not in word:
        return None
    match = _CLOCK_TIME.fullmatch(word)
    if match is None or rule.unit is not None or rule.scale != 1.0:
        remedy = "" if match is None else ", which has no `unit:` and no `scale:`"
        raise RowError(f"{path}: {word[:60]!r} is a time; such are read as MM:SS, HH:MM:SS or D-HH:MM:SS{remedy}")
    days, hours, minutes = (int(match[part] or 0) for part in ("days", "hours", "minutes"))
    seconds = float(match["seconds"].replace(",", "."))
    if minutes >= 60 or seconds >= 60 or (match["days"] and hours >= 24):
        raise RowError(f"{path}: {word[:60]!r} is no time of day and minutes: 60 minutes are 01:00:00")
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _scaled(number: float, rule: Rule, text: str, path: str) -> float:
    number *= rule.scale * _UNITS[(rule.unit or "s").lower()]
    if not math.isfinite(number):
        raise RowError(f"{path}: {text[:60]!r} is not finite")
    return number


def _number(text: str, decimal: str, path: str) -> float:
    word = text.strip()
    if decimal == ",":
        if "." in word:
            raise RowError(f"{path}: {word[:60]!r} is no number with a decimal comma (`decimal:` in the mapping)")
        word = word.replace(",", ".", 1)
    if not _NUMBER.fullmatch(word):
        comma = decimal == "." and _DECIMAL_COMMA.fullmatch(word)
        remedy = ' (with a decimal comma? write `decimal: ","` into the mapping)' if comma else ""
        raise RowError(f"{path}: {text[:60]!r} is no number{remedy}")
    number = float(word)
    if not math.isfinite(number):
        raise RowError(f"{path}: {text[:60]!r} is not finite")
    return number


def _attributes(
    mapping: TableMapping, rules: Mapping[str, Rule], cells: Row, part: str
) -> Iterator[tuple[str, float | str]]:
    for name, rule in rules.items():
        if (text := _text(mapping, rule, cells)) is not None:
            path = f"{part}.attributes.{name}"
            yield name, _scaled(_number(text, mapping.decimal, path), rule, text, path) if rule.number else text


def _add_instance(mapping: TableMapping, configuration: dict[str, Any]) -> None:
    name = configuration.get("instance_type")
    if mapping.any_instance or name is None:
        return
    if name not in mapping.instances:
        raise RowError(f"configuration.instance_type: {name!r} is none of the mapping's instances")
    for field, value in mapping.instances[name].model_dump(exclude_defaults=True).items():
        configuration.setdefault(field, value)


def _name_accelerator(configuration: dict[str, Any]) -> None:
    """Give an accelerator the name and, where the table has none, the memory that all records use for it."""
    name = configuration.get("accelerator", "")
    found = find_accelerator(name) if isinstance(name, str) else None
    if found is None:
        return
    configuration["accelerator"] = canonical_name(name)
    configuration.setdefault("accelerators", 1)  # a machine with a named accelerator has at least one
    configuration.setdefault("accelerator_memory_gb", found.memory_gb)


def _validated(fields: dict[str, Any]) -> JobRecord:
    try:
        return JobRecord.model_validate(fields)
    except ValidationError as error:
        complaints = []
        for detail in error.errors(include_url=False, include_context=False):
            path = ".".join(str(part) for part in detail["loc"])
            given = "" if detail["type"] == "missing" else f" (it is {str(detail['input'])[:60]!r})"
            complaints.append(f"{path}: {detail['msg']}{given}")
        raise RowError("; ".join(complaints)) from None


def _price(mapping: TableMapping, record: JobRecord, cells: Row) -> Price | None:
    rule = mapping.price
    if rule is None:
        return None
    usd: float | None = None
    path = "price.usd_per_hour"
    if rule.usd_per_hour is not None and (text := _text(mapping, rule.usd_per_hour, cells)) is not None:
        usd = _scaled(_number(text, mapping.decimal, path), rule.usd_per_hour, text, path)
    elif rule.from_cost and record.cost_usd is not None and record.duration_s:
        usd = record.cost_usd / record.duration_s * 3_600 / record.configuration.workers
    if usd is None:
        return None
    if not 0 <= usd < math.inf:
        raise RowError(f"{path}: {usd:g} is no price")
    return Price(usd_per_hour=usd, as_of=rule.as_of, source=rule.source, snapshot=rule.snapshot)

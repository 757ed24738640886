"""The folded log up to one entry, as bytes and back: with it a start folds only what was stored since. Pure.

Fields are written by the names and types that `Snapshot` and `State` declare, whatever these hold: nothing here knows
them. `shape` tells which fields a snapshot has: bytes of another shape are not to be decoded.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cache
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

import msgpack
from pydantic import TypeAdapter

from services.scheduler.core.state import State

MOST_BYTES: Final = 1 << 30
"""Of a snapshot before it is compressed."""
_ITEMS_AT_ONCE: Final = 10
"""Of a dictionary: so long, less than a millisecond, no other thread runs."""
_COMPRESSION: Final = 1


@dataclass(frozen=True)
class Snapshot:
    """The fold over a log up to and with one of its entries."""

    sequence: int
    """Of that entry."""
    time_ns: int
    """The latest time of an entry until then."""
    stored_bytes: int
    """Of all entries until then."""
    entry_sha256: str = ""
    """Of that entry as it is stored, in hexadecimal: by it the log is known again. Empty: not looked up yet."""
    mentions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """`Histories.mentions`."""
    state: State = field(default_factory=State)


class SnapshotError(ValueError):
    """A state that cannot be written, or bytes that are no snapshot."""


class _Field(NamedTuple):
    """One field of a class."""

    name: str
    adapter: TypeAdapter[Any]
    in_items: bool
    """A dictionary is written a few items at a time."""


@cache
def _fields_of(kind: type) -> tuple[_Field, ...]:
    """Without a snapshot's state, whose fields are written as its own."""
    hints = get_type_hints(kind)
    return tuple(
        _Field(each.name, TypeAdapter(hints[each.name]), get_origin(hints[each.name]) is dict)
        for each in fields(kind)
        if hints[each.name] is not State
    )


@cache
def shape() -> str:
    """A digest of all fields: their names, types and defaults."""
    schema = TypeAdapter(Snapshot).json_schema()
    return sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot as bytes. Meant for a thread: others run in between.

    Raises:
        SnapshotError: it holds something that cannot be written.
    """
    compress = zlib.compressobj(_COMPRESSION)
    try:
        parts = [
            compress.compress(msgpack.packb((kind.__name__, name, value), default=_as_plain))
            for kind, part in ((Snapshot, snapshot), (State, snapshot.state))
            for name, value in _values(kind, part)
        ]
    except (TypeError, ValueError, OverflowError) as error:
        raise SnapshotError(f"the state cannot be written: {error}") from error
    return b"".join((*parts, compress.flush()))


def _values(kind: type, value: object) -> Iterator[tuple[str, Any]]:
    for name, adapter, in_items in _fields_of(kind):
        whole = getattr(value, name)
        for part in _in_items(whole) if in_items else (whole,):
            yield name, adapter.dump_python(part, exclude_defaults=True)


def _in_items(whole: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    items = iter(whole.items())
    while part := dict(islice(items, _ITEMS_AT_ONCE)):
        yield part


def _as_plain(value: object) -> object:
    """What msgpack lacks."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} is not expected in it")


def decode(data: bytes) -> Snapshot:
    """The snapshot that was encoded, by a program of the same `shape`.

    Raises:
        SnapshotError: it is none.
    """
    found: dict[str, dict[str, Any]] = {Snapshot.__name__: {}, State.__name__: {}}
    known = {kind.__name__: {each.name: each for each in _fields_of(kind)} for kind in (Snapshot, State)}
    try:
        for kind, name, value in _rows(data):
            each, values = known[kind][name], found[kind]
            part = each.adapter.validate_python(value)
            if each.in_items:
                values.setdefault(name, {}).update(part)
            else:
                values[name] = part
        return Snapshot(**found[Snapshot.__name__], state=State(**found[State.__name__]))
    except (zlib.error, msgpack.UnpackException, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotError(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


def _rows(data: bytes) -> Iterator[tuple[str, str, Any]]:
    decompress = zlib.decompressobj()
    plain = decompress.decompress(data, MOST_BYTES)
    if not decompress.eof:
        raise ValueError("it is not whole, or too large")
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False, max_buffer_size=MOST_BYTES)
    unpacker.feed(plain)
    yield from unpacker

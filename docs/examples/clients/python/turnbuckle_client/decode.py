"""Decode a message: msgpack, with byte columns as lists of numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

from turnbuckle_client.messages import COLUMNS, NESTED, TYPES

_FORMATS = {"<i8": "q", "<i4": "i", "<u2": "H", "|u1": "B", "<f8": "d"}
"""Letters of `struct`, by numpy type string."""
_LITERAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def token(identifier: str | None) -> str:
    """An id as one token of a subject: ``.`` becomes ``/``, unusual characters ``=XX`` per UTF-8 byte; None: ``*``.

    Raises:
        ValueError: the id is empty.
    """
    if identifier is None:
        return "*"
    if not identifier:
        raise ValueError("an id in a subject must not be empty")
    return "".join(one if one in _LITERAL else "/" if one == "." else _escaped(one) for one in identifier)


def _escaped(character: str) -> str:
    return "".join(f"={byte:02X}" for byte in character.encode())


def decode(data: bytes) -> dict[str, Any]:
    """The message in ``data``, one of the classes of `turnbuckle_client.messages`; its field ``type`` says which.

    Raises:
        ValueError: not msgpack, no known type, or a column's length does not fit.
    """
    message = msgpack.unpackb(data)
    name = message.get("type") if isinstance(message, dict) else None
    if name not in TYPES:
        raise ValueError(f"no message type {name!r}")
    return _with_lists(TYPES[name], message)


def _with_lists(record: str, fields: dict[str, Any]) -> dict[str, Any]:
    columns = {name: _numbers(fields[name], code) for name, code in COLUMNS.get(record, {}).items() if name in fields}
    nested = {
        name: [_with_lists(inner, one) for one in fields[name]]
        for name, inner in NESTED.get(record, {}).items()
        if name in fields
    }
    if columns and "containers" in fields and any(len(one) != len(_keys(fields)) for one in columns.values()):
        raise ValueError(f"{record}: a column has not one number per container")
    return fields | columns | nested


def _numbers(data: bytes, code: str) -> list[Any]:
    letter = _FORMATS[code]
    count, rest = divmod(len(data), struct.calcsize(f"<{letter}"))
    if rest:
        raise ValueError(f"a column of {len(data)} bytes holds no whole number of {code}")
    return list(struct.unpack(f"<{count}{letter}", data))


def _keys(fields: dict[str, Any]) -> list[str]:
    return fields["containers"].split("\n") if fields["containers"] else []


def rows(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The table of a decoded message, a dictionary per container: ``container`` and each column's number."""
    columns = COLUMNS[TYPES[message["type"]]]
    for index, key in enumerate(_keys(message)):
        yield {"container": key} | {name: message[name][index] for name in columns if name in message}

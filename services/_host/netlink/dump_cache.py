"""Reads rows of dumps that are mostly as they were, without taking each apart again.

A row's bytes, without what varies and means nothing here (ages, counters), are looked up among those of the last dump:
equal bytes mean the same, and the very same object is returned. Where the varying parts stand is known from rows of
the same length, and checked by the headers found there; whatever does not fit is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")
_HEADER_BYTES: Final = 4
_SHAPES: Final = 4
"""Kept for each length; rows of further ones are decoded each time."""


class Varying(NamedTuple):
    """A part of a row that does not matter: one attribute."""

    start: int
    """Of its header, from the row's start."""
    end: int


class _Cut(NamedTuple):
    start: int
    end: int
    header: bytes


class _Shape(NamedTuple, Generic[Value]):
    """Form of the rows of one length."""

    cuts: tuple[_Cut, ...]
    rows: dict[bytes, Value]
    """By all bytes that matter."""


class RowMemory(Generic[Value]):
    """Rows of the last two dumps of one kind."""

    def __init__(self, decode: Callable[[bytes], Value | None], varying: Callable[[bytes], Sequence[Varying]]) -> None:
        """Remember what `decode` made of rows.

        Args:
            decode: a function of the row's bytes alone, that looks at nothing within the varying parts, and finds
                everything by walking along attributes. None: no row.
            varying: where those parts stand, in order.
        """
        self._decode = decode
        self._varying = varying
        self._before: dict[int, list[_Shape[Value]]] = {}
        self._now: dict[int, list[_Shape[Value]]] = {}

    def read(self, rows: Iterable[tuple[bytes, int, int]]) -> tuple[Value, ...]:
        """A dump: rows in larger pieces of data, each with its start and end. Those not in it are forgotten.

        Raises:
            MalformedError: nonsense, from the decoder.
        """
        self._before, self._now = self._now, {}
        before = self._before.get
        found: list[Value] = []
        for data, start, end in rows:
            for shape in before(end - start, ()):
                key = _without(data, start, end, shape.cuts)
                value = shape.rows.get(key) if key is not None else None
                if key is not None and value is not None:
                    self._remember(end - start, shape.cuts, key, value)
                    break
            else:
                value = self._anew(data[start:end])
            if value is not None:
                found.append(value)
        return tuple(found)

    def _anew(self, row: bytes) -> Value | None:
        value = self._decode(row)
        if value is not None:
            cuts = tuple(_Cut(at, until, row[at : at + _HEADER_BYTES]) for at, until in self._varying(row))
            key = _without(row, 0, len(row), cuts)
            if key is not None:
                self._remember(len(row), cuts, key, value)
        return value

    def _remember(self, length: int, cuts: tuple[_Cut, ...], key: bytes, value: Value) -> None:
        shapes = self._now.setdefault(length, [])
        for shape in shapes:
            if shape.cuts is cuts or shape.cuts == cuts:
                shape.rows[key] = value
                return
        if len(shapes) < _SHAPES:
            shapes.append(_Shape(cuts, {key: value}))


def _without(data: bytes, start: int, end: int, cuts: tuple[_Cut, ...]) -> bytes | None:
    """The bytes that matter, or None where the varying parts do not stand there."""
    if len(cuts) == 1:  # the case that has to be fast: forwarding entries
        [(cut_start, cut_end, header)] = cuts
        cut = start + cut_start
        return data[start:cut] + data[start + cut_end : end] if data[cut : cut + _HEADER_BYTES] == header else None
    parts: list[bytes] = []
    at = start
    for cut_start, cut_end, header in cuts:
        cut = start + cut_start
        if data[cut : cut + _HEADER_BYTES] != header:
            return None
        parts.append(data[at:cut])
        at = start + cut_end
    parts.append(data[at:end])
    return b"".join(parts)

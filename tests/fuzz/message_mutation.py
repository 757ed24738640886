"""Inputs for the decoders: valid messages of every type, spoiled in every way that we could think of.

An input depends on the seed and its number alone, so that any single one can be made again.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import hypothesis
import msgpack
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from schemas.codec import MESSAGE_TYPES, TYPE_KEY, encode
from schemas.message import ColumnarMessage, Message
from tests.support.message_strategies import MESSAGES

_BITS: Final = (7, 8, 15, 16, 31, 32, 52, 53, 60, 62, 63, 64)
_NUMBERS: Final = tuple(sorted({s * (1 << b) + d for b in _BITS for s in (-1, 1) for d in (-1, 0, 1)} | {0, 1, -1}))
_PACKABLE: Final = tuple(number for number in _NUMBERS if -(1 << 63) <= number < 1 << 64)
_FLOATS: Final = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7e308, -1.7e308, 1e18, 0.1)
_TEXTS: Final = (
    "",
    "\n",
    "\n\n\n",
    "\x00",
    "a\nb",
    "é" * 70,
    "x" * 10_000,
    ".",
    "*",
    ">",
    "tb.obs.>",
    "1GiB",
    "-1",
    "1e400",
    "9" * 5_000,
    "nan",
    "\N{SNOWMAN}",
    "\u202e",
    "enforce",
    "grant",
    "{",
    "__class__",
)
_BYTES: Final = (b"", b"\x00", b"\xff" * 7, b"\xff" * 8, b"\x80" * 16, b"\x00" * 4_096)


@cache
def corpus(seed: int, per_type: int = 20) -> dict[type[Message], list[bytes]]:
    """Valid messages of every type, encoded; drawn once per process, which takes seconds."""
    return {model: _examples(strategy, seed, per_type) for model, strategy in MESSAGES.items()}


def _examples(strategy: SearchStrategy[Message], seed: int, count: int) -> list[bytes]:
    found: list[bytes] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(message: Message) -> None:
        found.append(encode(message))

    collect()
    return found


class Mutator:
    """Makes inputs from a corpus."""

    def __init__(self, seed: int, messages: dict[type[Message], list[bytes]]) -> None:
        self._seed = seed
        self._messages = messages
        self._types = list(messages)
        self._chance = random.Random(0)
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._spoil_bytes,
            self._spoil_fields,
            self._spoil_fields,
            self._spoil_fields,
            self._spoil_columns,
            self._spoil_json,
            self._spoil_json,
            self._splice,
            self._noise,
        )

    def make(self, number: int) -> tuple[type[Message], bytes]:
        """Input `number`, and the type of the message that it was made from."""
        self._chance.seed(self._seed << 40 | number)
        model = self._chance.choice(self._types)
        good = self._chance.choice(self._messages[model])
        return model, self._chance.choice(self._ways)(good)

    def _spoil_bytes(self, good: bytes) -> bytes:
        chance, data = self._chance, bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            place = chance.randrange(len(data) + 1)
            match chance.randrange(6):
                case 0 if data:
                    data[place % len(data)] ^= 1 << chance.randrange(8)
                case 1 if data:
                    data[place % len(data)] = chance.choice((0x00, 0x7F, 0x80, 0xC0, 0xC1, 0xC7, 0xDF, 0xFF))
                case 2:
                    data[place:place] = chance.randbytes(chance.randrange(1, 9))
                case 3:
                    del data[place : place + chance.randrange(1, 9)]
                case 4:
                    data[place:place] = data[place : place + chance.randrange(64)]
                case _:
                    del data[place:]
        return bytes(data)

    def _spoil_fields(self, good: bytes) -> bytes:
        fields = msgpack.unpackb(good)
        for _ in range(self._chance.choice((1, 1, 2, 5))):
            self._spoil_one(fields, self._value)
        return _pack(fields)

    def _spoil_one(self, fields: dict[Any, Any], value: Callable[[], Any]) -> None:
        """Of one map, or of one that it holds."""
        chance = self._chance
        if not fields:
            fields[chance.choice((TYPE_KEY, "app", ""))] = value()
            return
        name = chance.choice(list(fields))
        inner = fields[name]
        if isinstance(inner, list) and inner and isinstance(inner[0], dict) and chance.random() < 0.8:
            self._spoil_one(chance.choice(inner), value)
        elif isinstance(inner, dict) and chance.random() < 0.8:
            self._spoil_one(inner, value)
        else:
            self._spoil_field(fields, name, value)

    def _spoil_field(self, fields: dict[Any, Any], name: Any, value: Callable[[], Any]) -> None:
        chance = self._chance
        keys = (0, -1, None, True, 1.5, "") if value == self._json_value else (0, -1, None, True, 1.5, b"type", "")
        match chance.randrange(12):
            case 0:
                del fields[name]
            case 1:
                fields[chance.choice(list(fields))] = fields[name]
            case 2:
                fields[TYPE_KEY] = chance.choice(list(MESSAGE_TYPES))
            case 3:
                fields[chance.choice(keys)] = fields.pop(name)
            case 4:
                fields[name] = [fields[name]] * chance.randrange(4)
            case 5:
                fields[name] = {name: fields[name]}
            case _:
                fields[name] = value()

    def _spoil_columns(self, good: bytes) -> bytes:
        """Every column of the right or nearly right length, with any content, for any keys."""
        chance, fields = self._chance, msgpack.unpackb(good)
        model = MESSAGE_TYPES[fields[TYPE_KEY]]
        if not issubclass(model, ColumnarMessage):
            return self._spoil_fields(good)
        rows = chance.choice((0, 1, 2, 7, 300))
        keys = [chance.choice(("web-0", "", "é", "x" * 300, "\x00")) for _ in range(rows)]
        fields["containers"] = "\n".join(keys)
        for name, kind in model.column_types.items():
            filling = chance.choice((b"\xff", b"\x00", b"\x7f", b"\x80", None))
            size = rows * kind.itemsize + chance.choice((0,) * 30 + (-1, 1, kind.itemsize))
            fields[name] = chance.randbytes(max(size, 0)) if filling is None else filling * size
        return _pack(fields)

    def _spoil_json(self, good: bytes) -> bytes:
        chance, fields = self._chance, _textual(msgpack.unpackb(good))
        for _ in range(chance.choice((0, 1, 2, 5))):
            self._spoil_one(fields, self._json_value)
        text = json.dumps({str(key): value for key, value in fields.items()}, ensure_ascii=chance.random() < 0.5)
        match chance.randrange(8):
            case 0:
                text = text.replace("1", "1" * chance.choice((20, 400, 5_000)), 1)
            case 1:
                places = [place for place, character in enumerate(text) if character == '"']
                place = chance.choice(places) if places else 0
                text = text[:place] + chance.choice((r"\ud800", r"\udfff\ud800", "\ud800", r"\u0000")) + text[place:]
            case 2:
                text = text.replace(
                    ":", f":{chance.choice(('NaN', 'Infinity', '-Infinity', '1e999', '-0', 'null'))},", 1
                )
            case 3:
                depth = chance.choice((10, 900, 100_000))
                text = text.replace(":", ":" + "[" * depth + "]" * depth + ',"x":', 1)
        data = text.encode("utf-8", "surrogatepass")
        return self._spoil_bytes(data) if chance.random() < 0.3 else data

    def _splice(self, good: bytes) -> bytes:
        """The begin of one message and the end of another one."""
        other = self._chance.choice(self._messages[self._chance.choice(self._types)])
        return good[: self._chance.randrange(len(good) + 1)] + other[self._chance.randrange(len(other) + 1) :]

    def _noise(self, _good: bytes) -> bytes:
        chance = self._chance
        length = chance.choice((0, 1, 2, 5, 30, 200, 3_000))
        return chance.choice((b"", b"{", b"\x81", b"\xdf", b"\x80")) + chance.randbytes(length)

    def _value(self) -> Any:
        chance = self._chance
        return chance.choice(
            (
                lambda: chance.choice(_PACKABLE),
                lambda: chance.choice(_PACKABLE),
                lambda: chance.choice(_FLOATS),
                lambda: chance.choice(_TEXTS),
                lambda: chance.choice(_BYTES),
                lambda: chance.randbytes(chance.randrange(40)),
                lambda: chance.choice((None, True, False, [], {}, [None], {"": None}, {1: 2}, [[]] * 5)),
                lambda: chance.choice(
                    (msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1), msgpack.Timestamp(1 << 60, 0))
                ),
                lambda: _nest(chance.choice((3, 400, 480))),
            )
        )()

    def _json_value(self) -> Any:
        chance = self._chance
        match chance.randrange(5):
            case 0 | 1:
                return chance.choice((*_NUMBERS, 10**30, -(10**400)))
            case 2:
                return chance.choice(_FLOATS)
            case 3:
                return chance.choice((*_TEXTS, "\ud800", "\udfff\ud800"))
        return chance.choice((None, True, [], {}, [None] * 3, {"a": {}}))


def _nest(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _pack(fields: Any) -> bytes:
    data: bytes = msgpack.packb(fields, unicode_errors="surrogatepass")
    return data


def _textual(value: Any) -> Any:
    """What JSON can hold: bytes become text."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [_textual(item) for item in value]
    return {key: _textual(item) for key, item in value.items()} if isinstance(value, dict) else value

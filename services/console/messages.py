"""What pages read: frames of messages. Pure."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

_LENGTH: Final = struct.Struct(">I")


def frame(data: bytes) -> bytes:
    """A message as a page reads it."""
    return _LENGTH.pack(len(data)) + data


def console_message(kind: str, **fields: Any) -> bytes:
    """A message from the console to its pages, which is not on the bus; ``kind`` such as ``Gone``."""
    packed: bytes = msgpack.packb({"type": f"console.{kind}", **fields})
    return packed

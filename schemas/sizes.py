"""Memory sizes with units, each a power of 1024 as in Docker's ``--memory``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ByteSize
from pydantic_core import PydanticCustomError

SIZE_HINT: Final = "bytes, or such as 512MiB, 512m or 2g (units of 1024)"
_PREFIXES: Final = "kmgtp"
MAX_SIZE_BYTES: Final = 1 << 50
"""A PiB. No machine has as much memory: a larger size was meant in another unit."""
_SIZE: Final = re.compile(
    r"\s*(?P<number>[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*(?P<unit>b|[kmgtp]i?b?)?\s*", re.IGNORECASE
)


def parse_size(text: str) -> int:
    """Bytes from ``512m``, ``512MB``, ``512Mi``, ``512MiB`` (all the same), ``1.5g`` or ``1073741824``.

    ``m`` and ``g`` are Docker's, ``Mi`` and ``Gi`` Kubernetes'; decimal units (SI) cannot be written. Parts of a byte
    are cut off.

    Raises:
        ValueError: it is no size, or more than a PiB.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size: write {SIZE_HINT}")
    unit = (match["unit"] or "b").lower()
    power = 0 if unit == "b" else _PREFIXES.index(unit[0]) + 1
    size_bytes = int(Decimal(match["number"]) * 1024**power)
    if size_bytes > MAX_SIZE_BYTES:
        # The vertical pod autoscaler prints such as 128974848000m: thousandths of a byte.
        milli = "m is MiB here; Kubernetes' m is a thousandth: " if unit == "m" else ""
        raise ValueError(f"{text!r} is more than a PiB: {milli}write {SIZE_HINT}")
    return size_bytes


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ValueError as error:
        raise PydanticCustomError("byte_size", "{reason}", {"reason": str(error)}) from error


MemorySize = Annotated[ByteSize, BeforeValidator(_read)]
"""A field of bytes that also takes text of `parse_size`."""

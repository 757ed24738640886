"""Rates of links with units, each a power of 1000 as in tc(8)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

RATE_HINT: Final = "such as 100Mbit or 25Gbit (bits per second, units of 1000)"
_UNITS: Final = ("bit", "kbit", "Mbit", "Gbit", "Tbit")
_RATE: Final = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)\s?(?P<unit>[kmgt]?bit)", re.IGNORECASE)


def parse_rate(text: str) -> int:
    """Bits per second from ``100Mbit``, ``2.5Gbit`` or ``64000bit``; parts of a bit are cut off.

    Raises:
        ValueError: it is no rate above 0.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no rate: write it {RATE_HINT}")
    power = [unit.lower() for unit in _UNITS].index(match["unit"].lower())
    bits_per_s = int(Decimal(match["number"]) * 1000**power)
    if not bits_per_s:
        raise ValueError(f"{text!r} is no rate: write one above 0, {RATE_HINT}")
    return bits_per_s


def rate_text(bits_per_s: int) -> str:
    """As `parse_rate` reads it, in the largest unit of which it is a whole number: ``100Mbit``."""
    power = 0
    while power < len(_UNITS) - 1 and bits_per_s and bits_per_s % 1000 ** (power + 1) == 0:
        power += 1
    return f"{bits_per_s // 1000**power}{_UNITS[power]}"

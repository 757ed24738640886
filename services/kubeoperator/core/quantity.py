"""Kubernetes' quantities: ``500m`` and ``8`` cores, ``16Gi`` and ``1.5G`` bytes. Pure.

Source: k8s.io/apimachinery, pkg/api/resource/quantity.go: a signed decimal number, then a suffix of powers of 1024
(Ki .. Ei), one of powers of 1000 (n, u, m, none, k .. E) or a decimal exponent (e3, E3).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_FACTORS: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in zip((-3, -2, -1), ("n", "u", "m"), strict=True)},
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(_BINARY, start=1)},
}
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)


class QuantityError(ValueError):
    """The text is no quantity."""


def parse_quantity(value: object) -> Decimal:
    """The number that a quantity stands for, exactly.

    Args:
        value: text; or a number, as YAML reads ``cpu: 8``.

    Raises:
        QuantityError: it is none; the text says what was expected.
    """
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise QuantityError(f"{str(value)[:60]!r} is no quantity of Kubernetes, such as 8, 500m or 16Gi")
    if match["exponent"] is not None:
        return Decimal(match["number"]) * Decimal(10) ** int(match["exponent"])
    return Decimal(match["number"]) * _FACTORS[match["suffix"] or ""]


def format_cores(cores: float) -> str:
    """``8``, or thousandths: ``1500m``."""
    millicores = round(cores * 1000)
    return str(millicores // 1000) if millicores % 1000 == 0 else f"{millicores}m"


def format_bytes(count: int) -> str:
    """In the largest binary unit without a remainder: ``16Gi``, ``1536Mi``, ``5``."""
    for power in range(len(_BINARY), 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{_BINARY[power - 1]}"
    return str(count)

"""Periods of time as people write and read them: ``90s``, ``40m``, ``1h30m``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

PERIOD_HINT: Final = "such as 90s, 40m, 1h30m or 7d"
_UNITS_S: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_PERIOD: Final = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _UNITS_S))


def parse_period(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: it is no period.
    """
    match = _PERIOD.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no period: write {PERIOD_HINT}")
    return sum(float(match[unit]) * unit_s for unit, unit_s in _UNITS_S.items() if match[unit])


def format_period(seconds: float) -> str:
    """Its two largest units: ``48s``, ``4m10s``, ``1h02m``, ``3d04h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02}h"

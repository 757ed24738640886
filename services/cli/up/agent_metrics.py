"""Reads the agent's counters from the Prometheus text that it serves."""

from __future__ import annotations

import re
from typing import Final

from services.cli.up.demo_report import WriteCounts

_SAMPLE: Final = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (?P<value>\S+)", re.MULTILINE)
_WANTED: Final = ("quota_writes", "memory_writes", "no_op_writes")


def read_write_counts(text: str) -> WriteCounts:
    """Sum up ``..._quota_writes_total`` and its relatives; None where one is not served."""
    sums: dict[str, int | None] = dict.fromkeys(_WANTED)
    for sample in _SAMPLE.finditer(text):
        for name in _WANTED:
            if sample["name"].removesuffix("_total").endswith(name):
                sums[name] = (sums[name] or 0) + int(float(sample["value"]))
    return WriteCounts(**sums)

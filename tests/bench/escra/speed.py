"""How fast the machine is while a cell is measured: the speed of shared processors changes by half within seconds.

Latency under load depends on it far more than in proportion. No policy can change it, so that latencies may be compared
at equal speed (`tests.bench.escra.results`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

EVERY_S: Final = 0.05
_STEPS: Final = 4_000


def probe_us() -> float:
    """CPU time that a fixed piece of interpreted work takes now, us; waiting for the processor does not count."""
    table: dict[int, int] = {}
    before_ns = time.thread_time_ns()
    for step in range(_STEPS):
        table[step & 255] = table.get(step >> 4 & 255, 0) + step
    return (time.thread_time_ns() - before_ns) / 1e3


async def speed_until(wall_ns: int) -> float:
    """Wait until a moment and probe meanwhile, less than one percent of a processor; median, us."""
    found = [probe_us()]
    while (left_s := (wall_ns - time.time_ns()) / 1e9) > 0:
        await asyncio.sleep(min(left_s, EVERY_S))
        found.append(probe_us())
    return statistics.median(found)

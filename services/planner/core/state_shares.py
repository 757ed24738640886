"""Which part of the state (parameters, gradients, moments) each device holds: even, less what has no room. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from services.planner.core.profile import GIB, Infeasible, total

RELEASED_SHARE: Final = 0.75
"""Of a device's memory, fixed in Cephalo's release."""
RELEASED_BYTES_PER_PARAMETER: Final = 16


def fill(rooms_gib: Sequence[float], state_gib: float) -> tuple[float, ...] | Infeasible:
    """Shares of the state: each device holds its room or the same level, whichever is less; the level is the lowest."""
    if total(rooms_gib) < state_gib:
        missing = state_gib - total(rooms_gib)
        return Infeasible(f"a state of {state_gib:.1f} GiB has room for {total(rooms_gib):.1f} GiB", missing)
    parts, left = [0.0] * len(rooms_gib), state_gib
    order = sorted(range(len(rooms_gib)), key=lambda i: (rooms_gib[i], i))
    for place, i in enumerate(order):
        parts[i] = min(rooms_gib[i], left / (len(rooms_gib) - place))
        left -= parts[i]
    return tuple(part / state_gib for part in parts)


def move_rounding_down(memories_gib: Sequence[float], held_gib: Sequence[float], parameters: int) -> tuple[float, ...]:
    """Shares as Cephalo's release has them: what has no room goes to the others in whole parameters, rounded down."""
    per_parameter = RELEASED_BYTES_PER_PARAMETER / GIB
    even = parameters / len(memories_gib)
    parts: list[float] = []
    rooms: list[tuple[float, int]] = []
    missing = 0.0
    for i, (memory, held) in enumerate(zip(memories_gib, held_gib, strict=True)):
        extra = (RELEASED_SHARE * memory - held - even * per_parameter) // per_parameter
        if extra > 0:
            rooms.append((extra, i))
        else:
            missing -= extra
        parts.append(even if extra > 0 else even + extra)
    _hand_out(sorted(rooms), missing, parts)
    whole = total(parts)
    return tuple(part / whole for part in parts)


def _hand_out(rooms: Sequence[tuple[float, int]], missing: float, parts: list[float]) -> None:
    """Add what is missing to the parts of those with room, the least room first."""
    before = 0.0
    for place, (extra, _) in enumerate(rooms):
        added = min(extra - before, missing // (len(rooms) - place))
        for _, i in rooms[place:]:
            parts[i] += added
            missing -= added
        if missing <= 0:
            break
        before = extra


def samples_by_count(samples: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Cephalo's release: for the memory of a micro-batch it takes that of so many samples: their count."""
    return [math.ceil(part / size) for part, size in zip(samples, sizes, strict=True)]

"""One step of the allocator's memory policy on the state of all slots."""

from __future__ import annotations

from functools import partial

from services.allocator.arrays.array_types import Ints
from services.allocator.memory.policy import MemoryState, MemoryTargets, MemoryView, step


def decide_memory(state: MemoryState, view: MemoryView, rows: Ints, *, reclaim: bool) -> MemoryTargets:
    """Targets from what the slots ``rows`` (distinct, shape N) hold, which then hold the new state."""
    return state.decide(rows, partial(step, view=view, reclaim=reclaim))

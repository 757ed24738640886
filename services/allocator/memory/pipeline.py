"""Memory pipeline: what the policy is shown of rows and budget, and its targets per row. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray, at
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.reasons import Reasons
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext
from services.allocator.memory.policy import MemoryState, MemoryView, step, urgent_reclaim
from services.allocator.state.kernel_bounds import LIMIT, bounds
from services.allocator.state.rows import Rows

SHORT_DELTAS: Final = 4
"""Below so many times an application's delta a node is short of memory: slack there is reclaimed."""


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """Memory to reclaim for a request."""

    missing_bytes: IntArray
    """Per application; 0: nothing."""
    exempt: BoolArray
    """Rows that need memory themselves."""
    floor_bytes: IntArray
    """Per row: no limit is decreased below it."""


class MemoryPipeline:
    """The memory policy with its estimates per container."""

    def __init__(self) -> None:
        self.state = MemoryState(0)

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """Adapt to containers added and removed: ``released`` slots start anew."""
        self.state.grow(slot_capacity)
        self.state.forget(released)

    def targets(
        self, rows: Rows, context: StepContext, budget: StepBudget, decidable: BoolArray, reasons: Reasons
    ) -> IntArray:
        """Memory limit targets per row, bytes, as `CpuPipeline.targets`."""
        decidable = decidable & (rows.limit_ordered_bytes >= 0)  # the kernel may refuse any limit
        index = np.flatnonzero(decidable)
        if not len(index):
            return rows.limit_ordered_bytes.copy()
        view = memory_view(rows, context, budget, index, capacity_bytes(rows, budget, decidable))
        decide = partial(step, view=view, reclaim=context.time.reclaim_memory)
        result = self.state.decide(rows.slot[index], decide)
        reasons.copy_from(index, result)
        targets = rows.limit_ordered_bytes.copy()
        targets[index] = result.target_bytes
        return targets

    def reclaim(
        self, rows: Rows, context: StepContext, budget: StepBudget, request: ReclaimRequest, reasons: Reasons
    ) -> IntArray:
        """Memory limit targets per row that free what is missing per application, as far as there is slack.

        Of what containers hold: agents grant beyond what was ordered last.
        """
        held = budget.committed.limit_bytes
        index = np.flatnonzero(rows.admitted & context.decidable & (rows.limit_ordered_bytes >= 0))
        if not len(index):
            return held.copy()
        view = memory_view(rows, context, budget, index, request.missing_bytes)
        floor = np.maximum(view.min_bytes, request.floor_bytes[index])
        view = replace(view, ordered_bytes=held[index], min_bytes=floor)
        result = urgent_reclaim(self.state, view, rows.slot[index], request.missing_bytes, request.exempt[index])
        reasons.copy_from(index, result)
        targets = held.copy()
        targets[index] = result.target_bytes
        return targets


def capacity_bytes(rows: Rows, budget: StepBudget, decidable: BoolArray) -> IntArray:
    """What the decidable rows, and reserves, may hold together per application, as `cpu.pipeline.capacity_us`."""
    limit = budget.table.memory_limit_bytes
    return limit - per_app(rows.app, budget.committed.limit_bytes * ~decidable, len(limit)) - budget.pending.limit_bytes


def memory_view(
    rows: Rows, context: StepContext, budget: StepBudget, index: IntArray, limit_bytes: IntArray
) -> MemoryView:
    """What the policy observes of the rows ``index``, which share ``limit_bytes`` per application."""
    table, mine = context.table, at(index)
    app, ordered, headroom = rows.app[mine], rows.limit_ordered_bytes[mine], budget.node_headroom_bytes[rows.node[mine]]
    floor, ceiling = (bound[mine] for bound in bounds(rows, LIMIT, context.time.now_ns))
    return MemoryView(
        app=app,
        fresh=rows.fresh[mine],
        usage_bytes=rows.memory_usage_bytes[mine],
        previous_usage_bytes=rows.previous_memory_usage_bytes[mine],
        reclaimable_bytes=rows.memory_reclaimable_bytes[mine],
        ordered_bytes=ordered,
        min_bytes=np.maximum(table.min_memory_bytes[app], floor),
        max_bytes=np.minimum(np.minimum(table.max_memory_bytes[app], ordered + headroom), ceiling),
        share_bytes=budget.share_bytes,
        limit_bytes=limit_bytes,
        withheld_bytes=table.withheld_bytes,
        delta_bytes=table.delta_bytes,
        node_short=headroom < SHORT_DELTAS * table.delta_bytes[app],
    )

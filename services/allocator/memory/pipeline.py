"""Memory pipeline: step context in, memory limits to order out, by way of the policy, what is free, and the nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from services.allocator.budget import ledger
from services.allocator.columns import (
    PAGE_BYTES,
    RECLAIM_BYTES,
    BoolArray,
    IntArray,
    Reasons,
    at,
    per_app,
)
from services.allocator.memory import policy
from services.allocator.memory.policy import MemoryTargets, MemoryView
from services.allocator.state.node_memory import SHORT_DELTAS, fit_to_nodes
from services.allocator.state.step_context import StepContext


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
        self.state = policy.MemoryState(0)

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """Adapt to containers added and removed: ``released`` slots start anew."""
        self.state.grow(slot_capacity)
        self.state.forget(released)

    def targets(self, context: StepContext, decidable: BoolArray, reasons: Reasons) -> IntArray:
        """Memory limit targets per row, bytes, as `CpuPipeline.targets`."""
        rows, index = context.cluster.rows, np.flatnonzero(decidable)
        if not len(index):
            return rows.limit_ordered_bytes.copy()
        view = memory_view(context, index, budget_bytes(context, decidable))
        result = policy.decide_memory(self.state, view, rows.slot[index], reclaim=context.time.reclaim_memory)
        return _with(context, index, result, reasons)

    def reclaim(self, context: StepContext, request: ReclaimRequest, reasons: Reasons) -> IntArray:
        """Memory limit targets per row that free what is missing per application, as far as there is slack."""
        rows = context.cluster.rows
        index = np.flatnonzero(rows.admitted & context.decidable)
        if not len(index):
            return rows.limit_ordered_bytes.copy()
        view = memory_view(context, index, request.missing_bytes)
        view = replace(view, min_bytes=np.maximum(view.min_bytes, request.floor_bytes[index]))
        result = policy.urgent_reclaim(self.state, view, rows.slot[index], request.missing_bytes, request.exempt[index])
        return _with(context, index, result, reasons)


def _with(context: StepContext, index: IntArray, result: MemoryTargets, reasons: Reasons) -> IntArray:
    targets = context.cluster.rows.limit_ordered_bytes.copy()
    targets[index] = result.target_bytes
    reasons.copy_from(index, result)
    return targets


def budget_bytes(context: StepContext, decidable: BoolArray) -> IntArray:
    """What the decidable rows, and reserves, may hold together per application."""
    app, limit, pending = context.cluster.rows.app, context.table.memory_limit_bytes, context.pending.limit_bytes
    return limit - per_app(app, context.holdings.limit_bytes * ~decidable, len(limit)) - pending


def memory_view(context: StepContext, index: IntArray, budget: IntArray) -> MemoryView:
    """What the policy observes of the rows ``index``, which share ``budget`` per application (bytes)."""
    rows, table, mine = context.cluster.rows, context.table, at(index)
    app, ordered, headroom = rows.app[mine], rows.limit_ordered_bytes[mine], context.node_headroom[rows.node[mine]]
    return MemoryView(
        app=app,
        fresh=rows.fresh[mine],
        usage_bytes=rows.memory_usage_bytes[mine],
        previous_usage_bytes=rows.previous_memory_usage_bytes[mine],
        reclaimable_bytes=rows.memory_reclaimable_bytes[mine],
        ordered_bytes=ordered,
        min_bytes=table.min_memory_bytes[app],
        max_bytes=np.minimum(table.max_memory_bytes[app], ordered + headroom),
        share_bytes=context.fair.share_bytes,
        limit_bytes=budget,
        withheld_bytes=table.withheld_bytes,
        delta_bytes=table.delta_bytes,
        node_short=headroom < SHORT_DELTAS * table.delta_bytes[app],
    )


def assign(context: StepContext, targets: IntArray) -> ledger.Reservation:
    """Limits to order: the targets as far as eligible applications, and the nodes, have free memory; shape (N,)."""
    rows = context.cluster.rows
    to_reserve = np.maximum(_withheld(context) - context.holdings.pools.reserved_bytes, 0)
    free = np.where(context.eligible, context.free_bytes - context.pending.limit_bytes - to_reserve, 0)
    reserved = ledger.reserve(rows, ledger.MEMORY, targets, free, context.holdings.limit_bytes)
    before = rows.limit_ordered_bytes
    if reserved.ordered is before:
        return reserved
    within = fit_to_nodes(rows, before, _whole_pages(before, reserved.ordered), context.node_headroom)
    return replace(reserved, ordered=within)


def _withheld(context: StepContext) -> IntArray:
    """Memory withheld for reserves, as far as the application has it: no limit grows into it."""
    pools, table = context.holdings.pools, context.table
    limits = pools.limit_committed_bytes - pools.reserved_bytes
    left = np.maximum(table.memory_limit_bytes - limits - context.pending.limit_bytes, 0)
    withheld: IntArray = np.minimum(left, table.withheld_bytes)
    return withheld


def _whole_pages(ordered: IntArray, granted: IntArray) -> IntArray:
    """Whole pages, as the kernel rounds, and no raise below RECLAIM_BYTES."""
    pages = granted // PAGE_BYTES * PAGE_BYTES
    raised = np.where(pages - ordered < RECLAIM_BYTES, ordered, pages)
    return np.where(granted > ordered, raised, granted)

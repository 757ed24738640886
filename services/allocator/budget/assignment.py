"""What of the targets is ordered: as far as the application, and the node, have free capacity; the rest is deferred.

This keeps sum(committed) <= limit: nothing is raised beyond ``limit - sum(committed)`` (`budget.committed`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from schemas.apps import LEAST_RAISE_US
from services.allocator.arrays.array_types import IntArray
from services.allocator.arrays.limit_values import PAGE_BYTES, RECLAIM_BYTES
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.budget.node_headroom import fit_to_nodes
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext
from services.allocator.state.kernel_bounds import LIMIT, QUOTA, bounds
from services.allocator.state.rows import Rows


@dataclass(frozen=True, slots=True)
class Assignment:
    """What may be ordered of one resource's targets, shape (N,)."""

    ordered: IntArray
    deferred: IntArray
    """Targets of which less could be ordered; 0 elsewhere."""


def assign(app: IntArray, ordered: IntArray, target: IntArray, free: IntArray, holding: IntArray) -> Assignment:
    """How much of each target may be ordered now.

    A target up to what the row has committed is ordered in full. Increases beyond that share the application's free
    capacity in proportion. (Beyond what is committed, not beyond what was ordered: after a lost reply the kernel may
    hold less.)

    Args:
        app: of each row.
        ordered: per row, as it stands.
        target: per row; equal to the ordered value where nothing is to change.
        free: per application, limit - sum(committed) less what is withheld; negative: none.
        holding: per row, what is committed.

    Returns:
        The values to order. Where no target differs, `Assignment.ordered` is ``ordered`` itself.
    """
    if np.array_equal(target, ordered):
        return Assignment(ordered, np.zeros_like(ordered))
    ask = np.where(target != ordered, np.maximum(target - holding, 0), 0)
    room = np.maximum(free, 0)
    asked = np.bincount(app, ask, len(free))
    share = np.divide(room, asked, out=np.ones(len(free)), where=asked > room)
    granted = np.floor(ask * share[app]).astype(np.int64)
    granted = np.where(ask > 0, holding + granted, target)
    result = np.where(target > ordered, np.maximum(granted, ordered), granted)
    return Assignment(result, np.where(result < target, target, 0))


def assign_quotas(rows: Rows, context: StepContext, budget: StepBudget, targets: IntArray) -> Assignment:
    """Quotas to order: the targets as far as eligible applications, and the nodes, have free capacity; shape (N,)."""
    free = np.where(context.eligible, budget.free_us - budget.pending.quota_us, 0)
    before, holding = rows.quota_ordered_us, budget.committed.quota_us
    targets = np.clip(targets, *bounds(rows, QUOTA, context.time.now_ns))
    assigned = assign(rows.app, before, targets, free, holding)
    if assigned.ordered is before:
        return assigned
    ask = np.where(assigned.ordered > before, np.maximum(assigned.ordered - holding, 0), 0)
    got = scale_to_fit(rows.node, ask, budget.node_cpu_headroom_us)
    partly = np.where(got < LEAST_RAISE_US, before, np.maximum(before, holding + got))
    return replace(assigned, ordered=np.where(got < ask, partly, assigned.ordered))


def assign_limits(rows: Rows, context: StepContext, budget: StepBudget, targets: IntArray) -> Assignment:
    """Limits to order: the targets as far as eligible applications, and the nodes, have free memory; shape (N,)."""
    to_reserve = np.maximum(budget.withheld_bytes - budget.committed.pools.reserved_bytes, 0)
    free = np.where(context.eligible, budget.free_bytes - budget.pending.limit_bytes - to_reserve, 0)
    before = rows.limit_ordered_bytes
    targets = np.clip(targets, *bounds(rows, LIMIT, context.time.now_ns))
    assigned = assign(rows.app, before, targets, free, budget.committed.limit_bytes)
    if assigned.ordered is before:
        return assigned
    within = fit_to_nodes(rows, before, _whole_pages(before, assigned.ordered), budget.node_headroom_bytes)
    return replace(assigned, ordered=within)


def _whole_pages(ordered: IntArray, granted: IntArray) -> IntArray:
    """Whole pages, as the kernel rounds, and no raise below RECLAIM_BYTES."""
    pages = granted // PAGE_BYTES * PAGE_BYTES
    raised = np.where(pages - ordered < RECLAIM_BYTES, ordered, pages)
    return np.where(granted > ordered, raised, granted)

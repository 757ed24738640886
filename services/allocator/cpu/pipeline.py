"""CPU pipeline: what the policies are shown of rows and budget, and their targets per row. Pure."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from schemas.apps import PERIOD_US
from services.allocator.arrays.array_types import BoolArray, IntArray, at
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.limit_values import UNLIMITED
from services.allocator.arrays.reasons import Reasons
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext
from services.allocator.cpu.policy_interface import CpuParameters, CpuPolicy, CpuView
from services.allocator.state.kernel_bounds import QUOTA, bounds
from services.allocator.state.rows import Rows

SHORT_US: Final = PERIOD_US
"""A node whose CPU budget leaves less than this (one core) is short of it."""


class CpuPipeline:
    """Both CPU policies with their estimates per container."""

    def __init__(self, waterfill: CpuPolicy, escra: CpuPolicy) -> None:
        self.waterfill, self.escra = waterfill, escra

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """Adapt to containers added and removed: ``released`` slots start anew."""
        for policy in (self.escra, self.waterfill):
            policy.state.grow(slot_capacity)
            policy.state.forget(released)

    def targets(
        self, rows: Rows, context: StepContext, budget: StepBudget, decidable: BoolArray, reasons: Reasons
    ) -> IntArray:
        """Quota targets per row, us per period; the rows that are not decidable keep what is ordered.

        Args:
            rows: all rows.
            context: of the step.
            budget: after admissions.
            decidable: rows that take part.
            reasons: written in place where a target differs from what is ordered.
        """
        targets, by_waterfill = rows.quota_ordered_us.copy(), context.table.waterfill[rows.app]
        decidable = decidable & (rows.quota_ordered_us >= 0)  # the kernel may refuse any quota
        limit_us = capacity_us(rows, budget, decidable)
        for chosen, policy in ((decidable & by_waterfill, self.waterfill), (decidable & ~by_waterfill, self.escra)):
            index = np.flatnonzero(chosen)
            if len(index):
                step = partial(policy.step, view=cpu_view(rows, context, budget, index, limit_us))
                result = policy.state.decide(rows.slot[index], step)
                targets[index] = result.target_us
                reasons.copy_from(index, result)
        return targets


def capacity_us(rows: Rows, budget: StepBudget, decidable: BoolArray) -> IntArray:
    """What the decidable rows may hold together per application: the limit less what others hold or will need."""
    limit_us = budget.table.cpu_limit_us
    return limit_us - per_app(rows.app, budget.committed.quota_us * ~decidable, len(limit_us)) - budget.pending.quota_us


def cpu_view(rows: Rows, context: StepContext, budget: StepBudget, index: IntArray, limit_us: IntArray) -> CpuView:
    """What a policy observes of the rows ``index``, which share ``limit_us`` per application."""
    table, mine = context.table, at(index)
    app = rows.app[mine]
    cap_us = np.minimum(rows.host_cpus[mine] * PERIOD_US, table.max_quota_us[app])
    quota_us, ordered_us = rows.quota_us[mine], rows.quota_ordered_us[mine]
    # On a node whose CPU budget is used up no container is raised beyond what it holds: the rest is for other nodes.
    headroom_us = budget.node_cpu_headroom_us[rows.node[mine]]
    cap_us = np.minimum(cap_us, np.maximum(ordered_us, quota_us) + headroom_us)
    floor_us, ceiling_us = (bound[mine] for bound in bounds(rows, QUOTA, context.time.now_ns))
    cap_us = np.maximum(np.minimum(cap_us, ceiling_us), floor_us)
    idle_percent = context.node_idle_percent[rows.node[mine]]
    return CpuView(
        app=app,
        fresh=rows.fresh[mine],
        used_us=rows.used_us[mine],
        unused_us=rows.unused_us[mine],
        throttled_us=rows.throttled_us[mine],
        throttled=rows.throttled[mine] > 0,
        quota_us=np.where(quota_us == UNLIMITED, cap_us, quota_us),
        ordered_us=ordered_us,
        min_us=np.minimum(np.maximum(table.min_quota_us[app], floor_us), cap_us),
        cap_us=cap_us,
        node_idle_percent=np.where(headroom_us < SHORT_US, -1, idle_percent),
        limit_us=limit_us,
        params=CpuParameters(table.kappa, table.gamma_us, table.upsilon_share, table.window),
    )

"""CPU pipeline: step context in, quotas to order out, by way of the application's policy and what is free."""

from __future__ import annotations

import numpy as np

from schemas.apps import PERIOD_US
from services.allocator.budget import ledger
from services.allocator.columns import UNLIMITED, BoolArray, IntArray, Reasons, at, per_app
from services.allocator.cpu import escra, waterfill
from services.allocator.cpu.policy_api import CpuParameters, CpuTargets, CpuView
from services.allocator.state.step_context import StepContext


class CpuPipeline:
    """Both CPU policies with their estimates per container."""

    def __init__(self) -> None:
        self.escra = escra.EscraState(0)
        self.waterfill = waterfill.WaterfillState(0)

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """Adapt to containers added and removed: ``released`` slots start anew."""
        for state in (self.escra, self.waterfill):
            state.grow(slot_capacity)
            state.forget(released)

    def targets(self, context: StepContext, decidable: BoolArray, reasons: Reasons) -> IntArray:
        """Quota targets per row, us per period; the rows that are not decidable keep what is ordered.

        Args:
            context: of the step.
            decidable: rows that take part.
            reasons: written in place where a target differs from what is ordered.
        """
        rows = context.cluster.rows
        targets, by_waterfill = rows.quota_ordered_us.copy(), context.table.waterfill[rows.app]
        budget = budget_us(context, decidable)
        for chosen, decide in ((decidable & by_waterfill, self._waterfill), (decidable & ~by_waterfill, self._escra)):
            index = np.flatnonzero(chosen)
            if len(index):
                result = decide(cpu_view(context, index, budget), rows.slot[index])
                targets[index] = result.target_us
                reasons.copy_from(index, result)
        return targets

    def _waterfill(self, view: CpuView, slots: IntArray) -> CpuTargets:
        return waterfill.decide(self.waterfill, view, slots)

    def _escra(self, view: CpuView, slots: IntArray) -> CpuTargets:
        return escra.decide(self.escra, view, slots)


def budget_us(context: StepContext, decidable: BoolArray) -> IntArray:
    """What the decidable rows may hold together per application: the limit less what others hold or will need."""
    app, limit_us = context.cluster.rows.app, context.table.cpu_limit_us
    return limit_us - per_app(app, context.holdings.quota_us * ~decidable, len(limit_us)) - context.pending.quota_us


def cpu_view(context: StepContext, index: IntArray, budget: IntArray) -> CpuView:
    """What a policy observes of the rows ``index``, which share ``budget`` per application (us per period)."""
    rows, table, mine = context.cluster.rows, context.table, at(index)
    app = rows.app[mine]
    cap_us = np.minimum(rows.host_cpus[mine] * PERIOD_US, table.max_quota_us[app])
    quota_us = rows.quota_us[mine]
    return CpuView(
        app=app,
        fresh=rows.fresh[mine],
        used_us=rows.used_us[mine],
        unused_us=rows.unused_us[mine],
        throttled_us=rows.throttled_us[mine],
        throttled=rows.throttled[mine] > 0,
        quota_us=np.where(quota_us == UNLIMITED, cap_us, quota_us),
        ordered_us=rows.quota_ordered_us[mine],
        min_us=np.minimum(table.min_quota_us[app], cap_us),
        cap_us=cap_us,
        node_idle_percent=context.cluster.node_idle_percents()[rows.node[mine]],
        limit_us=budget,
        params=CpuParameters(table.kappa, table.gamma_us, table.upsilon_share, table.window),
    )


def assign(context: StepContext, targets: IntArray) -> ledger.Reservation:
    """Quotas to order: the targets as far as eligible applications have free capacity, shape (N,)."""
    free = np.where(context.eligible, context.free_us - context.pending.quota_us, 0)
    return ledger.reserve(context.cluster.rows, ledger.CPU, targets, free, context.holdings.quota_us)

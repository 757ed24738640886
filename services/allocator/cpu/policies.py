"""Applies the policies to the rows that can be decided; the others keep what was ordered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from schemas.apps import PERIOD_US
from services.allocator.budget.fairness import FairShares
from services.allocator.budget.node_headroom import SHORT_DELTAS, node_headroom
from services.allocator.cpu import escra as policy_escra
from services.allocator.cpu import waterfill as policy_waterfill
from services.allocator.cpu.policy_api import CpuParameters, CpuTargets, CpuView, per_app
from services.allocator.memory import policy as memory
from services.allocator.memory.policy import MemoryView
from services.allocator.messages import Reasons
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.container_columns import UNLIMITED, BoolArray, IntArray
from services.allocator.state.slot_arrays import at


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """Memory to reclaim for requests."""

    missing_bytes: IntArray
    """Per application; 0: nothing."""
    exempt: BoolArray
    """Rows that need memory themselves."""
    floor_bytes: IntArray
    """Per row: no limit is decreased below it."""


class Policies:
    """Both CPU policies and the memory policy, with their estimates per container."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._escra = policy_escra.EscraState(0)
        self._waterfill = policy_waterfill.WaterfillState(0)
        self._memory = memory.MemoryState(0)

    def cpu(self, table: AppTable, decidable: BoolArray, budget_us: IntArray, reasons: Reasons) -> IntArray:
        """Quota targets per row, us per period; reasons are filled in where a target differs from what is ordered.

        Args:
            table: parameters per application.
            decidable: rows that take part.
            budget_us: what they may hold together, per application.
            reasons: written in place.
        """
        self._follow_membership()
        rows = self._cluster.rows
        targets = rows.quota_ordered_us.copy()
        uses_waterfill = table.waterfill[rows.app]
        for chosen, decide in (
            (decidable & uses_waterfill, self._decide_waterfill),
            (decidable & ~uses_waterfill, self._decide_escra),
        ):
            index = np.flatnonzero(chosen)
            if len(index):
                result = decide(self._view(table, index, budget_us), rows.slot[index])
                targets[index] = result.target_us
                reasons.copy_from(index, result)
        return targets

    def memory(
        self, table: AppTable, decidable: BoolArray, budget_bytes: IntArray, reasons: Reasons, *, reclaim: bool
    ) -> IntArray:
        """Memory limit targets per row, as `cpu` does."""
        rows = self._cluster.rows
        targets = rows.limit_ordered_bytes.copy()
        index = np.flatnonzero(decidable)
        if not len(index):
            return targets
        view = self._memory_view(table, index, budget_bytes)
        result = memory.decide_memory(self._memory, view, rows.slot[index], reclaim=reclaim)
        targets[index] = result.target_bytes
        reasons.copy_from(index, result)
        return targets

    def reclaim_memory_of(
        self, table: AppTable, decidable: BoolArray, wanted: ReclaimRequest, reasons: Reasons
    ) -> IntArray:
        """Memory limit targets per row that free what is missing per application, as far as there is slack."""
        rows = self._cluster.rows
        targets = rows.limit_ordered_bytes.copy()
        index = np.flatnonzero(decidable)
        if len(index):
            view = self._memory_view(table, index, wanted.missing_bytes)
            view = replace(view, min_bytes=np.maximum(view.min_bytes, wanted.floor_bytes[index]))
            result = memory.urgent_reclaim(
                self._memory, view, rows.slot[index], wanted.missing_bytes, wanted.exempt[index]
            )
            targets[index] = result.target_bytes
            reasons.copy_from(index, result)
        return targets

    def _memory_view(self, table: AppTable, index: IntArray, budget_bytes: IntArray) -> MemoryView:
        rows, mine, rooms = self._cluster.rows, at(index), node_headroom(self._cluster)
        app = rows.app[mine]
        return MemoryView(
            app=app,
            fresh=rows.fresh[mine],
            usage_bytes=rows.memory_usage_bytes[mine],
            previous_usage_bytes=rows.previous_memory_usage_bytes[mine],
            reclaimable_bytes=rows.memory_reclaimable_bytes[mine],
            ordered_bytes=rows.limit_ordered_bytes[mine],
            min_bytes=table.min_memory_bytes[app],
            max_bytes=np.minimum(table.max_memory_bytes[app], rows.limit_ordered_bytes[mine] + rooms[rows.node[mine]]),
            share_bytes=self._share_bytes(table),
            limit_bytes=budget_bytes,
            withheld_bytes=table.withheld_bytes,
            delta_bytes=table.delta_bytes,
            node_short=rooms[rows.node[mine]] < SHORT_DELTAS * table.delta_bytes[app],
        )

    def _share_bytes(self, table: AppTable) -> IntArray:
        rows = self._cluster.rows
        joined = per_app(rows.app, rows.admitted, len(table.known))
        return FairShares.of(
            table.memory_limit_bytes, table.withheld_bytes, np.maximum(joined, table.announced)
        ).share_bytes

    def forget(self, slots: IntArray) -> None:
        """Start estimates anew, for example because the application changed its policy."""
        for state in (self._escra, self._waterfill, self._memory):
            state.forget(slots)

    def _follow_membership(self) -> None:
        released = np.array(self._cluster.drain_released_slots(), dtype=np.int64)
        for state in (self._escra, self._waterfill, self._memory):
            state.grow(max(self._cluster.slot_capacity, 1))
            state.forget(released)

    def _decide_waterfill(self, view: CpuView, slots: IntArray) -> CpuTargets:
        return policy_waterfill.decide(self._waterfill, view, slots)

    def _decide_escra(self, view: CpuView, slots: IntArray) -> CpuTargets:
        return policy_escra.decide(self._escra, view, slots)

    def _view(self, table: AppTable, index: IntArray, budget_us: IntArray) -> CpuView:
        rows, mine = self._cluster.rows, at(index)
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
            node_idle_percent=self._cluster.node_idle_percents()[rows.node[mine]],
            limit_us=budget_us,
            params=CpuParameters(table.kappa, table.gamma_us, table.upsilon_share, table.window),
        )

"""Budgets for the policies, and targets cut to what is free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.budget import ledger
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.budget.node_headroom import fit_to_nodes, node_headroom
from services.allocator.cpu.policy_api import per_app
from services.allocator.memory.policy import RECLAIM_BYTES
from services.allocator.state import eligibility
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.container_columns import BoolArray, IntArray
from services.allocator.state.eligibility import Holdings
from services.allocator.state.pending_containers import PendingCapacity


@dataclass(frozen=True, slots=True)
class BudgetAssignment:
    """Budget assignment of one step; `assign` changes the rows of ``cluster`` in place."""

    cluster: ClusterState
    table: AppTable
    holdings: Holdings
    pending: PendingCapacity
    """Reserved for pending containers."""

    def budgets(self, decidable: BoolArray) -> tuple[IntArray, IntArray]:
        """What the decidable rows of each application may hold together, shape (A,): CPU, memory (and reserves)."""
        app, table, others = self.cluster.rows.app, self.table, ~decidable
        quota, limit = (per_app(app, holding * others, len(table.known)) for holding in self.holdings.per_row)
        return (
            table.cpu_limit_us - quota - self.pending.quota_us,
            table.memory_limit_bytes - limit - self.pending.limit_bytes,
        )

    def assign(self, targets: tuple[IntArray, IntArray], eligible_apps: BoolArray) -> None:
        """Order targets as far as eligible applications have free capacity; shape (N,) and (A,)."""
        rows, pools = self.cluster.rows, self.holdings.pools
        to_reserve = np.maximum(self._withheld() - pools.reserved_bytes, 0)
        cpu, memory = eligibility.free_capacity(pools, self.table)
        rooms = (cpu - self.pending.quota_us, memory - self.pending.limit_bytes - to_reserve)
        for account, target, room, holding in zip(ledger.ACCOUNTS, targets, rooms, self.holdings.per_row, strict=True):
            ordered = account.of(rows, "ordered")
            if np.array_equal(target, ordered):
                account.of(rows, "deferred")[:] = 0
                continue
            granted = ledger.reserve(rows, account, target, np.where(eligible_apps, room, 0), holding)
            if account is ledger.MEMORY:
                granted = fit_to_nodes(rows, ordered, _whole_pages(ordered, granted), node_headroom(self.cluster))
            ordered[:] = granted

    def _withheld(self) -> IntArray:
        """Memory pending for reserves, as far as the application has it: no container's limit grows into it."""
        pools, table = self.holdings.pools, self.table
        limits = pools.limit_committed_bytes - pools.reserved_bytes
        left = np.maximum(table.memory_limit_bytes - limits - self.pending.limit_bytes, 0)
        withheld: IntArray = np.minimum(left, table.withheld_bytes)
        return withheld


def _whole_pages(ordered: IntArray, granted: IntArray) -> IntArray:
    """Whole pages, as the kernel rounds, and no raise below RECLAIM_BYTES."""
    pages = granted // PAGE_BYTES * PAGE_BYTES
    raised = np.where(pages - ordered < RECLAIM_BYTES, ordered, pages)
    return np.where(granted > ordered, raised, granted)

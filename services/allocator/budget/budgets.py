"""What may be granted in a step: budgets for the policies, and their wishes as far as there is room. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.budget import ledger
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.budget.node_room import node_rooms, within_nodes
from services.allocator.cpu.policy_api import per_app
from services.allocator.memory.policy import RECLAIM_BYTES
from services.allocator.state import eligibility as standing
from services.allocator.state.admit_pending import Waiting
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import Roster
from services.allocator.state.container_columns import BoolArray, IntArray
from services.allocator.state.eligibility import Stock


@dataclass(frozen=True, slots=True)
class Granting:
    """A moment's state: the rows of ``roster`` are changed in place by `grant`."""

    roster: Roster
    table: AppTable
    stock: Stock
    kept: Waiting
    """For newcomers."""

    def budgets(self, decidable: BoolArray) -> tuple[IntArray, IntArray]:
        """What the decidable rows of each application may hold together, shape (A,): CPU, memory (and its reserves)."""
        app, table, others = self.roster.rows.app, self.table, ~decidable
        quota, limit = (per_app(app, holding * others, len(table.known)) for holding in self.stock.per_row)
        return (
            table.cpu_limit_us - quota - self.kept.quota_us,
            table.memory_limit_bytes - limit - self.kept.limit_bytes,
        )

    def grant(self, targets: tuple[IntArray, IntArray], open_apps: BoolArray) -> None:
        """Order what is wished, as far as the applications that are open have room for it; shape (N,) and (A,)."""
        rows, pools = self.roster.rows, self.stock.pools
        to_reserve = np.maximum(self._withheld() - pools.reserved_bytes, 0)
        cpu, memory = standing.free(pools, self.table)
        rooms = (cpu - self.kept.quota_us, memory - self.kept.limit_bytes - to_reserve)
        for account, target, room, holding in zip(ledger.ACCOUNTS, targets, rooms, self.stock.per_row, strict=True):
            ordered = account.of(rows, "ordered")
            if np.array_equal(target, ordered):
                account.of(rows, "wanted")[:] = 0
                continue
            funded = ledger.commit(rows, account, target, np.where(open_apps, room, 0), holding)
            if account is ledger.MEMORY:
                funded = within_nodes(rows, ordered, _whole_pages(ordered, funded), node_rooms(self.roster))
            ordered[:] = funded

    def _withheld(self) -> IntArray:
        """Memory kept for reserves, as far as the application has it: no container's limit grows into it."""
        pools, table = self.stock.pools, self.table
        limits = pools.limit_held_bytes - pools.reserved_bytes
        left = np.maximum(table.memory_limit_bytes - limits - self.kept.limit_bytes, 0)
        withheld: IntArray = np.minimum(left, table.withheld_bytes)
        return withheld


def _whole_pages(ordered: IntArray, funded: IntArray) -> IntArray:
    """As the kernel rounds them, and no trifling raise."""
    pages = funded // PAGE_BYTES * PAGE_BYTES
    raised = np.where(pages - ordered < RECLAIM_BYTES, ordered, pages)
    return np.where(funded > ordered, raised, funded)

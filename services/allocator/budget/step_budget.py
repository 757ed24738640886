"""What is committed, kept and free at one point of a step: a value.

It is made at the beginning, after admissions, after updates were recorded, and after reserves were granted: each of
these takes capacity, so what comes next decides upon the budget that they have left. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from services.allocator.arrays.array_types import IntArray
from services.allocator.budget.committed import Committed
from services.allocator.budget.fair_share import fair_shares
from services.allocator.budget.node_headroom import node_headrooms
from services.allocator.budget.pending_capacity import PendingCapacity
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What both pipelines, admission, reserves and assignments share. N: rows, A: applications, M: nodes."""

    table: AppTable
    committed: Committed
    pending: PendingCapacity
    """Kept for pending containers; that of the step before until this step's is known."""
    share_bytes: IntArray
    """A: fair share, of the containers admitted or announced, whichever are more."""
    node_headroom_bytes: IntArray
    """M."""
    node_cpu_headroom_us: IntArray
    """M, us per period."""

    @classmethod
    def of(cls, cluster: ClusterState, table: AppTable, pending: PendingCapacity) -> Self:
        """What holds now."""
        committed = Committed.of(cluster, table)
        containers = np.maximum(committed.pools.containers, table.announced)
        headrooms = node_headrooms(cluster)
        return cls(table, committed, pending, fair_shares(table.memory_limit_bytes, containers), *headrooms)

    @property
    def free_us(self) -> IntArray:
        """A: CPU limit - committed; negative: over the limit."""
        return self.table.cpu_limit_us - self.committed.pools.quota_committed_us

    @property
    def free_bytes(self) -> IntArray:
        """A: memory limit - committed; negative: over the limit."""
        return self.table.memory_limit_bytes - self.committed.pools.limit_committed_bytes

    @property
    def withheld_bytes(self) -> IntArray:
        """A: memory withheld for reserves, as far as the application has it: no limit grows into it."""
        limits = self.committed.pools.limit_committed_bytes - self.committed.pools.reserved_bytes
        left = np.maximum(self.table.memory_limit_bytes - limits - self.pending.limit_bytes, 0)
        withheld: IntArray = np.minimum(left, self.table.withheld_bytes)
        return withheld

"""What holds for all of a step, whatever it orders: a value, built once. What orders take is in `step_budget`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.budget.eligibility import decidable_rows, eligible_apps, node_seen, unacknowledged
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_inventory import NodeInventory
from services.allocator.state.owned_applications import OwnedApplications


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step, and what is due."""

    now_ns: int
    """Monotonic."""
    wall_ns: int
    """Since the epoch."""
    reclaim_memory: bool = False
    """Whether the periodic reclaim is due (thesis 2.4.3)."""
    stale_after_ns: int = 2_000_000_000
    """No decisions for containers of a node that has not reported for this long; they keep their share."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What both pipelines decide upon. N: rows, A: applications, M: nodes."""

    table: AppTable
    time: StepTime
    epochs: IntArray
    """A; 0: not owned."""
    node_seen: BoolArray
    """M: the node has reported within `StepTime.stale_after_ns`."""
    node_idle_percent: IntArray
    """M: idle share of the time of all processors, as reported last; -1: unknown."""
    decidable: BoolArray
    """N: the row takes part: it is reported by a live agent that has acknowledged the epoch, or need not."""
    eligible: BoolArray
    """A: limits may be raised: every node that may hold containers has reported and acknowledged the epoch."""

    @classmethod
    def of(
        cls,
        cluster: ClusterState,
        table: AppTable,
        owned: OwnedApplications,
        inventory: NodeInventory,
        time: StepTime,
    ) -> Self:
        """The context of a step, after its reports were taken and before it orders anything."""
        seen = node_seen(cluster, time.now_ns, time.stale_after_ns)
        waiting = unacknowledged(cluster.rows, table, seen)
        return cls(
            table=table,
            time=time,
            epochs=owned.epoch_array(cluster.apps),
            node_seen=seen,
            node_idle_percent=np.array([state.idle_percent for state in cluster.nodes], dtype=np.int64),
            decidable=decidable_rows(cluster.rows, table, seen),
            eligible=eligible_apps(cluster, owned, inventory, waiting, time.now_ns),
        )

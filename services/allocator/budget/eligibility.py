"""Which applications may be raised, and which rows are decided for.

Nothing of an application is raised while it warms up after a change of owner, while a node has not reported what it
holds (`state.node_inventory`), or while a live agent has not acknowledged the epoch: until then updates of a previous
owner may act. Pure.
"""

from __future__ import annotations

import numpy as np

from services.allocator.arrays.array_types import BoolArray
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_inventory import NodeInventory
from services.allocator.state.owned_applications import OwnedApplications
from services.allocator.state.rows import Rows


def node_seen(cluster: ClusterState, now_ns: int, stale_after_ns: int) -> BoolArray:
    """By node index: it has reported within ``stale_after_ns``."""
    last_seen_ns = np.array([state.last_seen_ns for state in cluster.nodes], dtype=np.int64)
    seen: BoolArray = now_ns - last_seen_ns <= stale_after_ns
    return seen


def unacknowledged(rows: Rows, table: AppTable, node_seen: BoolArray) -> BoolArray:
    """Rows of live agents that have not acknowledged the epoch, shape (N,)."""
    return node_seen[rows.node] & ~_obeyed(rows, table)


def decidable_rows(rows: Rows, table: AppTable, node_seen: BoolArray) -> BoolArray:
    """Rows of announced, owned applications that a live agent reports under this epoch, shape (N,)."""
    decidable: BoolArray = table.known[rows.app] & node_seen[rows.node] & _obeyed(rows, table) & ~rows.unreported
    return decidable


def eligible_apps(
    cluster: ClusterState, owned: OwnedApplications, inventory: NodeInventory, waiting: BoolArray, now_ns: int
) -> BoolArray:
    """Applications of which limits may be raised, shape (A,).

    Args:
        cluster: all rows.
        owned: epochs and warm-ups.
        inventory: nodes that are waited for, and those that no longer are.
        waiting: `unacknowledged` rows.
        now_ns: monotonic.
    """
    eligible = owned.warmed_up(cluster.apps, now_ns)
    if waiting.any() and inventory.set_aside:
        waiting = waiting & ~cluster.rows_of(inventory.set_aside)
    eligible[cluster.known_apps(inventory.awaiting_apps())] = False
    eligible[cluster.rows.app[waiting]] = False
    return eligible


def _obeyed(rows: Rows, table: AppTable) -> BoolArray:
    """Whether the row's agent has acknowledged the epoch, or need not (mode `observe`)."""
    obeyed: BoolArray = rows.fenced | table.observe_only[rows.app]
    return obeyed

"""Node memory headroom as reported by the agents (decision 36).

The agent decides: it rejects what its node has no headroom for. The allocator requests only what will not be rejected,
so that no update fails every period and no application takes all of a node's headroom.
"""

from __future__ import annotations

import numpy as np

from services.allocator.budget.fair_share import scale_to_fit
from services.allocator.columns import MARGIN_BYTES, NO_BOUND, PAGE_BYTES, RECLAIM_BYTES, IntArray, Rows
from services.allocator.columns import per_app as per_group
from services.allocator.state.cluster_state import ClusterState

INITIAL_LIMIT_SHARE = 4
"""An initial limit takes at most this part (1/n) of its node's headroom, unless usage needs more."""
SHORT_DELTAS = 4
"""Below so many times an application's delta a node is short of memory: slack there is reclaimed."""


def counted_bytes(rows: Rows) -> IntArray:
    """What an agent counts per row at least: its limit, or usage and a margin without one. Shape (N,)."""
    least = -(-(rows.memory_usage_bytes + MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
    counted: IntArray = np.where(rows.limit_bytes < 0, least, rows.limit_bytes)
    return counted


def node_headroom(cluster: ClusterState) -> IntArray:
    """Headroom by node index less what updates in flight take; `NO_BOUND`: unbounded."""
    reported = np.array([state.headroom_bytes for state in cluster.nodes], dtype=np.int64)
    rows, node_reserves, count = cluster.rows, cluster.reserves, len(cluster.nodes)
    raised = np.maximum(rows.limit_inflight_bytes - counted_bytes(rows), 0)
    given = np.where(
        node_reserves.in_use, np.maximum(node_reserves.inflight_bytes - node_reserves.granted_total_bytes, 0), 0
    )
    under_way = per_group(rows.node, raised, count) + per_group(node_reserves.node, given, count)
    headroom: IntArray = np.where(reported == NO_BOUND, NO_BOUND, np.maximum(reported - under_way, 0))
    return headroom


def fit_to_nodes(rows: Rows, before: IntArray, ordered: IntArray, headroom: IntArray) -> IntArray:
    """Memory limits to order, shape (N,): raises within node headroom, in proportion where it is short.

    Args:
        rows: all rows.
        before: what was ordered before.
        ordered: what is to be ordered now.
        headroom: by node index, from `node_headroom`.
    """
    holding = np.maximum(counted_bytes(rows), rows.limit_inflight_bytes)
    ask = np.where(ordered > before, np.maximum(ordered - holding, 0), 0) // PAGE_BYTES
    got = scale_to_fit(rows.node, ask, headroom // PAGE_BYTES)
    bounded = np.maximum(before, holding + got * PAGE_BYTES)
    bounded = np.where(bounded - before < RECLAIM_BYTES, before, bounded)
    return np.where(got < ask, bounded, ordered)


def node_is_full(node: str, room_bytes: int, wanted_bytes: int) -> str:
    """Why a memory request is refused."""
    return (
        f"node {node} has {room_bytes / (1 << 20):.1f} MiB left for memory limits and reserves, "
        f"{wanted_bytes / (1 << 20):.1f} MiB are missing, and the application's containers there have no slack"
    )

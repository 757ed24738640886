"""Headroom of nodes: by how much limits and reserves on a node may still rise, and raises that fit it.

It is what the node's agent reports, which rejects what exceeds it (decision 36). Only what will not be rejected is
requested, so that no update fails every period and no application takes all of a node's headroom. Pure.
"""

from __future__ import annotations

import numpy as np

from services.allocator.arrays.array_types import IntArray
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.limit_values import MARGIN_BYTES, NO_BOUND, PAGE_BYTES, RECLAIM_BYTES
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.rows import Rows


def counted_bytes(rows: Rows) -> IntArray:
    """What an agent counts per row: the limit that it has set, or use and a margin without one. Shape (N,)."""
    used = np.maximum(rows.memory_usage_bytes - rows.memory_reclaimable_bytes, 0)
    least = -(-(used + MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
    counted: IntArray = np.where((rows.limit_bytes < 0) | rows.own_limit, least, rows.limit_bytes)
    return counted


def node_headrooms(cluster: ClusterState) -> tuple[IntArray, IntArray]:
    """Headroom by node index less what updates in flight take: bytes of memory, and CPU quotas in us per period.

    `NO_BOUND`: unbounded. A row without a quota counts what it uses.
    """
    rows, node_reserves, count = cluster.rows, cluster.reserves, len(cluster.nodes)
    reported = np.array([(node.headroom_bytes, node.cpu_headroom_us) for node in cluster.nodes], dtype=np.int64)
    raised = np.maximum(rows.limit_inflight_bytes - counted_bytes(rows), 0)
    given = np.maximum(node_reserves.inflight_bytes - node_reserves.granted_total_bytes, 0) * node_reserves.in_use
    counted_us = np.where(rows.quota_us < 0, rows.used_us, rows.quota_us)
    raised_us = np.maximum(rows.quota_inflight_us - counted_us, 0)
    under_way = np.array(
        (
            per_app(rows.node, raised, count) + per_app(node_reserves.node, given, count),
            per_app(rows.node, raised_us, count),
        )
    )
    reported = reported.reshape(count, 2).T
    memory_bytes, cpu_us = np.where(reported == NO_BOUND, NO_BOUND, np.maximum(reported - under_way, 0))
    return memory_bytes, cpu_us


def fit_to_nodes(rows: Rows, before: IntArray, ordered: IntArray, headroom: IntArray) -> IntArray:
    """Memory limits to order, shape (N,): raises within node headroom, in proportion where it is short.

    Args:
        rows: all rows.
        before: what was ordered before.
        ordered: what is to be ordered now.
        headroom: by node index, from `node_headrooms`.
    """
    holding = np.maximum(counted_bytes(rows), rows.limit_inflight_bytes)
    ask = np.where(ordered > before, np.maximum(ordered - holding, 0), 0) // PAGE_BYTES
    got = scale_to_fit(rows.node, ask, headroom // PAGE_BYTES)
    bounded = np.maximum(before, holding + got * PAGE_BYTES)
    bounded = np.where(bounded - before < RECLAIM_BYTES, before, bounded)
    return np.where(got < ask, bounded, ordered)

"""What is committed: the largest limits that may be in force, by container, and their sums by application.

That is the reported value, or that of any update in flight (`state.acknowledgement`). sum(committed) <= limit is kept
by never raising beyond ``limit - sum(committed)`` (`budget.assignment`); a decrease frees capacity only once the agent
has reported the lower value. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.grouping import per_app
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.kernel_bounds import LIMIT, QUOTA, takes_no_limit
from services.allocator.state.rows import Rows


def committed_limits(rows: Rows, observe_only: BoolArray) -> tuple[IntArray, IntArray]:
    """The largest quota and memory limit per row that may be in force.

    A row that is not admitted counts too: its update may have arrived although the reply was lost, and a container may
    start with limits of its own. Unlimited ones count nothing until their first update is sent; those to which the
    kernel refuses one count what they use.

    Args:
        rows: all rows.
        observe_only: rows of applications in mode `observe`: nothing is sent, so the ordered value counts.
    """

    def committed(kernel: IntArray, inflight: IntArray, ordered: IntArray, unlimited: IntArray) -> IntArray:
        worst = np.maximum(np.maximum(kernel, inflight), unlimited)
        return np.where(observe_only, np.where(rows.admitted, ordered, 0), worst)

    used_us, used_bytes = (
        rows.used_us * takes_no_limit(rows, QUOTA),
        rows.memory_usage_bytes * takes_no_limit(rows, LIMIT),
    )
    return (
        committed(rows.quota_us, rows.quota_inflight_us, rows.quota_ordered_us, used_us),
        committed(rows.limit_bytes, rows.limit_inflight_bytes, rows.limit_ordered_bytes, used_bytes),
    )


@dataclass(frozen=True, slots=True)
class Pools:
    """Committed sums per application, shape (A,)."""

    quota_committed_us: IntArray
    limit_committed_bytes: IntArray
    """Containers' limits and reserves."""
    reserved_bytes: IntArray
    containers: IntArray


@dataclass(frozen=True, slots=True)
class Committed:
    """Committed limits: reported values and everything in flight. N: rows."""

    quota_us: IntArray
    """By `committed_limits`, shape (N,)."""
    limit_bytes: IntArray
    pools: Pools

    @classmethod
    def of(cls, cluster: ClusterState, table: AppTable) -> Self:
        """Committed limits now."""
        rows, apps, node_reserves = cluster.rows, len(cluster.apps), cluster.reserves
        quota_us, limit_bytes = committed_limits(rows, table.observe_only[rows.app])
        reserves_bytes = node_reserves.committed_bytes
        for pair, bound in cluster.claim_bounds.items():
            _bound_claims(cluster, pair, bound, (quota_us, limit_bytes, reserves_bytes))
        reserved = np.where(table.observe_only, 0, per_app(node_reserves.app, reserves_bytes, apps))
        pools = Pools(
            per_app(rows.app, quota_us, apps),
            per_app(rows.app, limit_bytes, apps) + reserved,
            reserved,
            per_app(rows.app, rows.admitted, apps),
        )
        return cls(quota_us, limit_bytes, pools)


def _bound_claims(
    cluster: ClusterState, pair: tuple[int, int], bound: tuple[int, int], committed: tuple[IntArray, IntArray, IntArray]
) -> None:
    """Scale what a node's containers of an application count down to its bound, in place; its reserve has the rest.

    Args:
        cluster: all rows and reserves.
        pair: application and node, by index.
        bound: CPU in us per period, memory in bytes.
        committed: quotas, shape (N,), limits, shape (N,), and reserves, by slot.
    """
    app, node = pair
    rows, node_reserves = cluster.rows, cluster.reserves
    mine = np.flatnonzero((rows.app == app) & (rows.node == node))
    for column, most in zip(committed[:2], bound, strict=True):
        if (total := int(column[mine].sum())) > most:
            # Floating point: the product may exceed 64 bits.
            column[mine] = np.floor(column[mine] * (most / total)).astype(np.int64)
    reserve = np.flatnonzero(node_reserves.in_use & (node_reserves.app == app) & (node_reserves.node == node))
    committed[2][reserve] = np.minimum(committed[2][reserve], max(bound[1] - int(committed[1][mine].sum()), 0))

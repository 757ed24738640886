"""What a memory request of an agent may take, what is being reclaimed for it already, and why it is refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.arrays.array_types import IntArray
from services.allocator.budget.fair_share import claims, guaranteed_limits
from services.allocator.budget.step_budget import StepBudget
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.rows import Rows


@dataclass(slots=True)
class MemoryRequester:
    """The container that a memory request is for."""

    rows: list[int]
    """Its own; none if it is not known."""
    exempt: list[int]
    """Rows whose limits are not decreased for it: its own, if known."""
    within_bytes: int
    """Bytes below its fair share; an unknown container counts as having nothing."""
    floor_bytes: IntArray
    """Per row: no limit is decreased below it for this request."""
    remark: str = ""
    """Sentence for a refusal, where it is above its share."""


def requester(rows: Rows, budget: StepBudget, found: list[int | None], app: int) -> MemoryRequester:
    """The requesting container, in rows ``found``, and what its fair share allows."""
    held, share_bytes = budget.committed.limit_bytes, int(budget.share_bytes[app])
    own = [row for row in found if row is not None]
    exempt = list(own)
    limit_bytes = int(held[own].sum())
    if limit_bytes < share_bytes:
        return MemoryRequester(own, exempt, share_bytes - limit_bytes, np.zeros(rows.count, dtype=np.int64))
    guaranteed, others = guaranteed_limits(rows, budget.share_bytes, held), (rows.app == app) & rows.admitted
    others[exempt] = False
    claimed_bytes = int(claims(guaranteed, held)[others].sum())
    return MemoryRequester(own, exempt, 0, guaranteed, explain_above_share(limit_bytes, share_bytes, claimed_bytes))


def reclaim_in_flight(cluster: ClusterState, budget: StepBudget, app: int, group: int, node: int | None = None) -> int:
    """Bytes being reclaimed: decreased limits and reserves whose acknowledgement is outstanding.

    ``group``, the slot that requests them, does not count itself. With ``node`` only of that node.
    """
    rows, node_reserves = cluster.rows, cluster.reserves
    mine = (rows.app == app) & rows.admitted & ~rows.acked & ((node is None) | (rows.node == node))
    mine &= rows.limit_ordered_bytes >= 0  # not those that the kernel keeps without any limit
    cuts = np.maximum(budget.committed.limit_bytes - rows.limit_ordered_bytes, 0)[mine]
    lowered = node_reserves.in_use & ~node_reserves.acked & (node_reserves.app == app)
    lowered &= (node is None) | (node_reserves.node == node)
    lowered[group] = False
    returned = np.maximum(node_reserves.granted_total_bytes - node_reserves.inflight_bytes, 0)[lowered]
    return int(cuts.sum()) + int(returned.sum())


def explain_exhausted(name: str, budget: StepBudget, app: int) -> str:
    """Why a memory request is refused: the memory of the application, of this name and index, is in use."""
    pools, limit_bytes = budget.committed.pools, int(budget.table.memory_limit_bytes[app])
    reserved = int(pools.reserved_bytes[app])
    return (
        f"{name} may use {limit_bytes >> 20} MiB: its {int(pools.containers[app])} containers hold "
        f"{(int(pools.limit_committed_bytes[app]) - reserved) >> 20} MiB and use it, {reserved >> 20} MiB are reserves"
    )


def explain_above_share(limit_bytes: int, share_bytes: int, claimed_bytes: int) -> str:
    """Addition for a container above its fair share; empty where others have no claims."""
    if claimed_bytes < 1 << 20:
        return ""
    return (
        f"; it has {limit_bytes >> 20} MiB, its fair share is {share_bytes >> 20} MiB: "
        f"{claimed_bytes >> 20} MiB are kept for containers below theirs that ask, too"
    )


def node_is_full(node: str, room_bytes: int, wanted_bytes: int) -> str:
    """Why a memory request is refused."""
    return (
        f"node {node} has {room_bytes / (1 << 20):.1f} MiB left for memory limits and reserves, "
        f"{wanted_bytes / (1 << 20):.1f} MiB are missing, and the application's containers there have no slack"
    )

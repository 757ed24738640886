"""What nodes have left for raises of memory, as their agents report it (decision 36). Pure.

The agent has the last word on its node's memory: it refuses what its node has no room for. Here is only asked for what
it will not refuse, so that nobody asks in vain each period, and so that one application does not take all that is left.
"""

from __future__ import annotations

import numpy as np

from services.allocator.budget.fair_share import ration
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.cpu.policy_api import per_app as per_group
from services.allocator.memory.policy import MARGIN_BYTES, RECLAIM_BYTES
from services.allocator.state.cluster_state import Roster
from services.allocator.state.container_columns import NO_BOUND, IntArray, Rows

NEWCOMER_SHARE = 4
"""The first limit of a container takes at most this part of what its node has left, unless it uses more."""
SHORT_DELTAS = 4
"""A node with less left than so many times an application's delta is short of memory: slack there is reclaimed."""


def counted_bytes(rows: Rows) -> IntArray:
    """What an agent counts for each row at least: its limit; without one its usage and a margin. Shape (N,)."""
    least = -(-(rows.memory_usage_bytes + MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
    counted: IntArray = np.where(rows.limit_bytes < 0, least, rows.limit_bytes)
    return counted


def node_rooms(roster: Roster) -> IntArray:
    """What each node (by index) has left for raises, less orders under way; `NO_BOUND` where it sets no bound."""
    reported = np.array([state.headroom_bytes for state in roster.nodes], dtype=np.int64)
    rows, book, count = roster.rows, roster.reserves, len(roster.nodes)
    raised = np.maximum(rows.limit_inflight_bytes - counted_bytes(rows), 0)
    given = np.where(book.live, np.maximum(book.inflight_bytes - book.given_bytes, 0), 0)
    under_way = per_group(rows.node, raised, count) + per_group(book.node, given, count)
    rooms: IntArray = np.where(reported == NO_BOUND, NO_BOUND, np.maximum(reported - under_way, 0))
    return rooms


def within_nodes(rows: Rows, before: IntArray, ordered: IntArray, rooms: IntArray) -> IntArray:
    """Memory limits to order, shape (N,): raises as far as their nodes have room, in proportion where they have not.

    Args:
        rows: all rows.
        before: what was ordered before.
        ordered: what is to be ordered now.
        rooms: by node index, from `node_rooms`.
    """
    holding = np.maximum(counted_bytes(rows), rows.limit_inflight_bytes)
    ask = np.where(ordered > before, np.maximum(ordered - holding, 0), 0) // PAGE_BYTES
    got = ration(rows.node, ask, rooms // PAGE_BYTES)
    bounded = np.maximum(before, holding + got * PAGE_BYTES)
    bounded = np.where(bounded - before < RECLAIM_BYTES, before, bounded)
    return np.where(got < ask, bounded, ordered)


def node_is_full(node: str, room_bytes: int, wanted_bytes: int) -> str:
    """Why a request for memory is refused."""
    return (
        f"node {node} has {room_bytes / (1 << 20):.1f} MiB left for memory limits and reserves, "
        f"{wanted_bytes / (1 << 20):.1f} MiB are missing, and the application's containers there have no slack"
    )

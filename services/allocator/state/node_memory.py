"""Memory of nodes: reserves that agents grant from without a round trip, and headroom for limits (decision 36).

The grant of a reserve is cumulative: left = granted - used, so an update that is duplicated, or crosses a local grant,
does no harm. What an agent grants moves from its reserve to a container's limit; their sum, which counts against the
limit, does not change. So a lower `left` counts only together with the limits of the same report: batches and replies
to fences carry both.

Headroom is what an agent reports; it rejects what exceeds it. The allocator requests only what will not be rejected, so
that no update fails every period and no application takes all of a node's headroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from services.allocator.budget.fair_share import scale_to_fit
from services.allocator.columns import (
    MARGIN_BYTES,
    NO_BOUND,
    PAGE_BYTES,
    RECLAIM_BYTES,
    BoolArray,
    IntArray,
    Rows,
    SlotArrays,
    per_app,
)

REQUEST_EXPIRY_NS: Final = 1_000_000_000
"""A request stays pending for this long; its node comes first."""
MAX_BYTES: Final = 1 << 60
MIN_ROWS: Final = 8
INITIAL_LIMIT_SHARE = 4
"""An initial limit takes at most this part (1/n) of its node's headroom, unless usage needs more."""
SHORT_DELTAS = 4
"""Below so many times an application's delta a node is short of memory: slack there is reclaimed."""


class Reserves(SlotArrays):
    """One slot per group (an application's containers on one node); bytes."""

    app: IntArray
    node: IntArray
    granted_total_bytes: IntArray
    """Cumulative grant by the newest report."""
    used_bytes: IntArray
    inflight_bytes: IntArray
    """Largest cumulative grant among unacknowledged updates; 0: none."""
    limit_update_seq: IntArray
    ordered_ns: IntArray
    report_seq: IntArray
    requested_bytes: IntArray
    """Bytes that the agent requested."""
    requested_within_bytes: IntArray
    """Of it, what stays within the fair share of the container that needs it most."""
    share_bytes: IntArray
    """Fair share of a container, as last sent."""
    request_expires_ns: IntArray
    acked: BoolArray
    in_use: BoolArray
    """Whether the slot is in use."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = dict.fromkeys(
        (
            *(
                "app",
                "node",
                "granted_total_bytes",
                "used_bytes",
                "inflight_bytes",
                "limit_update_seq",
                "ordered_ns",
                "report_seq",
            ),
            *("requested_bytes", "requested_within_bytes", "request_expires_ns", "share_bytes"),
        ),
        (np.int64, 0),
    ) | dict.fromkeys(("acked", "in_use"), (np.bool_, 0))

    def __init__(self) -> None:
        super().__init__(0)
        self._unused: list[int] = []

    def add(self, app: int, node: int) -> int:
        """Allocate a slot for a group; returns its index."""
        if not self._unused:
            before = self.capacity
            self.grow(max(MIN_ROWS, before + 1))
            self._unused = list(range(self.capacity - 1, before - 1, -1))
        index = self._unused.pop()
        self.app[index], self.node[index] = app, node
        self.in_use[index] = self.acked[index] = True
        return index

    def remove(self, index: int) -> None:
        """Free the slot of a group."""
        self.forget(np.array([index]))
        self._unused.append(index)

    def on_agent_restart(self, node: int) -> None:
        """Reset for a new agent process: it rejects updates in flight and reports what it holds."""
        mine = self.in_use & (self.node == node)
        self.granted_total_bytes[mine] = self.grant_committed_bytes[mine]  # an update in flight may have been applied
        for column in (self.inflight_bytes, self.limit_update_seq, self.report_seq, self.share_bytes):
            column[mine] = 0
        self.acked[mine] = True

    def ack(self, index: IntArray, report: ReserveReport) -> None:
        """Apply reports; out-of-order and inconsistent ones are ignored."""
        sane = (report.used_bytes <= report.granted_total_bytes) & (report.granted_total_bytes <= MAX_BYTES)
        newer = sane & (report.report_seq > self.report_seq[index])
        rows = index[newer]
        self.report_seq[rows] = report.report_seq[newer]
        self.granted_total_bytes[rows], self.used_bytes[rows] = (
            report.granted_total_bytes[newer],
            report.used_bytes[newer],
        )
        seen = rows[report.limit_update_seq[newer] >= self.limit_update_seq[rows]]
        self.inflight_bytes[seen] = 0
        self.acked[seen] = True

    def record_update(self, index: IntArray, granted_total_bytes: IntArray, seq: int, now_ns: int) -> None:
        """Record that updates are sent."""
        self.inflight_bytes[index] = np.maximum(self.inflight_bytes[index], granted_total_bytes)
        self.limit_update_seq[index] = seq
        self.ordered_ns[index] = now_ns
        self.acked[index] = False

    def record_request(self, index: int, wanted_bytes: int, within_bytes: int, now_ns: int) -> None:
        """Record a request of an agent, for a container that is so far below its fair share."""
        self.requested_bytes[index] = min(wanted_bytes, MAX_BYTES)
        self.requested_within_bytes[index] = min(wanted_bytes, within_bytes, MAX_BYTES)
        self.request_expires_ns[index] = now_ns + REQUEST_EXPIRY_NS

    def pending_requests(self, now_ns: int) -> BoolArray:
        """Slots whose request has not expired."""
        waiting: BoolArray = self.in_use & (self.request_expires_ns > now_ns) & (self.requested_bytes > 0)
        return waiting

    @property
    def grant_committed_bytes(self) -> IntArray:
        """The largest cumulative grant that may be in force."""
        return np.maximum(self.granted_total_bytes, self.inflight_bytes)

    @property
    def committed_bytes(self) -> IntArray:
        """The most that may be left, per slot: counts against the limit beside the containers' limits."""
        left: IntArray = np.where(self.in_use, np.maximum(self.grant_committed_bytes - self.used_bytes, 0), 0)
        return left


@dataclass(frozen=True, slots=True)
class ReserveReport:
    """Reserves as reported by agents, shape (K,)."""

    report_seq: IntArray
    granted_total_bytes: IntArray
    used_bytes: IntArray
    limit_update_seq: IntArray


def counted_bytes(rows: Rows) -> IntArray:
    """What an agent counts per row at least: its limit, or usage and a margin without one. Shape (N,)."""
    least = -(-(rows.memory_usage_bytes + MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
    counted: IntArray = np.where(rows.limit_bytes < 0, least, rows.limit_bytes)
    return counted


def node_headroom(reported: IntArray, rows: Rows, node_reserves: Reserves) -> IntArray:
    """Headroom by node index less what updates in flight take; `NO_BOUND`: unbounded."""
    count = len(reported)
    raised = np.maximum(rows.limit_inflight_bytes - counted_bytes(rows), 0)
    given = np.where(
        node_reserves.in_use, np.maximum(node_reserves.inflight_bytes - node_reserves.granted_total_bytes, 0), 0
    )
    under_way = per_app(rows.node, raised, count) + per_app(node_reserves.node, given, count)
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

"""Reserves of memory on nodes: what was granted to each, what of it is used, what is requested. Pure.

The grant of a node's reserve is cumulative: left = granted - used, so an update that is duplicated, or crosses a local
grant, does no harm. What an agent grants moves from its reserve to a container's limit; their sum, which counts against
the limit, does not change. So a lower `left` counts only together with the limits of the same report: batches and
replies to fences carry both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.slot_arrays import SlotArrays

MAX_BYTES: Final = 1 << 60
REQUEST_EXPIRY_NS: Final = 1_000_000_000
"""A request for memory stays pending for this long; its node comes first."""
MIN_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class ReserveReport:
    """Reserves as reported by agents, shape (K,)."""

    report_seq: IntArray
    granted_total_bytes: IntArray
    used_bytes: IntArray
    limit_update_seq: IntArray


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

    def record_update(
        self, index: IntArray, granted_total_bytes: IntArray, share_bytes: IntArray, seq: int, now_ns: int
    ) -> None:
        """Record that updates are sent."""
        self.share_bytes[index] = share_bytes
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

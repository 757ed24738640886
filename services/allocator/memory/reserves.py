"""Node reserves: memory of an application that an agent may grant without a round trip (design 4.4).

The withheld share (sigma) of an application, as far as it is free, is spread over its nodes by their containers. The
grant to a node is cumulative: left = granted - used, so an update that is duplicated, or crosses a local grant, does no
harm. What an agent grants moves from its reserve to a container's limit; their sum, which counts against the limit,
does not change. So a lower `left` counts only together with the limits of the same report: batches and replies to
fences carry both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from services.allocator.budget.fair_share import scale_to_fit
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.cpu.policy_api import per_app
from services.allocator.state.container_columns import BoolArray, IntArray
from services.allocator.state.slot_arrays import SlotArrays

STEP_BYTES: Final = 4 << 20
"""A reserve that differs from its target by less than this, or by less than a quarter, is left unchanged."""
RETRY_NS: Final = 1_000_000_000
"""A lost update is sent again after this long."""
URGENT_RETRY_NS: Final = 200_000_000
"""The same, while a request is pending."""
REQUEST_EXPIRY_NS: Final = 1_000_000_000
"""A request stays pending for this long; its node comes first."""
NODE_SHARE: Final = 4
"""Without a request a reserve is at most 1/n of its node's headroom, itself included."""
MAX_BYTES: Final = 1 << 60
MIN_ROWS: Final = 8


class Reserves(SlotArrays):
    """One slot per group (an application's containers on one node); bytes."""

    app: IntArray
    node: IntArray
    granted_total_bytes: IntArray
    """Cumulative grant by the newest report."""
    used_bytes: IntArray
    inflight_bytes: IntArray
    """Largest cumulative grant among unacknowledged updates; 0: none."""
    order_seq: IntArray
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
                "order_seq",
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
        for column in (self.inflight_bytes, self.order_seq, self.report_seq, self.share_bytes):
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
        seen = rows[report.order_seq[newer] >= self.order_seq[rows]]
        self.inflight_bytes[seen] = 0
        self.acked[seen] = True

    def record_update(self, index: IntArray, granted_total_bytes: IntArray, seq: int, now_ns: int) -> None:
        """Record that updates are sent."""
        self.inflight_bytes[index] = np.maximum(self.inflight_bytes[index], granted_total_bytes)
        self.order_seq[index] = seq
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
    order_seq: IntArray


@dataclass(frozen=True, slots=True)
class ReserveView:
    """Inputs of one plan. A: applications, G: slots of `Reserves`; bytes."""

    pool_bytes: IntArray
    """A: limit minus containers' limits: free and reserved together."""
    free_bytes: IntArray
    """A: of it, what is in no reserve."""
    pending_bytes: IntArray
    """A: of it, reserved for pending containers; only a request may take it."""
    withheld_bytes: IntArray
    """A: sigma x limit."""
    guaranteed_bytes: IntArray
    """G: what its containers may still claim, ahead of requests beyond fair shares."""
    share_bytes: IntArray
    """G: fair share of a container."""
    weight: IntArray
    """G: containers that share in it; 0: the rest is taken back."""
    reachable: BoolArray
    """G: its agent is reachable now."""
    node_headroom_bytes: IntArray
    """By node index: headroom for limits and reserves."""
    now_ns: int


def targets(reserves: Reserves, view: ReserveView) -> IntArray:
    """What each slot should have left, whole pages.

    First requests within fair shares; then requests beyond them, of what no container may claim; then the withheld
    share by weight, or, where that is not all free, by claims.
    """
    app, pool, pending = (
        reserves.app,
        np.maximum(view.pool_bytes, 0) // PAGE_BYTES,
        -(-view.pending_bytes // PAGE_BYTES),
    )
    asks = reserves.pending_requests(view.now_ns) & (view.weight > 0)
    asked = np.where(asks, -(-reserves.requested_bytes // PAGE_BYTES), 0)
    within = np.minimum(asked, -(-reserves.requested_within_bytes // PAGE_BYTES))
    claims = np.where(view.weight > 0, -(-view.guaranteed_bytes // PAGE_BYTES), 0)
    first = scale_to_fit(app, within, pool)
    others = pool - per_app(app, first, len(pool)) - per_app(app, claims, len(pool))
    first = first + scale_to_fit(app, asked - within, np.maximum(others, 0))
    left = np.maximum(pool - pending - per_app(app, first, len(pool)), 0)
    withheld = view.withheld_bytes // PAGE_BYTES
    spread = np.minimum(withheld, left)
    claimed = np.where((left < withheld)[app], scale_to_fit(app, claims, spread), 0)
    rest = spread - per_app(app, claimed, len(pool))
    weights = np.maximum(per_app(app, view.weight, len(pool)), 1)
    share = claimed + rest[app] // weights[app] * view.weight
    of_node = (view.node_headroom_bytes[reserves.node] + reserves.committed_bytes) // NODE_SHARE // PAGE_BYTES
    share = np.minimum(share, of_node)
    target: IntArray = (first + share) * PAGE_BYTES
    return target


def plan(reserves: Reserves, view: ReserveView) -> tuple[IntArray, IntArray]:
    """Slots to update, and their new cumulative grant. A raise takes free memory only."""
    target, left, held = targets(reserves, view), reserves.committed_bytes, reserves.grant_committed_bytes
    requested = reserves.pending_requests(view.now_ns)
    near = np.maximum(STEP_BYTES, np.maximum(target, left) // 4)
    far = np.abs(target - left) > near
    retry_ns = np.where(requested, URGENT_RETRY_NS, RETRY_NS)
    acked = reserves.acked | (view.now_ns - reserves.ordered_ns > retry_ns)
    may = reserves.in_use & view.reachable
    rise = may & (target > left) & np.where(requested, True, far & acked)  # noqa: FBT003 - numpy takes it by position
    fall = may & (target < left) & acked & (far | (target == 0))
    free, pending = np.maximum(view.free_bytes, 0) // PAGE_BYTES, -(-view.pending_bytes // PAGE_BYTES)
    ask = np.where(rise, (target - left) // PAGE_BYTES, 0)
    headroom = view.node_headroom_bytes // PAGE_BYTES
    urgent = scale_to_fit(reserves.node, np.where(requested, ask, 0), headroom)
    headroom = headroom - per_app(reserves.node, urgent, len(headroom))
    ask = urgent + scale_to_fit(reserves.node, np.where(requested, 0, ask), headroom)
    first = scale_to_fit(reserves.app, np.where(requested, ask, 0), free)
    others = np.maximum(free - per_app(reserves.app, first, len(free)) - pending, 0)
    granted = (first + scale_to_fit(reserves.app, np.where(requested, 0, ask), others)) * PAGE_BYTES
    given = np.where(rise, held + granted, np.where(fall, reserves.used_bytes + target, held))
    lost = may & ~reserves.acked & acked
    unknown = may & (view.weight > 0) & (reserves.share_bytes != view.share_bytes)
    index = np.flatnonzero((rise & (granted > 0)) | fall | lost | unknown)
    return index, given[index]

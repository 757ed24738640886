"""Plan of the node reserves (design 4.4): what agents may grant without a round trip.

The withheld share (sigma) of an application, as far as it is free, is spread over its nodes by their containers. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.limit_values import PAGE_BYTES
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.budget.fair_share import claims, guaranteed_limits
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_reserves import Reserves

STEP_BYTES: Final = 4 << 20
"""A reserve that differs from its target by less than this, or by less than a quarter, is left unchanged."""
RETRY_NS: Final = 1_000_000_000
"""A lost update is sent again after this long."""
URGENT_RETRY_NS: Final = 200_000_000
"""The same, while a request is pending."""
NODE_SHARE: Final = 4
"""Without a request a reserve is at most 1/n of its node's headroom, itself included."""
REPLAN_NS: Final = 500_000_000
"""Containers that move between nodes, and nodes that come back, change the plan but not its sums."""


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
    """G: what its containers claim, ahead of requests beyond fair shares."""
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

    First requests within fair shares; then requests beyond them, of what no container claims; then the withheld share
    by weight, or, where that is not all free, by claims.
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
    # A request that nothing free is left for needs what other nodes hold, however little each can spare.
    asked = np.where(requested & rise, target - left, 0)
    short = (per_app(reserves.app, asked, len(view.free_bytes)) > view.free_bytes)[reserves.app]
    fall = may & (target < left) & acked & (far | short | (target == 0))
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


class ReservePlanner:
    """Plans the reserves of all groups, and remembers which sums the newest plan was made for."""

    def __init__(self) -> None:
        self._planned: IntArray = np.zeros(0, dtype=np.int64)
        self._plan_again_ns = 0

    def plan_due(
        self, cluster: ClusterState, context: StepContext, budget: StepBudget
    ) -> tuple[IntArray, IntArray] | None:
        """`plan`: grants that bring reserves to what the applications can spare; None: no new plan is due."""
        if not cluster.reserves.in_use.any() or not self._is_due(cluster.reserves, context, budget):
            return None
        return plan(cluster.reserves, reserve_view(cluster, context, budget))

    def _is_due(self, node_reserves: Reserves, context: StepContext, budget: StepBudget) -> bool:
        """Whether a plan may differ from the previous one: sums changed, a request is pending, or REPLAN_NS passed."""
        now_ns, reserved, pending = (
            context.time.now_ns,
            budget.committed.pools.reserved_bytes,
            budget.pending.limit_bytes,
        )
        sums: IntArray = np.concatenate((budget.free_bytes, reserved, pending, context.eligible))
        same = np.array_equal(sums, self._planned) and now_ns < self._plan_again_ns
        settled = same and node_reserves.acked[node_reserves.in_use].all()
        if settled and not node_reserves.pending_requests(now_ns).any():
            return False
        self._planned, self._plan_again_ns = sums, now_ns + REPLAN_NS
        return True


def reserve_view(cluster: ClusterState, context: StepContext, budget: StepBudget) -> ReserveView:
    """The inputs of a plan."""
    rows, table, node_reserves, committed = cluster.rows, context.table, cluster.reserves, budget.committed
    count, pools = len(node_reserves.app), committed.pools
    shares = rows.admitted & table.known[rows.app] & ~table.observe_only[rows.app]
    unfenced = np.bincount(rows.reserve, ~rows.fenced, count) > 0
    guaranteed = guaranteed_limits(rows, budget.share_bytes, committed.limit_bytes)
    claimed = claims(guaranteed, committed.limit_bytes) * shares
    return ReserveView(
        pool_bytes=budget.free_bytes + pools.reserved_bytes,
        free_bytes=budget.free_bytes,
        pending_bytes=budget.pending.limit_bytes,
        withheld_bytes=table.withheld_bytes,
        guaranteed_bytes=np.bincount(rows.reserve, claimed, count).astype(np.int64),
        share_bytes=budget.share_bytes[node_reserves.app],
        weight=np.bincount(rows.reserve, shares, count).astype(np.int64),
        reachable=context.eligible[node_reserves.app] & ~unfenced & context.node_seen[node_reserves.node],
        node_headroom_bytes=budget.node_headroom_bytes,
        now_ns=context.time.now_ns,
    )

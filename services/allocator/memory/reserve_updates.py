"""Plans limit updates for node reserves, and sums what is being reclaimed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.limits import LimitUpdate
from services.allocator.budget import ledger
from services.allocator.budget.fairness import FairShares, claims
from services.allocator.budget.node_headroom import node_headroom
from services.allocator.memory import reserves
from services.allocator.messages import Pools, ReserveGrants, UpdateId, reserve_update
from services.allocator.state import eligibility
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.container_columns import BoolArray, IntArray, grouped
from services.allocator.state.eligibility import LeaseState, StepTime

REPLAN_NS = 500_000_000
"""Containers that move between nodes, and nodes that come back, change the plan but not its sums."""


@dataclass(slots=True)
class MemoryRequester:
    """The container that a memory request is for."""

    exempt: list[int]
    """Rows whose limits are not decreased for it: its own, if known."""
    within_bytes: int
    """Bytes below its fair share; an unknown container counts as having nothing."""
    floor_bytes: IntArray
    """Per row: no limit is decreased below it for this request."""
    remark: str = ""
    """Sentence for a refusal, where it is above its share."""


class ReservePlanner:
    """Plans the reserves that agents grant from."""

    def __init__(self, cluster: ClusterState, leases: LeaseState) -> None:
        self._cluster = cluster
        self._leases = leases
        self.seq = 0
        """Sequence of the newest limit update of any kind."""
        self._planned: IntArray = np.zeros(0, dtype=np.int64)
        self._plan_again_ns = 0

    def next_update(self, epoch: int, time: StepTime) -> UpdateId:
        """Identity of the next limit update; sequences rise over all applications and epochs."""
        self.seq += 1
        return UpdateId(epoch, self.seq, time.wall_ns)

    def plan_updates(
        self, table: AppTable, held: Pools, pending_bytes: IntArray, eligible_apps: BoolArray, time: StepTime
    ) -> tuple[LimitUpdate, ...]:
        """Updates that bring the reserves to what the applications can spare; see `reserves`.

        Args:
            table: parameters per application.
            held: committed sums.
            pending_bytes: per application, reserved for pending containers.
            eligible_apps: applications that may raise limits.
            time: of the step.
        """
        rows, node_reserves = self._cluster.rows, self._cluster.reserves
        if not node_reserves.in_use.any():
            return ()
        free_bytes = eligibility.free_capacity(held, table)[1]
        fair = self.fair_shares(table, held)
        if not self._is_due(np.concatenate((free_bytes, held.reserved_bytes, pending_bytes, eligible_apps)), time):
            return ()
        count = len(node_reserves.app)
        shares = rows.admitted & table.known[rows.app] & ~table.observe_only[rows.app]
        unfenced = np.bincount(rows.reserve, ~rows.fenced, count) > 0
        view = reserves.ReserveView(
            pool_bytes=free_bytes + held.reserved_bytes,
            free_bytes=free_bytes,
            pending_bytes=pending_bytes,
            withheld_bytes=table.withheld_bytes,
            guaranteed_bytes=np.bincount(rows.reserve, self.claims(table, fair) * shares, count).astype(np.int64),
            share_bytes=fair.share_bytes[node_reserves.app],
            weight=np.bincount(rows.reserve, shares, count).astype(np.int64),
            reachable=eligible_apps[node_reserves.app]
            & ~unfenced
            & eligibility.recently_seen(self._cluster, node_reserves.node, time),
            node_headroom_bytes=node_headroom(self._cluster),
            now_ns=time.now_ns,
        )
        return self.build_updates(table, fair, reserves.plan(node_reserves, view), time)

    @staticmethod
    def fair_shares(table: AppTable, held: Pools) -> FairShares:
        """Of the containers admitted or announced, whichever are more."""
        containers = np.maximum(held.containers, table.announced)
        return FairShares.of(table.memory_limit_bytes, table.withheld_bytes, containers)

    def guaranteed(self, fair: FairShares) -> IntArray:
        """What each container may always have as its limit, shape (N,)."""
        rows = self._cluster.rows
        used = np.maximum(rows.memory_usage_bytes - rows.memory_reclaimable_bytes, 0)
        return fair.guaranteed(rows.app, used)

    def claims(self, table: AppTable, fair: FairShares) -> IntArray:
        """What each container may claim beyond the limit that it holds, shape (N,)."""
        rows = self._cluster.rows
        return claims(self.guaranteed(fair), ledger.committed(rows, ledger.MEMORY, table.observe_only[rows.app]))

    def _is_due(self, sums: IntArray, time: StepTime) -> bool:
        """Whether a plan may differ from the previous one: sums changed, a request is pending, or REPLAN_NS passed."""
        node_reserves = self._cluster.reserves
        same = np.array_equal(sums, self._planned) and time.now_ns < self._plan_again_ns
        if (
            same
            and node_reserves.acked[node_reserves.in_use].all()
            and not node_reserves.pending_requests(time.now_ns).any()
        ):
            return False
        self._planned, self._plan_again_ns = sums, time.now_ns + REPLAN_NS
        return True

    def requester(self, table: AppTable, held: Pools, found: list[int | None], app: int) -> MemoryRequester:
        """The requesting container, and what its fair share allows."""
        rows, fair = self._cluster.rows, self.fair_shares(table, held)
        exempt, share_bytes = [row for row in found if row is not None], int(fair.share_bytes[app])
        no_floor = np.zeros(rows.count, dtype=np.int64)
        limits = ledger.committed(rows, ledger.MEMORY, table.observe_only[rows.app])[exempt]
        limit_bytes = int(limits.sum())
        if limit_bytes < share_bytes:
            return MemoryRequester(exempt, share_bytes - limit_bytes, no_floor)
        guaranteed, others = self.guaranteed(fair), (rows.app == app) & rows.admitted
        others[exempt] = False
        claimed_bytes = int(claims(guaranteed, rows.memory_usage_bytes)[others].sum())
        return MemoryRequester(exempt, 0, guaranteed, explain_above_share(limit_bytes, share_bytes, claimed_bytes))

    def build_updates(
        self, table: AppTable, fair: FairShares, wanted: tuple[IntArray, IntArray], time: StepTime
    ) -> tuple[LimitUpdate, ...]:
        """Updates for slots of `Reserves`, one per node and epoch; ``wanted``: slots, and their cumulative grants."""
        index, granted_total_bytes = wanted
        node_reserves, updates = self._cluster.reserves, []
        given_of = dict(zip(index.tolist(), granted_total_bytes.tolist(), strict=True))
        epochs = self._leases.epoch_array(self._cluster.apps)[node_reserves.app]
        for node, of_node in grouped(index, node_reserves.node):
            for epoch, mine in grouped(of_node, epochs):
                update = self.next_update(epoch, time)
                given = [given_of[row] for row in mine.tolist()]
                grants = ReserveGrants(mine, given, table.max_memory_bytes, fair)
                updates.append(reserve_update(self._cluster, node, grants, update))
                node_reserves.record_update(mine, np.array(given, dtype=np.int64), update.seq, time.now_ns)
                node_reserves.share_bytes[mine] = fair.share_bytes[node_reserves.app[mine]]
        return tuple(updates)

    def reclaim_in_flight(self, table: AppTable, app: int, group: int, node: int | None = None) -> int:
        """Bytes being reclaimed: decreased limits and reserves whose acknowledgement is outstanding.

        ``group``, the slot that requests them, does not count itself. With ``node`` only of that node.
        """
        rows, node_reserves = self._cluster.rows, self._cluster.reserves
        holding = ledger.committed(rows, ledger.MEMORY, table.observe_only[rows.app])
        mine = (rows.app == app) & rows.admitted & ~rows.acked & ((node is None) | (rows.node == node))
        cuts = np.maximum(holding - rows.limit_ordered_bytes, 0)[mine]
        lowered = (
            node_reserves.in_use
            & ~node_reserves.acked
            & (node_reserves.app == app)
            & ((node is None) | (node_reserves.node == node))
        )
        lowered[group] = False
        returned = np.maximum(node_reserves.granted_total_bytes - node_reserves.inflight_bytes, 0)[lowered]
        return int(cuts.sum()) + int(returned.sum())


def explain_exhausted(app: str, limit_bytes: int, index: int, held: Pools) -> str:
    """Why a memory request is refused."""
    reserved = int(held.reserved_bytes[index])
    return (
        f"{app} may use {limit_bytes >> 20} MiB: its {int(held.containers[index])} containers hold "
        f"{(int(held.limit_committed_bytes[index]) - reserved) >> 20} MiB and use it, {reserved >> 20} MiB are reserves"
    )


def explain_above_share(limit_bytes: int, share_bytes: int, claimed_bytes: int) -> str:
    """Addition for a container above its fair share; empty where others have no claims."""
    if claimed_bytes < 1 << 20:
        return ""
    return (
        f"; it has {limit_bytes >> 20} MiB, its fair share is {share_bytes >> 20} MiB: "
        f"{claimed_bytes >> 20} MiB are kept for containers below theirs"
    )

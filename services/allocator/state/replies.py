"""What an agent's reply changes: values in the kernel, epochs acknowledged or lost, updates that are void, reserves.

Pure.
"""

from __future__ import annotations

import numpy as np

from schemas.limits import LimitReply, LimitUpdate, RowStatus
from services.allocator.arrays.array_types import IntArray
from services.allocator.state.acknowledgement import Report, ack, resync
from services.allocator.state.agent_restart import drop_unreported
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.kernel_refusals import KernelRefusals
from services.allocator.state.node_inventory import NodeInventory
from services.allocator.state.node_reserves import ReserveReport
from services.allocator.state.owned_applications import OwnedApplications
from services.allocator.state.sample_ranges import valid_rows

_IS_LOST = np.zeros(256, dtype=np.bool_)
"""By `RowStatus`: whether the update is void. (A look-up, because `np.isin` takes ten times as long.)"""
_IS_LOST[[RowStatus.FAILED, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.STALE_SEQ]] = True
_IS_LOST[RowStatus.NODE_BUDGET] = True


class Replies:
    """Records replies, and that there was none."""

    def __init__(
        self,
        cluster: ClusterState,
        inventory: NodeInventory,
        owned: OwnedApplications,
        refusals: KernelRefusals,
    ) -> None:
        self._cluster = cluster
        self._inventory = inventory
        self._owned = owned
        self._refusals = refusals

    def record(self, reply: LimitReply, update: LimitUpdate, now_ns: int) -> None:
        """Record what an agent applied and now holds; `AllocationCycle.redistribute` then assigns what came free."""
        claimed = [app for app in update.apps if self._owned.epoch_of(app) == update.epoch]
        is_fence = not update.row_count
        if is_fence:
            self._inventory.record_fence_reply(self._cluster, reply, claimed)
        node = self._cluster.node_index(reply.node)
        if node is None or self._cluster.nodes[node].incarnation != reply.incarnation or reply.rejection is not None:
            return
        stale = {app: epoch for app, epoch in reply.newer_epochs().items() if app in claimed}
        if stale:
            now_s = now_ns / 1e9
            believed = [app for app in stale if self._inventory.believe_claim(app, reply.node, now_s)]
            for app in believed:
                self._owned.lose(app, stale[app])
            if len(believed) < len(stale):
                self.record_timeout(update)
            return
        self._cluster.nodes[node].record_headroom(reply)
        self._cluster.fence_acknowledged(node, claimed, reply.report_seq)
        quota_us, limit_bytes = reply.column("quota_us"), reply.column("limit_bytes")
        limit_update_seq, status = reply.column("limit_update_seq"), reply.column("status")
        found = self._cluster.find_rows(node, reply.keys)
        sane = valid_rows(
            ("quota_us", "memory_limit_bytes", "limit_update_seq"), np.array((quota_us, limit_bytes, limit_update_seq))
        )
        self._cluster.counts.invalid_samples += int(np.count_nonzero(~sane))
        known = np.array([row is not None for row in found], dtype=np.bool_) & sane
        index = np.array([row for row, usable in zip(found, known.tolist(), strict=True) if usable], dtype=np.int64)
        report = Report(
            index,
            np.full(len(index), reply.report_seq, dtype=np.int64),
            quota_us[known],
            limit_bytes[known],
            limit_update_seq[known],
            np.zeros(len(index), dtype=np.bool_),
        )
        ack(self._cluster.rows, report, now_ns)
        if reply.keys == update.keys:
            self._refusals.record((reply, update), index, known, now_ns)
        lost = index[_IS_LOST[status[known]]]
        if len(lost):
            self._resync(lost, reply.seq)
        if reply.inventory_complete and reply.apps:
            self._ack_reserves(reply, node)
        if reply.inventory_complete and is_fence:
            drop_unreported(self._cluster, node, claimed, found)

    def record_timeout(self, update: LimitUpdate) -> None:
        """Record a timeout: the update may or may not act later, so it stays in flight; its rows are resynced."""
        node = self._cluster.node_index(update.node)
        if node is not None:
            rows = self._cluster.find_rows(node, update.keys)
            self._resync(np.array([row for row in rows if row is not None], dtype=np.int64), update.seq)

    def _resync(self, index: IntArray, seq: int) -> None:
        """Resync rows whose update failed or was lost, unless a newer one is in flight."""
        resync(self._cluster.rows, index[self._cluster.rows.limit_update_seq[index] == seq])

    def _ack_reserves(self, reply: LimitReply, node: int) -> None:
        """Acknowledge the reserves that a reply to a fence reports together with all rows of their applications."""
        node_reserves = [
            (row, values)
            for app, *values in zip(
                reply.apps,
                reply.reserve_given_bytes,
                reply.reserve_used_bytes,
                reply.reserve_update_seq,
                strict=True,
            )
            if (row := self._cluster.reserve_row(app, node)) is not None
        ]
        if node_reserves:
            columns = np.array([values for _, values in node_reserves], dtype=np.int64).T
            report_seq = np.full(len(node_reserves), reply.report_seq, dtype=np.int64)
            index = np.array([row for row, _ in node_reserves], dtype=np.int64)
            self._cluster.reserves.ack(index, ReserveReport(report_seq, *columns))

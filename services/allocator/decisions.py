"""What is published of a step: which limits of an application were changed, why, and what it has left. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.limits import LimitDecisions
from services.allocator.arrays.array_types import IntArray
from services.allocator.arrays.reasons import Reasons
from services.allocator.budget.committed import Pools
from services.allocator.budget.step_context import StepContext
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.rows import Ordered


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """A step after its orders."""

    number: int
    context: StepContext
    before: Ordered
    reasons: tuple[Reasons, Reasons]
    """Of CPU and of memory."""
    pools: Pools
    """After it."""

    def decisions(
        self, cluster: ClusterState, app: int, index: IntArray, node_warnings: tuple[str, ...]
    ) -> LimitDecisions:
        """Changes of one application, in the rows ``index``; without rows only its pools."""
        rows, table, pools = cluster.rows, self.context.table, self.pools
        quota_us, limit_bytes = rows.quota_ordered_us[index], rows.limit_ordered_bytes[index]
        quota_before, limit_before = self.before.quota_us[index], self.before.limit_bytes[index]
        sent = index[rows.admitted[index] & ~table.observe_only[app]]
        columns: dict[str, Any] = {
            "quota_from_us": quota_before,
            "quota_to_us": np.where(quota_us != quota_before, quota_us, 0),
            "limit_from_bytes": limit_before,
            "limit_to_bytes": np.where(limit_bytes != limit_before, limit_bytes, 0),
        }
        for prefix, why in zip(("quota", "limit"), self.reasons, strict=True):
            columns |= {
                f"{prefix}_reason": why.reason[index],
                f"{prefix}_measured": why.measured[index],
                f"{prefix}_threshold": why.threshold[index],
            }
        return LimitDecisions.build(
            [cluster.keys[row] for row in index.tolist()],
            columns,
            app=cluster.apps[app],
            mode="observe" if table.observe_only[app] else "enforce",
            policy="waterfill" if table.waterfill[app] else "escra",
            epoch=int(self.context.epochs[app]),
            step=self.number,
            time_ns=self.context.time.wall_ns,
            container_count=int(pools.containers[app]),
            cpu_limit_us=int(table.cpu_limit_us[app]),
            cpu_allocated_us=int(pools.quota_committed_us[app]),
            memory_limit_bytes=int(table.memory_limit_bytes[app]),
            memory_allocated_bytes=int(pools.limit_committed_bytes[app]),
            memory_reserved_bytes=int(pools.reserved_bytes[app]),
            node_warnings=node_warnings,
            **_update_seqs(rows.limit_update_seq[sent]),
        )


def _update_seqs(seq: IntArray) -> dict[str, int]:
    """Fields that name the limit updates which carry the rows of a decision."""
    return {"update_seq_first": int(seq.min()), "update_seq_last": int(seq.max())} if len(seq) else {}

"""How limit updates are put together: a message per node and epoch, numbered, of changed rows or of reserves. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.limits import LimitUpdate
from services.allocator.arrays.array_types import IntArray
from services.allocator.arrays.grouping import grouped, runs
from services.allocator.budget.step_context import StepContext, StepTime
from services.allocator.state.acknowledgement import record_updates
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_state import NodeState
from services.allocator.state.rows import Ordered

_NO_CHANGES: tuple[list[str], dict[str, Any]] = ([], {"quota_us": [], "limit_bytes": []})


class LimitUpdates:
    """Of one replica."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._newest_seq = 0
        """It rises over all applications and epochs."""

    def of_rows(self, context: StepContext, index: IntArray, before: Ordered) -> list[LimitUpdate]:
        """The changed values of these rows, which count as in flight from now on: one update per node and epoch."""
        cluster, rows, epochs = self._cluster, self._cluster.rows, context.epochs
        index = index[np.lexsort((epochs[rows.app[index]], rows.node[index]))]
        epoch, quota_us, limit_bytes = (
            epochs[rows.app[index]],
            rows.quota_ordered_us[index],
            rows.limit_ordered_bytes[index],
        )
        changed = {
            "quota_us": np.where(quota_us == before.quota_us[index], 0, quota_us),
            "limit_bytes": np.where(limit_bytes == before.limit_bytes[index], 0, limit_bytes),
        }
        seq, updates = np.empty(len(index), dtype=np.int64), []
        for part in runs(rows.node[index], epoch):
            mine = index[part]
            apps = tuple(cluster.apps[app] for app in sorted(set(rows.app[mine].tolist())))
            columns = {name: column[part] for name, column in changed.items()}
            keys = [cluster.keys[row] for row in mine.tolist()]
            node = cluster.nodes[int(rows.node[mine[0]])]
            updates.append(self._next(node, int(epoch[part.start]), apps, context.time, (keys, columns)))
            seq[part] = updates[-1].seq
        record_updates(rows, index, (changed["quota_us"], changed["limit_bytes"]), seq)
        return updates

    def of_reserves(
        self, context: StepContext, share_bytes: IntArray, plan: tuple[IntArray, IntArray] | None
    ) -> tuple[LimitUpdate, ...]:
        """Fences with cumulative reserve grants, and the bounds for granting from them, one per node and epoch."""
        if plan is None:
            return ()
        cluster, node_reserves, updates = self._cluster, self._cluster.reserves, []
        given_of = dict(zip(plan[0].tolist(), plan[1].tolist(), strict=True))
        epochs = context.epochs[node_reserves.app]
        for node, of_node in grouped(plan[0], node_reserves.node):
            for epoch, mine in grouped(of_node, epochs):
                given, app = [given_of[row] for row in mine.tolist()], node_reserves.app[mine]
                update = self._next(
                    cluster.nodes[node],
                    epoch,
                    tuple(cluster.apps[each] for each in app.tolist()),
                    context.time,
                    reserve_given_bytes=tuple(given),
                    container_max_bytes=tuple(context.table.max_memory_bytes[app].tolist()),
                    fair_share_bytes=tuple(share_bytes[app].tolist()),
                    fair_growth_bytes=(0,) * len(app),
                )
                updates.append(update)
                total = np.array(given, dtype=np.int64)
                node_reserves.record_update(mine, total, share_bytes[app], update.seq, context.time.now_ns)
        return tuple(updates)

    def fence(self, node: NodeState, epoch: int, apps: tuple[str, ...], time: StepTime) -> LimitUpdate:
        """An update without rows: it claims applications and requests state."""
        return self._next(node, epoch, apps, time)

    def _next(
        self,
        node: NodeState,
        epoch: int,
        apps: tuple[str, ...],
        time: StepTime,
        rows: tuple[list[str], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> LimitUpdate:
        """The next update; ``rows``: keys and columns."""
        self._newest_seq += 1
        keys, columns = rows or _NO_CHANGES
        identity = {"node": node.name, "incarnation": node.incarnation, "epoch": epoch, "seq": self._newest_seq}
        return LimitUpdate.build(keys, columns, **identity, time_ns=time.wall_ns, apps=apps, **fields)

"""What changes when an agent's process is another one: its containers count with their last limits until it lists them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.kernel_bounds import LIMIT, QUOTA, clear
from services.allocator.state.node_state import NodeState


def agent_restarted(cluster: ClusterState, node: int, incarnation: int) -> None:
    """A new agent process: it knows no earlier update, and rejects those addressed to the previous one.

    The previous process may have applied an update in flight before it died, so that update counts until the new
    one reports. Where a corrupt report claimed a later incarnation this is the older process: a fence re-reads it.
    """
    old = cluster.nodes[node]
    cluster.nodes[node] = NodeState(old.name, incarnation, freshness=old.freshness)
    cluster.reserves.on_agent_restart(node)
    for (app, owner), group in cluster.groups.items():
        if owner == node:
            group.report_seq, group.incomplete = 0, True
            if cluster.apps[app] not in old.fenced:
                cluster.unconfirmed.add((cluster.apps[app], old.name))
    mine = np.flatnonzero(cluster.rows.node == node)
    rows = cluster.rows
    for kernel, inflight in (
        (rows.quota_us, rows.quota_inflight_us),
        (rows.limit_bytes, rows.limit_inflight_bytes),
    ):
        kernel[mine] = np.where(inflight[mine] > 0, np.maximum(kernel[mine], inflight[mine]), kernel[mine])
    for column in (rows.report_seq, rows.limit_update_seq, rows.quota_inflight_us, rows.limit_inflight_bytes):
        column[mine] = 0
    rows.quota_deferred_us[mine] = rows.limit_deferred_bytes[mine] = 0
    for names in (QUOTA, LIMIT):
        clear(rows, names, mine)  # another process, which may be allowed more
    rows.acked[mine] = rows.unreported[mine] = True
    rows.fenced[mine] = False


def apps_with_unreported(cluster: ClusterState, node: int) -> list[str]:
    """Applications with containers on the node that it has not reported since its agent restarted."""
    absent = cluster.rows.unreported & (cluster.rows.node == node)
    return [cluster.apps[app] for app in np.unique(cluster.rows.app[absent])] if absent.any() else []


def drop_unreported(cluster: ClusterState, node: int, apps: Iterable[str], named: Iterable[int | None]) -> None:
    """Remove unreported rows of these applications: the agent has listed all its containers, ``named``."""
    gone = cluster.rows.unreported & (cluster.rows.node == node) & np.isin(cluster.rows.app, cluster.known_apps(apps))
    gone[[row for row in named if row is not None]] = False
    cluster.drop_rows(gone)

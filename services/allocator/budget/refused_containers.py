"""Containers that have no more than their floor, because there is no room: when that is said, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.allocator.budget.admission import SHARE_SAMPLES, Admitted
from services.allocator.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class RefusedContainer:
    """A container that has no more than its floor, because its application has no capacity."""

    app: str
    node: str
    container: str
    reason: str
    ended: bool = False
    """It has more now."""


class RefusedContainers:
    """Those of this replica."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, str], str] = {}
        """Why (node, container) has no more than its floor."""

    def record(self, cluster: ClusterState, admitted: list[Admitted]) -> tuple[RefusedContainer, ...]:
        """Record which containers have no more than their floor, and why; returns what is new, or has ended."""
        rows, known = cluster.rows, self.reasons
        new = {case.row: case.limits.shortages for case in admitted if case.limits.shortages}
        if not (new or known):
            return ()
        self.reasons, changes = {}, []
        for row in np.flatnonzero(rows.short).tolist():
            name, shortages = (cluster.nodes[int(rows.node[row])].name, cluster.keys[row]), new.get(row, [])
            if rows.short_samples[row] >= SHARE_SAMPLES or any(each.permanent for each in shortages):
                reason = "; ".join(each.reason for each in shortages) or known.get(name, "")
                self.reasons[name] = reason
                if name not in known:
                    changes.append(RefusedContainer(cluster.apps[int(rows.app[row])], *name, reason))
        for node_name, key in known.keys() - self.reasons.keys():
            node = cluster.node_index(node_name)
            [place] = cluster.find_rows(node, [key]) if node is not None else [None]
            if place is not None:
                app, reason = cluster.apps[int(rows.app[place])], f"there is room, after: {known[node_name, key]}"
                changes.append(RefusedContainer(app, node_name, key, reason, ended=True))
        return tuple(changes)

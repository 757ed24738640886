"""Why the kernel refuses limits, in an agent's words, as long as `kernel_bounds` keeps what it refused. Pure."""

from __future__ import annotations

import numpy as np

from schemas.limits import LimitReply, LimitUpdate
from services.allocator.arrays.array_types import Bools, IntArray
from services.allocator.state import kernel_bounds
from services.allocator.state.cluster_state import ClusterState

REASON_CHARACTERS = 500
"""Of an agent's sentence that is kept: it names a control group or two."""


class KernelRefusals:
    """Of the containers that this replica decides for."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.reasons: dict[tuple[str, str, str], str] = {}
        """By (node, container, ``cpu`` or ``memory``)."""

    def record(self, exchange: tuple[LimitReply, LimitUpdate], index: IntArray, known: Bools, now_ns: int) -> None:
        """Record what the kernel refused, and accepted again, of the rows ``index``, the ``known`` ones of a reply."""
        reply, update = exchange
        rows, keys = self._cluster.rows, [self._cluster.keys[row] for row in index.tolist()]
        answers = [
            kernel_bounds.Answer(
                update.column(name)[known],
                reply.column(name)[known],
                np.array([key in refused for key in keys], dtype=np.bool_),
            )
            for name, refused in (("quota_us", reply.refused_cpu), ("limit_bytes", reply.refused_memory))
        ]
        if self.reasons or any(answer.refused.any() for answer in answers):
            kernel_bounds.record(rows, index, (answers[0], answers[1]), update.seq, now_ns)
            for resource, refused in (("cpu", reply.refused_cpu), ("memory", reply.refused_memory)):
                reasons = {(reply.node, key, resource): why[:REASON_CHARACTERS] for key, why in refused.items()}
                self.reasons |= reasons
            self.reasons = {of: why for of, why in self.reasons.items() if self._is_refused(*of)}

    def _is_refused(self, node_name: str, key: str, resource: str) -> bool:
        node, rows = self._cluster.node_index(node_name), self._cluster.rows
        [row] = self._cluster.find_rows(node, [key]) if node is not None else [None]
        return row is not None and bool((rows.quota_refusals if resource == "cpu" else rows.limit_refusals)[row])

    def of_row(self, row: int, now_ns: int) -> str:
        """What the kernel refuses of a container at present, and why; empty: nothing that is known."""
        rows, cluster = self._cluster.rows, self._cluster
        name = cluster.nodes[int(rows.node[row])].name, cluster.keys[row]
        known = [
            self.reasons.get((*name, resource), "")
            for resource, names in (("cpu", kernel_bounds.QUOTA), ("memory", kernel_bounds.LIMIT))
            if kernel_bounds.current(rows, names, now_ns)[row]
        ]
        return "; ".join(filter(None, known))

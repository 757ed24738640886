"""Nodes that have not reported yet after a lease change. No limit of the application is raised until all have.

A new owner learns committed limits from agents. While an agent is dead, frozen or partitioned its containers run on
with their limits, so an owner that does not know them would assign their share twice. Nodes register in KV `nodes` and
expire there some time after their last heartbeat; until each of them has reported or expired, nothing is raised. The
container list of a registration is no evidence: it is as old as the agent's last heartbeat.

A report is an upper bound only once its node has acknowledged the new epoch: until then an update of the previous owner
may still arrive and raise what was reported. A node that goes silent in between counts as not reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from services.allocator.state.cluster_state import ClusterState, NodeState


@dataclass(frozen=True, slots=True)
class _Registration:
    """One entry of KV `nodes`."""

    incarnation: int
    sources_pending: bool = False
    """Whether a container source of the agent has not answered yet: its batches may miss containers."""


@dataclass(slots=True)
class NodeInventory:
    """Registered nodes, and per application those that have not reported since the lease change."""

    not_reported: dict[str, set[str]] = field(default_factory=dict)
    """Node names by application; applications without any have no entry."""
    _nodes: dict[str, _Registration] = field(default_factory=dict)

    def register(self, node: str, incarnation: int, *, sources_pending: bool = False) -> None:
        """Add or renew a registration; ``sources_pending``: not all container sources have answered."""
        self._nodes[node] = _Registration(incarnation, sources_pending)

    def has_pending_sources(self, node: str) -> bool:
        """Whether the node is registered and a container source has not answered: a missing report says nothing."""
        return node in self._nodes and self._nodes[node].sources_pending

    def deregister(self, node: str) -> None:
        """Remove a registration that was deleted or has expired."""
        self._nodes.pop(node, None)
        for app in list(self.not_reported):
            self.mark_reported(app, node)

    def await_reports(self, app: str) -> None:
        """Require a report of every registered node: the lease was just acquired."""
        self.release(app)
        if self._nodes:
            self.not_reported[app] = set(self._nodes)

    def await_reports_again(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Require another report for each (application, node)."""
        for app, node in pairs:
            self.not_reported.setdefault(app, set()).add(node)

    def release(self, app: str) -> None:
        """Stop waiting: the lease was released."""
        self.not_reported.pop(app, None)

    def mark_reported(self, app: str, node: str) -> None:
        """Record that the node has reported its containers of the application."""
        nodes = self.not_reported.get(app)
        if nodes is not None:
            nodes.discard(node)
            if not nodes:
                del self.not_reported[app]

    def record_batches(self, cluster: ClusterState, batches: Iterable[CfsBatch]) -> None:
        """Record applied batches; one lists all containers once all sources of its node have answered."""
        for batch in (batch for batch in batches if batch.inventory_complete):
            node = cluster.node_index(batch.node)
            if node is not None and cluster.has_acknowledged(batch.app, node):
                self.mark_reported(batch.app, batch.node)

    def record_fence_reply(self, cluster: ClusterState, reply: LimitReply, apps: Iterable[str]) -> None:
        """Record a reply to a fence, which lists all containers too; an unknown one waits for its batch."""
        known, node = self._nodes.get(reply.node), cluster.node_index(reply.node)
        if known is None or known.incarnation != reply.incarnation or not reply.inventory_complete:
            return
        if reply.rejection is not None or reply.stale_apps:
            return
        if node is not None and cluster.nodes[node].incarnation != reply.incarnation:
            return  # a newer incarnation has reported
        if not reply.row_count or (node is not None and None not in cluster.find_rows(node, reply.keys)):
            for app in apps:
                self.mark_reported(app, reply.node)

    def fence_requests(self, epochs: dict[str, int]) -> list[tuple[NodeState, tuple[str, ...], int]]:
        """Fences to request: node, applications, epoch."""
        asked: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for app, nodes in self.not_reported.items():
            for node in nodes & self._nodes.keys():
                asked[node, epochs.get(app, 0)].append(app)
        return [
            (NodeState(node, self._nodes[node].incarnation), tuple(sorted(apps)), epoch)
            for (node, epoch), apps in sorted(asked.items())
            if epoch
        ]

"""Which nodes have not been heard yet of an application that has just changed hands.

A new owner learns what containers hold from their agents. While an agent is dead, frozen or cut off its containers run
on with their limits: whoever did not know of them would hand out their share a second time. Nodes announce themselves
in the bucket of nodes, and stay there for a while after they have fallen silent: until each of them has been heard, or
has left that bucket, nothing of the application may be raised. That a registration names no container says nothing: it
is as old as the agent's last heartbeat.

What a node says is an upper bound from the moment on at which it has acknowledged the new owner's epoch: before that,
an older owner's order may still arrive there, and raise what it has said. So one that falls silent in between counts as
not heard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from services.allocator.state.cluster_state import NodeState, Roster


@dataclass(frozen=True, slots=True)
class _Present:
    """A node that has announced itself."""

    incarnation: int
    pending: bool = False
    """Whether its agent waits for a source of containers: it may hold some that no batch names."""


@dataclass(slots=True)
class Attendance:
    """Nodes by name, and per application those that are still to be heard."""

    missing: dict[str, set[str]] = field(default_factory=dict)
    """Applications without missing nodes have no entry."""
    _nodes: dict[str, _Present] = field(default_factory=dict)

    def present(self, node: str, incarnation: int, *, pending: bool = False) -> None:
        """A node has announced itself; ``pending``: not all its sources of containers have answered."""
        self._nodes[node] = _Present(incarnation, pending)

    def is_pending(self, node: str) -> bool:
        """Whether it lives and waits for a source of containers: its silence about them says nothing."""
        return node in self._nodes and self._nodes[node].pending

    def gone(self, node: str) -> None:
        """It has stopped, or has been silent for so long that its announcement has expired."""
        self._nodes.pop(node, None)
        for app in list(self.missing):
            self.heard(app, node)

    def expect(self, app: str) -> None:
        """The application is ours from now on."""
        self.forget(app)
        if self._nodes:
            self.missing[app] = set(self._nodes)

    def expect_again(self, pairs: Iterable[tuple[str, str]]) -> None:
        """What these nodes have said of these applications, in pairs, can no longer be relied upon."""
        for app, node in pairs:
            self.missing.setdefault(app, set()).add(node)

    def forget(self, app: str) -> None:
        """It is ours no longer."""
        self.missing.pop(app, None)

    def heard(self, app: str, node: str) -> None:
        """The node has said what it holds of the application."""
        nodes = self.missing.get(app)
        if nodes is not None:
            nodes.discard(node)
            if not nodes:
                del self.missing[app]

    def take_batches(self, roster: Roster, batches: Iterable[CfsBatch]) -> None:
        """A batch that the roster has taken names all containers, once all sources of the node have answered."""
        for batch in (batch for batch in batches if batch.inventory_complete) if self.missing else ():
            node = roster.node_index(batch.node)
            if node is not None and roster.obeys(batch.app, node):
                self.heard(batch.app, batch.node)

    def take_answer(self, roster: Roster, reply: LimitReply, apps: Iterable[str]) -> None:
        """The answer to a fence names all containers too; where one is unknown, its batch is still to come."""
        known, node = self._nodes.get(reply.node), roster.node_index(reply.node)
        if known is None or known.incarnation != reply.incarnation or not reply.inventory_complete:
            return
        if reply.refusal is not None or reply.stale_apps:
            return
        if node is not None and roster.nodes[node].incarnation != reply.incarnation:
            return  # its successor has been heard already
        if not reply.row_count or (node is not None and None not in roster.known_rows(node, reply.keys)):
            for app in apps:
                self.heard(app, reply.node)

    def questions(self, epochs: dict[str, int]) -> list[tuple[NodeState, tuple[str, ...], int]]:
        """Fences to send: node, applications, and their epoch."""
        asked: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for app, nodes in self.missing.items():
            for node in nodes & self._nodes.keys():
                asked[node, epochs.get(app, 0)].append(app)
        return [
            (NodeState(node, self._nodes[node].incarnation), tuple(sorted(apps)), epoch)
            for (node, epoch), apps in sorted(asked.items())
            if epoch
        ]

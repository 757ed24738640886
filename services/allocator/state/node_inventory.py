"""Node inventory: registered nodes, those whose report an acquired application waits for, and for how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from services._runtime.token_bucket import TokenBucket
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_state import NodeState

WAIT_REFILL: Final = 1 / 60
"""Seconds of waiting that a second without waiting gives back: half an hour for all of it."""
LONGEST_STEP_S: Final = 1.0
"""Of the time between two steps no more counts as waiting: this process may have been stopped."""
MAX_NAMED: Final = 3
"""Nodes that a warning names."""
CLAIMS: Final = 4
"""Newer epochs of an application that a node may claim at once, and then one per `CLAIM_EVERY_S`."""
CLAIM_EVERY_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Registration:
    """One entry of KV `nodes`."""

    incarnation: int
    sources_pending: bool = False
    """Whether a container source of the agent has not answered yet: its batches may miss containers."""
    capacity: tuple[int, int] = (NO_BOUND, NO_BOUND)
    """CPU in us per period, and memory in bytes."""


@dataclass(slots=True)
class NodeInventory:
    """Registered nodes, and per application those that have not reported since the lease change.

    A new owner learns committed limits from agents. While an agent is dead, frozen or partitioned its containers run on
    with their limits, so an owner that does not know them would assign their share twice. Nodes register in KV `nodes`
    and expire there some time after their last heartbeat; until each of them has reported or expired, nothing is
    raised. The container list of a registration is no evidence: it is as old as the agent's last heartbeat.

    A report is an upper bound only once its node has acknowledged the new epoch: until then an update of the previous
    owner may still arrive and raise what was reported. A node that goes silent in between counts as not reported.

    No application waits for a node longer than `longest_wait_s`, all its registrations, incarnations and changes of
    owner together; what is spent of that comes back by `WAIT_REFILL`. Such a pair is set aside until its node reports
    and acknowledges: it counts with what is known of it, and no update but fences is sent for it.
    """

    longest_wait_s: float = 30.0
    not_reported: dict[str, set[str]] = field(default_factory=dict)
    """Node names by application; applications without any have no entry."""
    set_aside: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of an application and a node that are not waited for any more."""
    defying: set[tuple[str, str]] = field(default_factory=set)
    """Pairs whose node carries out no decrease of the application's limits."""
    quarantined: set[str] = field(default_factory=set)
    """Nodes of which nothing is received at present: they send too much."""
    ignored_claims: int = 0
    """Newer epochs that a node has claimed more often than is believed."""
    _nodes: dict[str, _Registration] = field(default_factory=dict)
    _waits: dict[tuple[str, str], TokenBucket] = field(default_factory=dict)
    """Seconds for which an application may still wait for a node."""
    _charged_s: float = 0.0
    _claims: dict[tuple[str, str], TokenBucket] = field(default_factory=dict)

    @property
    def registered(self) -> set[str]:
        """Names of the registered nodes."""
        return set(self._nodes)

    def register(
        self,
        node: str,
        incarnation: int,
        *,
        sources_pending: bool = False,
        capacity: tuple[int, int] = (NO_BOUND, NO_BOUND),
    ) -> None:
        """Add or renew a registration.

        Args:
            node: its name.
            incarnation: of its agent.
            sources_pending: whether not all container sources have answered.
            capacity: the node's CPU in us per period, and its memory in bytes.
        """
        self._nodes[node] = _Registration(incarnation, sources_pending, capacity)

    def claim_bound(self, cluster: ClusterState, app: str, node: str) -> tuple[int, int]:
        """What a node counts at most whose reports nothing supports: an equal part by node, and what it has.

        Us per period, and bytes.
        """
        spec, nodes = cluster.specs[app], cluster.nodes_of(app)
        cpu_us, memory_bytes = self._nodes[node].capacity if node in self._nodes else (NO_BOUND, NO_BOUND)
        return min(spec.cpu_limit_us // nodes, cpu_us), min(int(spec.memory_limit) // nodes, memory_bytes)

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

    def charge_waits(self, unacknowledged: set[tuple[str, str]], now_s: float) -> None:
        """Charge the time since the last call to the pairs that are waited for, and set aside those that had theirs.

        Args:
            unacknowledged: pairs of an application and a live node with containers of it that disregards the epoch.
            now_s: monotonic.
        """
        waiting = unacknowledged.union(*({(app, node) for node in nodes} for app, nodes in self.not_reported.items()))
        passed_s, self._charged_s = min(max(now_s - self._charged_s, 0.0), LONGEST_STEP_S), now_s
        self.set_aside &= waiting
        for pair in waiting - self.set_aside:
            bucket = self._waits.setdefault(pair, TokenBucket(self.longest_wait_s, WAIT_REFILL, now_s))
            if not bucket.take(now_s, passed_s):
                self.set_aside.add(pair)
        for pair in self._waits.keys() - waiting:
            if self._waits[pair].is_full(now_s):
                del self._waits[pair]
        for pair in [pair for pair, bucket in self._claims.items() if bucket.is_full(now_s)]:
            del self._claims[pair]

    def awaited(self, app: str) -> set[str]:
        """Nodes that have to report before anything of the application is raised."""
        return {node for node in self.not_reported.get(app, ()) if (app, node) not in self.set_aside}

    def awaiting_apps(self) -> list[str]:
        """Applications that wait for a node."""
        return [app for app in self.not_reported if self.awaited(app)]

    def believe_claim(self, app: str, node: str, now_s: float) -> bool:
        """Whether to believe a node that an application has a newer epoch: that stops it for half a second.

        A change of owner brings one, and a store that has lost its newest records a few.
        """
        bucket = self._claims.setdefault((app, node), TokenBucket(CLAIMS, 1 / CLAIM_EVERY_S, now_s))
        believed = bucket.take(now_s)
        self.ignored_claims += not believed
        return believed

    def warnings(self, cluster: ClusterState, app: str) -> tuple[str, ...]:
        """Why limits of an application do not rise, and which nodes are left out of it: sentences."""
        awaited = sorted(self.awaited(app))
        named = ", ".join(awaited[:MAX_NAMED]) + (f" and {len(awaited) - MAX_NAMED} more" * (len(awaited) > MAX_NAMED))
        sentences = [f"nothing is raised before {named} has reported"] if awaited else []
        left_out = sorted(node for of_app, node in self.set_aside if of_app == app)[:MAX_NAMED]
        why = f"has not acknowledged its orders for {self.longest_wait_s:g} s: it is set aside"
        defying = sorted(node for of_app, node in self.defying if of_app == app)[:MAX_NAMED]
        unsupported = "lowers no limit as ordered: it counts with an equal part by node at most"
        flooding = (
            "sends more than any agent does: nothing of it is received for a while, its containers keep their limits"
        )
        ignored = [
            f"{node} {flooding}"
            for node in sorted(self.quarantined)
            if (index := cluster.node_index(node)) is not None and cluster.reserve_row(app, index) is not None
        ]
        sentences += [f"{node} {why}" for node in left_out] + [f"{node} {unsupported}" for node in defying]
        return (*sentences, *ignored[:MAX_NAMED])

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

"""Applications, nodes and containers: their indices, which containers are a group's, rows added and removed. Pure.

A node that stops reporting keeps its share (its containers run on with their last limits) until it is removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from schemas.apps import AppSpec
from services.allocator.arrays.array_types import BoolArray, Floats, IntArray
from services.allocator.state.node_reserves import Reserves
from services.allocator.state.node_state import NodeState
from services.allocator.state.rows import Rows
from services.allocator.state.usage_totals import AppUsage


@dataclass(slots=True)
class Group:
    """One application's containers on one node, as its newest batch lists them."""

    containers: str
    index: IntArray
    report_seq: int
    reserve: int
    """Row in `Reserves`."""
    incomplete: bool = False
    """Whether some rows are unreported since the agent restarted."""
    out_of_order_since_ns: int | None = None
    """When a run of out-of-order batches began that no accepted one has interrupted."""
    configured: tuple[int, int] = (0, 0)
    """Sums of the CPU and memory limits that its containers came with; -1: one came without, or not known."""


@dataclass(slots=True)
class IngestCounts:
    """Counters of batches and samples."""

    taken: int = 0
    out_of_order: int = 0
    """Older than a batch already applied, or of an older incarnation."""
    stale: int = 0
    """Two seconds slower than the fastest one of their node."""
    invalid_samples: int = 0
    """Rows with values that no kernel reports; dropped."""


@dataclass(slots=True)
class ClusterState:
    """All containers with their keys. Indices of applications and nodes never change."""

    rows: Rows = field(default_factory=Rows)
    reserves: Reserves = field(default_factory=Reserves)
    keys: list[str] = field(default_factory=list)
    apps: list[str] = field(default_factory=list)
    nodes: list[NodeState] = field(default_factory=list)
    specs: dict[str, AppSpec] = field(default_factory=dict)
    groups: dict[tuple[int, int], Group] = field(default_factory=dict)
    """By application and node, both by index."""
    counts: IngestCounts = field(default_factory=IngestCounts)
    usage: AppUsage = field(default_factory=AppUsage)
    group_count: int = 0
    """Batches per period: pairs of an application and a node that has containers of it."""
    slot_capacity: int = 0
    released_slots: list[int] = field(default_factory=list)
    """Slots of containers removed since `drain_released_slots`."""
    claim_bounds: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By application and node, both by index: what its containers and its reserve may count, together, because nothing
    supports what it reports. CPU in us per period, memory in bytes."""
    unconfirmed: set[tuple[str, str]] = field(default_factory=set)
    """(application, node) whose agent restarted before it acknowledged this owner's epoch: an update of a previous
    owner may have raised what it reported."""
    _free_slots: list[int] = field(default_factory=list)
    _app_index: dict[str, int] = field(default_factory=dict)
    _node_index: dict[str, int] = field(default_factory=dict)
    _row_of: dict[tuple[int, str], int] = field(default_factory=dict)
    _configured: Floats | None = None
    """`configured_limits`, until a group's have changed."""

    def app_index(self, app: str) -> int:
        """Index of an application; new ones are added."""
        if app not in self._app_index:
            self._app_index[app] = len(self.apps)
            self.apps.append(app)
        return self._app_index[app]

    def known_apps(self, apps: Iterable[str]) -> list[int]:
        """Indices of those of these applications that have one."""
        return [self._app_index[app] for app in apps if app in self._app_index]

    def node_index(self, name: str) -> int | None:
        """Index of a node; None: it has sent no batch."""
        return self._node_index.get(name)

    def add_node(self, name: str, incarnation: int) -> int:
        """Index of a node that has sent its first batch."""
        node = self._node_index[name] = len(self.nodes)
        self.nodes.append(NodeState(name, incarnation))
        return node

    def add_group(self, app: int, node: int) -> Group:
        """A group without containers."""
        group = self.groups[app, node] = Group("", np.zeros(0, np.int64), 0, self.reserves.add(app, node))
        return group

    def has_acknowledged(self, app: str, node: int) -> bool:
        """Whether the node has acknowledged the epoch for an application, or need not (mode `observe`)."""
        return app in self.nodes[node].fenced or self.is_observed(app)

    def is_observed(self, app: str) -> bool:
        """Whether the application is in mode `observe`: targets are published, no update is sent."""
        spec = self.specs.get(app)
        return spec is not None and spec.mode == "observe"

    def find_rows(self, node: int, keys: Iterable[str]) -> list[int | None]:
        """Rows of a node's containers; None: unknown."""
        row_of = self._row_of
        return [row_of.get((node, key)) for key in keys]

    def rows_of(self, pairs: Iterable[tuple[str, str]]) -> BoolArray:
        """Rows of these pairs of an application and a node, shape (N,)."""
        mine = np.zeros(self.rows.count, dtype=np.bool_)
        for app, node in pairs:
            mine |= (self.rows.app == self._app_index.get(app, -1)) & (self.rows.node == self._node_index.get(node, -1))
        return mine

    def pairs_of(self, mask: BoolArray) -> set[tuple[str, str]]:
        """Pairs of an application and a node that these rows, shape (N,), are of."""
        if not mask.any():
            return set()
        pairs = set(zip(self.rows.app[mask].tolist(), self.rows.node[mask].tolist(), strict=True))
        return {(self.apps[app], self.nodes[node].name) for app, node in pairs}

    def nodes_of(self, app: str) -> int:
        """Number of nodes with containers of the application; at least 1."""
        mine = self.rows.app == self._app_index.get(app, -1)
        return max(len(np.unique(self.rows.node[mine])), 1)

    def set_configured(self, group: Group, limits: tuple[int, int]) -> None:
        """Record what a group's containers came with."""
        if group.configured != limits:
            group.configured, self._configured = limits, None

    def configured_limits(self) -> Floats:
        """Sums of the limits that containers came with, by application, shape (2, A); NaN: one came without.

        CPU quotas in us per period, then memory limits in bytes.
        """
        if self._configured is None or self._configured.shape[1] != len(self.apps):
            sums = np.zeros((2, len(self.apps)))
            for (app, _), group in self.groups.items():
                sums[:, app] += [math.nan if value < 0 else value for value in group.configured]
            self._configured = sums
        return self._configured

    def fence_acknowledged(self, node: int, apps: Iterable[str], report_seq: int) -> None:
        """Record that the node has acknowledged the epoch for these applications, in this report."""
        fenced = self.nodes[node].fenced
        new = [app for app in apps if app not in fenced]
        if not new:
            return  # rows inherit it when they are added
        fenced.update(dict.fromkeys(new, report_seq))
        self.rows.fenced[(self.rows.node == node) & np.isin(self.rows.app, self.known_apps(new))] = True

    def remove_node(self, node: int) -> bool:
        """Remove an expired node and its containers. Returns whether it had any."""
        gone = self.rows.node == node
        self.drop_rows(gone)
        self._forget_groups([group for group in self.groups if group[1] == node])
        return bool(gone.any())

    def remove_app(self, app: str) -> None:
        """Remove an application that another replica owns now."""
        index = self.app_index(app)
        self.drop_rows(self.rows.app == index)
        self._forget_groups([group for group in self.groups if group[0] == index])
        self.usage.forget(index)
        for node in self.nodes:
            node.fenced.pop(app, None)

    def reserve_row(self, app: str, node: int) -> int | None:
        """Row in `reserves` of an application on a node; None: unknown."""
        group = self.groups.get((self._app_index.get(app, -1), node))
        return None if group is None else group.reserve

    def _forget_groups(self, groups: Iterable[tuple[int, int]]) -> None:
        for group in groups:
            self.reserves.remove(self.groups.pop(group).reserve)
        self._configured = None
        self.count_groups()

    def count_groups(self) -> None:
        """After the rows of groups have changed."""
        self.group_count = sum(len(group.index) > 0 for group in self.groups.values())

    def add_rows(self, app: int, node: int, keys: list[str], host_cpus: int) -> None:
        """Add containers of a group; they are not admitted yet."""
        if not keys:
            return
        index = self.rows.append(len(keys))
        self.rows.app[index], self.rows.node[index], self.rows.host_cpus[index] = app, node, host_cpus
        self.rows.reserve[index] = self.groups[app, node].reserve
        self.rows.slot[index] = [self._allocate_slot() for _ in keys]
        self.rows.acked[index] = True
        self.rows.oom_kills[index] = -1  # kills before the first sample are not this owner's to count
        self.rows.observe_only[index] = self.is_observed(self.apps[app])
        self.rows.fenced[index] = self.apps[app] in self.nodes[node].fenced
        self.keys.extend(keys)
        self._row_of.update({(node, key): int(row) for key, row in zip(keys, index, strict=True)})

    def drain_unconfirmed(self) -> set[tuple[str, str]]:
        """`unconfirmed` since the last call."""
        taken, self.unconfirmed = self.unconfirmed, set()
        return taken

    def drain_released_slots(self) -> list[int]:
        """Slots released since the last call; some may be in use again."""
        released, self.released_slots = self.released_slots, []
        return released

    def _allocate_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self.slot_capacity += 1
        return self.slot_capacity - 1

    def drop_rows(self, gone: BoolArray) -> None:
        """Remove these rows; the others move up."""
        if not gone.any():
            return
        slots = self.rows.slot[gone].tolist()
        self.released_slots += slots
        self._free_slots += slots
        renumbered = self.rows.keep(~gone)
        self.keys = [key for key, lost in zip(self.keys, gone.tolist(), strict=True) if not lost]
        self._row_of = {
            (int(node), key): row for row, (node, key) in enumerate(zip(self.rows.node, self.keys, strict=True))
        }
        for group in self.groups.values():
            group.index = renumbered[group.index[~gone[group.index]]]

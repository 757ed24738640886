"""Who is there: applications, nodes and containers, taken from batches, which are level-triggered truth.

A container that a node's newest batch does not name is gone, unless the node's agent was restarted and its sources of
containers have not all answered yet: then it is absent, and counts with what it held. A node that falls silent keeps
its share (its containers run on with their last limits) until it is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitReply
from services.allocator.budget.ledger import Report, settle
from services.allocator.memory.reserves import ReserveReport, Reserves
from services.allocator.state.container_columns import NO_BOUND, BoolArray, IntArray, Rows
from services.allocator.state.report_freshness import PATIENCE_NS, Punctuality
from services.allocator.state.slot_arrays import at


@dataclass(slots=True)
class NodeState:
    """One agent."""

    name: str
    incarnation: int
    fenced: dict[str, int] = field(default_factory=dict)
    """Sequence of the report that acknowledged this epoch, by application: what it reported before, an older owner's
    orders may have raised since."""
    heard_ns: int = 0
    headroom_bytes: int = NO_BOUND
    """By how much memory limits and reserves there may still rise, as last reported."""
    headroom_seq: int = 0
    """Of the report that said so."""
    idle_percent: int = -1
    """Idle share of its processors' time, as last reported; -1: not known."""
    punctuality: Punctuality = field(default_factory=Punctuality)

    def take_headroom(self, headroom_bytes: int, report_seq: int) -> None:
        """Take in what a report says of the node; -1: it sets no bound."""
        if report_seq > self.headroom_seq:
            self.headroom_seq, self.headroom_bytes = report_seq, NO_BOUND if headroom_bytes < 0 else headroom_bytes


@dataclass(slots=True)
class _Group:
    """An application's containers on one node, as its newest batch lists them."""

    containers: str
    index: IntArray
    report_seq: int
    reserve: int
    """Row in `Reserves`."""
    awaited: bool = False
    """Whether rows of it are absent: the agent was restarted and has not named them yet."""
    refused_since_ns: int | None = None
    """Since when fresh batches have been called overtaken without a break."""


@dataclass(slots=True)
class IngestCounts:
    """What became of batches."""

    taken: int = 0
    overtaken: int = 0
    """Older than one that was seen, or of an older incarnation."""
    stale: int = 0
    """Under way for two seconds longer than its node's fastest."""
    absurd_rows: int = 0
    """Rows with values that no kernel reports; they are left out."""


@dataclass(slots=True)
class Roster:
    """All rows with their keys. Applications and nodes have indices that never change."""

    rows: Rows = field(default_factory=Rows)
    reserves: Reserves = field(default_factory=Reserves)
    keys: list[str] = field(default_factory=list)
    apps: list[str] = field(default_factory=list)
    nodes: list[NodeState] = field(default_factory=list)
    specs: dict[str, AppSpec] = field(default_factory=dict)
    counts: IngestCounts = field(default_factory=IngestCounts)
    group_count: int = 0
    """Batches that a tick of all nodes brings: pairs of an application and a node with containers."""
    slot_capacity: int = 0
    released_slots: list[int] = field(default_factory=list)
    """Slots whose container is gone since `take_released_slots`."""
    unsure: set[tuple[str, str]] = field(default_factory=set)
    """Application and node, since they were taken: the agent was restarted before it had acknowledged our epoch, so an
    older owner's orders may have raised what it reported."""
    _free_slots: list[int] = field(default_factory=list)
    _app_index: dict[str, int] = field(default_factory=dict)
    _node_index: dict[str, int] = field(default_factory=dict)
    _groups: dict[tuple[int, int], _Group] = field(default_factory=dict)
    _row_of: dict[tuple[int, str], int] = field(default_factory=dict)

    def app_index(self, app: str) -> int:
        """Index of an application, new or known."""
        if app not in self._app_index:
            self._app_index[app] = len(self.apps)
            self.apps.append(app)
        return self._app_index[app]

    def node_index(self, name: str) -> int | None:
        """Index of a node that has been heard."""
        return self._node_index.get(name)

    def obeys(self, app: str, node: int) -> bool:
        """Whether the node has acknowledged this allocator's epoch for an application, or need not: nothing is sent."""
        spec = self.specs.get(app)
        return app in self.nodes[node].fenced or (spec is not None and spec.mode == "observe")

    def known_rows(self, node: int, keys: Iterable[str]) -> list[int | None]:
        """Rows of a node's containers; None where there is none."""
        row_of = self._row_of
        return [row_of.get((node, key)) for key in keys]

    def ingest(self, batches: Sequence[CfsBatch], now_ns: int, wall_ns: int) -> list[CfsBatch]:
        """Take in batches that arrived since the last step, in any order; of each group only the newest counts.

        Returns those that were taken.

        Args:
            batches: of this allocator's applications.
            now_ns: monotonic.
            wall_ns: since the epoch.
        """
        newest: dict[tuple[int, int], CfsBatch] = {}
        for batch in batches:
            group = self._accept(batch, now_ns, wall_ns)
            if group is not None:
                newest[group] = batch
        # One that came before the first of a restarted agent tells what held before.
        newest = {
            group: batch for group, batch in newest.items() if batch.incarnation == self.nodes[group[1]].incarnation
        }
        self.counts.taken += len(newest)
        for (app, node), batch in list(newest.items()):
            if not self._regroup(app, node, batch):
                self.counts.absurd_rows += batch.row_count
                del newest[app, node]
        if newest:
            self._assign(newest, now_ns)
            self.group_count = sum(len(group.index) > 0 for group in self._groups.values())
        return list(newest.values())

    def fence_acknowledged(self, node: int, apps: Iterable[str], report_seq: int) -> None:
        """The node has acknowledged this allocator's epoch for these applications, in this report."""
        fenced = self.nodes[node].fenced
        new = [app for app in apps if app not in fenced]
        if not new:
            return  # rows take it over when they join
        fenced.update(dict.fromkeys(new, report_seq))
        known = [self._app_index[app] for app in new if app in self._app_index]
        self.rows.fenced[(self.rows.node == node) & np.isin(self.rows.app, known)] = True

    def forget_node(self, node: int) -> bool:
        """A node has been silent for too long: its containers no longer count. Returns whether it had any."""
        gone = self.rows.node == node
        self._drop(gone)
        self._forget_groups([group for group in self._groups if group[1] == node])
        return bool(gone.any())

    def forget_app(self, app: str) -> None:
        """Another allocator decides for the application now: what is known of it grows old."""
        index = self.app_index(app)
        self._drop(self.rows.app == index)
        self._forget_groups([group for group in self._groups if group[0] == index])
        for node in self.nodes:
            node.fenced.pop(app, None)

    def reserve_row(self, app: str, node: int) -> int | None:
        """Row in `reserves` of an application on a node; None: not heard of."""
        group = self._groups.get((self.app_index(app), node))
        return None if group is None else group.reserve

    def _forget_groups(self, groups: Iterable[tuple[int, int]]) -> None:
        for group in groups:
            self.reserves.remove(self._groups.pop(group).reserve)
        self.group_count = sum(len(group.index) > 0 for group in self._groups.values())

    # -- batches -----------------------------------------------------------------------------------------------

    def _accept(self, batch: CfsBatch, now_ns: int, wall_ns: int) -> tuple[int, int] | None:
        app, node = self.app_index(batch.app), self._node_index.get(batch.node)
        if node is None:
            node = self._node_index[batch.node] = len(self.nodes)
            self.nodes.append(NodeState(batch.node, batch.incarnation))
        state = self.nodes[node]
        if not state.punctuality.is_fresh(wall_ns - batch.time_ns, now_ns):
            self.counts.stale += 1
            return None
        group = self._groups.get((app, node))
        newest_seq = max(group.report_seq if group is not None else 0, state.fenced.get(batch.app, 0))
        overtaken = (batch.incarnation, batch.report_seq) <= (state.incarnation, newest_seq)
        if group is None:
            group = self._groups[app, node] = _Group("", np.zeros(0, np.int64), 0, self.reserves.add(app, node))
        if overtaken and not self._refused_for_long(group, now_ns):
            self.counts.overtaken += 1
            return None
        if overtaken or batch.incarnation > state.incarnation:
            self._restarted(node, batch.incarnation)
            state = self.nodes[node]
        group.report_seq, group.refused_since_ns = batch.report_seq, None
        state.heard_ns = now_ns
        state.take_headroom(batch.node_headroom_bytes, batch.report_seq)
        state.idle_percent = batch.node_idle_percent
        return app, node

    @staticmethod
    def _refused_for_long(group: _Group, now_ns: int) -> bool:
        """A false report with a sequence far ahead, broken or forged, would silence its node for ever."""
        if group.refused_since_ns is None:
            group.refused_since_ns = now_ns
        return now_ns - group.refused_since_ns >= PATIENCE_NS

    def _restarted(self, node: int, incarnation: int) -> None:
        """A new agent: it has forgotten all orders, and refuses those that were meant for the old one.

        An order under way may have been carried out before that one died, so it counts until the new agent says what
        holds. Or the old one, where a false report had told of a later one: its orders are asked for anew by a fence.
        """
        old = self.nodes[node]
        self.nodes[node] = NodeState(old.name, incarnation, punctuality=old.punctuality)
        self.reserves.restarted(node)
        for (app, owner), group in self._groups.items():
            if owner == node:
                group.report_seq, group.awaited = 0, True
                if self.apps[app] not in old.fenced:
                    self.unsure.add((self.apps[app], old.name))
        mine = np.flatnonzero(self.rows.node == node)
        rows = self.rows
        for kernel, inflight in (
            (rows.quota_us, rows.quota_inflight_us),
            (rows.limit_bytes, rows.limit_inflight_bytes),
        ):
            kernel[mine] = np.where(inflight[mine] > 0, np.maximum(kernel[mine], inflight[mine]), kernel[mine])
        for column in (rows.report_seq, rows.order_seq, rows.quota_inflight_us, rows.limit_inflight_bytes):
            column[mine] = 0
        rows.quota_wanted_us[mine] = rows.limit_wanted_bytes[mine] = 0
        rows.settled[mine] = rows.absent[mine] = True
        rows.fenced[mine] = False

    def idle_percents(self) -> IntArray:
        """Idle share of each node's processors, shape: their number; -1: not known."""
        return np.array([node.idle_percent for node in self.nodes], dtype=np.int64)

    def absent_apps(self, node: int) -> list[str]:
        """Applications of which the node's agent has not named every container since it was restarted."""
        absent = self.rows.absent & (self.rows.node == node)
        return [self.apps[app] for app in np.unique(self.rows.app[absent])] if absent.any() else []

    def drop_absent(self, node: int, apps: Iterable[str], named: Iterable[int | None]) -> None:
        """The node's agent has named all containers that it has of these, in rows ``named``: the others are gone."""
        index = [self._app_index[app] for app in apps if app in self._app_index]
        gone = self.rows.absent & (self.rows.node == node) & np.isin(self.rows.app, index)
        gone[[row for row in named if row is not None]] = False
        self._drop(gone)

    def _regroup(self, app: int, node: int, batch: CfsBatch) -> bool:
        """Make the group's rows those of the batch; False: a container stands in it twice."""
        group = self._groups[app, node]
        if group.containers == batch.containers and not group.awaited:
            return True
        keys = batch.keys
        if len(set(keys)) != len(keys):
            return False
        present = {self._row_of[node, key] for key in keys if (node, key) in self._row_of}
        lost = (self.rows.app == app) & (self.rows.node == node)
        lost[np.fromiter(present, np.int64, len(present))] = False
        self._drop(lost if batch.inventory_complete else lost & ~self.rows.absent)
        group.awaited = group.awaited and not batch.inventory_complete
        self._add(app, node, [key for key in keys if (node, key) not in self._row_of], batch.host_cpus)
        group.index = np.array([self._row_of[node, key] for key in keys], dtype=np.int64)
        group.containers = batch.containers
        return True

    def _add(self, app: int, node: int, keys: list[str], host_cpus: int) -> None:
        if not keys:
            return
        index = self.rows.append(len(keys))
        self.rows.app[index], self.rows.node[index], self.rows.host_cpus[index] = app, node, host_cpus
        self.rows.reserve[index] = self._groups[app, node].reserve
        self.rows.slot[index] = [self._take_slot() for _ in keys]
        self.rows.settled[index] = True
        self.rows.fenced[index] = self.apps[app] in self.nodes[node].fenced
        self.keys.extend(keys)
        self._row_of.update({(node, key): int(row) for key, row in zip(keys, index, strict=True)})

    def take_unsure(self) -> set[tuple[str, str]]:
        """`unsure` since the last call."""
        taken, self.unsure = self.unsure, set()
        return taken

    def take_released_slots(self) -> list[int]:
        """Slots that were left since the last call; they may be in use again."""
        released, self.released_slots = self.released_slots, []
        return released

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self.slot_capacity += 1
        return self.slot_capacity - 1

    def _drop(self, gone: BoolArray) -> None:
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
        for group in self._groups.values():
            group.index = renumbered[group.index[~gone[group.index]]]

    def _assign(self, newest: dict[tuple[int, int], CfsBatch], now_ns: int) -> None:
        """All batches of the step in one assignment per column."""
        batches = list(newest.values())
        members = [self._groups[group].index for group in newest]
        index = np.concatenate(members)
        report_seq = np.repeat([batch.report_seq for batch in batches], [len(mine) for mine in members])
        table = _joined(batches, len(index))
        sane = sane_rows(tuple(RANGES), table[: len(RANGES)])
        if not sane.all():
            self.counts.absurd_rows += len(index) - int(np.count_nonzero(sane))
            index, report_seq, table = index[sane], report_seq[sane], table[:, sane]
        told = dict(zip(_COLUMNS, table, strict=True))
        fresh = told["periods"] > 0
        report = Report(index, report_seq, told["quota_us"], told["memory_limit_bytes"], told["order_seq"], fresh)
        newer = settle(self.rows, report, now_ns)
        self._settle_reserves(newest)
        if not newer.all():
            index, fresh, told = index[newer], fresh[newer], dict(zip(_COLUMNS, table[:, newer], strict=True))
        rows, mine = self.rows, at(index)
        rows.absent[mine] = False
        rows.memory_before_bytes[mine] = rows.memory_usage_bytes[mine]
        for name in _TAKEN:
            getattr(rows, name)[mine] = told[name]
        rows.fresh[mine] = fresh

    def settle_reserves_of(self, reply: LimitReply, node: int) -> None:
        """The reserves that a reply to a fence tells of, together with all rows of their applications."""
        book = [
            (row, values)
            for app, *values in zip(
                reply.apps,
                reply.reserve_given_bytes,
                reply.reserve_used_bytes,
                reply.reserve_order_seq,
                strict=True,
            )
            if app in self._app_index and (row := self.reserve_row(app, node)) is not None
        ]
        if book:
            columns = np.array([values for _, values in book], dtype=np.int64).T
            report_seq = np.full(len(book), reply.report_seq, dtype=np.int64)
            index = np.array([row for row, _ in book], dtype=np.int64)
            self.reserves.settle(index, ReserveReport(report_seq, *columns))

    def _settle_reserves(self, newest: dict[tuple[int, int], CfsBatch]) -> None:
        """Only now: a lower reserve counts together with the limits that it went into, all of them."""
        newest = {group: batch for group, batch in newest.items() if not self._groups[group].awaited}
        batches = newest.values()
        self.reserves.settle(
            np.array([self._groups[group].reserve for group in newest], dtype=np.int64),
            ReserveReport(
                np.array([batch.report_seq for batch in batches], dtype=np.int64),
                np.array([batch.reserve_given_bytes for batch in batches], dtype=np.int64),
                np.array([batch.reserve_used_bytes for batch in batches], dtype=np.int64),
                np.array([batch.reserve_order_seq for batch in batches], dtype=np.int64),
            ),
        )


RANGES = {
    "quota_us": (-1, 1 << 40),
    "memory_limit_bytes": (-1, 1 << 60),
    "memory_usage_bytes": (0, 1 << 60),
    "memory_reclaimable_bytes": (0, 1 << 60),
    "used_us": (0, 1 << 31),
    "unused_us": (0, 1 << 31),
    "throttled_us": (0, 1 << 31),
    "order_seq": (0, 1 << 62),
}
"""What a kernel can report: anything else is a fault, and must not overflow a sum."""

_COLUMNS = (*RANGES, "throttled", "oom_kills", "periods")
"""Of a batch, in the order of `_joined`: those with a range come first."""
_TAKEN = (
    *("memory_usage_bytes", "memory_reclaimable_bytes", "oom_kills"),
    *("used_us", "unused_us", "throttled", "throttled_us"),
)
"""Taken over as they are."""


def _joined(batches: Sequence[CfsBatch], count: int) -> IntArray:
    """The columns of all batches, shape (columns, rows)."""
    table = np.empty((len(_COLUMNS), count), dtype=np.int64)
    for row, name in zip(table, _COLUMNS, strict=True):
        raw = [getattr(batch, name) for batch in batches]
        row[:] = np.frombuffer(raw[0] if len(raw) == 1 else b"".join(raw), dtype=CfsBatch.column_types[name])
    return table


def sane_rows(names: tuple[str, ...], table: IntArray) -> BoolArray:
    """Rows whose values are all within `RANGES`, shape (rows,); ``table`` holds the named columns, (columns, rows)."""
    least, most = _bounds(names)
    inside: BoolArray = (table >= least) & (table <= most)
    return np.asarray(inside.all(axis=0))


@cache
def _bounds(names: tuple[str, ...]) -> tuple[IntArray, IntArray]:
    least, most = np.array([RANGES[name] for name in names], dtype=np.int64).T[:, :, None]
    return least, most

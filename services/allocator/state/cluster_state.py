"""Cluster state: applications, nodes and containers, built from the batches that agents send.

Batches are level-triggered: a container missing from its node's newest batch has gone, unless the agent has restarted
and not all of its container sources have answered yet. Such a container is `unreported` and counts with its last limit.
A node that stops reporting keeps its share (its containers run on with their last limits) until it is removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch, SampleFlag
from schemas.limits import LimitReply
from services.allocator.columns import (
    NO_BOUND,
    BoolArray,
    Floats,
    IntArray,
    Report,
    ReserveReport,
    Reserves,
    Rows,
    ack,
    at,
)
from services.allocator.state.kernel_bounds import LIMIT, QUOTA, clear
from services.allocator.state.totals import AppUsage, PreviousSample

STALE_NS: Final = 2_000_000_000
GRACE_NS: Final = 3_000_000_000
"""A burst after a bus freeze lasts milliseconds; a longer uninterrupted run is a clock change."""


@dataclass(slots=True)
class ReportFreshness:
    """Stale-report filter of one node, by differences of one-way delays; needs no synchronised clocks.

    The delay of a message is measured by two clocks, so only differences mean anything: a message is stale if its delay
    is STALE_NS above the smallest one of its node. A clock that is set back looks the same but lasts longer than a
    burst of late messages; after GRACE_NS that delay becomes the new baseline. Nanoseconds, ``now_ns`` monotonic.
    """

    best_delay_ns: int | None = None
    _stale_since_ns: int | None = None

    def is_fresh(self, delay_ns: int, now_ns: int) -> bool:
        """Whether a message with this delay is fresh."""
        if self.best_delay_ns is None or delay_ns < self.best_delay_ns:
            self.best_delay_ns = delay_ns
        if delay_ns - self.best_delay_ns <= STALE_NS:
            self._stale_since_ns = None
            return True
        if self._stale_since_ns is None:
            self._stale_since_ns = now_ns
        if now_ns - self._stale_since_ns < GRACE_NS:
            return False
        self.best_delay_ns, self._stale_since_ns = delay_ns, None
        return True


@dataclass(slots=True)
class NodeState:
    """Newest report of one agent."""

    name: str
    incarnation: int
    fenced: dict[str, int] = field(default_factory=dict)
    """Sequence of the report that acknowledged this owner's epoch, by application. An earlier report is no upper bound:
    an update of a previous owner may have raised limits since."""
    last_seen_ns: int = 0
    headroom_bytes: int = NO_BOUND
    """Bytes by which memory limits and reserves on the node may still rise, as last reported."""
    cpu_headroom_us: int = NO_BOUND
    """Microseconds per period by which CPU quotas on the node may still rise, as last reported."""
    headroom_seq: int = 0
    """Sequence of the report that both come from."""
    idle_percent: int = -1
    """Idle share of the time of its processors, as last reported; -1: unknown."""
    freshness: ReportFreshness = field(default_factory=ReportFreshness)

    def record_headroom(self, report: CfsBatch | LimitReply) -> None:
        """Record the headroom of a report; -1: unbounded."""
        if report.report_seq > self.headroom_seq:
            memory_bytes, cpu_us = report.node_headroom_bytes, report.node_cpu_headroom_us
            self.headroom_seq = report.report_seq
            self.headroom_bytes = NO_BOUND if memory_bytes < 0 else memory_bytes
            self.cpu_headroom_us = NO_BOUND if cpu_us < 0 else cpu_us


@dataclass(slots=True)
class _Group:
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
    _groups: dict[tuple[int, int], _Group] = field(default_factory=dict)
    _row_of: dict[tuple[int, str], int] = field(default_factory=dict)
    _configured: Floats | None = None
    """`configured_limits`, until a group's have changed."""

    def app_index(self, app: str) -> int:
        """Index of an application; new ones are added."""
        if app not in self._app_index:
            self._app_index[app] = len(self.apps)
            self.apps.append(app)
        return self._app_index[app]

    def node_index(self, name: str) -> int | None:
        """Index of a node; None: it has sent no batch."""
        return self._node_index.get(name)

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

    def configured_limits(self) -> Floats:
        """Sums of the limits that containers came with, by application, shape (2, A); NaN: one came without.

        CPU quotas in us per period, then memory limits in bytes.
        """
        if self._configured is None or self._configured.shape[1] != len(self.apps):
            sums = np.zeros((2, len(self.apps)))
            for (app, _), group in self._groups.items():
                sums[:, app] += [math.nan if value < 0 else value for value in group.configured]
            self._configured = sums
        return self._configured

    def ingest(self, batches: Sequence[CfsBatch], now_ns: int, wall_ns: int) -> list[CfsBatch]:
        """Apply the batches received since the last step, in any order; of each group only the newest counts.

        Args:
            batches: of applications that this replica owns.
            now_ns: monotonic.
            wall_ns: since the epoch.

        Returns:
            The batches that were applied.
        """
        newest: dict[tuple[int, int], CfsBatch] = {}
        for batch in batches:
            group = self._accept(batch, now_ns, wall_ns)
            if group is not None:
                newest[group] = batch
        # A batch received before the first one of a restarted agent describes the time before the restart.
        newest = {
            group: batch for group, batch in newest.items() if batch.incarnation == self.nodes[group[1]].incarnation
        }
        self.counts.taken += len(newest)
        for (app, node), batch in list(newest.items()):
            if not self._regroup(app, node, batch):
                self.counts.invalid_samples += batch.row_count
                del newest[app, node]
        if newest:
            self._apply(newest, now_ns)
            self.group_count = sum(len(group.index) > 0 for group in self._groups.values())
        return list(newest.values())

    def fence_acknowledged(self, node: int, apps: Iterable[str], report_seq: int) -> None:
        """Record that the node has acknowledged the epoch for these applications, in this report."""
        fenced = self.nodes[node].fenced
        new = [app for app in apps if app not in fenced]
        if not new:
            return  # rows inherit it when they are added
        fenced.update(dict.fromkeys(new, report_seq))
        known = [self._app_index[app] for app in new if app in self._app_index]
        self.rows.fenced[(self.rows.node == node) & np.isin(self.rows.app, known)] = True

    def remove_node(self, node: int) -> bool:
        """Remove an expired node and its containers. Returns whether it had any."""
        gone = self.rows.node == node
        self._drop(gone)
        self._forget_groups([group for group in self._groups if group[1] == node])
        return bool(gone.any())

    def remove_app(self, app: str) -> None:
        """Remove an application that another replica owns now."""
        index = self.app_index(app)
        self._drop(self.rows.app == index)
        self._forget_groups([group for group in self._groups if group[0] == index])
        self.usage.forget(index)
        for node in self.nodes:
            node.fenced.pop(app, None)

    def reserve_row(self, app: str, node: int) -> int | None:
        """Row in `reserves` of an application on a node; None: unknown."""
        group = self._groups.get((self.app_index(app), node))
        return None if group is None else group.reserve

    def _forget_groups(self, groups: Iterable[tuple[int, int]]) -> None:
        for group in groups:
            self.reserves.remove(self._groups.pop(group).reserve)
        self._configured = None
        self.group_count = sum(len(group.index) > 0 for group in self._groups.values())

    # -- batches -----------------------------------------------------------------------------------------------

    def _accept(self, batch: CfsBatch, now_ns: int, wall_ns: int) -> tuple[int, int] | None:
        app, node = self.app_index(batch.app), self._node_index.get(batch.node)
        if node is None:
            node = self._node_index[batch.node] = len(self.nodes)
            self.nodes.append(NodeState(batch.node, batch.incarnation))
        state = self.nodes[node]
        if not state.freshness.is_fresh(wall_ns - batch.time_ns, now_ns):
            self.counts.stale += 1
            return None
        group = self._groups.get((app, node))
        newest_seq = max(group.report_seq if group is not None else 0, state.fenced.get(batch.app, 0))
        out_of_order = (batch.incarnation, batch.report_seq) <= (state.incarnation, newest_seq)
        if group is None:
            group = self._groups[app, node] = _Group("", np.zeros(0, np.int64), 0, self.reserves.add(app, node))
        if out_of_order and not self._out_of_order_for_long(group, now_ns):
            self.counts.out_of_order += 1
            return None
        if out_of_order or batch.incarnation > state.incarnation:
            self._restarted(node, batch.incarnation)
            state = self.nodes[node]
        group.report_seq, group.out_of_order_since_ns = batch.report_seq, None
        configured = (batch.configured_cpu_us, batch.configured_memory_bytes) if batch.containers else (0, 0)
        if group.configured != configured:
            group.configured, self._configured = configured, None
        state.last_seen_ns = now_ns
        state.record_headroom(batch)
        state.idle_percent = batch.node_idle_percent
        return app, node

    @staticmethod
    def _out_of_order_for_long(group: _Group, now_ns: int) -> bool:
        """Whether to accept out-of-order batches: a corrupt report with a high sequence must not block a node."""
        if group.out_of_order_since_ns is None:
            group.out_of_order_since_ns = now_ns
        return now_ns - group.out_of_order_since_ns >= GRACE_NS

    def _restarted(self, node: int, incarnation: int) -> None:
        """A new agent process: it knows no earlier update, and rejects those addressed to the previous one.

        The previous process may have applied an update in flight before it died, so that update counts until the new
        one reports. Where a corrupt report claimed a later incarnation this is the older process: a fence re-reads it.
        """
        old = self.nodes[node]
        self.nodes[node] = NodeState(old.name, incarnation, freshness=old.freshness)
        self.reserves.on_agent_restart(node)
        for (app, owner), group in self._groups.items():
            if owner == node:
                group.report_seq, group.incomplete = 0, True
                if self.apps[app] not in old.fenced:
                    self.unconfirmed.add((self.apps[app], old.name))
        mine = np.flatnonzero(self.rows.node == node)
        rows = self.rows
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

    def apps_with_unreported(self, node: int) -> list[str]:
        """Applications with containers on the node that it has not reported since its agent restarted."""
        absent = self.rows.unreported & (self.rows.node == node)
        return [self.apps[app] for app in np.unique(self.rows.app[absent])] if absent.any() else []

    def drop_unreported(self, node: int, apps: Iterable[str], named: Iterable[int | None]) -> None:
        """Remove unreported rows of these applications: the agent has listed all its containers, ``named``."""
        index = [self._app_index[app] for app in apps if app in self._app_index]
        gone = self.rows.unreported & (self.rows.node == node) & np.isin(self.rows.app, index)
        gone[[row for row in named if row is not None]] = False
        self._drop(gone)

    def _regroup(self, app: int, node: int, batch: CfsBatch) -> bool:
        """Make the group's rows those of the batch; False: the batch lists a container twice."""
        group = self._groups[app, node]
        if group.containers == batch.containers and not group.incomplete:
            return True
        keys = batch.keys
        if len(set(keys)) != len(keys):
            return False
        present = {self._row_of[node, key] for key in keys if (node, key) in self._row_of}
        lost = (self.rows.app == app) & (self.rows.node == node)
        lost[np.fromiter(present, np.int64, len(present))] = False
        self._drop(lost if batch.inventory_complete else lost & ~self.rows.unreported)
        group.incomplete = group.incomplete and not batch.inventory_complete
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

    def _apply(self, newest: dict[tuple[int, int], CfsBatch], now_ns: int) -> None:
        """Write all batches of the step, one assignment per column."""
        batches = list(newest.values())
        members = [self._groups[group].index for group in newest]
        index = np.concatenate(members)
        counts = [len(mine) for mine in members]
        report_seq = np.repeat([batch.report_seq for batch in batches], counts)
        sampled_ns = np.repeat([batch.time_ns for batch in batches], counts)
        table = _stacked(batches, len(index))
        sane = valid_rows(tuple(RANGES), table[: len(RANGES)])
        if not sane.all():
            self.counts.invalid_samples += len(index) - int(np.count_nonzero(sane))
            index, report_seq, sampled_ns, table = index[sane], report_seq[sane], sampled_ns[sane], table[:, sane]
        reported = dict(zip(_COLUMNS, table, strict=True))
        fresh = reported["periods"] > 0
        report = Report(
            index, report_seq, reported["quota_us"], reported["memory_limit_bytes"], reported["limit_update_seq"], fresh
        )
        newer = ack(self.rows, report, now_ns)
        self._ack_reserves(newest)
        if not newer.all():
            index, fresh, sampled_ns = index[newer], fresh[newer], sampled_ns[newer]
            reported = dict(zip(_COLUMNS, table[:, newer], strict=True))
        rows, mine = self.rows, at(index)
        rows.unreported[mine] = False
        rows.previous_memory_usage_bytes[mine] = rows.memory_usage_bytes[mine]
        observed = rows.observe_only[mine] & rows.admitted[mine]
        decided_us = np.where(observed, rows.quota_ordered_us[mine], NO_BOUND)
        before = PreviousSample(rows.sampled_ns[mine], rows.oom_kills[mine], decided_us)
        rows.sampled_ns[mine] = self.usage.add(rows.app[mine], reported, sampled_ns, before)
        for name in _COPIED:
            getattr(rows, name)[mine] = reported[name]
        rows.fresh[mine] = fresh
        rows.own_limit[mine] = (reported["flags"] & int(SampleFlag.OWN_MEMORY_LIMIT)) > 0

    def ack_reserves(self, reply: LimitReply, node: int) -> None:
        """Acknowledge the reserves that a reply to a fence reports together with all rows of their applications."""
        node_reserves = [
            (row, values)
            for app, *values in zip(
                reply.apps,
                reply.reserve_given_bytes,
                reply.reserve_used_bytes,
                reply.reserve_update_seq,
                strict=True,
            )
            if app in self._app_index and (row := self.reserve_row(app, node)) is not None
        ]
        if node_reserves:
            columns = np.array([values for _, values in node_reserves], dtype=np.int64).T
            report_seq = np.full(len(node_reserves), reply.report_seq, dtype=np.int64)
            index = np.array([row for row, _ in node_reserves], dtype=np.int64)
            self.reserves.ack(index, ReserveReport(report_seq, *columns))

    def _ack_reserves(self, newest: dict[tuple[int, int], CfsBatch]) -> None:
        """After the limits: a lower reserve counts only together with the limits that it was granted to."""
        newest = {group: batch for group, batch in newest.items() if not self._groups[group].incomplete}
        batches = newest.values()
        self.reserves.ack(
            np.array([self._groups[group].reserve for group in newest], dtype=np.int64),
            ReserveReport(
                np.array([batch.report_seq for batch in batches], dtype=np.int64),
                np.array([batch.reserve_given_bytes for batch in batches], dtype=np.int64),
                np.array([batch.reserve_used_bytes for batch in batches], dtype=np.int64),
                np.array([batch.reserve_update_seq for batch in batches], dtype=np.int64),
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
    "limit_update_seq": (0, 1 << 62),
}
"""Values a kernel can report. Anything else is a fault and would overflow sums."""

_COLUMNS = (*RANGES, "throttled", "oom_kills", "periods", "flags")
"""Of a batch, in the order of `_stacked`: those with a range come first."""
_COPIED = (
    *("memory_usage_bytes", "memory_reclaimable_bytes", "oom_kills"),
    *("used_us", "unused_us", "throttled", "throttled_us"),
)
"""Copied unchanged."""


def _stacked(batches: Sequence[CfsBatch], count: int) -> IntArray:
    """The columns of all batches, shape (columns, rows)."""
    table = np.empty((len(_COLUMNS), count), dtype=np.int64)
    for row, name in zip(table, _COLUMNS, strict=True):
        raw = [getattr(batch, name) for batch in batches]
        row[:] = np.frombuffer(raw[0] if len(raw) == 1 else b"".join(raw), dtype=CfsBatch.column_types[name])
    return table


def valid_rows(names: tuple[str, ...], table: IntArray) -> BoolArray:
    """Rows whose values are all within `RANGES`, shape (rows,); ``table`` holds the named columns, (columns, rows)."""
    least, most = _bounds(names)
    inside: BoolArray = (table >= least) & (table <= most)
    return np.asarray(inside.all(axis=0))


@cache
def _bounds(names: tuple[str, ...]) -> tuple[IntArray, IntArray]:
    least, most = np.array([RANGES[name] for name in names], dtype=np.int64).T[:, :, None]
    return least, most

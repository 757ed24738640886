"""Batches into rows: which of them count, which containers they list, what their samples say.

Batches are level-triggered: a container missing from its node's newest batch has gone, unless the agent has restarted
and not all of its container sources have answered yet. Such a container is `unreported` and counts with its last limit.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.cfs import CfsBatch, SampleFlag
from services.allocator.arrays.array_types import IntArray, at
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.state.acknowledgement import Report, ack
from services.allocator.state.agent_restart import agent_restarted
from services.allocator.state.cluster_state import ClusterState, Group
from services.allocator.state.node_reserves import ReserveReport
from services.allocator.state.report_freshness import GRACE_NS
from services.allocator.state.sample_ranges import RANGES, valid_rows
from services.allocator.state.usage_totals import PreviousSample

_COLUMNS = (*RANGES, "throttled", "oom_kills", "periods", "flags")
"""Of a batch, in the order of `_stacked`: those with a range come first."""
_COPIED = (
    *("memory_usage_bytes", "memory_reclaimable_bytes", "oom_kills"),
    *("used_us", "unused_us", "throttled", "throttled_us"),
)
"""Copied unchanged."""


def ingest(cluster: ClusterState, batches: Sequence[CfsBatch], now_ns: int, wall_ns: int) -> list[CfsBatch]:
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
        group = _accept(cluster, batch, now_ns, wall_ns)
        if group is not None:
            newest[group] = batch
    # A batch received before the first one of a restarted agent describes the time before the restart.
    newest = {
        group: batch for group, batch in newest.items() if batch.incarnation == cluster.nodes[group[1]].incarnation
    }
    cluster.counts.taken += len(newest)
    for (app, node), batch in list(newest.items()):
        if not _regroup(cluster, app, node, batch):
            cluster.counts.invalid_samples += batch.row_count
            del newest[app, node]
    if newest:
        _apply(cluster, newest, now_ns)
        cluster.count_groups()
    return list(newest.values())


def _accept(cluster: ClusterState, batch: CfsBatch, now_ns: int, wall_ns: int) -> tuple[int, int] | None:
    """The group whose newest batch this is; None: it is stale or out of order."""
    app, node = cluster.app_index(batch.app), cluster.node_index(batch.node)
    if node is None:
        node = cluster.add_node(batch.node, batch.incarnation)
    state = cluster.nodes[node]
    if not state.freshness.is_fresh(wall_ns - batch.time_ns, now_ns):
        cluster.counts.stale += 1
        return None
    group = cluster.groups.get((app, node))
    newest_seq = max(group.report_seq if group is not None else 0, state.fenced.get(batch.app, 0))
    out_of_order = (batch.incarnation, batch.report_seq) <= (state.incarnation, newest_seq)
    if group is None:
        group = cluster.add_group(app, node)
    if out_of_order and not _out_of_order_for_long(group, now_ns):
        cluster.counts.out_of_order += 1
        return None
    if out_of_order or batch.incarnation > state.incarnation:
        agent_restarted(cluster, node, batch.incarnation)
        state = cluster.nodes[node]
    group.report_seq, group.out_of_order_since_ns = batch.report_seq, None
    configured = (batch.configured_cpu_us, batch.configured_memory_bytes) if batch.containers else (0, 0)
    cluster.set_configured(group, configured)
    state.last_seen_ns = now_ns
    state.record_headroom(batch)
    state.idle_percent = batch.node_idle_percent
    return app, node


def _out_of_order_for_long(group: Group, now_ns: int) -> bool:
    """Whether to accept out-of-order batches: a corrupt report with a high sequence must not block a node."""
    if group.out_of_order_since_ns is None:
        group.out_of_order_since_ns = now_ns
    return now_ns - group.out_of_order_since_ns >= GRACE_NS


def _regroup(cluster: ClusterState, app: int, node: int, batch: CfsBatch) -> bool:
    """Make the group's rows those of the batch; False: the batch lists a container twice."""
    group = cluster.groups[app, node]
    if group.containers == batch.containers and not group.incomplete:
        return True
    keys = batch.keys
    if len(set(keys)) != len(keys):
        return False
    found = cluster.find_rows(node, keys)
    present = {row for row in found if row is not None}
    lost = (cluster.rows.app == app) & (cluster.rows.node == node)
    lost[np.fromiter(present, np.int64, len(present))] = False
    cluster.drop_rows(lost if batch.inventory_complete else lost & ~cluster.rows.unreported)
    group.incomplete = group.incomplete and not batch.inventory_complete
    new = [key for key, row in zip(keys, found, strict=True) if row is None]
    cluster.add_rows(app, node, new, batch.host_cpus)
    group.index = np.array(cluster.find_rows(node, keys), dtype=np.int64)
    group.containers = batch.containers
    return True


def _apply(cluster: ClusterState, newest: dict[tuple[int, int], CfsBatch], now_ns: int) -> None:
    """Write all batches of the step, one assignment per column."""
    batches = list(newest.values())
    members = [cluster.groups[group].index for group in newest]
    index = np.concatenate(members)
    counts = [len(mine) for mine in members]
    report_seq = np.repeat([batch.report_seq for batch in batches], counts)
    sampled_ns = np.repeat([batch.time_ns for batch in batches], counts)
    table = _stacked(batches, len(index))
    sane = valid_rows(tuple(RANGES), table[: len(RANGES)])
    if not sane.all():
        cluster.counts.invalid_samples += len(index) - int(np.count_nonzero(sane))
        index, report_seq, sampled_ns, table = index[sane], report_seq[sane], sampled_ns[sane], table[:, sane]
    reported = dict(zip(_COLUMNS, table, strict=True))
    fresh = reported["periods"] > 0
    report = Report(
        index, report_seq, reported["quota_us"], reported["memory_limit_bytes"], reported["limit_update_seq"], fresh
    )
    newer = ack(cluster.rows, report, now_ns)
    _ack_reserves(cluster, newest)
    if not newer.all():
        index, fresh, sampled_ns = index[newer], fresh[newer], sampled_ns[newer]
        reported = dict(zip(_COLUMNS, table[:, newer], strict=True))
    rows, mine = cluster.rows, at(index)
    rows.unreported[mine] = False
    rows.previous_memory_usage_bytes[mine] = rows.memory_usage_bytes[mine]
    observed = rows.observe_only[mine] & rows.admitted[mine]
    decided_us = np.where(observed, rows.quota_ordered_us[mine], NO_BOUND)
    before = PreviousSample(rows.sampled_ns[mine], rows.oom_kills[mine], decided_us)
    rows.sampled_ns[mine] = cluster.usage.add(rows.app[mine], reported, sampled_ns, before)
    for name in _COPIED:
        getattr(rows, name)[mine] = reported[name]
    rows.fresh[mine] = fresh
    rows.own_limit[mine] = (reported["flags"] & int(SampleFlag.OWN_MEMORY_LIMIT)) > 0


def _ack_reserves(cluster: ClusterState, newest: dict[tuple[int, int], CfsBatch]) -> None:
    """After the limits: a lower reserve counts only together with the limits that it was granted to."""
    newest = {group: batch for group, batch in newest.items() if not cluster.groups[group].incomplete}
    batches = newest.values()
    cluster.reserves.ack(
        np.array([cluster.groups[group].reserve for group in newest], dtype=np.int64),
        ReserveReport(
            np.array([batch.report_seq for batch in batches], dtype=np.int64),
            np.array([batch.reserve_given_bytes for batch in batches], dtype=np.int64),
            np.array([batch.reserve_used_bytes for batch in batches], dtype=np.int64),
            np.array([batch.reserve_update_seq for batch in batches], dtype=np.int64),
        ),
    )


def _stacked(batches: Sequence[CfsBatch], count: int) -> IntArray:
    """The columns of all batches, shape (columns, rows)."""
    table = np.empty((len(_COLUMNS), count), dtype=np.int64)
    for row, name in zip(table, _COLUMNS, strict=True):
        raw = [getattr(batch, name) for batch in batches]
        row[:] = np.frombuffer(raw[0] if len(raw) == 1 else b"".join(raw), dtype=CfsBatch.column_types[name])
    return table

"""Pending containers: reserve capacity for them, then admit them with their initial limits.

A full application has no capacity for a new container until others were decreased, which takes a step and its
acknowledgement. So what pending and announced containers need is taken out of the others' budget first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from schemas.apps import PERIOD_US
from schemas.reasons import Reason
from services.allocator.budget import ledger
from services.allocator.budget.node_headroom import INITIAL_LIMIT_SHARE, counted_bytes, node_headroom
from services.allocator.memory.policy import MARGIN_BYTES
from services.allocator.messages import Reasons
from services.allocator.state import eligibility
from services.allocator.state.admission import AdmissionRefusal, Capacity, PendingContainer, admit
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.container_columns import UNLIMITED, BoolArray, IntArray
from services.allocator.state.eligibility import Holdings

RETRY_STEPS = 10
"""Retries before a refusal is published: a decrease takes at most three steps."""


@dataclass(slots=True)
class PendingCapacity:
    """Capacity reserved per application, and the rows that it is for."""

    quota_us: IntArray
    limit_bytes: IntArray
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PendingRefusal:
    """A container that cannot be admitted now."""

    row: int
    reason: str
    report: bool
    """Whether its retries are used up, or it can never fit."""


def capacity_for_pending(
    cluster: ClusterState, table: AppTable, holdings: Holdings, waiting: BoolArray
) -> PendingCapacity:
    """What pending containers, and announced ones that have not started, will need.

    Args:
        cluster: all rows.
        table: parameters per application.
        holdings: what is committed now.
        waiting: rows to be admitted.
    """
    joined, own = holdings.pools.containers, holdings.per_row
    missing = np.maximum(table.announced - joined, 0)
    kept = PendingCapacity(missing * table.initial_quota_us, missing * table.initial_memory_bytes)
    virtual = table.observe_only[cluster.rows.app]
    kept.rows = np.flatnonzero(waiting & ~virtual).tolist()
    for app in {int(cluster.rows.app[row]) for row in kept.rows}:
        spec = cluster.specs[cluster.apps[app]]
        mine = [row for row in kept.rows if cluster.rows.app[row] == app]
        count = max(int(joined[app]) + len(mine), int(table.announced[app]))
        unannounced = max(len(mine) - int(missing[app]), 0)
        usage = sum(int(cluster.rows.memory_usage_bytes[row]) + MARGIN_BYTES for row in mine)
        kept.quota_us[app] += unannounced * spec.initial_quota_us(count)
        kept.limit_bytes[app] = max(kept.limit_bytes[app] + unannounced * spec.initial_memory_bytes(count), usage)
        # Limits that they came with are committed already.
        kept.quota_us[app] = max(kept.quota_us[app] - own[0][mine].sum(), 0)
        kept.limit_bytes[app] = max(kept.limit_bytes[app] - own[1][mine].sum(), 0)
    return kept


def admit_pending(
    cluster: ClusterState, table: AppTable, holdings: Holdings, ready: IntArray, reasons: tuple[Reasons, Reasons]
) -> list[PendingRefusal]:
    """Admit the rows ``ready`` as far as there is free capacity.

    Args:
        cluster: rows are changed in place.
        table: parameters per application.
        holdings: what is committed now.
        ready: rows that may be admitted now.
        reasons: CPU and memory, written in place.
    """
    refused, own, free = [], holdings.per_row, eligibility.free_capacity(holdings.pools, table)
    rooms, counted = node_headroom(cluster), counted_bytes(cluster.rows)
    for row in ready.tolist():
        app = int(cluster.rows.app[row])
        joined = int(np.count_nonzero(cluster.rows.admitted & (cluster.rows.app == app)))
        if table.observe_only[app]:
            _admit_observed(cluster, row, app, joined + 1)
            continue
        node = int(cluster.rows.node[row])
        of_node = int(rooms[node]), int(counted[row])
        room = _capacity(cluster, table, (row, joined), (free, own), of_node)
        together = joined + int(np.count_nonzero(~cluster.rows.admitted & (cluster.rows.app == app)))
        pending = _pending_container(cluster, table, row, max(together, int(table.announced[app])))
        answer = admit(room, pending)
        if isinstance(answer, AdmissionRefusal):
            cluster.rows.refusals[row] += 1
            report = answer.permanent or int(cluster.rows.refusals[row]) >= RETRY_STEPS
            refused.append(PendingRefusal(row, answer.reason, report))
            continue
        _set_ordered(cluster, row, answer.quota_us, answer.limit_bytes)
        for account, value in zip(ledger.ACCOUNTS, (answer.quota_us, answer.limit_bytes), strict=True):
            inflight = account.of(cluster.rows, "inflight")
            inflight[row] = max(int(inflight[row]), value)  # it goes out in this step
        free[0][app] -= max(answer.quota_us - int(own[0][row]), 0)
        free[1][app] -= max(answer.limit_bytes - int(own[1][row]), 0)
        rooms[node] -= min(max(answer.limit_bytes - int(counted[row]), 0), int(rooms[node]))
        for why, wished, there in (
            (reasons[0], pending.share_us, room.cpu_free_us),
            (reasons[1], pending.share_bytes, room.memory_free_bytes),
        ):
            why.reason[row], why.measured[row], why.threshold[row] = Reason.ADMITTED, wished, there
    return refused


def _capacity(
    cluster: ClusterState,
    table: AppTable,
    place: tuple[int, int],
    sums: tuple[tuple[IntArray, IntArray], ...],
    of_node: tuple[int, int],
) -> Capacity:
    """Free capacity for one row.

    Args:
        cluster: all rows.
        table: parameters per application.
        place: the row, and how many containers of its application are admitted.
        sums: free per application, committed per row (CPU, memory each).
        of_node: headroom of its node, and what the row counts for there.
    """
    (row, joined), (free, own) = place, sums
    rows, app = cluster.rows, int(cluster.rows.app[row])
    others = max(int(table.announced[app]) - joined - 1, 0)
    competing = ~rows.admitted & (rows.app == app)
    competing[row] = False
    # Reserve the shares of announced containers, minus the limits that some of them have already.
    kept = [
        max(others * int(initial[app]) - int(account[competing].sum()), 0)
        for initial, account in zip((table.initial_quota_us, table.initial_memory_bytes), own, strict=True)
    ]
    return Capacity(
        int(table.cpu_limit_us[app]),
        int(free[0][app] + own[0][row]) - kept[0],
        int(table.memory_limit_bytes[app]),
        int(free[1][app] + own[1][row]) - kept[1],
        int(table.delta_bytes[app]),
        sum(of_node),
        of_node[0] // INITIAL_LIMIT_SHARE + of_node[1],
    )


def _pending_container(cluster: ClusterState, table: AppTable, row: int, count: int) -> PendingContainer:
    rows, app = cluster.rows, int(cluster.rows.app[row])
    spec = cluster.specs[cluster.apps[app]]
    return PendingContainer(
        name=cluster.keys[row],
        used_us=int(rows.used_us[row]),
        usage_bytes=int(rows.memory_usage_bytes[row]),
        share_us=spec.initial_quota_us(count),
        share_bytes=spec.initial_memory_bytes(count),
        min_us=int(table.min_quota_us[app]),
        cap_us=min(int(rows.host_cpus[row]) * PERIOD_US, int(table.max_quota_us[app])),
        min_bytes=int(table.min_memory_bytes[app]),
        max_bytes=int(table.max_memory_bytes[app]),
    )


def _admit_observed(cluster: ClusterState, row: int, app: int, count: int) -> None:
    """Mode `observe`: begin with the limits that the container has, or with its equal share."""
    rows, spec = cluster.rows, cluster.specs[cluster.apps[app]]
    quota_us, limit_bytes = int(rows.quota_us[row]), int(rows.limit_bytes[row])
    _set_ordered(
        cluster,
        row,
        spec.initial_quota_us(count) if quota_us == UNLIMITED else quota_us,
        spec.initial_memory_bytes(count) if limit_bytes == UNLIMITED else limit_bytes,
    )


def _set_ordered(cluster: ClusterState, row: int, quota_us: int, limit_bytes: int) -> None:
    rows = cluster.rows
    rows.quota_ordered_us[row], rows.limit_ordered_bytes[row] = quota_us, limit_bytes
    rows.admitted[row] = True
    rows.refusals[row] = 0

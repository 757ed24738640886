"""Capacity that is kept for pending containers, those without their first share, and for announced ones. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.apps import AppSpec
from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.limit_values import MARGIN_BYTES
from services.allocator.budget.committed import Committed
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class PendingCapacity:
    """Capacity reserved for pending containers per application, shape (A,)."""

    quota_us: IntArray
    limit_bytes: IntArray


def capacity_for_pending(
    cluster: ClusterState, table: AppTable, committed: Committed, short: tuple[BoolArray, BoolArray]
) -> PendingCapacity:
    """What containers without their first share, of CPU or memory, and announced ones that have not started will need.

    Args:
        cluster: all rows.
        table: parameters of the applications.
        committed: what is committed now.
        short: rows without their share of CPU, and of memory, shape (N,) each.
    """
    rows = cluster.rows
    enforced, least = ~table.observe_only[rows.app], rows.memory_usage_bytes + MARGIN_BYTES
    cpu = _Resource(committed.quota_us, table.initial_quota_us, AppSpec.initial_quota_us)
    memory = _Resource(committed.limit_bytes, table.initial_memory_bytes, AppSpec.initial_memory_bytes, least)
    return PendingCapacity(
        _pending(cluster, table, short[0] & enforced, cpu),
        _pending(cluster, table, short[1] & enforced, memory),
    )


class _Resource(NamedTuple):
    """CPU or memory."""

    committed: IntArray
    """N."""
    announced_share: IntArray
    """A: first share of an announced container."""
    share: Callable[[AppSpec, int], int]
    """First share by the number of containers."""
    least: IntArray | None = None
    """N: what each row needs at least."""


def _pending(cluster: ClusterState, table: AppTable, short: BoolArray, resource: _Resource) -> IntArray:
    """Of one resource, shape (A,)."""
    app, held, least = cluster.rows.app, resource.committed, resource.least
    joined = per_app(app, cluster.rows.admitted & ~short, len(table.known))
    missing = np.maximum(table.announced - joined, 0)
    needed: IntArray = missing * resource.announced_share
    rows = np.flatnonzero(short)
    for index in np.unique(app[rows]).tolist():
        spec, mine = cluster.specs[cluster.apps[index]], rows[app[rows] == index]
        count = max(int(joined[index]) + len(mine), int(table.announced[index]))
        more = needed[index] + max(len(mine) - int(missing[index]), 0) * resource.share(spec, count)
        if least is not None:
            more = max(more, least[mine].sum())
        # Limits that they have are committed already.
        needed[index] = max(more - held[mine].sum(), 0)
    return needed

"""Limit updates and decisions as messages: the columns of a step, split by node and by application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.limits import LimitDecisions, LimitUpdate
from services.allocator.budget.fair_share import FairShares
from services.allocator.columns import IntArray, Reasons, Rows
from services.allocator.state.cluster_state import ClusterState, NodeState
from services.allocator.state.step_context import StepContext


@dataclass(frozen=True, slots=True)
class Ordered:
    """Ordered values per row before and after a step; quotas in us per period, limits in bytes."""

    quota_us: IntArray
    limit_bytes: IntArray


@dataclass(frozen=True, slots=True)
class UpdateId:
    """Identity of a limit update."""

    epoch: int
    seq: int
    time_ns: int


class UpdateSequence:
    """Sequence of limit updates; it rises over all applications and epochs."""

    def __init__(self) -> None:
        self.newest = 0

    def next(self, epoch: int, time_ns: int) -> UpdateId:
        """Identity of the next limit update."""
        self.newest += 1
        return UpdateId(epoch, self.newest, time_ns)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows to send, shape (N,), ordered by node and epoch; 0: that limit is unchanged."""

    index: IntArray
    quota_us: IntArray
    limit_bytes: IntArray

    @classmethod
    def of(cls, rows: Rows, index: IntArray, before: Ordered) -> Self:
        """The changes in these rows."""
        quota_us, limit_bytes = rows.quota_ordered_us[index], rows.limit_ordered_bytes[index]
        return cls(
            index,
            np.where(quota_us == before.quota_us[index], 0, quota_us),
            np.where(limit_bytes == before.limit_bytes[index], 0, limit_bytes),
        )


def limit_update(cluster: ClusterState, changed: ChangedRows, part: slice, update: UpdateId) -> LimitUpdate:
    """The update for a part of the rows, all of one node."""
    index = changed.index[part]
    apps = sorted(set(cluster.rows.app[index].tolist()))
    keys = cluster.keys
    return LimitUpdate.build(
        [keys[row] for row in index.tolist()],
        {"quota_us": changed.quota_us[part], "limit_bytes": changed.limit_bytes[part]},
        **_update_head(
            cluster.nodes[int(cluster.rows.node[index[0]])], update, tuple(cluster.apps[app] for app in apps)
        ),
    )


def fence(state: NodeState, apps: tuple[str, ...], update: UpdateId) -> LimitUpdate:
    """An update without rows: claims applications on a node for an epoch, and requests its state."""
    return LimitUpdate.build([], {"quota_us": [], "limit_bytes": []}, **_update_head(state, update, apps))


@dataclass(frozen=True, slots=True)
class ReserveGrants:
    """Cumulative reserve grants, per slot of `Reserves`."""

    index: IntArray
    given_bytes: list[int]
    container_max_bytes: IntArray
    """Per application, as are the shares."""
    fair: FairShares


def reserve_update(cluster: ClusterState, node: int, grants: ReserveGrants, update: UpdateId) -> LimitUpdate:
    """A fence with cumulative reserve grants per slot, and the bounds for granting from them."""
    apps = cluster.reserves.app[grants.index]
    return LimitUpdate.build(
        [],
        {"quota_us": [], "limit_bytes": []},
        reserve_given_bytes=tuple(grants.given_bytes),
        container_max_bytes=tuple(grants.container_max_bytes[apps].tolist()),
        fair_share_bytes=tuple(grants.fair.share_bytes[apps].tolist()),
        fair_growth_bytes=tuple(grants.fair.growth_bytes[apps].tolist()),
        **_update_head(cluster.nodes[node], update, tuple(cluster.apps[app] for app in apps.tolist())),
    )


def _update_head(state: NodeState, update: UpdateId, apps: tuple[str, ...]) -> dict[str, Any]:
    return {
        "node": state.name,
        "incarnation": state.incarnation,
        "epoch": update.epoch,
        "seq": update.seq,
        "time_ns": update.time_ns,
        "apps": apps,
    }


@dataclass(frozen=True, slots=True)
class StepResult:
    """Inputs of a step's decision messages; the context is that after its updates."""

    context: StepContext
    step: int
    before: Ordered
    cpu: Reasons
    memory: Reasons


def limit_decisions(app: int, index: IntArray, result: StepResult) -> LimitDecisions:
    """Changes of one application in one step; with an empty ``index`` only its pools."""
    context, before = result.context, result.before
    cluster, table, pools = context.cluster, context.table, context.holdings.pools
    rows = cluster.rows
    quota_us, limit_bytes = rows.quota_ordered_us[index], rows.limit_ordered_bytes[index]
    quota_before, limit_before = before.quota_us[index], before.limit_bytes[index]
    columns: dict[str, Any] = {
        "quota_from_us": quota_before,
        "quota_to_us": np.where(quota_us != quota_before, quota_us, 0),
        "limit_from_bytes": limit_before,
        "limit_to_bytes": np.where(limit_bytes != limit_before, limit_bytes, 0),
    }
    for prefix, why in (("quota", result.cpu), ("limit", result.memory)):
        columns |= {
            f"{prefix}_reason": why.reason[index],
            f"{prefix}_measured": why.measured[index],
            f"{prefix}_threshold": why.threshold[index],
        }
    return LimitDecisions.build(
        [cluster.keys[row] for row in index.tolist()],
        columns,
        app=cluster.apps[app],
        mode="observe" if table.observe_only[app] else "enforce",
        policy="waterfill" if table.waterfill[app] else "escra",
        epoch=int(context.epochs[app]),
        step=result.step,
        time_ns=context.time.wall_ns,
        container_count=int(pools.containers[app]),
        cpu_limit_us=int(table.cpu_limit_us[app]),
        cpu_allocated_us=int(pools.quota_committed_us[app]),
        memory_limit_bytes=int(table.memory_limit_bytes[app]),
        memory_allocated_bytes=int(pools.limit_committed_bytes[app]),
        memory_reserved_bytes=int(pools.reserved_bytes[app]),
    )

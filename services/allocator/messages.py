"""Orders and decisions as messages: the arrays of a step, split by node and by application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.limits import LimitDecisions, LimitUpdate
from services.allocator.budget.fairness import FairShares
from services.allocator.cpu.policy_api import CpuTargets
from services.allocator.memory.policy import MemoryTargets
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import NodeState, Roster
from services.allocator.state.container_columns import IntArray, Rows


@dataclass(slots=True)
class Reasons:
    """Why one resource's target is what it is; columns of shape (N,) as in `schemas.limits.LimitDecisions`."""

    reason: IntArray
    measured: np.ndarray[Any, np.dtype[np.float64]]
    threshold: np.ndarray[Any, np.dtype[np.float64]]

    @classmethod
    def none(cls, count: int) -> Self:
        """Nothing has a reason yet."""
        return cls(np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count))

    def take(self, index: IntArray, wish: CpuTargets | MemoryTargets) -> None:
        """Take over a policy's reasons for rows ``index`` where it has one."""
        changed = wish.reason > 0
        rows = index[changed]
        self.reason[rows] = wish.reason[changed]
        self.measured[rows] = wish.measured[changed]
        self.threshold[rows] = wish.threshold[changed]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Ordered values per row before and after a step; quotas in us per period, limits in bytes."""

    quota_us: IntArray
    limit_bytes: IntArray


@dataclass(frozen=True, slots=True)
class Order:
    """Identity of an order message."""

    epoch: int
    seq: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Sending:
    """Rows whose orders go out, shape (N,), in the order of nodes and epochs; a limit that does not change is 0."""

    index: IntArray
    quota_us: IntArray
    limit_bytes: IntArray

    @classmethod
    def of(cls, rows: Rows, index: IntArray, before: Ordered) -> Self:
        """What has changed in these rows."""
        quota_us, limit_bytes = rows.quota_ordered_us[index], rows.limit_ordered_bytes[index]
        return cls(
            index,
            np.where(quota_us == before.quota_us[index], 0, quota_us),
            np.where(limit_bytes == before.limit_bytes[index], 0, limit_bytes),
        )


def limit_update(roster: Roster, sending: Sending, part: slice, order: Order) -> LimitUpdate:
    """The order for a part, which is of one node."""
    index = sending.index[part]
    apps = sorted(set(roster.rows.app[index].tolist()))
    keys = roster.keys
    return LimitUpdate.build(
        [keys[row] for row in index.tolist()],
        {"quota_us": sending.quota_us[part], "limit_bytes": sending.limit_bytes[part]},
        **_update_head(roster.nodes[int(roster.rows.node[index[0]])], order, tuple(roster.apps[app] for app in apps)),
    )


def fence(state: NodeState, apps: tuple[str, ...], order: Order) -> LimitUpdate:
    """Claims applications on a node for an epoch and asks for the truth."""
    return LimitUpdate.build([], {"quota_us": [], "limit_bytes": []}, **_update_head(state, order, apps))


@dataclass(frozen=True, slots=True)
class Lent:
    """What a node may grant by itself, per row of `Reserves`."""

    index: IntArray
    given_bytes: list[int]
    container_max_bytes: IntArray
    """Per application, as are the shares."""
    fair: FairShares


def reserve_update(roster: Roster, node: int, lent: Lent, order: Order) -> LimitUpdate:
    """The order for reserves: a fence that says what was given so far, per row, and whom it may be granted to."""
    apps = roster.reserves.app[lent.index]
    return LimitUpdate.build(
        [],
        {"quota_us": [], "limit_bytes": []},
        reserve_given_bytes=tuple(lent.given_bytes),
        container_max_bytes=tuple(lent.container_max_bytes[apps].tolist()),
        fair_share_bytes=tuple(lent.fair.share_bytes[apps].tolist()),
        fair_growth_bytes=tuple(lent.fair.growth_bytes[apps].tolist()),
        **_update_head(roster.nodes[node], order, tuple(roster.apps[app] for app in apps.tolist())),
    )


def _update_head(state: NodeState, order: Order, apps: tuple[str, ...]) -> dict[str, Any]:
    return {
        "node": state.name,
        "incarnation": state.incarnation,
        "epoch": order.epoch,
        "seq": order.seq,
        "time_ns": order.time_ns,
        "apps": apps,
    }


@dataclass(frozen=True, slots=True)
class Pools:
    """Sums per application after a step, shape (A,)."""

    quota_held_us: IntArray
    limit_held_bytes: IntArray
    """Containers' limits and reserves."""
    reserved_bytes: IntArray
    containers: IntArray


@dataclass(frozen=True, slots=True)
class StepResult:
    """Everything that a step's decision messages tell."""

    table: AppTable
    pools: Pools
    epochs: IntArray
    """Per application."""
    time_ns: int
    step: int
    before: Ordered
    cpu: Reasons
    memory: Reasons


def limit_decisions(roster: Roster, app: int, index: IntArray, result: StepResult) -> LimitDecisions:
    """One application's changes in one step; ``index`` may be empty: then only the pools are told."""
    rows, table, before = roster.rows, result.table, result.before
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
        [roster.keys[row] for row in index.tolist()],
        columns,
        app=roster.apps[app],
        mode="observe" if table.virtual[app] else "enforce",
        policy="waterfill" if table.waterfill[app] else "escra",
        epoch=int(result.epochs[app]),
        step=result.step,
        time_ns=result.time_ns,
        container_count=int(result.pools.containers[app]),
        cpu_limit_us=int(table.cpu_limit_us[app]),
        cpu_allocated_us=int(result.pools.quota_held_us[app]),
        memory_limit_bytes=int(table.memory_limit_bytes[app]),
        memory_allocated_bytes=int(result.pools.limit_held_bytes[app]),
        memory_reserved_bytes=int(result.pools.reserved_bytes[app]),
    )

"""Structures of arrays: containers, node reserves, a policy's estimates; and what reports and updates do to them.

One row per container, one array per quantity, and sums and shares per application. A policy's estimates stand in
`SlotArrays`, by a slot that a container keeps for its life; everything else of a container in `Rows`.

An update in flight may or may not have arrived, so a container counts with the largest value that may be in the kernel:
the reported one, or any update that its agent is not known to have applied. The agent makes this sound: it rejects
out-of-order updates, it raises only when it receives one, and what it delays is always a decrease
(`services.agent.limits.accepted_updates`). The grant of a node's reserve is cumulative: left = granted - used, so an
update that is duplicated, or crosses a local grant, does no harm. What an agent grants moves from its reserve to a
container's limit; their sum, which counts against the limit, does not change. So a lower `left` counts only together
with the limits of the same report: batches and replies to fences carry both.

Shares are integers, which makes the result independent of the order of rows and of other applications: no rounding of
floating-point sums leaks between applications. What rounding leaves (below one unit per row) stays free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.reasons import Reason

T = TypeVar("T")
IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
AppIndex: TypeAlias = NDArray[np.integer[Any]]

UNLIMITED = -1
NO_BOUND = 1 << 62
"""No bound; safe beside one value in a sum."""
PAGE_BYTES: Final = 4096
MARGIN_BYTES: Final = 4 << 20
"""No memory limit is closer to usage than this: v2 memory.max below usage kills (measured/escra.md section 3a)."""
RECLAIM_BYTES: Final = 1 << 20
"""Smaller changes of a memory limit are not worth a write."""
MAX_BYTES: Final = 1 << 60
REQUEST_EXPIRY_NS: Final = 1_000_000_000
"""A request for memory stays pending for this long; its node comes first."""
MIN_ROWS: Final = 8
RESYNC_AFTER_REPORTS: Final = 5
"""A decrease waits at most 130 ms for its boundary; a difference that lasts longer is an external change."""


class Rows:
    """Columns of equal length; rows are appended at the end and removed by mask. Quotas in us per period."""

    app: IntArray
    node: IntArray
    slot: IntArray
    """Stable index into the policies' estimator arrays; kept for the container's life."""
    reserve: IntArray
    """Row of the container's application and node in `Reserves`."""
    host_cpus: IntArray
    report_seq: IntArray
    """Newest applied report of the agent."""
    report_ns: IntArray
    """When it arrived, monotonic."""
    limit_update_seq: IntArray
    """Newest limit update sent for this row and not acknowledged before; 0: none."""
    acked: BoolArray
    """Whether the agent has acknowledged that update."""
    admitted: BoolArray
    """Whether the container counts against the limits and receives updates."""
    observe_only: BoolArray
    """Its application is in mode `observe`: nothing is sent, so the kernel's limits never become the ordered ones."""
    fenced: BoolArray
    """Whether the agent has acknowledged this allocator's epoch for the row's application."""
    unreported: BoolArray
    """Not reported since its agent restarted: counts with its last limits, receives no updates."""
    short_of_cpu: BoolArray
    """It has its floor only, because its application had not even its minimum free (`state.admission`)."""
    short_of_memory: BoolArray
    short_samples: IntArray
    """Samples for which it has been short of either."""
    mismatches: IntArray
    """Consecutive reports whose kernel values differ from the ordered ones."""
    defied: IntArray
    """Decreases that were not carried out, and that the kernel is not known to refuse, since the last one that was."""
    fresh: BoolArray
    """A new sample arrived since the last step."""
    own_limit: BoolArray
    """No agent had set its memory limit when it was reported: on its node it counts with what it uses."""

    quota_us: IntArray
    """In the kernel by the newest report; -1: unlimited."""
    quota_ordered_us: IntArray
    quota_inflight_us: IntArray
    """Largest quota among unacknowledged updates; 0: none."""
    quota_deferred_us: IntArray
    """Part of a target that waits for free capacity; 0: none."""

    limit_bytes: IntArray
    limit_ordered_bytes: IntArray
    limit_inflight_bytes: IntArray
    limit_deferred_bytes: IntArray

    quota_floor_us: IntArray
    """The kernel refuses less (`state.kernel_bounds`); 0: not that we know."""
    quota_ceiling_us: IntArray
    """It refuses more; 0: not that we know."""
    quota_retry_ns: IntArray
    """Until when nothing beyond these two is ordered, monotonic."""
    quota_refusals: IntArray
    """Refusals in a row; 0: none."""

    limit_floor_bytes: IntArray
    limit_ceiling_bytes: IntArray
    limit_retry_ns: IntArray
    limit_refusals: IntArray
    bounds_seq: IntArray
    """Newest limit update of which the reply says what the kernel refuses."""

    sampled_ns: IntArray
    """When the newest sample of a whole period was taken, by the agent's clock; 0: none yet."""
    used_us: IntArray
    unused_us: IntArray
    throttled: IntArray
    throttled_us: IntArray
    memory_usage_bytes: IntArray
    memory_reclaimable_bytes: IntArray
    """Page cache that the kernel could drop; outdated by up to 5 s."""
    previous_memory_usage_bytes: IntArray
    """Usage in the previous report."""
    oom_kills: IntArray
    """Since the container was found; -1: no sample yet."""

    _BOOLEAN = (
        *("acked", "admitted", "observe_only", "fenced", "unreported", "fresh", "own_limit"),
        *("short_of_cpu", "short_of_memory"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.columns = [name for name in Rows.__annotations__ if not name.startswith("_")]
        for name in self.columns:
            setattr(self, name, np.zeros(0, dtype=np.bool_ if name in self._BOOLEAN else np.int64))

    @property
    def short(self) -> BoolArray:
        """Rows that have their floor only, of CPU or of memory."""
        return self.short_of_cpu | self.short_of_memory

    def append(self, count: int) -> IntArray:
        """Add zeroed rows; returns their indices."""
        for name in self.columns:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(count, dtype=column.dtype)]))
        self.count += count
        return np.arange(self.count - count, self.count)

    def keep(self, mask: BoolArray) -> IntArray:
        """Drop rows where ``mask`` is False; returns the new index of each old row (meaningless where dropped)."""
        for name in self.columns:
            setattr(self, name, getattr(self, name)[mask])
        self.count = int(mask.sum())
        renumbered: IntArray = np.cumsum(mask, dtype=np.int64) - 1
        return renumbered


def at(index: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Rows as a slice where they are contiguous, which copies nothing."""
    if len(index) and index[-1] - index[0] == len(index) - 1 and (index[1:] > index[:-1]).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


class SlotArrays:
    """Arrays indexed by a container's slot; zeros: no sample yet.

    The cluster state assigns each container a slot for its life, so that adding or removing one moves no other. A
    policy receives `rows`, the slot of every row of its view.
    """

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]]
    """Array name to element type and width; a width of 0 is a one-dimensional array."""

    def __init__(self, capacity: int) -> None:
        self.capacity = 0
        self.grow(capacity)

    def grow(self, capacity: int) -> None:
        """Grow to at least this capacity, preserving contents. Doubles, so that adding is amortised O(1)."""
        if capacity <= self.capacity and self.capacity:
            return
        capacity = max(capacity, 2 * self.capacity)
        for name, (kind, width) in self._columns.items():
            larger = np.zeros((capacity, width) if width else capacity, kind)
            if self.capacity:
                larger[: self.capacity] = getattr(self, name)
            setattr(self, name, larger)
        self.capacity = capacity

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Reset slots of containers that have gone, or whose application changed its policy."""
        for name in self._columns:
            getattr(self, name)[rows] = 0

    def take(self, slots: Ints) -> Self:
        """What these slots hold, row by row: the state of a decision, which is replaced and never written to."""
        index = at(slots)
        return self._with(len(slots), {name: getattr(self, name)[index] for name in self._columns})

    def put(self, slots: Ints, state: Self) -> None:
        """Write a decision's new state back into these slots."""
        index, columns = at(slots), {name: getattr(state, name) for name in self._columns}
        # A view is of an old column, perhaps of another one, which would be overwritten before it is read.
        columns = {name: column if column.base is None else column.copy() for name, column in columns.items()}
        for name, column in columns.items():
            getattr(self, name)[index] = column

    def decide(self, slots: Ints, step: Callable[[Self], tuple[T, Self]]) -> T:
        """A policy's targets from what these slots hold, which then hold the state after that step."""
        targets, after = step(self.take(slots))
        self.put(slots, after)
        return targets

    def replace(self, **columns: NDArray[Any]) -> Self:
        """The same with other columns."""
        return self._with(self.capacity, {name: getattr(self, name) for name in self._columns} | columns)

    def _with(self, capacity: int, columns: dict[str, NDArray[Any]]) -> Self:
        other = type(self).__new__(type(self))
        other.capacity = capacity
        for name, column in columns.items():
            setattr(other, name, column)
        return other

    def copy(self) -> Self:
        """An independent copy, for "what would happen if" and for tests."""
        twin = type(self)(self.capacity)
        for name in self._columns:
            setattr(twin, name, getattr(self, name).copy())
        return twin


@dataclass(frozen=True, slots=True)
class ReserveReport:
    """Reserves as reported by agents, shape (K,)."""

    report_seq: IntArray
    granted_total_bytes: IntArray
    used_bytes: IntArray
    limit_update_seq: IntArray


class Reserves(SlotArrays):
    """One slot per group (an application's containers on one node); bytes."""

    app: IntArray
    node: IntArray
    granted_total_bytes: IntArray
    """Cumulative grant by the newest report."""
    used_bytes: IntArray
    inflight_bytes: IntArray
    """Largest cumulative grant among unacknowledged updates; 0: none."""
    limit_update_seq: IntArray
    ordered_ns: IntArray
    report_seq: IntArray
    requested_bytes: IntArray
    """Bytes that the agent requested."""
    requested_within_bytes: IntArray
    """Of it, what stays within the fair share of the container that needs it most."""
    share_bytes: IntArray
    """Fair share of a container, as last sent."""
    request_expires_ns: IntArray
    acked: BoolArray
    in_use: BoolArray
    """Whether the slot is in use."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = dict.fromkeys(
        (
            *(
                "app",
                "node",
                "granted_total_bytes",
                "used_bytes",
                "inflight_bytes",
                "limit_update_seq",
                "ordered_ns",
                "report_seq",
            ),
            *("requested_bytes", "requested_within_bytes", "request_expires_ns", "share_bytes"),
        ),
        (np.int64, 0),
    ) | dict.fromkeys(("acked", "in_use"), (np.bool_, 0))

    def __init__(self) -> None:
        super().__init__(0)
        self._unused: list[int] = []

    def add(self, app: int, node: int) -> int:
        """Allocate a slot for a group; returns its index."""
        if not self._unused:
            before = self.capacity
            self.grow(max(MIN_ROWS, before + 1))
            self._unused = list(range(self.capacity - 1, before - 1, -1))
        index = self._unused.pop()
        self.app[index], self.node[index] = app, node
        self.in_use[index] = self.acked[index] = True
        return index

    def remove(self, index: int) -> None:
        """Free the slot of a group."""
        self.forget(np.array([index]))
        self._unused.append(index)

    def on_agent_restart(self, node: int) -> None:
        """Reset for a new agent process: it rejects updates in flight and reports what it holds."""
        mine = self.in_use & (self.node == node)
        self.granted_total_bytes[mine] = self.grant_committed_bytes[mine]  # an update in flight may have been applied
        for column in (self.inflight_bytes, self.limit_update_seq, self.report_seq, self.share_bytes):
            column[mine] = 0
        self.acked[mine] = True

    def ack(self, index: IntArray, report: ReserveReport) -> None:
        """Apply reports; out-of-order and inconsistent ones are ignored."""
        sane = (report.used_bytes <= report.granted_total_bytes) & (report.granted_total_bytes <= MAX_BYTES)
        newer = sane & (report.report_seq > self.report_seq[index])
        rows = index[newer]
        self.report_seq[rows] = report.report_seq[newer]
        self.granted_total_bytes[rows], self.used_bytes[rows] = (
            report.granted_total_bytes[newer],
            report.used_bytes[newer],
        )
        seen = rows[report.limit_update_seq[newer] >= self.limit_update_seq[rows]]
        self.inflight_bytes[seen] = 0
        self.acked[seen] = True

    def record_update(
        self, index: IntArray, granted_total_bytes: IntArray, share_bytes: IntArray, seq: int, now_ns: int
    ) -> None:
        """Record that updates are sent."""
        self.share_bytes[index] = share_bytes
        self.inflight_bytes[index] = np.maximum(self.inflight_bytes[index], granted_total_bytes)
        self.limit_update_seq[index] = seq
        self.ordered_ns[index] = now_ns
        self.acked[index] = False

    def record_request(self, index: int, wanted_bytes: int, within_bytes: int, now_ns: int) -> None:
        """Record a request of an agent, for a container that is so far below its fair share."""
        self.requested_bytes[index] = min(wanted_bytes, MAX_BYTES)
        self.requested_within_bytes[index] = min(wanted_bytes, within_bytes, MAX_BYTES)
        self.request_expires_ns[index] = now_ns + REQUEST_EXPIRY_NS

    def pending_requests(self, now_ns: int) -> BoolArray:
        """Slots whose request has not expired."""
        waiting: BoolArray = self.in_use & (self.request_expires_ns > now_ns) & (self.requested_bytes > 0)
        return waiting

    @property
    def grant_committed_bytes(self) -> IntArray:
        """The largest cumulative grant that may be in force."""
        return np.maximum(self.granted_total_bytes, self.inflight_bytes)

    @property
    def committed_bytes(self) -> IntArray:
        """The most that may be left, per slot: counts against the limit beside the containers' limits."""
        left: IntArray = np.where(self.in_use, np.maximum(self.grant_committed_bytes - self.used_bytes, 0), 0)
        return left


@dataclass(frozen=True, slots=True)
class Report:
    """Limits reported by an agent: the columns that batches and replies share."""

    index: IntArray
    """Row indices, unique."""
    report_seq: IntArray
    quota_us: IntArray
    limit_bytes: IntArray
    limit_update_seq: IntArray
    periodic: BoolArray
    """Periodic report: the number of such reports measures how long a difference lasts."""


def ack(rows: Rows, report: Report, now_ns: int) -> BoolArray:
    """Apply reported limits and acknowledge updates; returns which rows were newer than what is known.

    Out-of-order reports are ignored. An update is acknowledged once its agent has applied it; until then its value
    stays in flight.
    """
    newer = report.report_seq > rows.report_seq[report.index]
    if not newer.all():
        report = Report(*(getattr(report, column.name)[newer] for column in fields(Report)))
    index, mine = report.index, at(report.index)
    rows.report_seq[mine] = report.report_seq
    rows.report_ns[mine] = now_ns
    exceeding = _exceeds_order(rows, index) if rows.defied[mine].any() else None
    rows.quota_us[mine] = report.quota_us
    rows.limit_bytes[mine] = report.limit_bytes
    if exceeding is not None:
        rows.defied[index[exceeding & ~_exceeds_order(rows, index)]] = 0
    seen = report.limit_update_seq >= rows.limit_update_seq[mine]
    acked, periodic = (index, report.periodic) if seen.all() else (index[seen], report.periodic[seen])
    mine = at(acked)
    rows.acked[mine] = True
    rows.quota_inflight_us[mine] = rows.limit_inflight_bytes[mine] = 0
    _resync_external_changes(rows, acked, periodic)
    return newer


def _resync_external_changes(rows: Rows, index: IntArray, periodic: BoolArray) -> None:
    """Where the kernel has committed something else than ordered for several reports, start from what it holds."""
    mine = at(index)
    admitted = rows.admitted[mine] & ~rows.observe_only[mine]
    quota_us, limit_bytes = rows.quota_us[mine], rows.limit_bytes[mine]
    differs = (quota_us != rows.quota_ordered_us[mine]) | (limit_bytes != rows.limit_ordered_bytes[mine])
    mismatches = np.where(differs & admitted, rows.mismatches[mine] + periodic, 0)
    rows.mismatches[mine] = mismatches
    resync(rows, index[(mismatches >= RESYNC_AFTER_REPORTS) | (_lacks_limits(rows, index) & admitted)])


def resync(rows: Rows, index: IntArray) -> None:
    """Continue from the kernel's values for these rows, dropping what was ordered.

    A row that is unlimited there is no longer admitted, and needs initial limits again, unless the kernel refuses them.
    """
    rows.mismatches[index] = 0
    rows.defied[index] += _exceeds_order(rows, index)
    rows.quota_ordered_us[index] = rows.quota_us[index]
    rows.limit_ordered_bytes[index] = rows.limit_bytes[index]
    rows.admitted[index[_lacks_limits(rows, index)]] = False


def _exceeds_order(rows: Rows, index: IntArray) -> BoolArray:
    """Whether admitted rows hold more than was ordered."""
    exceeds: BoolArray = rows.admitted[index] & (
        (rows.quota_us[index] > rows.quota_ordered_us[index])
        | (rows.limit_bytes[index] > rows.limit_ordered_bytes[index])
    )
    return exceeds


def _lacks_limits(rows: Rows, index: IntArray) -> BoolArray:
    lacks: BoolArray = ((rows.quota_us[index] == UNLIMITED) & (rows.quota_refusals[index] == 0)) | (
        (rows.limit_bytes[index] == UNLIMITED) & (rows.limit_refusals[index] == 0)
    )
    return lacks


def record_updates(rows: Rows, index: IntArray, sent: tuple[IntArray, IntArray], seq: IntArray | int) -> None:
    """Record that updates are sent for these rows: each counts with its largest value in flight.

    Only values that are sent may count: no capacity was reserved for an ordered value that the kernel has long lost.

    Args:
        rows: all rows.
        index: row indices.
        sent: quota and memory limit per index; 0: unchanged.
        seq: sequence of the message that carries them, per index.
    """
    for inflight, values in zip((rows.quota_inflight_us, rows.limit_inflight_bytes), sent, strict=True):
        inflight[index] = np.maximum(inflight[index], values)
    rows.limit_update_seq[index] = seq
    rows.acked[index] = False
    rows.mismatches[index] = 0


@dataclass(frozen=True, slots=True)
class Reasons:
    """Reasons of one resource's targets; columns of shape (N,) as in `schemas.limits.LimitDecisions`."""

    reason: NDArray[np.uint8]
    """`schemas.reasons.Reason`; NONE: unchanged."""
    measured: Floats
    threshold: Floats

    @classmethod
    def none(cls, count: int, *targets: Ints) -> Self:
        """No reasons, yet; a policy's targets are given to the class that has them."""
        return cls(np.zeros(count, np.uint8), np.zeros(count), np.zeros(count), *targets)

    def give(self, rows: Bools, reason: Reason, measured: Ints | Floats, threshold: Ints) -> None:
        """Set the reason of the flagged rows, in place; all arguments of shape N."""
        i = np.flatnonzero(rows)
        self.reason[i], self.measured[i], self.threshold[i] = reason, measured[i], threshold[i]

    def copy_from(self, index: IntArray, targets: Reasons) -> None:
        """Copy a policy's reasons for rows ``index`` where it gives one."""
        changed = targets.reason > 0
        rows = index[changed]
        self.reason[rows] = targets.reason[changed]
        self.measured[rows] = targets.measured[changed]
        self.threshold[rows] = targets.threshold[changed]


def per_app(app: AppIndex, values: Ints | Bools, count: int) -> Ints:
    """Sum per application, shape A. Exact for sums below 2**53 (90,000 cores for 1,000,000 containers)."""
    if count == 1:  # bincount goes by way of floating point
        return np.array([values.sum()], dtype=np.int64)
    return np.bincount(app, values, count).astype(np.int64)


def any_per_app(app: AppIndex, flags: Bools, count: int) -> Bools:
    """Whether any row of each application is flagged, shape A."""
    return np.bincount(app[flags], minlength=count) > 0


def scale_to_fit(app: AppIndex, need: Ints, room: Ints) -> Ints:
    """Proportional share: needs (shape N, >= 0) scaled down where they exceed the capacity (shape A).

    need * room / sum(need), rounded down; nothing where the room is negative. Where room < sum(need), the product
    need * room must stay below 2**63.
    """
    total = per_app(app, need, len(room))
    short = total > room
    if not short.any():
        return need
    scaled = need * np.maximum(room, 0)[app] // np.maximum(total, 1)[app]
    return np.where(short[app], scaled, need)


def weighted_max_min(app: AppIndex, demand: Ints, weight: Ints, room: Ints) -> Ints:
    """Weighted max-min fair shares: min(demand_i, level_a * weight_i), with the level where the room is used up.

    One sort by (application, demand / weight) and segmented running sums; no loop. A row is satisfied when its
    demand is at most its share of what is left after all rows with a smaller demand per weight took theirs.

    Args:
        app: shape N.
        demand: shape N, what each row asks for, >= 0; the products demand * sum(weight) must stay below 2**63.
        weight: shape N, how fast a row fills, >= 1.
        room: shape A; negative counts as nothing.
    """
    if not len(app):
        return demand
    order = np.lexsort((demand / weight, app))
    app, demand, weight = app[order], demand[order], weight[order]
    start = np.flatnonzero(np.r_[True, app[1:] != app[:-1]])
    length = np.diff(np.r_[start, len(app)])
    served = np.cumsum(demand) - demand
    served -= np.repeat(served[start], length)
    ahead = np.cumsum(weight) - weight
    ahead -= np.repeat(ahead[start], length)
    total_weight = per_app(app, weight, len(room))
    left = np.maximum(room, 0)[app] - served
    satisfied = (left >= demand) & (demand * (total_weight[app] - ahead) <= weight * np.maximum(left, 0))
    remaining = np.maximum(np.maximum(room, 0) - per_app(app, np.where(satisfied, demand, 0), len(room)), 0)
    remaining_weight = np.maximum(per_app(app, np.where(satisfied, 0, weight), len(room)), 1)
    level_share = weight * remaining[app] // remaining_weight[app]
    share = np.empty_like(demand)
    share[order] = np.where(satisfied, demand, np.minimum(demand, level_share))
    return share


def grouped(index: IntArray, owner: IntArray) -> list[tuple[int, IntArray]]:
    """Row indices by their application or node: (owner, rows in their order), owners ascending. One sort, no search."""
    if not len(index):
        return []
    owners = owner[index]
    by_owner = np.argsort(owners, kind="stable")
    index, owners = index[by_owner], owners[by_owner]
    return [(int(owners[part.start]), index[part]) for part in runs(owners)]


def runs(*columns: IntArray) -> list[slice]:
    """Runs of equal values in adjacent rows; columns of shape (N,), N > 0."""
    differs = np.zeros(len(columns[0]) - 1, dtype=np.bool_)
    for column in columns:
        differs |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(differs) + 1).tolist(), len(columns[0])]
    return [slice(start, end) for start, end in pairwise(edges)]

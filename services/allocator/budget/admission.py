"""Admission: the first limits of containers (thesis 2.4.1, equations 2.1 and 2.2), and those of one without room.

Every container of an announced application in mode `enforce` gets both limits in the first step that knows it. Of each
resource: its share, as far as that is free; or, where not even its minimum is free, its *floor*: the AppSpec's
`container_floor_cpu`, and `container_floor_memory` or what it uses and a margin, whichever is more (less would be
refused on version 1 and kill on version 2); never more than it holds already. A floor counts in full. Where it passes
the application's limit nothing is raised, and others' slack is cut until the sum fits again. Memory in use is not taken
from anybody: by as much as floors exceed what others do not use, the sum stays above the limit, and people are told.

A full application has no capacity for a container that is about to be admitted until others were decreased, which takes
a step and its acknowledgement. So what pending and announced containers need is taken out of the others' budget first
(`budget.pending_capacity`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from schemas.apps import PERIOD_US
from schemas.reasons import Reason
from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.limit_values import MARGIN_BYTES, NO_BOUND, PAGE_BYTES, UNLIMITED
from services.allocator.arrays.reasons import Reasons
from services.allocator.budget.node_headroom import counted_bytes
from services.allocator.budget.step_budget import StepBudget
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.rows import Rows

INITIAL_LIMIT_SHARE = 4
"""An initial limit takes at most this part (1/n) of its node's headroom, unless usage needs more."""
SHARE_SAMPLES = 10
"""Samples for which a container waits for its share, while others are decreased; then its minimum will do, and where
not even that is free this is published."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free capacity of one application; CPU in microseconds per period."""

    cpu_limit_us: int
    cpu_free_us: int
    """Limit minus committed quotas, minus what is reserved for other pending containers."""
    memory_limit_bytes: int
    memory_free_bytes: int
    delta_bytes: int
    node_free_bytes: int = NO_BOUND
    """Bytes the container may have on its node: the headroom plus what already counts for it."""
    node_share_bytes: int = NO_BOUND
    """The same, limited to its share of the headroom."""


@dataclass(frozen=True, slots=True)
class PendingContainer:
    """A container that is not admitted yet; CPU in microseconds per period."""

    name: str
    used_us: int
    usage_bytes: int
    share_us: int
    """Equation 2.1: cpu_limit / n, n including this container (`AppSpec.initial_quota_us`)."""
    share_bytes: int
    """Equation 2.2: memory_limit x (1 - sigma) / n (`AppSpec.initial_memory_bytes`)."""
    min_us: int
    cap_us: int
    min_bytes: int
    max_bytes: int
    floor_us: int = 0
    floor_bytes: int = 0
    samples: int = SHARE_SAMPLES
    """For which it has waited."""
    held_us: int = UNLIMITED
    """Quota in the kernel."""
    held_bytes: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a container gets no more than its floor of a resource."""

    reason: str
    permanent: bool
    """True: it would not fit into the empty application either. False: the capacity is in use at present."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Initial limits."""

    quota_us: int
    limit_bytes: int
    short_of_cpu: Shortage | None = None
    short_of_memory: Shortage | None = None

    @property
    def shortages(self) -> list[Shortage]:
        """Of both resources."""
        return [each for each in (self.short_of_cpu, self.short_of_memory) if each is not None]


def admit(capacity: Capacity, pending: PendingContainer) -> Admission:
    """Initial limits; CPU and memory are independent.

    CPU: the equal share, or the usage if that is more, at most what is free and the cap; short where the minimum is not
    free. Memory: the equal share, or usage + delta if that is more, at most the free capacity and the maximum; short
    where usage + MARGIN_BYTES, the floor and the minimum are not free. For the first `SHARE_SAMPLES` it is short
    where the share is not free. Whatever is free: its floor of both.
    """
    required = _required_bytes(pending)
    desired_us = min(max(pending.share_us, pending.used_us, pending.min_us), pending.cap_us)
    desired_bytes = _pages_up(max(pending.share_bytes, pending.usage_bytes + capacity.delta_bytes, required))
    most_bytes = min(pending.max_bytes, capacity.node_share_bytes)
    bound_bytes = min(most_bytes, capacity.memory_free_bytes) // PAGE_BYTES * PAGE_BYTES
    needed_us, needed_bytes = pending.min_us, required
    if pending.samples < SHARE_SAMPLES:
        needed_us = max(min(pending.share_us, pending.cap_us), needed_us)
        needed_bytes = max(min(pending.share_bytes, most_bytes), needed_bytes)
    short_of_memory = _short_of_memory(capacity, pending, needed_bytes)
    least_bytes = _at_most_held(pending.held_bytes, _floor_bytes(pending)) if short_of_memory else required
    return Admission(
        max(min(desired_us, capacity.cpu_free_us), _at_most_held(pending.held_us, pending.floor_us)),
        max(min(desired_bytes, bound_bytes), least_bytes),
        _short_of_cpu(capacity, pending, needed_us),
        short_of_memory,
    )


def _short_of_cpu(capacity: Capacity, pending: PendingContainer, needed_us: int) -> Shortage | None:
    if needed_us <= capacity.cpu_free_us:
        return None
    free_us = max(capacity.cpu_free_us, 0)
    reason = (
        f"{pending.name} needs at least {_cores(needed_us)}, "
        f"{_cores(free_us)} of {_cores(capacity.cpu_limit_us)} are free"
    )
    return Shortage(reason, permanent=pending.min_us > capacity.cpu_limit_us)


def _short_of_memory(capacity: Capacity, pending: PendingContainer, required: int) -> Shortage | None:
    free = max(capacity.memory_free_bytes, 0)
    node_free = max(capacity.node_free_bytes, 0)
    if required > pending.max_bytes:
        reason = (
            f"{pending.name} uses {_mib(pending.usage_bytes)} and needs a limit of {_mib(required)}, "
            f"container_max_memory is {_mib(pending.max_bytes)}"
        )
        return Shortage(reason, permanent=True)
    needs = f"{pending.name} needs at least {_mib(required)} of memory, "
    if required > capacity.memory_free_bytes:
        reason = f"{needs}{_mib(free)} of {_mib(capacity.memory_limit_bytes)} are free"
        return Shortage(reason, permanent=required > capacity.memory_limit_bytes)
    if required > capacity.node_free_bytes:
        reason = f"{needs}its node has room for {_mib(node_free)}"
        return Shortage(reason, permanent=False)
    return None


def _required_bytes(pending: PendingContainer) -> int:
    return max(_pages_up(pending.min_bytes), _floor_bytes(pending))


def _floor_bytes(pending: PendingContainer) -> int:
    return _pages_up(max(pending.floor_bytes, pending.usage_bytes + MARGIN_BYTES))


def _at_most_held(held: int, floor: int) -> int:
    return floor if held < 0 else min(held, floor)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A container with its initial limits."""

    row: int
    limits: Admission
    capacity: Capacity
    pending: PendingContainer


def admit_pending(cluster: ClusterState, budget: StepBudget, ready: IntArray) -> list[Admitted]:
    """Initial limits for the rows ``ready``; what each takes, the next have not.

    Rows among them that have their floor of a resource already are tried again: only that resource's limit changes.
    """
    rows = cluster.rows
    left = _Left.of(cluster, budget, ready)
    admitted: list[Admitted] = []
    # Observed containers that have limits keep them, so those without share what these leave.
    last = rows.observe_only[ready] & ((rows.quota_us[ready] < 0) | (rows.limit_bytes[ready] < 0))
    for row in ready[np.argsort(last, kind="stable")].tolist():
        capacity, pending = left.capacity(row), left.container(row)
        limits = _observed(rows, row, capacity, pending) if rows.observe_only[row] else admit(capacity, pending)
        if rows.admitted[row]:
            limits = _again(rows, row, limits)
        admitted.append(Admitted(row, limits, capacity, pending))
        left.take(row, limits)
    return admitted


def _again(rows: Rows, row: int, limits: Admission) -> Admission:
    """Of a row that is admitted, what it lacked until now; all else as it is ordered."""
    ordered_us, ordered_bytes = int(rows.quota_ordered_us[row]), int(rows.limit_ordered_bytes[row])
    limits = replace(
        limits,
        quota_us=max(limits.quota_us, ordered_us) if rows.short_of_cpu[row] else ordered_us,
        limit_bytes=max(limits.limit_bytes, ordered_bytes) if rows.short_of_memory[row] else ordered_bytes,
    )
    return replace(
        limits,
        short_of_cpu=limits.short_of_cpu if rows.short_of_cpu[row] else None,
        short_of_memory=limits.short_of_memory if rows.short_of_memory[row] else None,
    )


def apply_admissions(rows: Rows, admitted: list[Admitted], reasons: tuple[Reasons, Reasons]) -> None:
    """Write the result of `admit_pending` into the rows and the reasons of CPU and memory."""
    for case in admitted:
        row, limits = case.row, case.limits
        is_short = bool(limits.shortages)
        rows.short_samples[row] = rows.short_samples[row] + rows.fresh[row] if is_short else 0
        rows.short_of_cpu[row], rows.short_of_memory[row] = limits.short_of_cpu, limits.short_of_memory
        for why, ordered, inflight, value, share, free in (
            (
                *(reasons[0], rows.quota_ordered_us, rows.quota_inflight_us, limits.quota_us),
                *(case.pending.share_us, case.capacity.cpu_free_us),
            ),
            (
                *(reasons[1], rows.limit_ordered_bytes, rows.limit_inflight_bytes, limits.limit_bytes),
                *(case.pending.share_bytes, case.capacity.memory_free_bytes),
            ),
        ):
            if rows.admitted[row] and ordered[row] == value:
                continue
            ordered[row] = value
            why.reason[row], why.measured[row], why.threshold[row] = Reason.ADMITTED, share, free
            if not rows.observe_only[row]:  # it is sent in this step
                inflight[row] = max(int(inflight[row]), value)
        rows.admitted[row] = True


@dataclass(slots=True)
class _Left:
    """Free capacity while containers are admitted one after the other."""

    cluster: ClusterState
    budget: StepBudget
    admitted: BoolArray
    """N: the rows' column, but for those that are not dealt with yet."""
    free_us: IntArray
    free_bytes: IntArray
    headroom: IntArray
    counted: IntArray
    """N: what each row counts for on its node."""

    @classmethod
    def of(cls, cluster: ClusterState, budget: StepBudget, ready: IntArray) -> _Left:
        """Before the first of the rows ``ready``."""
        rows = cluster.rows
        headroom, counted = budget.node_headroom_bytes.copy(), counted_bytes(rows)
        admitted = rows.admitted.copy()
        admitted[ready] = False
        return cls(cluster, budget, admitted, budget.free_us, budget.free_bytes, headroom, counted)

    def joined(self, row: int) -> int:
        """Admitted containers of the row's application."""
        app = self.cluster.rows.app
        return int(np.count_nonzero(self.admitted & (app == app[row])))

    def take(self, row: int, limits: Admission) -> None:
        """Admit a row with these limits."""
        rows, committed = self.cluster.rows, self.budget.committed
        app, node = rows.app[row], rows.node[row]
        self.admitted[row] = True
        self.free_us[app] -= max(limits.quota_us - int(committed.quota_us[row]), 0)
        self.free_bytes[app] -= max(limits.limit_bytes - int(committed.limit_bytes[row]), 0)
        more = max(limits.limit_bytes - int(self.counted[row]), 0)
        self.headroom[node] -= min(more, int(self.headroom[node]))

    def capacity(self, row: int) -> Capacity:
        """Free capacity for a row."""
        rows, table, committed = self.cluster.rows, self.budget.table, self.budget.committed
        app, node = int(rows.app[row]), int(rows.node[row])
        others = max(int(table.announced[app]) - self.joined(row) - 1, 0)
        competing = ~self.admitted & (rows.app == app)
        competing[row] = False
        # Reserve the shares of announced containers, and floors of the next ones, minus the limits that they have.
        enforced = not table.observe_only[app]
        held_us, held_bytes = committed.quota_us[competing], committed.limit_bytes[competing]
        least_bytes = np.maximum(rows.memory_usage_bytes[competing] + MARGIN_BYTES, table.floor_memory_bytes[app])
        kept_us = max(
            others * int(table.initial_quota_us[app]) - int(held_us.sum()),
            int(np.maximum(table.floor_quota_us[app] - held_us, 0).sum()) * enforced,
        )
        kept_bytes = max(
            others * int(table.initial_memory_bytes[app]) - int(held_bytes.sum()),
            int(np.maximum(least_bytes - held_bytes, 0).sum()) * enforced,
        )
        headroom, counted = int(self.headroom[node]), int(self.counted[row])
        return Capacity(
            int(table.cpu_limit_us[app]),
            int(self.free_us[app] + committed.quota_us[row]) - kept_us,
            int(table.memory_limit_bytes[app]),
            int(self.free_bytes[app] + committed.limit_bytes[row]) - kept_bytes,
            int(table.delta_bytes[app]),
            headroom + counted,
            headroom // INITIAL_LIMIT_SHARE + counted,
        )

    def container(self, row: int) -> PendingContainer:
        """What is known of a pending container; its shares count all containers, admitted or announced."""
        cluster, table = self.cluster, self.budget.table
        rows, app = cluster.rows, int(cluster.rows.app[row])
        spec = cluster.specs[cluster.apps[app]]
        count = max(int(np.count_nonzero(rows.app == app)), int(table.announced[app]))
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
            floor_us=int(table.floor_quota_us[app]),
            floor_bytes=int(table.floor_memory_bytes[app]),
            samples=int(rows.short_samples[row]),
            held_us=int(rows.quota_us[row]),
            held_bytes=int(rows.limit_bytes[row]),
        )


def _observed(rows: Rows, row: int, capacity: Capacity, pending: PendingContainer) -> Admission:
    """Mode `observe`: begin with the limits that the container has, or with its equal share of what is free.

    Nothing is set, so nothing is refused: at least the minimum, and what is in use.
    """
    quota_us, limit_bytes = int(rows.quota_us[row]), int(rows.limit_bytes[row])
    least_bytes = _pages_up(max(pending.min_bytes, pending.usage_bytes + MARGIN_BYTES))
    share_bytes = min(pending.share_bytes, capacity.memory_free_bytes) // PAGE_BYTES * PAGE_BYTES
    return Admission(
        max(min(pending.share_us, capacity.cpu_free_us), pending.min_us) if quota_us == UNLIMITED else quota_us,
        max(share_bytes, least_bytes) if limit_bytes == UNLIMITED else limit_bytes,
    )


def _pages_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _cores(quota_us: int) -> str:
    return f"{quota_us / PERIOD_US:.2f} cores"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"

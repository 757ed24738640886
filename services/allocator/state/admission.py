"""Admission: capacity for pending containers, and their initial limits (thesis 2.4.1, equations 2.1 and 2.2).

A full application has no capacity for a new container until others were decreased, which takes a step and its
acknowledgement. So what pending and announced containers need is taken out of the others' budget first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.apps import PERIOD_US
from schemas.reasons import Reason
from services.allocator.columns import MARGIN_BYTES, NO_BOUND, PAGE_BYTES, UNLIMITED, BoolArray, IntArray, Reasons, Rows
from services.allocator.state.budget import StepContext, counted_bytes
from services.allocator.state.kernel_bounds import LIMIT, QUOTA, excess

INITIAL_LIMIT_SHARE = 4
"""An initial limit takes at most this part (1/n) of its node's headroom, unless usage needs more."""
OVERRUN_STEPS = 3
"""Steps that a container waits before it is admitted beyond the limit: so long others take to be decreased."""
RETRY_STEPS = 10
"""Retries before a refusal is published: a decrease takes at most three steps."""


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
    overrun_us: int = 0
    """By so much more the minimum may be given: others hold it, and the kernel refuses to take it from them."""
    overrun_bytes: int = 0


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


@dataclass(frozen=True, slots=True)
class Admission:
    """Initial limits."""

    quota_us: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """Why a container is not admitted."""

    reason: str
    permanent: bool
    """True: it would not fit into the empty application either. False: the capacity is in use at present."""


def admit(capacity: Capacity, pending: PendingContainer) -> Admission | AdmissionRefusal:
    """Initial limits within the free capacity.

    CPU: the equal share, or the usage if that is more, at most what is free and the cap; refused below the minimum.
    Memory: the equal share, or usage + delta if that is more, at most the free capacity and the maximum; refused below
    usage + MARGIN_BYTES, because a limit below usage kills on cgroup v2. The least of both also where only the overrun
    has room for it: without any limit a container could take more.
    """
    required_bytes = _pages_up(max(pending.min_bytes, pending.usage_bytes + MARGIN_BYTES))
    if pending.min_us > capacity.cpu_free_us + capacity.overrun_us:
        return AdmissionRefusal(
            f"{pending.name} needs at least {_cores(pending.min_us)}, "
            f"{_cores(max(capacity.cpu_free_us, 0))} of {_cores(capacity.cpu_limit_us)} are free",
            permanent=pending.min_us > capacity.cpu_limit_us,
        )
    if required_bytes > pending.max_bytes:
        return AdmissionRefusal(
            f"{pending.name} uses {_mib(pending.usage_bytes)} and needs a limit of {_mib(required_bytes)}, "
            f"container_max_memory is {_mib(pending.max_bytes)}",
            permanent=True,
        )
    if required_bytes > capacity.memory_free_bytes + capacity.overrun_bytes:
        return AdmissionRefusal(
            f"{pending.name} needs at least {_mib(required_bytes)} of memory, "
            f"{_mib(max(capacity.memory_free_bytes, 0))} of {_mib(capacity.memory_limit_bytes)} are free",
            permanent=required_bytes > capacity.memory_limit_bytes,
        )
    if required_bytes > capacity.node_free_bytes:
        return AdmissionRefusal(
            f"{pending.name} needs at least {_mib(required_bytes)} of memory, its node has room for "
            f"{_mib(max(capacity.node_free_bytes, 0))}",
            permanent=False,
        )
    desired_us = max(pending.share_us, pending.used_us, pending.min_us)
    desired_bytes = _pages_up(max(pending.share_bytes, pending.usage_bytes + capacity.delta_bytes, required_bytes))
    bound_bytes = (
        min(pending.max_bytes, capacity.memory_free_bytes, capacity.node_share_bytes) // PAGE_BYTES * PAGE_BYTES
    )
    return Admission(
        quota_us=max(min(desired_us, capacity.cpu_free_us, pending.cap_us), pending.min_us),
        limit_bytes=min(desired_bytes, max(bound_bytes, required_bytes)),
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """A container with its initial limits."""

    row: int
    limits: Admission
    capacity: Capacity
    pending: PendingContainer


@dataclass(frozen=True, slots=True)
class PendingRefusal:
    """A container that cannot be admitted now."""

    row: int
    reason: str
    report: bool
    """Whether its retries are used up, or it can never fit."""


def admit_pending(context: StepContext, ready: IntArray) -> tuple[list[Admitted], list[PendingRefusal]]:
    """Initial limits for the rows ``ready`` as far as there is free capacity; what each takes, the next have not."""
    left, rows = _Left.of(context), context.cluster.rows
    admitted: list[Admitted] = []
    refused: list[PendingRefusal] = []
    # Observed containers that have limits keep them, so those without share what these leave.
    last = rows.observe_only[ready] & ((rows.quota_us[ready] < 0) | (rows.limit_bytes[ready] < 0))
    for row in ready[np.argsort(last, kind="stable")].tolist():
        capacity, pending = left.capacity(row), left.container(row)
        answer = _observed(rows, row, capacity, pending) if rows.observe_only[row] else admit(capacity, pending)
        if isinstance(answer, AdmissionRefusal):
            report = answer.permanent or int(rows.refusals[row]) + 1 >= RETRY_STEPS
            refused.append(PendingRefusal(row, answer.reason, report))
        else:
            admitted.append(Admitted(row, answer, capacity, pending))
            left.take(row, answer)
    return admitted, refused


def apply_admissions(
    rows: Rows, admitted: list[Admitted], refused: list[PendingRefusal], reasons: tuple[Reasons, Reasons]
) -> None:
    """Write the result of `admit_pending` into the rows and the reasons of CPU and memory."""
    for case in admitted:
        row, limits = case.row, case.limits
        rows.quota_ordered_us[row], rows.limit_ordered_bytes[row] = limits.quota_us, limits.limit_bytes
        rows.admitted[row], rows.refusals[row] = True, 0
        if not rows.observe_only[row]:  # it is sent in this step
            rows.quota_inflight_us[row] = max(int(rows.quota_inflight_us[row]), limits.quota_us)
            rows.limit_inflight_bytes[row] = max(int(rows.limit_inflight_bytes[row]), limits.limit_bytes)
        for why, share, free in (
            (reasons[0], case.pending.share_us, case.capacity.cpu_free_us),
            (reasons[1], case.pending.share_bytes, case.capacity.memory_free_bytes),
        ):
            why.reason[row], why.measured[row], why.threshold[row] = Reason.ADMITTED, share, free
    for refusal in refused:
        rows.refusals[refusal.row] += 1


@dataclass(slots=True)
class _Left:
    """Free capacity while containers are admitted one after the other."""

    context: StepContext
    admitted: BoolArray
    """N: copy of the rows' column."""
    free_us: IntArray
    free_bytes: IntArray
    headroom: IntArray
    counted: IntArray
    """N: what each row counts for on its node."""
    overrun_us: IntArray
    """A: by `kernel_bounds.excess`."""
    overrun_bytes: IntArray

    @classmethod
    def of(cls, context: StepContext) -> _Left:
        """Before the first one."""
        rows = context.cluster.rows
        headroom, counted = context.node_headroom.copy(), counted_bytes(rows)
        table, holdings, now_ns = context.table, context.holdings, context.time.now_ns
        overruns = (
            excess(rows, QUOTA, holdings.quota_us, table.min_quota_us, now_ns),
            excess(rows, LIMIT, holdings.limit_bytes, table.min_memory_bytes, now_ns),
        )
        return cls(context, rows.admitted.copy(), context.free_us, context.free_bytes, headroom, counted, *overruns)

    def joined(self, row: int) -> int:
        """Admitted containers of the row's application."""
        app = self.context.cluster.rows.app
        return int(np.count_nonzero(self.admitted & (app == app[row])))

    def take(self, row: int, limits: Admission) -> None:
        """Admit a row with these limits."""
        rows, holdings = self.context.cluster.rows, self.context.holdings
        app, node = rows.app[row], rows.node[row]
        self.admitted[row] = True
        self.free_us[app] -= max(limits.quota_us - int(holdings.quota_us[row]), 0)
        self.free_bytes[app] -= max(limits.limit_bytes - int(holdings.limit_bytes[row]), 0)
        more = max(limits.limit_bytes - int(self.counted[row]), 0)
        self.headroom[node] -= min(more, int(self.headroom[node]))

    def capacity(self, row: int) -> Capacity:
        """Free capacity for a row."""
        rows, table, holdings = self.context.cluster.rows, self.context.table, self.context.holdings
        app, node = int(rows.app[row]), int(rows.node[row])
        others = max(int(table.announced[app]) - self.joined(row) - 1, 0)
        competing = ~self.admitted & (rows.app == app)
        competing[row] = False
        # Reserve the shares of announced containers, minus the limits that some of them have already.
        kept_us = max(others * int(table.initial_quota_us[app]) - int(holdings.quota_us[competing].sum()), 0)
        held_bytes = int(holdings.limit_bytes[competing].sum())
        kept_bytes = max(others * int(table.initial_memory_bytes[app]) - held_bytes, 0)
        headroom, counted = int(self.headroom[node]), int(self.counted[row])
        waited = int(rows.refusals[row]) >= OVERRUN_STEPS
        return Capacity(
            int(table.cpu_limit_us[app]),
            int(self.free_us[app] + holdings.quota_us[row]) - kept_us,
            int(table.memory_limit_bytes[app]),
            int(self.free_bytes[app] + holdings.limit_bytes[row]) - kept_bytes,
            int(table.delta_bytes[app]),
            headroom + counted,
            headroom // INITIAL_LIMIT_SHARE + counted,
            int(self.overrun_us[app]) if waited else 0,
            int(self.overrun_bytes[app]) if waited else 0,
        )

    def container(self, row: int) -> PendingContainer:
        """What is known of a pending container; its shares count all containers, admitted or announced."""
        cluster, table = self.context.cluster, self.context.table
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

"""Applies limit updates: increases and memory at once, lower quotas at each container's boundary; then replies.

No clock, bus or files of its own: it writes through the containers that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from schemas.limits import LimitReply, LimitsApplied, LimitUpdate, RowStatus
from schemas.message import ROW_SEPARATOR
from schemas.reasons import Resource
from services._host.cgroup_snapshot import UNLIMITED
from services.agent.containers.container_set import ContainerSet
from services.agent.limits.accepted_updates import Admission, NodeCpuBudget, Plan, RowPlan, SpecLimit, UpdateLog
from services.agent.limits.drift import DriftDetector
from services.agent.limits.period_boundary import PREDICTED, BoundaryQueue
from services.agent.limits.refused_limits import RefusedLimits, RefusedWrite
from services.agent.memory.controller import MemoryController
from services.agent.memory.growth import MARGIN_BYTES, PAGE_BYTES
from services.agent.memory.node_budget import NodeBudget, UpdateHeadroom


@dataclass(slots=True, eq=False)
class _PendingReply:
    """A reply that waits for its decreases."""

    update: LimitUpdate
    plan: Plan
    keys: list[str]
    statuses: list[RowStatus]
    on_settled: Callable[[LimitReply], None]
    room: UpdateHeadroom
    """What the node has left for increases of memory."""
    cpu_refusal: str = ""
    """Why increases of CPU quotas were refused, the latest."""
    pending_rows: dict[str, int] = field(default_factory=dict)
    """Row by container, for decreases that are not written yet."""


class FailedRow(NamedTuple):
    """A row of an update that was not applied, and why."""

    container: str
    status: RowStatus
    reason: str


_REASONS: Final = {
    RowStatus.UNKNOWN_CONTAINER: "this agent has no such container",
    RowStatus.STALE_EPOCH: "its application has a newer owner",
    RowStatus.STALE_SEQ: "a newer limit update for it was applied before",
    RowStatus.FAILED: "the kernel refuses the value",
    RowStatus.NODE_BUDGET: "the node has no room for it",
}
_WITH_A_REASON: Final = frozenset({RowStatus.FAILED, RowStatus.NODE_BUDGET})
_OVER_LIMIT: Final = "beyond what is announced of its application"
_IN_USE: Final = "the memory is in use, or was granted within the last second to one that grows"
_FLOOR_ORDER: Final = (0, 0)
"""Before every limit update."""
_GONE_KEPT: Final = 4_096
"""Containers that have gone, of which the application is remembered."""


class LimitExecutor:
    """Updates under way on one node."""

    def __init__(
        self,
        containers: ContainerSet,
        budget: NodeBudget,
        cpu_budget: NodeCpuBudget,
        memory: MemoryController,
        drift: DriftDetector,
    ) -> None:
        self.containers = containers
        self._budget = budget
        self.cpu_budget = cpu_budget
        self._reserves = budget.reserves
        self._memory = memory
        self._drift = drift
        self.log = UpdateLog(containers.incarnation, containers.limits)
        self._replies: list[_PendingReply] = []
        self.decreases = BoundaryQueue()
        self.spec_limits: Mapping[str, SpecLimit | None] | None = None
        """As `Admission.by_app`; None: none are read, and updates are not compared with them."""
        self._over_limit: set[str] = set()
        self.refused = RefusedLimits()
        self._failures: list[FailedRow] = []
        self._reasons: dict[str, str] = {}
        """Why rows of the present update fail, by container, where their status does not tell."""
        self._vanished: dict[str, str] = {}
        """Application by container, of those that have gone lately; the oldest first."""

    def apply(
        self, update: LimitUpdate, now_ns: int, on_settled: Callable[[LimitReply], None], *, is_within: bool = False
    ) -> None:
        """Apply an update: raises, memory and reserves now, lower quotas at each container's boundary.

        Args:
            update: the limit update.
            now_ns: monotonic.
            on_settled: called with the reply once every row is settled, possibly before this returns.
            is_within: `over_limit_apps` has just named none, and nothing has changed since: the limits of AppSpecs are
                not compared again. What is accepted of the update adds up to no more than all of it.
        """
        plan = self.log.accept(update, None if is_within else self._admission())
        self._over_limit |= plan.over_limit
        self._reasons = {row.container: _OVER_LIMIT for row in plan.rows if row.status is RowStatus.FAILED}
        keys = [row.container for row in plan.rows] or self.containers.of_apps(plan.fenced_apps)
        statuses = [row.status for row in plan.rows] or [RowStatus.UNCHANGED] * len(keys)
        pending = _PendingReply(update, plan, keys, statuses, on_settled, self._budget.begin())
        self.cpu_budget.begin()
        self._replies.append(pending)
        for row in sorted(range(len(plan.rows)), key=lambda row: self._raises(plan.rows[row])):
            pending.statuses[row] = self._start_row(plan.rows[row], pending, row, now_ns)
        self._order_reserves(plan, pending.room, now_ns)
        for container, order in plan.superseded:
            self.decreases.discard(container, order)
        # Replies only now: one that names this update as seen must carry what it has raised.
        for container, order in plan.superseded:
            self._settle_row(container, order, RowStatus.SUPERSEDED)
        self._finish(pending)

    def write_floors(self, app: str, now_ns: int) -> bool:
        """Give the application's containers that have no limit of CPU, or of memory, their floor; whether any had none.

        The owner, which counts it, raises it once it has admitted them. Until then it holds, also where no owner is.
        """
        spec = None if self.spec_limits is None else self.spec_limits.get(app)
        if spec is None or spec.floor is None:
            return False
        found = False
        for key in self.containers.of_app(app):
            limits = self.containers.limits[key]
            if limits.quota_us == UNLIMITED and not limits.quota_ordered:
                found = limits.quota_ordered = True
                self._write_quota(key, spec.floor.quota_us, _FLOOR_ORDER, now_ns)
            state = self.containers.managed[key].handle.read_memory()
            if limits.limit_bytes == UNLIMITED and not limits.limit_ordered and state is not None:
                found = limits.limit_ordered = True
                self._memory.control(key, now_ns)
                least_bytes = -(-(state.usage_bytes + MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
                self._write_admitted(key, max(spec.floor.memory_bytes, least_bytes), _FLOOR_ORDER, now_ns)
        return found

    def poll_decreases(self, now_ns: int) -> None:
        """Read the containers whose boundary is due and write the decreases that may be written."""
        for decrease in self.decreases.due(now_ns):
            if decrease.nr_periods == PREDICTED:
                is_due = self.decreases.boundary_passed(decrease, now_ns)
            else:
                member = self.containers.managed.get(decrease.container)
                nr_periods = member.handle.read_periods() if member else None
                if nr_periods is None:
                    self.decreases.discard(decrease.container, decrease.order)
                    self._settle_row(decrease.container, decrease.order, RowStatus.UNKNOWN_CONTAINER)
                    continue
                is_due = self.decreases.read(decrease, nr_periods, now_ns)
            if is_due:
                quota_us = self.log.take_decrease(decrease.container, decrease.order)
                status = RowStatus.SUPERSEDED
                if quota_us:
                    status = self._write_quota(decrease.container, quota_us, decrease.order, now_ns)
                self._settle_row(decrease.container, decrease.order, status)

    def forget(self, container: str, app: str) -> None:
        """The container is gone from the update log: its pending row is settled."""
        pending_rows = self.decreases.pending.get(container)
        self._vanished[container] = app
        if len(self._vanished) > _GONE_KEPT:
            del self._vanished[next(iter(self._vanished))]
        self.decreases.forget(container)
        self.cpu_budget.forget(container)
        self.refused.forget(container)
        if pending_rows is not None:
            self._settle_row(container, pending_rows.order, RowStatus.UNKNOWN_CONTAINER)

    def app_of(self, container: str) -> str | None:
        """Application of a container that this agent has, or had lately; None: it knows of no such container."""
        limits = self.containers.limits.get(container)
        return self._vanished.get(container) if limits is None else limits.app

    def over_limit_apps(self, update: LimitUpdate) -> set[str]:
        """Applications whose AppSpec limits, as they are known now, an update would pass."""
        admission = self._admission()
        return set() if admission is None else self.log.over_limit(update, admission)

    def _admission(self) -> Admission | None:
        if self.spec_limits is None:
            return None
        held_above = self.refused.held_above
        return Admission(self.spec_limits, self.containers.limits, self._reserves.report, held_above)

    def take_over_limit(self) -> set[str]:
        """Applications whose AppSpec limits an update since the last call would have passed."""
        taken, self._over_limit = self._over_limit, set()
        return taken

    def take_failures(self) -> list[FailedRow]:
        """Rows of updates since the last call that were not applied; not those of containers that have exited."""
        taken, self._failures = self._failures, []
        return taken

    def _start_row(self, planned: RowPlan, pending: _PendingReply, row: int, now_ns: int) -> RowStatus:
        key, status = planned.container, planned.status
        if planned.accepted:
            self._memory.control(key, now_ns)
        if planned.limit_bytes:
            status = self._write_memory(key, planned.limit_bytes, pending, now_ns)
        if planned.increase_quota_us:
            return max(status, self._raise_quota(planned, pending, now_ns))
        if planned.decrease_quota_us:
            order = pending.update.epoch, pending.update.seq
            if self._must_wait(key, order, now_ns):
                pending.pending_rows[key] = row
            elif quota_us := self.log.take_decrease(key, order):
                return max(status, self._write_quota(key, quota_us, order, now_ns))
        return status

    def _must_wait(self, key: str, order: tuple[int, int], now_ns: int) -> bool:
        """Queue a decrease for the container's boundary, unless a write refills nothing."""
        rows = self.containers.samples
        if rows.is_idle(key):
            return False
        if boundary_ns := rows.boundary_of(key):
            return self.decreases.add_predicted(key, order, boundary_ns, now_ns)
        nr_periods = self.containers.managed[key].handle.read_periods()
        if nr_periods is None:  # vanished: the write finds out
            return False
        return self.decreases.add(key, order, nr_periods, now_ns)

    def _write_quota(self, key: str, quota_us: int, order: tuple[int, int], now_ns: int) -> RowStatus:
        if key in self.containers.managed:
            self._drift.before_quota_write(key, quota_us)
        status = self.containers.kernel.write_quota(key, quota_us)
        write = RefusedWrite(quota_us, self.containers.limits[key].quota_us, self.containers.kernel.refusal, order)
        self._note_outcome((key, "cpu"), status, write, now_ns)
        return status

    def _note_outcome(self, of: tuple[str, Resource], status: RowStatus, write: RefusedWrite, now_ns: int) -> None:
        """Keep what the kernel said to a write; ``write`` is that of a refusal."""
        if status is RowStatus.FAILED:
            self._add_reason(of[0], write.reason)
            self.refused.refused(*of, write, now_ns)
        elif status is RowStatus.APPLIED:
            self.refused.accepted(*of, write.ordered)

    def _raise_quota(self, planned: RowPlan, pending: _PendingReply, now_ns: int) -> RowStatus:
        key, ordered_us = planned.container, planned.increase_quota_us
        admitted_us, refusal = self.cpu_budget.admit(key, ordered_us)
        order, status = (pending.update.epoch, pending.update.seq), RowStatus.UNCHANGED
        if admitted_us:
            status = self._write_quota(key, admitted_us, order, now_ns)
        if not refusal:
            return status
        self._add_reason(key, refusal)
        pending.cpu_refusal = refusal
        self.cpu_budget.report_rejection(key, ordered_us, refusal, now_ns)
        return max(status, RowStatus.NODE_BUDGET)

    def _add_reason(self, key: str, reason: str) -> None:
        """Memory and CPU of one row may be refused at once."""
        self._reasons[key] = "; ".join(filter(None, (self._reasons.get(key), reason)))

    def _raises(self, planned: RowPlan) -> tuple[bool, bool]:
        """What needs no headroom is written first: a full node can still shift from one container to another.

        Memory before CPU, most of whose decreases wait for their boundary anyway.
        """
        known = planned.container in self.containers.limits
        return known and planned.limit_bytes > self._budget.counted_bytes(
            planned.container
        ), planned.increase_quota_us > 0

    def _write_memory(self, key: str, ordered_bytes: int, pending: _PendingReply, now_ns: int) -> RowStatus:
        admitted = self._budget.admit(key, ordered_bytes, pending.room)
        order = pending.update.epoch, pending.update.seq
        before_bytes = self.containers.limits[key].limit_bytes
        status = RowStatus.UNCHANGED
        if admitted.limit_bytes:
            status = self._write_admitted(key, admitted.limit_bytes, order, now_ns)
        if admitted.refusal is None:
            return status
        self._add_reason(key, admitted.refusal.sentence(self.containers.node))
        self._budget.report_rejection(key, ordered_bytes, before_bytes, admitted.refusal, now_ns)
        return max(status, RowStatus.NODE_BUDGET)

    def _write_admitted(self, key: str, limit_bytes: int, order: tuple[int, int], now_ns: int) -> RowStatus:
        if self._memory.rejects_decrease(key, limit_bytes, now_ns):
            self._add_reason(key, _IN_USE)
            return RowStatus.FAILED
        before_bytes = self.containers.limits[key].limit_bytes
        status = self.containers.kernel.write_memory(key, limit_bytes)
        write = RefusedWrite(
            limit_bytes, self.containers.limits[key].limit_bytes, self.containers.kernel.refusal, order
        )
        self._note_outcome((key, "memory"), status, write, now_ns)
        if status is RowStatus.APPLIED and 0 <= before_bytes < limit_bytes:
            self._memory.limit_was_increased(key, now_ns)
        return status

    def _order_reserves(self, plan: Plan, room: UpdateHeadroom, now_ns: int) -> None:
        """Waiting containers are granted memory before the reply carries what is left. Lower reserves first."""
        held = {order.app: self._reserves.report(order.app).given_bytes for order in plan.reserves}
        for order in sorted(plan.reserves, key=lambda order: order.given_bytes > held[order.app]):
            if self.containers.of_app(order.app):
                more_bytes = max(order.given_bytes - held[order.app], 0)
                refused_bytes = more_bytes - room.take(more_bytes) if more_bytes else 0
                self._reserves.apply(replace(order, given_bytes=order.given_bytes - refused_bytes))
                self._memory.reserve_increased(order.app, now_ns)
            else:  # its last container has gone meanwhile: seen, but void
                self._reserves.void(order.app)

    def _settle_row(self, container: str, order: tuple[int, int], status: RowStatus) -> None:
        for pending in self._replies:
            if (pending.update.epoch, pending.update.seq) == order and container in pending.pending_rows:
                row = pending.pending_rows.pop(container)
                pending.statuses[row] = max(pending.statuses[row], status)
                self._finish(pending)
                return

    def _finish(self, pending: _PendingReply) -> None:
        if not pending.pending_rows:
            self._replies.remove(pending)
            self._note_failures(pending)
            pending.on_settled(self._reply(pending))

    def _note_failures(self, pending: _PendingReply) -> None:
        for container, status in zip(pending.keys, pending.statuses, strict=True):
            exited = status is RowStatus.UNKNOWN_CONTAINER and container in self._vanished
            if status in _REASONS and not exited:
                own = self._reasons.get(container) if status in _WITH_A_REASON else None
                self._failures.append(FailedRow(container, status, own or _REASONS[status]))

    def _reply(self, pending: _PendingReply) -> LimitReply:
        update, plan = pending.update, pending.plan
        known = [self.containers.limits.get(key) for key in pending.keys]
        columns = {
            "quota_us": [entry.quota_us if entry else 0 for entry in known],
            "limit_bytes": [entry.limit_bytes if entry else 0 for entry in known],
            "status": [int(status) for status in pending.statuses],
            "limit_update_seq": [
                self.log.limit_update_seq(key) if entry else 0 for key, entry in zip(pending.keys, known, strict=True)
            ],
        }
        reserves = [self._reserves.report(app) for app in plan.fenced_apps]
        return LimitReply.build(
            pending.keys,
            columns,
            node=self.containers.node,
            incarnation=self.containers.incarnation.number,
            report_seq=self.containers.incarnation.next_report_seq(),
            inventory_complete=self.containers.inventory.complete,
            epoch=update.epoch,
            seq=update.seq,
            rejection=plan.refusal,
            stale_apps=tuple(plan.stale_epochs),
            stale_epochs=tuple(plan.stale_epochs.values()),
            apps=plan.fenced_apps,
            reserve_given_bytes=tuple(reserve.given_bytes for reserve in reserves),
            reserve_used_bytes=tuple(reserve.used_bytes for reserve in reserves),
            reserve_update_seq=tuple(self.log.reserve_seq(app) for app in plan.fenced_apps),
            node_headroom_bytes=self._budget.headroom_bytes,
            node_cpu_headroom_us=self.cpu_budget.headroom_us,
            node_budget_reason=self._budget_reason(pending),
            refused_cpu=self._refused(pending, "cpu"),
            refused_memory=self._refused(pending, "memory"),
        )

    def _refused(self, pending: _PendingReply, resource: Resource) -> dict[str, str]:
        order = pending.update.epoch, pending.update.seq
        failed = [key for key, status in zip(pending.keys, pending.statuses, strict=True) if status in _WITH_A_REASON]
        return {key: reason for key in failed if (reason := self.refused.reason(key, resource, order))}

    def _budget_reason(self, pending: _PendingReply) -> str:
        refused = pending.room.refusal
        memory = "" if refused is None else refused.sentence(self.containers.node)
        return "; ".join(filter(None, (memory, pending.cpu_refusal)))


MAX_ROWS: Final = 2_000
"""In one message: it stays below the bus's largest, however long the containers' keys are (`_MAX_KEY_CHARACTERS`)."""
_MAX_KEY_CHARACTERS: Final = 100
"""A name of 63, a dash, and 12 of the id."""
_UNCHANGED: Final = bytes([RowStatus.UNCHANGED])
_COLUMNS: Final = tuple(LimitsApplied.column_types)


def applied_limits(
    reply: LimitReply, apps: Sequence[str], time_ns: int, app_of: Callable[[str], str | None]
) -> Iterator[LimitsApplied]:
    """Messages for one reply; none where nothing was written and every row holds.

    An update of one application, the usual one, shares the reply's columns: its rows are not read again.

    Args:
        reply: to a limit update.
        apps: that the limit update names.
        time_ns: now, since the epoch.
        app_of: application of a container; rows of a container without one are left out, as no subject is theirs.
    """
    if not reply.status.strip(_UNCHANGED):
        return
    head = {name: getattr(reply, name) for name in ("node", "incarnation", "report_seq", "epoch", "seq")}
    head["time_ns"] = time_ns
    if len(apps) == 1 and _is_small(reply) and app_of(reply.containers.split(ROW_SEPARATOR, 1)[0]) == apps[0]:
        columns = {name: getattr(reply, name) for name in _COLUMNS}
        yield LimitsApplied(app=apps[0], containers=reply.containers, **columns, **head)
        return
    keys = reply.keys
    for app, rows in _rows_by_app(keys, app_of):
        columns = {name: reply.column(name)[rows] for name in _COLUMNS}
        if columns["status"].tobytes().strip(_UNCHANGED):
            yield LimitsApplied.build([keys[row] for row in rows], columns, app=app, **head)


def _is_small(reply: LimitReply) -> bool:
    return reply.row_count <= MAX_ROWS and len(reply.containers) <= MAX_ROWS * _MAX_KEY_CHARACTERS


def _rows_by_app(keys: Sequence[str], app_of: Callable[[str], str | None]) -> Iterator[tuple[str, list[int]]]:
    """Application and rows of each message."""
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        if (app := app_of(key)) is not None:
            rows.setdefault(app, []).append(row)
    for app, mine in rows.items():
        for start in range(0, len(mine), MAX_ROWS):
            yield app, mine[start : start + MAX_ROWS]

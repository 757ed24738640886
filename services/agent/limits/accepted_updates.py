"""Which rows of limit updates an agent accepts: newer than what it has seen, within the AppSpec and the CPU budget.

`UpdateLog.accept` classifies the rows of a LimitUpdate against what was seen before; the shell writes and records the
outcome. Rules that make loss, duplication and reordering harmless:

- a row counts only if its (epoch, seq) is newer than the container's last, so an update out of order never acts;
- an update may raise the kernel's value only at the moment it is accepted; only decreases are pending. So once
    an update has been seen, the value in the kernel is an upper bound until a newer update comes;
- reserves are updated per application, in updates without rows, under the same rule.

`Admission` keeps a row within the AppSpec. The server lets only allocators send updates (docs/security.md); this bounds
what a stolen key, or a defect, can do to a host. Updates of a correct allocator always pass: it counts every container
of every node, and the larger of the old and the new value where it cannot know; here only those of this node count, and
only values that were updated.

`NodeCpuBudget` bounds what CPU quotas on the node add up to. Processor time is shared, so overcommit is normal, and
nothing is refused where the settings name no ratio (decision 62). Where they do, quotas that agents have set and what
all other containers use add up to at most ratio x cores: the agent, which alone sees all of them, refuses the rest.
Decreases always pass. A container without a quota, or with one that it came with, counts what it used in the latest
sample, and at least the kernel's smallest quota: so it can be given its first one on a full node too, and the sum does
not rise by it. Microseconds per period.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.apps import LEAST_RAISE_US, MIN_QUOTA_US, PERIOD_US
from schemas.limits import LimitUpdate, RowStatus
from schemas.reasons import Resource
from services._host.cgroup_snapshot import UNLIMITED, Limits
from services.agent.containers.container import ContainerLimits
from services.agent.containers.container_set import ContainerSet
from services.agent.containers.incarnation import Incarnation
from services.agent.memory.growth import PAGE_BYTES
from services.agent.memory.node_budget import REPORT_INTERVAL_NS
from services.agent.memory.reserve import UNKNOWN_SHARE, ReserveUpdate


@dataclass(frozen=True, slots=True)
class SpecLimit:
    """An application's limits by its AppSpec."""

    cpu_us: int
    """Per period, over all its containers."""
    memory_bytes: int
    floor: Limits | None = None
    """What a container without limits is given as soon as it is found; None: the application is only observed."""


@dataclass(slots=True)
class _Committed:
    """What an application's containers on this node hold, and its reserve."""

    cpu_us: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Admission:
    """What is left for the rows of one update, one after another."""

    by_app: Mapping[str, SpecLimit | None]
    """AppSpec limits by application. None: there is no AppSpec, and no update for it is applied."""
    containers: Mapping[str, ContainerLimits]
    reserve: Callable[[str], tuple[int, int]]
    """What an application's reserve here was given, and has used, in bytes."""
    held_above: Collection[tuple[str, Resource]] = ()
    """Containers and limits that the kernel holds above what was ordered: they count nothing, as no order is to blame.
    """
    over_limit: set[str] = field(default_factory=set)
    """Applications whose AppSpec limits the update would pass, or that have none."""
    _committed: dict[str, _Committed] | None = None

    def admits(self, key: str, quota_us: int, limit_bytes: int) -> bool:
        """Whether a row may be applied; if so, its increase counts for the rows after it. 0: unchanged."""
        container = self.containers[key]
        limit = self.by_app.get(container.app)
        if limit is None:
            self.over_limit.add(container.app)
            return False
        committed = self._committed_of(container.app)
        counted_us, counted_bytes = self._counted(key, container)
        cpu_us, memory = max(0, quota_us - counted_us), max(0, limit_bytes - counted_bytes)
        if (cpu_us and committed.cpu_us + cpu_us > limit.cpu_us) or (
            memory and committed.memory_bytes + memory > limit.memory_bytes
        ):
            self.over_limit.add(container.app)
            return False
        committed.cpu_us += cpu_us
        committed.memory_bytes += memory
        return True

    def admits_reserve(self, app: str, given_bytes: int) -> bool:
        """Whether a node's reserve may be given so much in all; no more than now is always well."""
        more = given_bytes - self.reserve(app)[0]
        limit = self.by_app.get(app)
        if more <= 0 or (limit is not None and self._committed_of(app).memory_bytes + more <= limit.memory_bytes):
            return True
        self.over_limit.add(app)
        return False

    def _committed_of(self, app: str) -> _Committed:
        if self._committed is None:
            by_app: dict[str, _Committed] = {}
            self._committed = by_app
            for each in self.containers.values():  # of the whole node, with every update
                committed = by_app.get(each.app) or self._add(by_app, each.app)
                if each.quota_ordered and each.quota_us > 0:
                    committed.cpu_us += each.quota_us
                if each.limit_ordered and each.limit_bytes > 0:
                    committed.memory_bytes += each.limit_bytes
            for key in {key for key, _ in self.held_above}:
                each = self.containers[key]
                counted_us, counted_bytes = self._counted(key, each)
                by_app[each.app].cpu_us += counted_us - max(each.quota_us * each.quota_ordered, 0)
                by_app[each.app].memory_bytes += counted_bytes - max(each.limit_bytes * each.limit_ordered, 0)
        return self._add(self._committed, app)

    def _counted(self, key: str, container: ContainerLimits) -> tuple[int, int]:
        """What a container counts for. A limit that was never updated does not, and may be unlimited (-1)."""
        counts_cpu = container.quota_ordered and (key, "cpu") not in self.held_above
        counts_memory = container.limit_ordered and (key, "memory") not in self.held_above
        return max(container.quota_us * counts_cpu, 0), max(container.limit_bytes * counts_memory, 0)

    def _add(self, committed: dict[str, _Committed], app: str) -> _Committed:
        if app not in committed:
            given_bytes, used_bytes = self.reserve(app)
            committed[app] = _Committed(memory_bytes=given_bytes - used_bytes)
        return committed[app]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What to do for one row. 0: nothing to write for that limit."""

    container: str
    status: RowStatus
    """The status if every write succeeds; final where nothing is to be written."""
    increase_quota_us: int = 0
    """Write now (also the first limit of an unlimited container)."""
    decrease_quota_us: int = 0
    """Write at the container's own period boundary."""
    limit_bytes: int = 0
    """Write now."""
    accepted: bool = False
    """Whether the update counts: then the container is enforced, and the agent controls its memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for an update."""

    rows: tuple[RowPlan, ...] = ()
    superseded: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Containers and updates whose pending decrease was replaced."""
    refusal: str | None = None
    stale_epochs: Mapping[str, int] = field(default_factory=dict)
    """Applications that belong to a newer epoch, and that epoch."""
    fenced_apps: tuple[str, ...] = ()
    """An update without rows: its applications, as far as they are not stale."""
    reserves: tuple[ReserveUpdate, ...] = ()
    over_limit: frozenset[str] = frozenset()
    """Applications whose AppSpec limits the update would have passed: what would is not applied."""


class _Row(NamedTuple):
    container: str
    order: tuple[int, int]
    quota_us: int
    limit_bytes: int


@dataclass(slots=True)
class UpdateLog:
    """Updates seen per container and owners seen per application."""

    incarnation: Incarnation
    containers: Mapping[str, ContainerLimits]
    epochs: dict[str, int] = field(default_factory=dict)
    reserve_updates: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Newest update of the reserve, by application."""

    def limit_update_seq(self, container: str) -> int:
        """Newest sequence seen from the application's present owner; 0: none."""
        limits = self.containers[container]
        return limits.seq if limits.epoch == self.epochs.get(limits.app) else 0

    def reserve_seq(self, app: str) -> int:
        """Newest sequence of a reserve update seen from the application's present owner; 0: none."""
        epoch, seq = self.reserve_updates.get(app, (0, 0))
        return seq if epoch == self.epochs.get(app, 0) else 0

    def accept(self, update: LimitUpdate, admission: Admission | None = None) -> Plan:
        """Classify an update and remember that it was seen. The shell must carry the plan out at once.

        Args:
            update: the limit update.
            admission: what the AppSpec limits leave; None: they are not checked.
        """
        node, number = self.incarnation.node, self.incarnation.number
        if update.node != node or update.incarnation != number:
            return Plan(
                refusal=f"meant for {update.node} incarnation {update.incarnation}, this is {node} incarnation {number}"
            )
        stale = {app: self.epochs[app] for app in update.apps if update.epoch < self.epochs.get(app, 0)}
        owned = set(update.apps) - stale.keys()
        for app in owned:
            self.epochs[app] = update.epoch
        superseded: list[tuple[str, tuple[int, int]]] = []
        rows = tuple(
            self._accept_row(_Row(key, (update.epoch, update.seq), *wanted), owned, superseded, admission)
            for key, *wanted in zip(
                update.keys, update.column("quota_us").tolist(), update.column("limit_bytes").tolist(), strict=True
            )
        )
        fenced = () if rows else tuple(app for app in dict.fromkeys(update.apps) if app in owned)
        reserves = tuple(
            accepted
            for wanted in _reserve_orders(update)
            if wanted.app in owned and (update.epoch, update.seq) > self.reserve_updates.get(wanted.app, (0, 0))
            if (accepted := self._accept_reserve(wanted, (update.epoch, update.seq), admission)) is not None
        )
        over_limit = frozenset(admission.over_limit) if admission is not None else frozenset()
        return Plan(
            rows, tuple(superseded), stale_epochs=stale, fenced_apps=fenced, reserves=reserves, over_limit=over_limit
        )

    def over_limit(self, update: LimitUpdate, admission: Admission) -> set[str]:
        """Applications whose AppSpec limits an update would pass, as far as ``admission`` has them. Changes nothing."""
        columns = (update.column("quota_us").tolist(), update.column("limit_bytes").tolist())
        for key, quota_us, limit_bytes in zip(update.keys, *columns, strict=True):
            if key in self.containers:
                admission.admits(key, quota_us, limit_bytes)
        for app, given_bytes in zip(update.apps, update.reserve_given_bytes, strict=False):
            admission.admits_reserve(app, given_bytes)
        return admission.over_limit

    def _accept_reserve(
        self, wanted: ReserveUpdate, order: tuple[int, int], admission: Admission | None
    ) -> ReserveUpdate | None:
        self.reserve_updates[wanted.app] = order
        return wanted if admission is None or admission.admits_reserve(wanted.app, wanted.given_bytes) else None

    def _accept_row(
        self, row: _Row, owned: set[str], superseded: list[tuple[str, tuple[int, int]]], admission: Admission | None
    ) -> RowPlan:
        key, order, quota_us, limit_bytes = row
        limits = self.containers.get(key)
        if limits is None:
            return RowPlan(key, RowStatus.UNKNOWN_CONTAINER)
        if limits.app not in owned:
            return RowPlan(key, RowStatus.STALE_EPOCH)
        if order <= (limits.epoch, limits.seq):
            return RowPlan(key, RowStatus.STALE_SEQ)
        limits.epoch, limits.seq = order
        if admission is not None and not admission.admits(key, quota_us, limit_bytes):
            return RowPlan(key, RowStatus.FAILED)
        limits.quota_ordered |= bool(quota_us)
        limits.limit_ordered |= bool(limit_bytes)
        if limits.pending_update is not None and quota_us:
            superseded.append((key, limits.pending_update))
            limits.pending_decrease_us = limits.pending_update = None
        raise_us = cut_us = 0
        if quota_us and quota_us != limits.quota_us:
            if limits.quota_us < 0 or quota_us > limits.quota_us:
                raise_us = quota_us
            else:
                cut_us = quota_us
                limits.pending_decrease_us, limits.pending_update = quota_us, order
        same_pages = limit_bytes // PAGE_BYTES == limits.limit_bytes // PAGE_BYTES  # the kernel holds whole ones
        memory = 0 if same_pages else limit_bytes
        changes = bool(raise_us or cut_us or memory)
        status = RowStatus.APPLIED if changes else RowStatus.UNCHANGED
        return RowPlan(key, status, raise_us, cut_us, memory, accepted=True)

    def take_decrease(self, container: str, order: tuple[int, int]) -> int | None:
        """The quota to write now that the boundary has passed; None if a newer update replaced it."""
        limits = self.containers.get(container)
        if limits is None or limits.pending_update != order:
            return None
        quota_us, limits.pending_decrease_us, limits.pending_update = limits.pending_decrease_us, None, None
        return quota_us


def _reserve_orders(update: LimitUpdate) -> list[ReserveUpdate]:
    """Those that an update carries; an allocator that knows nothing of fair shares sends none."""
    shares = update.fair_share_bytes or (UNKNOWN_SHARE,) * len(update.apps)
    columns = update.reserve_given_bytes, update.container_max_bytes, shares
    return [ReserveUpdate(*wanted) for wanted in zip(update.apps, *columns, strict=False)]


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """A node's cores, and how many times they may be promised."""

    cores: int
    ratio: float
    """> 0; 1: as many as there are."""

    @property
    def allocatable_us(self) -> int:
        """The most that quotas may add up to."""
        return int(self.cores * self.ratio * PERIOD_US)


def counted_us(quota_us: int, used_us: int) -> int:
    """What one container counts for: its quota; without one (negative), what it used in the latest sample."""
    return quota_us if quota_us >= 0 else max(used_us, MIN_QUOTA_US)


def admitted_us(ordered_us: int, quota_us: int, used_us: int, headroom_us: int) -> int:
    """As much of a new quota as there is headroom for; 0: nothing may be written.

    Args:
        ordered_us: the new quota, > 0.
        quota_us: the present one; negative: none.
        used_us: in the latest sample; counts where there is no quota.
        headroom_us: by how much quotas may rise; negative: they add up to more than the budget already.
    """
    counted = counted_us(quota_us, used_us)
    if ordered_us <= counted + max(headroom_us, 0):
        return ordered_us
    partly = counted + max(headroom_us, 0)
    # Without any quota a container may take all processors: its first one is always written.
    return partly if quota_us < 0 or partly - quota_us >= LEAST_RAISE_US else 0


class Refusal(NamedTuple):
    """A raise that was not carried out, in part at least."""

    container: str
    reason: str
    """A sentence with what was measured, its threshold, what was ordered and what became of it."""


class NodeCpuBudget:
    """Limits the sum of CPU quotas on its node: an increase passes as far as there is headroom."""

    def __init__(self, budget: CpuBudget | None, containers: ContainerSet, *, warns: bool = True) -> None:
        """Begin to count.

        Args:
            budget: None: nothing is refused.
            containers: of the node.
            warns: whether more quota than cores is worth a warning, where nothing is refused.
        """
        self._budget = budget
        self._containers = containers
        self._reported_ns: dict[str, int] = {}
        self._refusals: list[Refusal] = []
        self._committed_us: int | None = None
        """Of the present update, once asked for: it is a sum over all containers."""
        self.warns = warns and budget is None
        self.rejections = 0
        """Increases that there was not enough headroom for."""

    @property
    def allocatable_us(self) -> int | None:
        """The most that quotas may add up to; None: no bound."""
        return None if self._budget is None else self._budget.allocatable_us

    def committed_us(self) -> int:
        """Quotas of enforced containers and what the others use; where there is no budget, the sum of all quotas."""
        if self._budget is None:
            return sum(max(limits.quota_us, 0) for limits in self._containers.limits.values())
        return sum(self._counted(key) for key in self._containers.limits)

    def begin(self) -> None:
        """Before an update is applied."""
        self._committed_us = None

    @property
    def headroom_us(self) -> int:
        """By how much they may still rise, as messages carry it; -1: no bound."""
        return -1 if self._budget is None else max(self._budget.allocatable_us - self.committed_us(), 0)

    def admit(self, key: str, ordered_us: int) -> tuple[int, str]:
        """As much of a new quota as there is headroom for (0: write nothing), and why it is less, or nothing.

        Args:
            key: the container.
            ordered_us: the new quota; one that is lower than what the container counts for is admitted as it is.
        """
        if self._budget is None:
            return ordered_us, ""
        committed = self.committed_us() if self._committed_us is None else self._committed_us
        quota_us, used_us = self._containers.limits[key].quota_us, self._used(key)
        admitted = admitted_us(ordered_us, quota_us, used_us, self._budget.allocatable_us - committed)
        self._committed_us = committed + max(admitted - counted_us(quota_us, used_us), 0)
        return admitted, "" if admitted == ordered_us else self._sentence(self._budget, committed)

    def report_rejection(self, key: str, ordered_us: int, sentence: str, now_ns: int) -> None:
        """Count an increase that was rejected, in part at least; report it once in `REPORT_INTERVAL_NS` per container.

        Args:
            key: the container, whose limits are now those that hold.
            ordered_us: what the quota was to be.
            sentence: why, from `admit`.
            now_ns: monotonic.
        """
        self.rejections += 1
        reported_ns = self._reported_ns.get(key)
        if reported_ns is not None and now_ns - reported_ns < REPORT_INTERVAL_NS:
            return
        self._reported_ns[key] = now_ns
        holds = _cores(self._containers.limits[key].quota_us)
        reason = f"{sentence}; the limit update was {_cores(ordered_us)} cores, its limit is {holds} cores"
        self._refusals.append(Refusal(key, reason))

    def take_refusals(self) -> list[Refusal]:
        """Those to be reported since the last call."""
        taken, self._refusals = self._refusals, []
        return taken

    def forget(self, key: str) -> None:
        """The container is gone."""
        self._reported_ns.pop(key, None)

    def _sentence(self, budget: CpuBudget, committed: int) -> str:
        return (
            f"the CPU budget of node {self._containers.node} is used up: CPU limits of its containers add up to "
            f"{_cores(committed)} of {_cores(budget.allocatable_us)} cores ({budget.ratio:g} x {budget.cores})"
        )

    def _counted(self, key: str) -> int:
        """Its quota where an agent has set it; one that it came with promises nothing (decision 114)."""
        limits = self._containers.limits[key]
        if limits.quota_promised and limits.quota_us >= 0:
            return limits.quota_us
        return counted_us(UNLIMITED, self._used(key))

    def _used(self, key: str) -> int:
        """By the newest sample; 0 before the first."""
        samples = self._containers.samples
        row = samples.row_of(key)
        return 0 if row is None else int(samples.used_us[row])


def _cores(quota_us: int) -> str:
    return f"{quota_us / PERIOD_US:.2f}"

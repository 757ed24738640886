"""Which rows of limit updates an agent accepts: newer than what it has seen, and within the AppSpec's limits.

Pure: `UpdateLog.accept` classifies the rows of a LimitUpdate against what was seen before; the shell writes and
records the outcome. Rules that make loss, duplication and reordering harmless:

- a row counts only if its (epoch, seq) is newer than the container's last, so an update out of order never acts;
- an update may raise the kernel's value only at the moment it is accepted; only decreases are pending. So once
    an update has been seen, the value in the kernel is an upper bound until a newer update comes;
- reserves are updated per application, in updates without rows, under the same rule.

`Admission` keeps a row within the AppSpec. The server lets only allocators send updates (docs/security.md); this bounds
what a stolen key, or a defect, can do to a host. Updates of a correct allocator always pass: it counts every container
of every node, and the larger of the old and the new value where it cannot know; here only those of this node count, and
only values that were updated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from schemas.limits import LimitUpdate, RowStatus
from services.agent.containers import ContainerLimits, Incarnation
from services.agent.memory.growth import PAGE_BYTES
from services.agent.memory.reserve import UNKNOWN_SHARE, FairShare, ReserveUpdate


@dataclass(frozen=True, slots=True)
class SpecLimit:
    """An application's limits by its AppSpec."""

    cpu_us: int
    """Per period, over all its containers."""
    memory_bytes: int


class KnownLimits(Protocol):
    """A container's limits as the update log has them."""

    app: str
    quota_us: int
    limit_bytes: int
    quota_ordered: bool
    limit_ordered: bool


@dataclass(slots=True)
class _Committed:
    """What an application's containers on this node hold, and its reserve."""

    cpu_us: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class SpecLimits:
    """AppSpec limits by application. None: there is no AppSpec, and no update for it is applied."""

    by_app: dict[str, SpecLimit | None] = field(default_factory=dict)

    def admission(self, containers: Mapping[str, KnownLimits], reserve: Callable[[str], tuple[int, int]]) -> Admission:
        """For one update; ``reserve`` returns what an application's reserve here was given, and has used, in bytes."""
        return Admission(self.by_app, containers, reserve)


@dataclass(slots=True)
class Admission:
    """What is left for the rows of one update, one after another."""

    by_app: Mapping[str, SpecLimit | None]
    containers: Mapping[str, KnownLimits]
    reserve: Callable[[str], tuple[int, int]]
    over_limit: set[str] = field(default_factory=set)
    """Applications whose AppSpec limits the update would pass, or that have none."""
    _committed: dict[str, _Committed] | None = None

    def admits(self, container: KnownLimits, quota_us: int, limit_bytes: int) -> bool:
        """Whether a row may be applied; if so, its increase counts for the rows after it. 0: unchanged."""
        limit = self.by_app.get(container.app)
        if limit is None:
            self.over_limit.add(container.app)
            return False
        committed = self._committed_of(container.app)
        # A limit that was never updated does not count, and may be unlimited (-1).
        cpu_us = max(0, quota_us - max(container.quota_us * container.quota_ordered, 0))
        memory = max(0, limit_bytes - max(container.limit_bytes * container.limit_ordered, 0))
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
            self._committed = {}
            for each in self.containers.values():
                committed = self._add(self._committed, each.app)
                committed.cpu_us += max(each.quota_us * each.quota_ordered, 0)
                committed.memory_bytes += max(each.limit_bytes * each.limit_ordered, 0)
        return self._add(self._committed, app)

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
    stale_apps: tuple[str, ...] = ()
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
        stale = tuple(app for app in update.apps if update.epoch < self.epochs.get(app, 0))
        owned = set(update.apps) - set(stale)
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
            rows, tuple(superseded), stale_apps=stale, fenced_apps=fenced, reserves=reserves, over_limit=over_limit
        )

    def over_limit(self, update: LimitUpdate, admission: Admission) -> set[str]:
        """Applications whose AppSpec limits an update would pass, as far as ``admission`` has them. Changes nothing."""
        columns = (update.column("quota_us").tolist(), update.column("limit_bytes").tolist())
        for key, quota_us, limit_bytes in zip(update.keys, *columns, strict=True):
            limits = self.containers.get(key)
            if limits is not None:
                admission.admits(limits, quota_us, limit_bytes)
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
        if admission is not None and not admission.admits(limits, quota_us, limit_bytes):
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
    shares = [FairShare(*pair) for pair in zip(update.fair_share_bytes, update.fair_growth_bytes, strict=True)]
    columns = update.reserve_given_bytes, update.container_max_bytes, shares or [UNKNOWN_SHARE] * len(update.apps)
    return [ReserveUpdate(*wanted) for wanted in zip(update.apps, *columns, strict=False)]

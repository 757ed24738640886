"""Replies to requests about one node: state, pending writes, installed rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.message import Message
from schemas.network import (
    DiffReply,
    DiffRequest,
    NetworkStateReply,
    NetworkStateRequest,
    PathState,
    RulesReply,
    RulesRequest,
    RuleState,
)
from schemas.queries import QueryError
from services._host.netlink.objects import Filter, Snapshot
from services._runtime.bus.api import Delivery
from services._runtime.clock import Clock
from services.reconciler.core.ownership import managed_filters, tunnel_of
from services.reconciler.events import tc_operation
from services.reconciler.full_reconcile import Reconciliation
from services.reconciler.loop import ReconcileLoop
from services.reconciler.path_comparison import FrrState, Path, destinations_of
from services.reconciler.ports import UnreadableError
from services.reconciler.settings import ReconcilerSettings

MAX_OPERATIONS: Final = 1_000
MAX_RULES: Final = 3_000
"""In one reply; a message holds 1 MB."""
MAX_PATHS: Final = 1_000
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True)
class Queries:
    """Request handlers, and the state that they read."""

    settings: ReconcilerSettings
    incarnation: int
    clock: Clock
    loop: ReconcileLoop
    reconciliation: Reconciliation
    paths: Callable[[], tuple[list[Path], FrrState]]
    problems: Callable[[], tuple[str, ...]]
    suspects: Callable[[], Mapping[str, str]] = dict
    """By VTEP: reports of other hosts."""
    drained: Callable[[], tuple[str, ...]] = tuple

    async def state(self, delivery: Delivery) -> Message:
        """Links, VTEPs, paths and counts, from the last snapshot."""
        if not isinstance(delivery.message, NetworkStateRequest):
            return _unexpected(delivery)
        loop, completed, snapshot = self.loop, self.loop.last, self.loop.snapshot
        if completed is None or snapshot is None:
            return QueryError(code=_UNAVAILABLE, message=loop.unreadable)
        tally = completed.result.tally
        vteps = destinations_of(snapshot)
        (paths, state), suspects = self.paths(), self.suspects()
        return NetworkStateReply(
            node=self.settings.node,
            incarnation=self.incarnation,
            offload=self.settings.offload,
            full_reconciles=loop.counts.full,
            writes=loop.counts.writes,
            last_reconcile_age_s=max(self.clock.monotonic() - loop.read_s, 0.0),
            ports=tuple(self.settings.forwarding().application_macs),
            encapsulation_device=self.settings.encapsulation_device,
            vteps=vteps,
            macs=len({row.mac for row in snapshot.fdb if row.own and row.destination and row.mac != _NO_MAC}),
            installed=tally.in_sync,
            in_hw=tally.in_hw,
            not_in_hw=tally.not_in_hw,
            unmanaged=tally.unmanaged,
            paths=tuple(_path_state(path, state, suspects.get(path.destination, "")) for path in paths[:MAX_PATHS]),
            problems=self.problems() + _closed_sessions(state),
            drained=self.drained(),
        )

    async def diff(self, delivery: Delivery) -> Message:
        """Plan from a new snapshot; nothing is written."""
        if not isinstance(delivery.message, DiffRequest):
            return _unexpected(delivery)
        try:
            snapshot, wanted, (operations, tally) = await self.loop.in_thread(self.reconciliation.dry_run)
        except UnreadableError as error:
            return QueryError(code=_UNAVAILABLE, message=str(error))
        names = {link.ifindex: link.name for link in snapshot.links}
        return DiffReply(
            node=self.settings.node,
            desired=tally.desired,
            installed=tally.in_sync,
            unmanaged=tally.unmanaged,
            operations=tuple(tc_operation(operation, names) for operation in operations[:MAX_OPERATIONS]),
            total=len(operations),
            problem="; ".join(problem.text for problem in wanted.problems),
        )

    async def rules(self, delivery: Delivery) -> Message:
        """Filters on managed ports, from the last full reconcile."""
        request = delivery.message
        if not isinstance(request, RulesRequest):
            return _unexpected(delivery)
        snapshot = self.loop.last.result.snapshot if self.loop.last is not None else None
        if snapshot is None:
            return QueryError(code=_UNAVAILABLE, message=self.loop.unreadable)
        rules = self._rules(snapshot, request.device)
        first, limit = max(request.offset, 0), min(max(request.limit, 0), MAX_RULES)
        return RulesReply(node=self.settings.node, total=len(rules), rules=tuple(rules[first : first + limit]))

    def _rules(self, snapshot: Snapshot, device: str | None) -> list[RuleState]:
        names = {link.ifindex: link.name for link in snapshot.links}
        managed_rules = managed_filters(snapshot, self.settings.pref)
        managed_places = {(rule.ifindex, rule.chain, rule.pref, rule.handle) for rule in managed_rules}
        unmanaged_rules = [r for r in snapshot.filters if (r.ifindex, r.chain, r.pref, r.handle) not in managed_places]
        unmanaged_rules.sort(key=lambda rule: (rule.ifindex, rule.pref, rule.handle))
        return [
            _rule_state(rule, names.get(rule.ifindex, str(rule.ifindex)), managed=managed)
            for managed, rules in ((True, managed_rules), (False, unmanaged_rules))
            for rule in rules
            if device is None or names.get(rule.ifindex) == device
        ]


def _closed_sessions(state: FrrState) -> tuple[str, ...]:
    closed = state.sessions.admin_down if state.sessions is not None else ()
    return tuple(f"{each}: silent faults there cost BGP's hold time, and the fast path sees none" for each in closed)


_NO_MAC: Final = "00:00:00:00:00:00"


def _rule_state(rule: Filter, device: str, *, managed: bool) -> RuleState:
    tunnel = tunnel_of(rule)
    note = "" if tunnel is not None else "leads nowhere"
    return RuleState(
        device=device,
        mac=rule.mac or "",
        vtep=tunnel.destination if tunnel is not None else "",
        vni=tunnel.vni if tunnel is not None else 0,
        pref=rule.pref,
        handle=rule.handle,
        index=rule.actions[0].index if rule.actions else 0,
        in_hw=rule.in_hw,
        managed=managed,
        note=note if managed else f"{rule.kind} that is not managed",
    )


def _path_state(path: Path, state: FrrState, suspect: str) -> PathState:
    unknown = path.frr is None or (path.bfd_up is None and bool(state.error))
    return PathState(
        destination=path.destination,
        kernel=path.kernel,
        frr=path.frr,
        bfd_up=path.bfd_up,
        agree=not path.reason and not unknown,
        override=path.override,
        reason=path.reason or (state.error if unknown else ""),
        suspect=suspect,
    )


def _unexpected(delivery: Delivery) -> QueryError:
    return QueryError(code=400, message=f"{delivery.message.type_name} is not what {delivery.subject} answers")

"""Answers about one node: what it sees, what it would write, which rules there are."""

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
from services.reconciler.audit import tc_operation
from services.reconciler.core.plan import own_filters, tunnel_of
from services.reconciler.loop import Loop
from services.reconciler.passes import Reconciliation
from services.reconciler.paths import FrrView, Path, destinations_of
from services.reconciler.ports import UnreadableError
from services.reconciler.settings import ReconcilerSettings

MOST_OPERATIONS: Final = 1_000
MOST_RULES: Final = 3_000
"""In one answer; a message holds 1 MB."""
MOST_PATHS: Final = 1_000
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True)
class Queries:
    """What answers are made of."""

    settings: ReconcilerSettings
    incarnation: int
    clock: Clock
    loop: Loop
    reconciliation: Reconciliation
    paths: Callable[[], tuple[list[Path], FrrView]]
    problems: Callable[[], tuple[str, ...]]
    suspects: Callable[[], Mapping[str, str]] = dict
    """By VTEP: what other hosts say of it."""
    drained: Callable[[], tuple[str, ...]] = tuple

    async def state(self, delivery: Delivery) -> Message:
        """What is seen, from the last look."""
        if not isinstance(delivery.message, NetworkStateRequest):
            return _unexpected(delivery)
        loop, looked, snapshot = self.loop, self.loop.last, self.loop.snapshot
        if looked is None or snapshot is None:
            return QueryError(code=_UNAVAILABLE, message=loop.unreadable)
        tally = looked.outcome.tally
        vteps = destinations_of(snapshot)
        (paths, view), suspects = self.paths(), self.suspects()
        return NetworkStateReply(
            node=self.settings.node,
            incarnation=self.incarnation,
            offload=self.settings.offload,
            passes=loop.counts.passes,
            writes=loop.counts.writes,
            last_pass_age_s=max(self.clock.monotonic() - loop.looked_s, 0.0),
            ports=tuple(self.settings.forwarding().application_macs),
            encapsulation_device=self.settings.encapsulation_device,
            vteps=vteps,
            macs=len({row.mac for row in snapshot.fdb if row.own and row.destination and row.mac != _NO_MAC}),
            installed=tally.right,
            in_hw=tally.in_hw,
            not_in_hw=tally.not_in_hw,
            foreign=tally.foreign,
            paths=tuple(_path_state(path, view, suspects.get(path.destination, "")) for path in paths[:MOST_PATHS]),
            problems=self.problems() + _closed_sessions(view),
            drained=self.drained(),
        )

    async def diff(self, delivery: Delivery) -> Message:
        """What would be written now, from a new look."""
        if not isinstance(delivery.message, DiffRequest):
            return _unexpected(delivery)
        try:
            snapshot, wanted, operations, tally = await self.loop.in_thread(self.reconciliation.look)
        except UnreadableError as error:
            return QueryError(code=_UNAVAILABLE, message=str(error))
        names = {link.ifindex: link.name for link in snapshot.links}
        return DiffReply(
            node=self.settings.node,
            desired=tally.desired,
            installed=tally.right,
            foreign=tally.foreign,
            operations=tuple(tc_operation(operation, names) for operation in operations[:MOST_OPERATIONS]),
            total=len(operations),
            problem="; ".join(problem.text for problem in wanted.problems),
        )

    async def rules(self, delivery: Delivery) -> Message:
        """The filters on managed ports, from the last look."""
        request = delivery.message
        if not isinstance(request, RulesRequest):
            return _unexpected(delivery)
        snapshot = self.loop.last.outcome.snapshot if self.loop.last is not None else None
        if snapshot is None:
            return QueryError(code=_UNAVAILABLE, message=self.loop.unreadable)
        rules = self._rules(snapshot, request.device)
        first, limit = max(request.offset, 0), min(max(request.limit, 0), MOST_RULES)
        return RulesReply(node=self.settings.node, total=len(rules), rules=tuple(rules[first : first + limit]))

    def _rules(self, snapshot: Snapshot, device: str | None) -> list[RuleState]:
        names = {link.ifindex: link.name for link in snapshot.links}
        own = own_filters(snapshot, self.settings.pref)
        own_places = {(rule.ifindex, rule.chain, rule.pref, rule.handle) for rule in own}
        others = [r for r in snapshot.filters if (r.ifindex, r.chain, r.pref, r.handle) not in own_places]
        others.sort(key=lambda rule: (rule.ifindex, rule.pref, rule.handle))
        return [
            _rule_state(rule, names.get(rule.ifindex, str(rule.ifindex)), ours=ours)
            for ours, rules in ((True, own), (False, others))
            for rule in rules
            if device is None or names.get(rule.ifindex) == device
        ]


def _closed_sessions(view: FrrView) -> tuple[str, ...]:
    told = view.sessions.admin_down if view.sessions is not None else ()
    return tuple(f"{each}: silent faults there cost BGP's hold time, and the fast path sees none" for each in told)


_NO_MAC: Final = "00:00:00:00:00:00"


def _rule_state(rule: Filter, device: str, *, ours: bool) -> RuleState:
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
        ours=ours,
        note=note if ours else f"{rule.kind} of somebody else",
    )


def _path_state(path: Path, view: FrrView, suspect: str) -> PathState:
    unknown = path.frr is None or (path.bfd_up is None and bool(view.trouble))
    return PathState(
        destination=path.destination,
        kernel=path.kernel,
        frr=path.frr,
        bfd_up=path.bfd_up,
        agree=not path.reason and not unknown,
        override=path.override,
        reason=path.reason or (view.trouble if unknown else ""),
        suspect=suspect,
    )


def _unexpected(delivery: Delivery) -> QueryError:
    return QueryError(code=400, message=f"{delivery.message.type_name} is not what {delivery.subject} answers")

"""Allocation of shared tc actions: kept, created, repaired in place, or replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services._host.netlink.objects import Action, ActionKind, Filter, Snapshot, Tunnel
from services.reconciler.core.desired import Desired
from services.reconciler.core.operation import Operation, OperationKind, Phase
from services.reconciler.core.ownership import (
    MIRRED_COOKIE,
    RANGE_START,
    free_number,
    preferred_index,
    tunnel_cookie,
)

ActionKey = tuple[ActionKind, int]


@dataclass(slots=True)
class ActionTable:
    """The actions that rules refer to, and the writes that create or repair them."""

    tunnels: dict[Tunnel, Action] = field(default_factory=dict)
    mirred: Action | None = None
    writes: list[Operation] = field(default_factory=list)
    repaired: set[ActionKey] = field(default_factory=set)
    """Wrong until their write is done: no further rule may bind them before a dump confirms it."""
    unused: list[Action] = field(default_factory=list)
    """Managed, standalone and unbound. The kernel unbinds a deleted filter's actions only after an RCU grace period,
    and refuses to delete them until then: a later reconcile does."""

    def of(self, tunnel: Tunnel) -> tuple[Action, ...]:
        """Actions of a rule, in order."""
        if self.mirred is None:
            return ()
        return (self.tunnels[tunnel], self.mirred)


def action_table(snapshot: Snapshot, wanted: Desired, managed: Iterable[Filter]) -> ActionTable:
    """Allocate the actions. Correct ones are kept, so a second reconcile writes nothing (I2).

    Args:
        snapshot: The kernel.
        wanted: The desired state.
        managed: Managed filters of the snapshot.
    """
    return _Allocation(snapshot, wanted, managed).table()


class _Allocation:
    """One allocation. Indexes are stable; new ones are derived from the tunnel, so they survive restarts."""

    def __init__(self, snapshot: Snapshot, wanted: Desired, managed: Iterable[Filter]) -> None:
        self._wanted = wanted
        self._flags = wanted.config.offload.action_flags
        self._found = {(action.kind, action.index): action for action in snapshot.actions}
        self._binders: dict[ActionKey, list[Filter]] = defaultdict(list)
        for rule in managed:
            for action in rule.actions:
                self._binders[action.kind, action.index].append(rule)
        self._used: dict[ActionKind, set[int]] = {kind: set() for kind in ActionKind}
        for rule in snapshot.filters:
            for action in rule.actions:
                # A filter's action exists, even if the dump of actions lacks it.
                self._found.setdefault((action.kind, action.index), action)
        for kind, index in self._found:
            self._used[kind].add(index)
        self._kept: set[ActionKey] = set()
        self._table = ActionTable()

    def table(self) -> ActionTable:
        """Allocate everything."""
        if self._wanted.rules:
            by_cookie: dict[bytes, list[Action]] = defaultdict(list)
            for action in sorted(self._found.values(), key=self._binding_order):
                if action.managed and action.flags == self._flags:
                    by_cookie[action.cookie].append(action)
            self._table.mirred = self._redirect(by_cookie[MIRRED_COOKIE])
            self._tunnels(by_cookie)
        self._table.unused = [
            action
            for key, action in sorted(self._found.items())
            if action.managed
            and action.standalone
            and key not in self._kept
            and not action.bound
            and key not in self._binders
        ]
        return self._table

    def _binding_order(self, action: Action) -> tuple[int, int]:
        """Sort key, most bound first: that moves the fewest filters."""
        return (-len(self._binders.get((action.kind, action.index), ())), action.index)

    def _redirect(self, candidates: list[Action]) -> Action:
        target = self._wanted.redirect_to
        candidates = [action for action in candidates if action.kind is ActionKind.MIRRED]
        for action in candidates:
            if action.redirect_to == target:
                return self._keep(action)
        made = Action(ActionKind.MIRRED, 0, MIRRED_COOKIE, redirect_to=target, flags=self._flags)
        if candidates and not self._flags:
            # One write repairs every rule: the encapsulation device is new, or the action was edited.
            return self._repair(candidates[0], made, "its device has changed")
        return self._make(made, RANGE_START, "no redirect to the encapsulation device yet")

    def _tunnels(self, by_cookie: Mapping[bytes, list[Action]]) -> None:
        missing = []
        for tunnel in self._wanted.tunnels:
            for action in by_cookie.get(tunnel_cookie(tunnel), ()):
                if action.kind is ActionKind.TUNNEL_KEY and action.tunnel == tunnel:
                    self._table.tunnels[tunnel] = self._keep(action)
                    break
            else:
                missing.append(tunnel)
        if not missing:
            return
        tunnel_of: dict[tuple[int, str | None], Tunnel] = {
            (rule.ifindex, rule.mac): rule.tunnel for rule in self._wanted.rules
        }
        for tunnel in missing:
            made = Action(ActionKind.TUNNEL_KEY, 0, tunnel_cookie(tunnel), tunnel=tunnel, flags=self._flags)
            edited = self._edited(tunnel, by_cookie.get(made.cookie, ()), tunnel_of)
            if edited is not None:
                self._table.tunnels[tunnel] = self._repair(edited, made, "it sets something else than its cookie says")
            else:
                self._table.tunnels[tunnel] = self._make(made, preferred_index(tunnel), "first rule to this VTEP")

    def _edited(
        self, tunnel: Tunnel, candidates: Iterable[Action], tunnel_of: Mapping[tuple[int, str | None], Tunnel]
    ) -> Action | None:
        """An edited action of this tunnel that can be repaired in place: no rule of another VTEP binds it.

        Otherwise that rule would lead to a VTEP that is neither its old nor its new one (I5).
        """
        if self._flags:
            return None  # made by filters, and the kernel offloads no change of it
        for action in candidates:
            key = (action.kind, action.index)
            if action.kind is not ActionKind.TUNNEL_KEY or key in self._kept:
                continue
            binders = self._binders.get(key, ())
            if all(tunnel_of.get((rule.ifindex, rule.mac)) == tunnel for rule in binders):
                return action
        return None

    def _keep(self, action: Action) -> Action:
        self._kept.add((action.kind, action.index))
        return action

    def _repair(self, found: Action, desired_action: Action, reason: str) -> Action:
        repaired = _numbered(desired_action, found.index)
        self._table.repaired.add((found.kind, found.index))
        self._table.writes.append(Operation(OperationKind.REPLACE, repaired, Phase.ACTIONS, found, reason))
        return self._keep(repaired)

    def _make(self, desired_action: Action, preferred: int, reason: str) -> Action:
        made = _numbered(desired_action, free_number(preferred, self._used[desired_action.kind]))
        self._used[made.kind].add(made.index)
        if not self._flags:
            self._table.writes.append(Operation(OperationKind.ADD, made, Phase.ACTIONS, None, reason))
        return self._keep(made)


def _numbered(action: Action, index: int) -> Action:
    return Action(action.kind, index, action.cookie, action.tunnel, action.redirect_to, flags=action.flags)

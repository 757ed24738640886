"""The ordered writes that make the kernel hold what it should."""

from __future__ import annotations

from dataclasses import dataclass, field

from services._host.netlink.objects import ETH_P_ALL, Action, ActionKind, Clsact, FdbEntry, Filter, Snapshot, Tunnel
from services.reconciler.core.actions import ActionTable, action_table
from services.reconciler.core.desired import Desired, Rule
from services.reconciler.core.operation import Operation, OperationKind, Phase
from services.reconciler.core.ownership import RANGE_START, free_number, owns


@dataclass(frozen=True, slots=True)
class Tally:
    """How much of what should be there is there."""

    desired: int
    right: int
    """Filters of ours that are as they should be."""
    own: int
    """Filters of ours, right or not."""
    foreign: int
    in_hw: int
    """Of the right ones."""
    not_in_hw: int


def plan(snapshot: Snapshot, wanted: Desired) -> tuple[Operation, ...]:
    """Writes in order, every prefix of which leaves the kernel no worse; () where nothing differs."""
    own = own_filters(snapshot, wanted.config.pref)
    table = action_table(snapshot, wanted, own)
    filters = _Filters(snapshot, wanted, table)
    filters.compare(own)
    unused = (
        Operation(OperationKind.DELETE, action, Phase.UNUSED, action, "no rule refers to it") for action in table.unused
    )
    return (
        *_ground(snapshot, wanted),
        *table.writes,
        *filters.wrong,
        *filters.missing,
        *filters.stale,
        *unused,
    )


def flush(snapshot: Snapshot, pref: int) -> tuple[Operation, ...]:
    """Deletes of everything of ours: filters, then actions. clsact and static entries stay: others use them.

    The kernel may refuse the actions at first (EPERM, see `ActionTable.unused`): then again, after another look.
    """
    own = own_filters(snapshot, pref)
    reason = "the reconciler leaves nothing behind"
    actions = sorted((a for a in snapshot.actions if a.ours and a.standalone), key=lambda a: (a.kind, a.index))
    return (
        *(Operation(OperationKind.DELETE, rule, Phase.STALE, rule, reason) for rule in own),
        *(Operation(OperationKind.DELETE, action, Phase.UNUSED, action, reason) for action in actions),
    )


def tally(snapshot: Snapshot, wanted: Desired) -> Tally:
    """Counts for status and audit."""
    own = own_filters(snapshot, wanted.config.pref)
    filters = _Filters(snapshot, wanted, action_table(snapshot, wanted, own))
    filters.compare(own)
    in_hw = sum(rule.in_hw is True for rule in filters.right)
    return Tally(
        desired=len(wanted.rules),
        right=len(filters.right),
        own=len(own),
        foreign=len(snapshot.filters) - len(own),
        in_hw=in_hw,
        not_in_hw=sum(rule.in_hw is False for rule in filters.right),
    )


def own_filters(snapshot: Snapshot, pref: int) -> tuple[Filter, ...]:
    """Filters of ours, in order of device, MAC and handle."""
    # By place, for a row that moved in mid-dump may be there twice.
    return tuple(
        rule for _, rule in sorted({_place(rule): rule for rule in snapshot.filters if owns(rule, pref)}.items())
    )


def tunnel_of(rule: Filter) -> Tunnel | None:
    """Where a filter leads: what its last tunnel_key action sets, if a redirect follows."""
    tunnel = None
    for action in rule.actions:
        if action.kind is ActionKind.TUNNEL_KEY:
            tunnel = action.tunnel
        elif action.redirect_to:
            return tunnel
    return None


def _place(rule: Filter) -> tuple[int, str, int, int, int]:
    return (rule.ifindex, rule.mac or "", rule.chain, rule.pref, rule.handle)


def _ground(snapshot: Snapshot, wanted: Desired) -> list[Operation]:
    """Missing clsact qdiscs and static entries."""
    writes = [
        Operation(OperationKind.ADD, Clsact(ifindex), Phase.GROUND, None, "filters need it")
        for ifindex in sorted(wanted.clsact - snapshot.clsact)
    ]
    if not wanted.static:
        return writes
    bridge_of = {link.ifindex: link.master for link in snapshot.links}
    sought = {entry.mac for entry in wanted.static}
    rows = {
        (bridge_of.get(row.ifindex, 0), row.mac): row
        for row in snapshot.fdb
        if row.mac in sought and not row.own and not row.vlan
    }
    for entry in wanted.static:
        row = rows.get((bridge_of.get(entry.ifindex, 0), entry.mac))
        if row is None:
            writes.append(
                Operation(OperationKind.ADD, entry, Phase.GROUND, None, "an application's MAC must not age out")
            )
        elif not _same_entry(row, entry):
            reason = "an application's MAC was learned, so it would age out"
            writes.append(Operation(OperationKind.REPLACE, entry, Phase.GROUND, row, reason))
    return writes


def _same_entry(row: FdbEntry, entry: FdbEntry) -> bool:
    return row.ifindex == entry.ifindex and row.static and not row.extern_learn


@dataclass(slots=True)
class _Filters:
    """Comparison of the filters that should be there with ours that are."""

    snapshot: Snapshot
    wanted: Desired
    table: ActionTable
    wrong: list[Operation] = field(default_factory=list)
    missing: list[Operation] = field(default_factory=list)
    stale: list[Operation] = field(default_factory=list)
    right: list[Filter] = field(default_factory=list)
    _handles: dict[int, set[int]] = field(default_factory=dict)
    _next: dict[int, int] = field(default_factory=dict)

    def compare(self, own: tuple[Filter, ...]) -> None:
        """Fill the lists."""
        pref = self.wanted.config.pref
        found: dict[tuple[int, str], Filter] = {}
        left = []
        for rule in own:
            place = (rule.ifindex, rule.mac or "")
            usable = rule.pref == pref and rule.chain == 0 and rule.protocol == ETH_P_ALL and rule.mac is not None
            if usable and place not in found:
                found[place] = rule
            else:
                left.append(rule)
        tunnels = {}
        for rule_wanted in self.wanted.rules:
            place = (rule_wanted.ifindex, rule_wanted.mac)
            tunnels[place] = rule_wanted.tunnel
            self._one(rule_wanted, found.pop(place, None))
        for rule in sorted((*left, *found.values()), key=_place):
            self._delete(rule, tunnels.get((rule.ifindex, rule.mac or "")))

    def _one(self, rule: Rule, found: Filter | None) -> None:
        actions = self.table.of(rule.tunnel)
        early = any((action.kind, action.index) in self.table.repaired for action in actions)
        if found is None and not early:
            made = self._filter(rule, self._free_handle(rule.ifindex), actions)
            self.missing.append(Operation(OperationKind.ADD, made, Phase.MISSING, None, "a MAC behind a VTEP"))
        if found is None:
            return
        offload = self.wanted.config.offload
        same_flags = found.skip_hw == offload.skip_hw and found.skip_sw == offload.skip_sw
        bound = [(action.kind, action.index) for action in found.actions]
        if same_flags and not found.foreign_actions and bound == [(a.kind, a.index) for a in actions]:
            if not early:
                self.right.append(found)
            return
        if early:
            return  # were the repair to fail, the rule would lead where nobody wanted it
        meant = self._filter(rule, found.handle, actions)
        reason = "it binds others than the shared actions" if tunnel_of(found) == rule.tunnel else "leads elsewhere"
        self.wrong.append(Operation(OperationKind.REPLACE, meant, Phase.WRONG, found, reason))

    def _filter(self, rule: Rule, handle: int, actions: tuple[Action, ...]) -> Filter:
        config = self.wanted.config
        return Filter(
            ifindex=rule.ifindex,
            pref=config.pref,
            handle=handle,
            kind="flower",
            mac=rule.mac,
            actions=actions,
            skip_hw=config.offload.skip_hw,
            skip_sw=config.offload.skip_sw,
        )

    def _delete(self, rule: Filter, tunnel: Tunnel | None) -> None:
        """A filter of ours that nobody wants. Harmful ones go first, with the wrong ones."""
        reason = self._harm(rule, tunnel)
        phase = Phase.WRONG if reason else Phase.STALE
        operation = Operation(OperationKind.DELETE, rule, phase, rule, reason or "its MAC is behind no VTEP any more")
        (self.wrong if reason else self.stale).append(operation)

    def _harm(self, rule: Filter, tunnel: Tunnel | None) -> str:
        if rule.pref == self.wanted.config.pref and rule.chain == 0 and rule.protocol != ETH_P_ALL:
            return "it occupies the preference for another protocol"
        if rule.mac is None:
            return "it does not match one MAC"
        if not self.wanted.redirect_to or tunnel_of(rule) is None:
            return "it redirects to nowhere"
        if rule.mac in self.wanted.elsewhere.get(rule.ifindex, ()):
            return "its MAC is local, or in doubt"
        if tunnel is not None and tunnel_of(rule) != tunnel:
            return "leads elsewhere"
        return ""

    def _free_handle(self, ifindex: int) -> int:
        if ifindex not in self._handles:
            rules = self.snapshot.filters
            self._handles[ifindex] = {rule.handle for rule in rules if rule.ifindex == ifindex}
        used = self._handles[ifindex]
        handle = free_number(self._next.get(ifindex, RANGE_START), used)
        used.add(handle)
        self._next[ifindex] = handle + 1
        return handle

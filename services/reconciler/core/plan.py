"""Plan of ordered writes that bring the kernel to the desired state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services._host.netlink.objects import ETH_P_ALL, Action, Clsact, FdbEntry, Filter, Snapshot, Tunnel
from services.reconciler.core.actions import ActionTable, action_table
from services.reconciler.core.desired import Desired, Rule
from services.reconciler.core.operation import Operation, OperationKind, Phase
from services.reconciler.core.ownership import RANGE_START, filter_place, free_number, managed_filters, tunnel_of


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of desired, installed and unmanaged rules."""

    desired: int = 0
    in_sync: int = 0
    """Managed filters that equal the desired ones."""
    managed: int = 0
    """Managed filters, in sync or not."""
    unmanaged: int = 0
    in_hw: int = 0
    """Of those in sync."""
    not_in_hw: int = 0


class Plan(NamedTuple):
    """Writes in order, every prefix of which leaves the kernel no worse; () where nothing differs. And the counts."""

    operations: tuple[Operation, ...]
    tally: Tally


def plan(snapshot: Snapshot, wanted: Desired) -> Plan:
    """Compare the kernel with the desired state."""
    managed = managed_filters(snapshot, wanted.config.pref)
    table = action_table(snapshot, wanted, managed)
    filters = _Filters(snapshot, wanted, table)
    filters.compare(managed)
    unused = (
        Operation(OperationKind.DELETE, action, Phase.UNUSED, action, "no rule refers to it") for action in table.unused
    )
    operations = (
        *_prerequisites(snapshot, wanted),
        *table.writes,
        *filters.wrong,
        *filters.missing,
        *filters.stale,
        *unused,
    )
    return Plan(
        operations,
        Tally(
            desired=len(wanted.rules),
            in_sync=len(filters.in_sync),
            managed=len(managed),
            unmanaged=len(snapshot.filters) - len(managed),
            in_hw=sum(rule.in_hw is True for rule in filters.in_sync),
            not_in_hw=sum(rule.in_hw is False for rule in filters.in_sync),
        ),
    )


def flush(snapshot: Snapshot, pref: int) -> tuple[Operation, ...]:
    """Delete all managed filters, then actions. clsact and static entries stay, as others may use them.

    The kernel may refuse the actions at first (EPERM, see `ActionTable.unused`): retry after another dump.
    """
    managed = managed_filters(snapshot, pref)
    reason = "the reconciler leaves nothing behind"
    actions = sorted((a for a in snapshot.actions if a.managed and a.standalone), key=lambda a: (a.kind, a.index))
    return (
        *(Operation(OperationKind.DELETE, rule, Phase.STALE, rule, reason) for rule in managed),
        *(Operation(OperationKind.DELETE, action, Phase.UNUSED, action, reason) for action in actions),
    )


def _prerequisites(snapshot: Snapshot, wanted: Desired) -> list[Operation]:
    """Missing clsact qdiscs and static entries."""
    writes = [
        Operation(OperationKind.ADD, Clsact(ifindex), Phase.PREREQUISITES, None, "filters need it")
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
                Operation(OperationKind.ADD, entry, Phase.PREREQUISITES, None, "an application's MAC must not age out")
            )
        elif not _same_entry(row, entry):
            reason = "an application's MAC was learned, so it would age out"
            writes.append(Operation(OperationKind.REPLACE, entry, Phase.PREREQUISITES, row, reason))
    return writes


def _same_entry(row: FdbEntry, entry: FdbEntry) -> bool:
    return row.ifindex == entry.ifindex and row.static and not row.extern_learn


@dataclass(slots=True)
class _Filters:
    """Comparison of desired with managed filters."""

    snapshot: Snapshot
    wanted: Desired
    table: ActionTable
    wrong: list[Operation] = field(default_factory=list)
    missing: list[Operation] = field(default_factory=list)
    stale: list[Operation] = field(default_factory=list)
    in_sync: list[Filter] = field(default_factory=list)
    _handles: dict[int, set[int]] = field(default_factory=dict)
    _next: dict[int, int] = field(default_factory=dict)

    def compare(self, managed: tuple[Filter, ...]) -> None:
        """Fill the lists."""
        pref = self.wanted.config.pref
        found: dict[tuple[int, str], Filter] = {}
        left = []
        for rule in managed:
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
        for rule in sorted((*left, *found.values()), key=filter_place):
            self._delete(rule, tunnels.get((rule.ifindex, rule.mac or "")))

    def _one(self, rule: Rule, found: Filter | None) -> None:
        actions = self.table.of(rule.tunnel)
        awaits_repair = any((action.kind, action.index) in self.table.repaired for action in actions)
        if found is None and not awaits_repair:
            created = self._filter(rule, self._free_handle(rule.ifindex), actions)
            self.missing.append(Operation(OperationKind.ADD, created, Phase.MISSING, None, "a MAC behind a VTEP"))
        if found is None:
            return
        offload = self.wanted.config.offload
        same_flags = found.skip_hw == offload.skip_hw and found.skip_sw == offload.skip_sw
        bound = [(action.kind, action.index) for action in found.actions]
        if same_flags and not found.foreign_actions and bound == [(a.kind, a.index) for a in actions]:
            if not awaits_repair:
                self.in_sync.append(found)
            return
        if awaits_repair:
            return  # if the repair failed, the rule would lead to a wrong VTEP
        desired_filter = self._filter(rule, found.handle, actions)
        reason = "it binds others than the shared actions" if tunnel_of(found) == rule.tunnel else "leads elsewhere"
        self.wrong.append(Operation(OperationKind.REPLACE, desired_filter, Phase.WRONG, found, reason))

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
        """Delete a managed filter that is not desired. Harmful ones go first, with the wrong ones."""
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

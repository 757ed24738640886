"""A kernel in memory: tc filters, shared actions, bridges and VXLAN devices, as measured on Linux 6.12.

- flower takes each MAC once in a preference (EEXIST), and a preference holds one classifier and one protocol (EINVAL);
- a filter that binds an action that does not exist is refused whole (EINVAL);
- a filter with skip_hw or skip_sw makes the actions that it carries in full, and binds no standalone one without it;
- a bound action cannot be deleted (EPERM); a standalone one stays when its filters go, another goes with its last;
- a filter that is gone or replaced keeps its actions bound for a while (`linger`, counted in calls of `age`);
- an action is replaced in place for all filters that bind it, and keeps its flags, and its cookie where none is given;
- a device takes its rows, its clsact and its filters with it; a redirect to it leads to nowhere.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from services._host.netlink.objects import (
    ACTION_SKIP_HW,
    ACTION_SKIP_SW,
    Action,
    ActionKind,
    Clsact,
    FdbEntry,
    Filter,
    Link,
    Neighbour,
    Route,
    Snapshot,
    Tunnel,
)
from services.reconciler.core.operation import Operation, OperationKind

ActionKey = tuple[ActionKind, int]
FilterKey = tuple[int, int, int, int]
"""Ifindex, chain, preference, handle."""
NOWHERE: Final = "nowhere"
Row = TypeVar("Row")


@dataclass
class Hardware:
    """A NIC that takes some rules."""

    capacity: int = 1 << 30
    refused: frozenset[str] = frozenset()
    """MACs that it cannot match."""


@dataclass
class ModelKernel:
    """One namespace. What is done to it by hand is written here without any check of ours."""

    hardware: Hardware | None = None
    links: dict[int, Link] = field(default_factory=dict)
    fdb: dict[tuple[int, str, bool, int, str | None, int], FdbEntry] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    clsact: set[int] = field(default_factory=set)
    ingress: set[int] = field(default_factory=set)
    actions: dict[ActionKey, Action] = field(default_factory=dict)
    filters: dict[FilterKey, Filter] = field(default_factory=dict)
    fault: Callable[[Operation], int] | None = None
    """Asked before each write: an errno that it fails with, or 0."""
    writes: int = 0
    linger: int = 0
    lingering: list[tuple[int, tuple[ActionKey, ...]]] = field(default_factory=list)
    """Calls of `age` that are left, and what is bound until then."""

    # What anybody does to it.

    def add_link(self, link: Link) -> Link:
        """A device appears, with an ifindex that was never used."""
        self.links[link.ifindex] = link
        return link

    def delete_link(self, ifindex: int) -> None:
        """A device vanishes with everything on it."""
        gone = self.links.pop(ifindex)
        orphans = {link.ifindex for link in self.links.values() if link.master == ifindex}
        for orphan in orphans:
            self.links[orphan] = replace(self.links[orphan], master=0)
        for key, row in list(self.fdb.items()):
            if row.ifindex == ifindex or (row.ifindex in orphans and not row.own):
                del self.fdb[key]
        self.delete_clsact(ifindex)
        self.ingress.discard(ifindex)
        for action_key, action in self.actions.items():
            if action.redirect_to == gone.ifindex:
                self.actions[action_key] = replace(action, redirect_to=0)

    def set_link(self, ifindex: int, **changes: object) -> None:
        """A device is changed."""
        self.links[ifindex] = replace(self.links[ifindex], **changes)  # type: ignore[arg-type]

    def put_row(self, row: FdbEntry) -> None:
        """A forwarding entry is written; a bridge has one for each MAC and VLAN, a VXLAN device one for each VTEP."""
        self._drop_rivals(row)
        self.fdb[_row_key(row)] = row

    def drop_rows(self, ifindex: int, mac: str, *, own: bool) -> None:
        """Entries of a MAC on a device are deleted."""
        for key, row in list(self.fdb.items()):
            if (row.ifindex, row.mac, row.own) == (ifindex, mac, own):
                del self.fdb[key]

    def delete_clsact(self, ifindex: int) -> None:
        """`tc qdisc del dev X clsact`: its filters go too."""
        self.clsact.discard(ifindex)
        for key in [key for key in self.filters if key[0] == ifindex]:
            self._remove(key)

    def put_filter(self, rule: Filter) -> None:
        """Somebody's filter with actions that are made where they are missing, whatever was there."""
        self.clsact.add(rule.ifindex)
        for action in rule.actions:
            self.actions.setdefault((action.kind, action.index), replace(action, standalone=False))
        old = self.filters.get(_filter_key(rule))
        self.filters[_filter_key(rule)] = rule
        self._release(old)

    def remove_filter(self, rule: Filter) -> None:
        """`tc filter del`."""
        self._remove(_filter_key(rule))

    def age(self) -> None:
        """Some time goes by."""
        self.lingering = [(left - 1, keys) for left, keys in self.lingering]
        self._let_go()

    # What the reconciler does.

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Writes in order; an errno for each, 0 for done. One that fails stops no other."""
        return [self.write(operation) for operation in operations]

    def write(self, operation: Operation) -> int:
        """One write."""
        self.writes += 1
        code = self.fault(operation) if self.fault is not None else 0
        if code:
            return code
        target = operation.target
        if isinstance(target, Clsact):
            return self._write_clsact(target.ifindex)
        if isinstance(target, FdbEntry):
            return self._write_row(operation.kind, target)
        if isinstance(target, Action):
            return self._write_action(operation.kind, target)
        return self._write_filter(operation.kind, target)

    def snapshot(self, random: Random | None = None) -> Snapshot:
        """A dump, its rows in any order."""
        bound = self._bound()
        dumped = {key: replace(action, bound=bound[key]) for key, action in self.actions.items()}
        filters = [
            replace(rule, actions=tuple(dumped[a.kind, a.index] for a in rule.actions))
            for rule in self.filters.values()
        ]
        return Snapshot(
            links=_shuffled(self.links.values(), random),
            fdb=_shuffled(self.fdb.values(), random),
            routes=_shuffled(self.routes, random),
            neighbours=_shuffled(self.neighbours, random),
            clsact=frozenset(self.clsact),
            ingress=frozenset(self.ingress),
            filters=_shuffled(filters, random),
            actions=_shuffled(dumped.values(), random),
        )

    def leads(self, ifindex: int, mac: str, pref: int) -> Tunnel | str | None:
        """Where a packet for a MAC goes by the filters of one preference: a tunnel, `NOWHERE`, or None: the bridge."""
        for key, rule in sorted(self.filters.items()):
            if key[:3] == (ifindex, 0, pref) and rule.mac == mac:
                return self._through(rule)
        return None

    def keys_set(self, ifindex: int, mac: str, pref: int) -> set[Tunnel | None]:
        """Tunnels that filters of a preference name for a MAC, whether they arrive or not."""
        return {
            self.actions[action.kind, action.index].tunnel
            for key, rule in self.filters.items()
            if key[:3] == (ifindex, 0, pref) and rule.mac == mac
            for action in rule.actions
            if action.kind is ActionKind.TUNNEL_KEY
        }

    def _through(self, rule: Filter) -> Tunnel | str:
        tunnel: Tunnel | None = None
        for reference in rule.actions:
            action = self.actions[reference.kind, reference.index]
            if action.kind is ActionKind.TUNNEL_KEY:
                tunnel = action.tunnel
            else:
                link = self.links.get(action.redirect_to)
                external = link is not None and link.up and link.vxlan is not None and link.vxlan.external
                return tunnel if external and tunnel is not None else NOWHERE
        return NOWHERE

    def _write_clsact(self, ifindex: int) -> int:
        if ifindex not in self.links:
            return errno.ENODEV
        if ifindex in self.clsact | self.ingress:
            return errno.EEXIST
        self.clsact.add(ifindex)
        return 0

    def _write_row(self, kind: OperationKind, row: FdbEntry) -> int:
        link = self.links.get(row.ifindex)
        if link is None:
            return errno.ENODEV
        if not link.master:
            return errno.EOPNOTSUPP
        if kind is OperationKind.ADD and self._rivals(row):
            return errno.EEXIST
        self.put_row(row)
        return 0

    def _rivals(self, row: FdbEntry) -> list[tuple[int, str, bool, int, str | None, int]]:
        """A bridge's entries for the same MAC and VLAN, on whatever port."""
        if row.own:
            return []
        bridge = self.links[row.ifindex].master
        return [
            key
            for key, other in self.fdb.items()
            if not other.own
            and (other.mac, other.vlan) == (row.mac, row.vlan)
            and (self.links[other.ifindex].master or other.ifindex) == bridge
        ]

    def _drop_rivals(self, row: FdbEntry) -> None:
        for key in self._rivals(row):
            del self.fdb[key]

    def _write_action(self, kind: OperationKind, action: Action) -> int:
        key = (action.kind, action.index)
        found = self.actions.get(key)
        if kind is OperationKind.DELETE:
            return self._delete_action(key)
        if found is not None and kind is OperationKind.ADD:
            return errno.EEXIST
        if action.kind is ActionKind.MIRRED and action.redirect_to not in self.links:
            return errno.ENODEV
        if (action if found is None else found).flags & ACTION_SKIP_SW:
            return errno.EINVAL  # no NIC offloads these actions but in a filter
        if found is None:
            self.actions[key] = replace(action, standalone=True, bound=0)
        else:
            cookie = action.cookie or found.cookie
            self.actions[key] = replace(found, cookie=cookie, tunnel=action.tunnel, redirect_to=action.redirect_to)
        return 0

    def _delete_action(self, key: ActionKey) -> int:
        if key not in self.actions:
            return errno.ENOENT
        if self._bound()[key]:
            return errno.EPERM
        del self.actions[key]
        return 0

    def _write_filter(self, kind: OperationKind, rule: Filter) -> int:
        if rule.ifindex not in self.links:
            return errno.ENODEV
        if rule.ifindex not in self.clsact:
            return errno.EINVAL
        key = _filter_key(rule)
        if kind is OperationKind.DELETE:
            if key not in self.filters:
                return errno.ENOENT
            self._remove(key)
            return 0
        code = self._refusal(kind, rule)
        if code:
            return code
        for action in rule.actions:
            self.actions.setdefault((action.kind, action.index), replace(action, standalone=False, bound=0))
        old = self.filters.get(key)
        self.filters[key] = replace(rule, in_hw=self.hardware is not None and not rule.skip_hw)
        self._release(old)
        return 0

    def _refusal(self, kind: OperationKind, rule: Filter) -> int:
        key = _filter_key(rule)
        peers = {k: other for k, other in self.filters.items() if k[:3] == key[:3]}
        if any((other.kind, other.protocol) != (rule.kind, rule.protocol) for other in peers.values()):
            return errno.EINVAL
        if key in peers and kind is OperationKind.ADD:
            return errno.EEXIST
        if any(other.mac == rule.mac for k, other in peers.items() if k != key):
            return errno.EEXIST
        return self._refused_actions(rule) or (self._hardware_says(rule) if rule.skip_sw else 0)

    def _refused_actions(self, rule: Filter) -> int:
        flags = ACTION_SKIP_HW * rule.skip_hw | ACTION_SKIP_SW * rule.skip_sw
        for action in rule.actions:
            found = self.actions.get((action.kind, action.index))
            if found is None and not flags:
                return errno.EINVAL  # unflagged filters name their actions by index only
            if found is not None and found.flags != flags and (found.standalone or found.flags & ~flags):
                return errno.EINVAL  # Mismatch between action and filter offload flags
            if found is None and action.kind is ActionKind.MIRRED and action.redirect_to not in self.links:
                return errno.ENODEV
        return 0

    def _hardware_says(self, rule: Filter) -> int:
        if self.hardware is None or rule.mac in self.hardware.refused:
            return errno.EOPNOTSUPP
        others = sum(bool(other.in_hw) for k, other in self.filters.items() if k != _filter_key(rule))
        return errno.ENOSPC if others >= self.hardware.capacity else 0

    def _remove(self, key: FilterKey) -> None:
        self._release(self.filters.pop(key, None))

    def _release(self, rule: Filter | None) -> None:
        if rule is not None:
            self.lingering.append((self.linger, tuple((action.kind, action.index) for action in rule.actions)))
            if not self.linger:
                self._let_go()

    def _let_go(self) -> None:
        """Actions that filters made go with the last that binds them."""
        released = {key for left, keys in self.lingering for key in keys if left <= 0}
        self.lingering = [(left, keys) for left, keys in self.lingering if left > 0]
        bound = self._bound()
        for key in released:
            if key in self.actions and not self.actions[key].standalone and not bound[key]:
                del self.actions[key]

    def _bound(self) -> Counter[ActionKey]:
        now = ((action.kind, action.index) for rule in self.filters.values() for action in rule.actions)
        return Counter([*now, *(key for _, keys in self.lingering for key in keys)])


def _shuffled(rows: Iterable[Row], random: Random | None) -> tuple[Row, ...]:
    listed = list(rows)
    if random is not None:
        random.shuffle(listed)
    return tuple(listed)


def _row_key(row: FdbEntry) -> tuple[int, str, bool, int, str | None, int]:
    return (row.ifindex, row.mac, row.own, row.vlan, row.destination, row.nexthop_id)


def _filter_key(rule: Filter) -> FilterKey:
    return (rule.ifindex, rule.chain, rule.pref, rule.handle)

"""I1-I11 of the reconciler, with a kernel that changes at any moment, hands that meddle, and writes that fail."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services._host.netlink.objects import Action, ActionKind, FdbEntry, Filter, NextHop, Route, Vxlan
from services.reconciler.core.config import OffloadPolicy
from services.reconciler.core.errno_actions import compensating_deletes
from services.reconciler.core.operation import Operation, OperationKind, Phase
from services.reconciler.core.ownership import RANGE_START, is_managed
from services.reconciler.core.plan import plan
from services.reconciler.core.problems import ProblemKind
from tests.support.edge_host import ENCAPSULATION, EdgeHost, another, failing, remote_mac, tunnel_to, vtep
from tests.support.examples import examples
from tests.support.model_kernel import NOWHERE, Hardware

MACS = st.sampled_from([remote_mac(number) for number in range(5)])
VTEPS = st.sampled_from([vtep(number) for number in (2, 3, 4)])
VTEP_DEVICES = st.sampled_from(["vx100", "vx100", "vx200"])
PORTS = st.sampled_from(["rep0", "rep1", "rep2"])
DEVICES = st.sampled_from(["rep0", "rep1", "vx100", "vx200", "br0", ENCAPSULATION, ENCAPSULATION])
ERRNOS = st.sampled_from(
    [errno.EEXIST, errno.ENOENT, errno.ENODEV, errno.EINVAL, errno.ENOMEM, errno.EBUSY, errno.ENOSPC, errno.EOPNOTSUPP]
)
SEEDS = st.integers(0, 1 << 16)
FOREIGN_COOKIES = st.sampled_from([b"", b"OVS-" + bytes(12)])


class Edge(RuleBasedStateMachine):
    """Everything that can happen to a host, in any order; after every few steps the rules must be right."""

    def __init__(self) -> None:
        super().__init__()
        self.host = EdgeHost()
        self.kernel = self.host.kernel
        self.foreign: dict[tuple[int, int, int, int], Filter] = {}

    @initialize(offload=st.sampled_from(OffloadPolicy), hardware=st.booleans(), linger=st.integers(0, 2))
    def begin(self, offload: OffloadPolicy, hardware: bool, linger: int) -> None:
        self.kernel.linger = linger
        self.kernel.hardware = Hardware() if hardware or offload is OffloadPolicy.REQUIRE else None
        self.host.config = another(self.host.config, offload=offload)

        self.announce_all(["10.255.0.2", "10.255.0.3", "10.255.0.2"])
        self.run(0)

    # What zebra and the bridge do.

    @rule(destinations=st.lists(VTEPS, min_size=1, max_size=3))
    def announce_all(self, destinations: list[str]) -> None:
        for number in range(5):
            self.host.announce(remote_mac(number), destinations[number % len(destinations)])

    @rule(mac=MACS, destination=VTEPS, seed=SEEDS)
    def move(self, mac: str, destination: str, seed: int) -> None:
        self.host.announce(mac, destination)
        self.run(seed)

    @rule(mac=MACS, destination=VTEPS, device=VTEP_DEVICES)
    def announce(self, mac: str, destination: str, device: str) -> None:
        self.host.announce(mac, destination, device)

    @rule(mac=MACS, device=VTEP_DEVICES)
    def withdraw(self, mac: str, device: str) -> None:
        self.host.withdraw(mac, device)

    @rule(mac=MACS, destination=VTEPS)
    def announce_twice(self, mac: str, destination: str) -> None:
        if self.host.index("vx100"):
            self.kernel.put_row(FdbEntry(self.host.index("vx100"), mac, own=True, destination=destination, static=True))

    @rule(mac=MACS)
    def announce_by_group(self, mac: str) -> None:
        if self.host.index("vx100"):
            self.kernel.put_row(FdbEntry(self.host.index("vx100"), mac, own=True, nexthop_id=9, extern_learn=True))

    @rule(mac=MACS, port=PORTS)
    def learn(self, mac: str, port: str) -> None:
        self.host.learn(mac, port)

    @rule()
    def restart_frr(self) -> None:
        for key, row in list(self.kernel.fdb.items()):
            if row.extern_learn:
                del self.kernel.fdb[key]

    # What happens to devices.

    @rule(name=DEVICES)
    def recreate(self, name: str) -> None:
        if self.host.index(name):
            self.host.recreate(name)
            self._forget_vanished()

    @rule(up=st.booleans())
    def switch_encapsulation(self, up: bool) -> None:
        if self.host.index(ENCAPSULATION):
            self.kernel.set_link(self.host.index(ENCAPSULATION), up=up)

    @rule(name=st.sampled_from(["rep1", ENCAPSULATION]))
    def delete(self, name: str) -> None:
        if self.host.index(name):
            self.kernel.delete_link(self.host.index(name))
            self._forget_vanished()

    @rule()
    def create_what_is_missing(self) -> None:
        if not self.host.index("rep1"):
            self.host.make("rep1", "veth", "br0" if self.host.index("br0") else None)
        if not self.host.index(ENCAPSULATION):
            self.host.make(ENCAPSULATION, "vxlan", None, Vxlan(0, "10.255.0.1", 4790, external=True))

    @rule(local=st.sampled_from(["10.255.0.1", "10.255.0.9"]), vni=st.sampled_from([100, 101]))
    def change_vtep(self, local: str, vni: int) -> None:
        if self.host.index("vx100"):
            self.kernel.set_link(self.host.index("vx100"), vxlan=Vxlan(vni, local, 4789, external=False))

    # What people do by hand, to our rules and beside them.

    @rule(name=PORTS, seed=SEEDS, mac=MACS)
    def bind_our_action(self, name: str, seed: int, mac: str) -> None:
        """Somebody's rule in a preference of his refers to an action of ours."""
        ours = sorted(key for key, action in self.kernel.actions.items() if action.managed)
        index = self.host.index(name)
        place = (index, 0, 9, 1)
        if ours and index and place not in self.kernel.filters:
            self.kernel.put_filter(
                Filter(*place[:1], 9, 1, "flower", mac, (self.kernel.actions[ours[seed % len(ours)]],))
            )
            self.foreign[place] = self.kernel.filters[place]

    @rule(seed=SEEDS)
    def delete_a_rule(self, seed: int) -> None:
        found = self._ours(seed)
        if found is not None:
            self.kernel.remove_filter(found)

    @rule(seed=SEEDS, destination=VTEPS)
    def edit_a_rule(self, seed: int, destination: str) -> None:
        found = self._ours(seed)
        if found is not None:
            keyed = Action(ActionKind.TUNNEL_KEY, 77, tunnel=tunnel_to(destination), flags=self._flags)
            redirect = Action(ActionKind.MIRRED, 77, redirect_to=self.host.index(ENCAPSULATION), flags=self._flags)
            self.kernel.put_filter(replace(found, actions=(keyed, redirect)))

    @rule(seed=SEEDS, seen=st.booleans())
    def edit_a_rule_to_drop(self, seed: int, seen: bool) -> None:
        """It loses its mark; a process that saw it before still knows it for ours."""
        owned = self._owned() if seen else set()
        found = self._ours(seed)
        if found is not None:
            self.kernel.put_filter(replace(found, actions=(), foreign_actions=True))
        assert not seen or self._owned() == owned

    @rule(seed=SEEDS, mac=st.none() | MACS)
    def edit_what_a_rule_matches(self, seed: int, mac: str | None) -> None:
        found = self._ours(seed)
        if found is not None and not self._held(found.ifindex, found.pref, mac):
            self.kernel.put_filter(replace(found, mac=mac))

    @rule(seed=SEEDS, destination=VTEPS, redirect=PORTS, keep=st.booleans())
    def edit_an_action(self, seed: int, destination: str, redirect: str, keep: bool) -> None:
        ours = sorted(key for key, action in self.kernel.actions.items() if action.managed)
        if ours:
            key = ours[seed % len(ours)]
            action = self.kernel.actions[key]
            if key[0] is ActionKind.TUNNEL_KEY:
                action = replace(action, tunnel=tunnel_to(destination))
            else:
                action = replace(action, redirect_to=self.host.index(redirect))
            self.kernel.actions[key] = action if keep else replace(action, cookie=b"")

    @rule(name=PORTS)
    def delete_clsact(self, name: str) -> None:
        if self.host.index(name):
            self.kernel.delete_clsact(self.host.index(name))
            self._forget_vanished()

    @rule(name=PORTS, mac=MACS, destination=VTEPS, pref=st.sampled_from([0, 7]), handle=st.integers(0, 5))
    def add_garbage_of_ours(self, name: str, mac: str, destination: str, pref: int, handle: int) -> None:
        """What a crashed or older run left: our marks, any content, in our preference or an earlier one."""
        index, pref = self.host.index(name), self.host.config.pref - pref
        place = (index, 0, pref, RANGE_START + handle)
        if index and not self._held(index, pref, mac) and place not in self.kernel.filters:
            keyed = Action(
                ActionKind.TUNNEL_KEY, 500 + handle, b"THRN-any", tunnel=tunnel_to(destination), flags=self._flags
            )
            self.kernel.put_filter(Filter(index, pref, place[3], "flower", mac, (keyed,)))

    @rule(
        name=PORTS,
        mac=MACS,
        pref=st.sampled_from([1, 21_000, 40_000]),
        kind=st.sampled_from(["flower", "u32"]),
        first=st.sampled_from([0, RANGE_START + 0x1000]),
    )
    def add_foreign(self, name: str, mac: str, pref: int, kind: str, first: int) -> None:
        """Also with handles of our range: that alone makes a rule nobody's."""
        index = self.host.index(name)
        peers = [f for key, f in self.kernel.filters.items() if key[:3] == (index, 0, pref)]
        fits = all(peer.kind == kind for peer in peers) and not self._held(index, pref, mac)
        handle = first + max((key[3] & 0xFFF for key in self.foreign), default=0) + 1
        if index and fits:
            other = Filter(index, pref, handle, kind, mac if kind == "flower" else None, foreign_actions=True)
            self.kernel.put_filter(other)
            self.foreign[index, 0, pref, handle] = other

    @rule(index=st.integers(RANGE_START, RANGE_START + 3), cookie=FOREIGN_COOKIES)
    def add_foreign_action(self, index: int, cookie: bytes) -> None:
        for kind in ActionKind:
            if (kind, index) not in self.kernel.actions:
                self.kernel.actions[kind, index] = Action(kind, index, cookie)

    @rule()
    def remove_foreign(self) -> None:
        for found in self.foreign.values():
            self.kernel.remove_filter(found)
        self.foreign.clear()

    # What the reconciler does, and what goes wrong with it.

    @rule(seed=SEEDS)
    def run(self, seed: int) -> None:
        """A whole pass in which nothing interferes: no write may fail but for the hardware's."""
        self.kernel.age()
        assert self.host.due() == self._planned(seed), "the order of rows in a dump must not matter (I8)"
        self._apply(self._planned(seed), quiet=True)

    @rule(seed=SEEDS, share=st.floats(0, 1))
    def crash_in_a_pass(self, seed: int, share: float) -> None:
        """Kill -9 after any prefix of the writes; the next pass is another process that knows only the dump (I10)."""
        operations = self._planned(seed)
        self._apply(operations[: int(share * len(operations))], quiet=True)
        self.host.restart_reconciler()

    @rule(seed=SEEDS, code=ERRNOS, times=st.integers(1, 4), phase=st.sampled_from(Phase))
    def run_with_failing_writes(self, seed: int, code: int, times: int, phase: Phase) -> None:
        self.kernel.fault = failing(code, times, lambda operation: operation.phase is phase)
        self._apply(self._planned(seed), quiet=False)
        self.kernel.fault = None

    @rule(seed=SEEDS, mac=MACS, destination=VTEPS, name=DEVICES)
    def run_on_an_old_dump(self, seed: int, mac: str, destination: str, name: str) -> None:
        """The kernel changes between the dump and the writes."""
        operations = self._planned(seed)
        self.host.announce(mac, destination)
        if self.host.index(name):
            self.host.recreate(name)
            self._forget_vanished()
        self.kernel.apply(operations)

    @rule(offload=st.sampled_from(OffloadPolicy), pref=st.sampled_from([21_000, 20_993]))
    def restart_with_other_settings(self, offload: OffloadPolicy, pref: int) -> None:
        if offload is OffloadPolicy.REQUIRE and self.kernel.hardware is None:
            offload = OffloadPolicy.PREFER
        self.host.config = another(self.host.config, offload=offload, pref=pref)
        self.host.restart_reconciler()

    @rule()
    def settle(self) -> None:
        """Nothing happens any more: the rules are what they should be, and stay so with no write."""
        self.host.settle(passes=10)
        self._check_quiet()

    @rule()
    def change_routes(self) -> None:
        """An edge fault changes next hops, and no rule (I11)."""
        before = self.host.due()
        hops = (NextHop(1, "fe80::1", dead=True),)
        self.kernel.routes = [Route("10.255.0.2/32", 254, 186, hops * (1 + len(self.kernel.routes) % 2))]
        assert self.host.due() == before

    def teardown(self) -> None:
        self.host.settle(passes=10)
        self._check_quiet()

    @invariant()
    def nothing_of_others_is_written(self) -> None:
        """I3, but for rules that vanished with their device or qdisc. Of actions see `_apply`."""
        for key, other in self.foreign.items():
            assert self.kernel.filters[key] == other

    def _check_quiet(self) -> None:
        host, pref = self.host, self.host.config.pref
        unmanaged = self._unmanaged()
        expected = {key: tunnel for key, tunnel in host.expected().items() if not self._taken(key, unmanaged)}
        places = {(f.ifindex, f.mac) for f in unmanaged}
        own = {key: leads for key, leads in host.installed().items() if (host.index(key[0]), key[1]) not in places}
        assert own == expected  # I1
        snapshot, wanted = host.observe()
        assert not host.due()  # I2
        count = plan(snapshot, wanted).tally
        assert (count.in_sync, count.managed) == (count.desired, count.desired)
        bound = {(a.kind, a.index) for f in snapshot.filters if is_managed(f, pref) for a in f.actions}
        assert sum(kind is ActionKind.MIRRED for kind, _ in bound) == bool(expected)  # I9
        assert sum(kind is ActionKind.TUNNEL_KEY for kind, _ in bound) == len(set(expected.values()))
        assert all(a.bound for a in snapshot.actions if a.managed)  # what only others bind stays, the rest is gone

    def _unmanaged(self) -> list[Filter]:
        """Filters in our preference none of whose actions carries our cookie now.

        Somebody else's, and ours that were edited while no reconciler ran: nothing tells these apart. What the actions
        hold now is in a dump only: `ModelKernel.filters` keeps them as they were when the filter was written.
        """
        pref = self.host.config.pref
        return [f for f in self.kernel.snapshot().filters if (f.chain, f.pref) == (0, pref) and not f.managed]

    def _taken(self, key: tuple[str, str], unmanaged: list[Filter]) -> bool:
        """Whether such filters keep ours for a MAC off a port: then a problem says so."""
        peers = [f for f in unmanaged if f.ifindex == self.host.index(key[0])]
        closed = any(peer.kind != "flower" for peer in peers)
        if not closed and all(peer.mac != key[1] for peer in peers):
            return False
        kind = ProblemKind.PREF_TAKEN if closed else ProblemKind.RULE_TAKEN
        told = [p for p in self.host.observe()[1].problems if (p.kind, p.place) == (kind, key[0])]
        assert any(closed or key[1] in p.subjects for p in told), key
        return True

    def _planned(self, seed: int) -> tuple[Operation, ...]:
        return plan(*self.host.observe(Random(seed))).operations

    def _apply(self, operations: tuple[Operation, ...], *, quiet: bool) -> None:
        """Write one by one, and look at every step where each MAC leads (I4, I5)."""
        kernel, pref = self.kernel, self.host.config.pref
        wanted = {(r.ifindex, r.mac): r.tunnel for r in self.host.observe()[1].rules}
        places = {(key[0], f.mac) for key, f in kernel.filters.items() if f.mac is not None} | set(wanted)
        allowed = {
            place: {None, kernel.leads(*place, pref), *kernel.keys_set(*place, pref), wanted.get(place)}
            for place in places
        }
        errnos = []
        for operation in operations:
            if isinstance(operation.target, Action):
                found = kernel.actions.get((operation.target.kind, operation.target.index))
                assert found is None or found.managed, operation  # I3
            errnos.append(kernel.write(operation))
            assert not quiet or not errnos[-1], (operation, errnos[-1])
            if isinstance(operation.target, Filter) and operation.kind is not OperationKind.DELETE and not errnos[-1]:
                bound = [kernel.actions[action.kind, action.index] for action in operation.target.actions]
                assert any(action.managed for action in bound), (
                    operation
                )  # else the next process takes it for another's
            for place, leads in allowed.items():
                now = kernel.leads(*place, pref)
                assert now in leads, (operation, place, now)
        if not quiet:
            kernel.fault = None
            kernel.apply(compensating_deletes(operations, errnos))
        self.host.observe()

    def _owned(self) -> set[tuple[int, int, int]]:
        """Ifindex, preference and handle of what the running process takes for ours when it looks."""
        return {
            (f.ifindex, f.pref, f.handle)
            for f in self.host.observe()[0].filters
            if is_managed(f, self.host.config.pref)
        }

    def _ours(self, seed: int) -> Filter | None:
        ours = [f for key, f in sorted(self.kernel.filters.items()) if is_managed(f, self.host.config.pref)]
        return ours[seed % len(ours)] if ours else None

    def _held(self, index: int, pref: int, mac: str | None) -> bool:
        return any(f.mac == mac for key, f in self.kernel.filters.items() if key[:3] == (index, 0, pref))

    def _forget_vanished(self) -> None:
        self.foreign = {key: f for key, f in self.foreign.items() if key in self.kernel.filters}

    @property
    def _flags(self) -> int:
        return self.host.config.offload.action_flags


Edge.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
TestEdge = Edge.TestCase


def test_rules_whose_shared_actions_lost_their_cookies_before_a_restart_are_told_and_left():
    """The redirect and a VTEP's tunnel key: rules of that VTEP carry no mark any more when the next process looks."""
    edge = Edge()
    edge.begin(OffloadPolicy.NONE, hardware=False, linger=0)
    edge.edit_an_action(seed=0, destination=vtep(2), redirect="rep0", keep=False)
    edge.edit_an_action(seed=0, destination=vtep(2), redirect="rep0", keep=False)
    edge.restart_with_other_settings(OffloadPolicy.NONE, pref=21_000)
    edge.settle()
    left = {f.mac: edge.kernel.leads(f.ifindex, f.mac, f.pref) for f in edge._unmanaged() if f.mac is not None}
    assert left == {remote_mac(1): NOWHERE, remote_mac(4): NOWHERE}

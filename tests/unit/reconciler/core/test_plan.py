"""Which writes are due, in which order, and how little: sharing, repair in place, adoption, ownership."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reconciler.core import ownership
from services.reconciler.core.config import ForwardingConfig, OffloadPolicy
from services.reconciler.core.digest import forwarding_digest, rules_digest
from services.reconciler.core.operation import Operation, OperationKind, Phase
from services.reconciler.core.plan import flush, is_sweeping, own_filters, plan, tally, tunnel_of
from services.reconciler.core.state import Action, ActionKind, Clsact, FdbEntry, Filter, NextHop, Route, Tunnel
from tests.support.edge_host import APPLICATION, ENCAPSULATION, EdgeHost, another, remote_mac, tunnel_to, vtep
from tests.support.model_kernel import NOWHERE, Hardware

A = remote_mac(1)
B = remote_mac(2)
C = remote_mac(3)


def one_port(**changes: object) -> EdgeHost:
    """A host with rep0 only, whose application MAC is in place already: nothing is due but rules."""
    host = EdgeHost()
    host.config = another(host.config, **{"application_macs": {"rep0": (APPLICATION,)}, **changes})
    host.kernel.put_row(FdbEntry(host.index("rep0"), APPLICATION, own=False, static=True))
    return host


def shape(operations: tuple[Operation, ...]) -> list[tuple[str, str]]:
    return [(operation.kind.value, operation.key[0]) for operation in operations]


def action_of(host: EdgeHost, destination: str) -> Action:
    tunnel = tunnel_to(destination)
    return next(a for a in host.kernel.actions.values() if a.tunnel == tunnel)


def test_the_first_rule_needs_clsact_two_actions_and_a_filter():
    host = one_port()
    host.announce(A, vtep(2))
    operations = host.due()
    assert shape(operations) == [("add", "clsact"), ("add", "action"), ("add", "action"), ("add", "filter")]
    rule = operations[-1].target
    assert isinstance(rule, Filter)
    assert (rule.ifindex, rule.pref, rule.handle, rule.mac) == (host.index("rep0"), 21_000, 0x54000000, A)
    assert [action.kind for action in rule.actions] == [ActionKind.TUNNEL_KEY, ActionKind.MIRRED]
    assert operations[0].target == Clsact(host.index("rep0"))


def test_a_second_pass_writes_nothing_and_neither_does_another_process():
    host = EdgeHost()
    for number in range(20):
        host.announce(remote_mac(number), vtep(2 + number % 3))
    assert host.settle() == 1
    written = host.kernel.writes
    assert plan(*host.look(Random(1))) == ()  # nothing is kept between passes, so this is a new process's first
    assert host.settle() == 0
    assert host.kernel.writes == written


def test_macs_of_a_vtep_share_its_action_and_all_share_the_redirect():
    host = EdgeHost()
    for number in range(30):
        host.announce(remote_mac(number), vtep(2 + number % 3))
    host.settle()
    kinds = [action.kind for action in host.kernel.actions.values()]
    # 30 MACs on 2 ports of br0 behind 3 VTEPs: 60 rules, 3 keys, 1 redirect (I9).
    assert (len(host.kernel.filters), kinds.count(ActionKind.TUNNEL_KEY), kinds.count(ActionKind.MIRRED)) == (60, 3, 1)


def test_indexes_are_the_same_after_everything_was_lost():
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    host.settle()
    before = {action.tunnel: action.index for action in host.kernel.actions.values()}
    host.kernel.apply(flush(host.kernel.snapshot(), host.config.pref))
    assert not host.kernel.actions
    host.settle()
    assert {action.tunnel: action.index for action in host.kernel.actions.values()} == before


def test_two_vteps_with_one_hash_get_two_actions(monkeypatch):
    monkeypatch.setattr(ownership, "tunnel_hash", lambda _: bytes(8))
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    host.settle()
    assert host.installed() == host.expected()
    keys = [a for a in host.kernel.actions.values() if a.kind is ActionKind.TUNNEL_KEY]
    assert len({key.cookie for key in keys}) == 1
    assert len(keys) == 2
    host.withdraw(A)
    host.settle()
    assert host.installed() == host.expected() == {("rep0", B): tunnel_to(vtep(3))}


def test_the_cookie_says_whose_and_what_for():
    cookie = ownership.tunnel_cookie(tunnel_to(vtep(2)))
    assert (len(cookie), cookie[:4], cookie[4:8]) == (16, b"THRN", (100).to_bytes(4, "big"))
    changed = [
        Tunnel("10.255.0.9", vtep(2), 100, 4789),
        Tunnel("10.255.0.1", vtep(3), 100, 4789),
        Tunnel("10.255.0.1", vtep(2), 101, 4789),
        Tunnel("10.255.0.1", vtep(2), 100, 4790),
        Tunnel("10.255.0.1", vtep(2), 100, 4789, checksum=False),
    ]
    assert len({cookie, ownership.MIRRED_COOKIE, *map(ownership.tunnel_cookie, changed)}) == 7


def test_an_index_that_somebody_else_holds_is_left_to_him():
    host = one_port()
    host.announce(A, vtep(2))
    taken = ownership.preferred_index(tunnel_to(vtep(2)))
    theirs = Action(ActionKind.TUNNEL_KEY, taken, b"", tunnel=tunnel_to(vtep(9)))
    host.kernel.actions[ActionKind.TUNNEL_KEY, taken] = theirs
    host.settle()
    assert action_of(host, vtep(2)).index == taken + 1
    assert host.kernel.actions[ActionKind.TUNNEL_KEY, taken] == theirs


def test_a_mac_that_moves_is_replaced_by_handle_in_one_write():
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    host.settle()
    host.announce(A, vtep(3))
    (replaced, gone) = host.due()
    assert (replaced.kind, replaced.phase, replaced.reason) == (OperationKind.REPLACE, Phase.WRONG, "leads elsewhere")
    assert isinstance(replaced.before, Filter)
    assert tunnel_of(replaced.before) == tunnel_to(vtep(2))
    assert (gone.kind, gone.phase, gone.target.kind) == (OperationKind.DELETE, Phase.UNUSED, ActionKind.TUNNEL_KEY)
    host.settle()
    assert host.installed() == host.expected()


def test_wrong_rules_come_before_missing_ones_and_stale_ones_last():
    host = one_port()
    for number in (1, 2, 3):
        host.announce(remote_mac(number), vtep(2))
    host.settle()
    host.announce(A, vtep(3))  # moved to another VTEP: wrong
    host.learn(B, "rep1")  # moved here: wrong too, its rule would be a black hole
    host.withdraw(C)  # only stale
    host.announce(remote_mac(4), vtep(3))
    phases = [(operation.phase, operation.kind.value, operation.key[2]) for operation in host.due()]
    assert phases == [
        (Phase.ACTIONS, "add", "tunnel_key"),
        (Phase.WRONG, "replace", A),
        (Phase.WRONG, "delete", B),
        (Phase.MISSING, "add", remote_mac(4)),
        (Phase.STALE, "delete", C),
        (Phase.UNUSED, "delete", "tunnel_key"),
    ]


def test_an_encapsulation_device_with_another_ifindex_costs_one_write():
    """Its rules are silent black holes until then: the redirect is repaired in place for all of them at once."""
    host = EdgeHost()
    for number in range(50):
        host.announce(remote_mac(number), vtep(2 + number % 5))
    host.settle()
    host.recreate(ENCAPSULATION)
    assert set(host.installed().values()) == {NOWHERE}
    (operation,) = host.due()
    assert (operation.kind, operation.target.kind) == (OperationKind.REPLACE, ActionKind.MIRRED)
    host.settle()
    assert host.installed() == host.expected()


def test_rules_are_withdrawn_first_thing_when_the_encapsulation_device_is_gone():
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    host.kernel.delete_link(host.index(ENCAPSULATION))
    operations = host.due()
    assert [o.phase for o in operations] == [Phase.WRONG, Phase.UNUSED, Phase.UNUSED]
    host.settle()
    assert (host.kernel.filters, host.kernel.actions) == ({}, {})


def test_an_edited_action_is_repaired_in_place_where_all_its_rules_want_that():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.announce(B, vtep(2))
    host.settle()
    action = action_of(host, vtep(2))
    host.kernel.actions[action.kind, action.index] = replace(action, tunnel=tunnel_to(vtep(9)))
    (operation,) = host.due()
    assert (operation.kind, operation.key) == (OperationKind.REPLACE, ("action", action.index, "tunnel_key"))
    host.settle()
    assert host.installed() == host.expected()


def test_an_edited_action_is_left_where_repair_would_mislead_another_mac():
    """I5: A was led to VTEP 9 and belongs to 3; repairing the action of VTEP 2 first would lead it to 2."""
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(2))
    host.settle()
    action = action_of(host, vtep(2))
    host.kernel.actions[action.kind, action.index] = replace(action, tunnel=tunnel_to(vtep(9)))
    host.announce(A, vtep(3))
    seen = set()
    for operation in host.due():
        assert host.kernel.write(operation) == 0
        seen.add(host.kernel.leads(host.index("rep0"), A, host.config.pref))
    assert seen == {tunnel_to(vtep(9)), tunnel_to(vtep(3))}
    assert host.settle() == 0
    assert host.installed() == host.expected()


def test_a_rule_edited_to_drop_is_still_ours_by_its_handle():
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    (rule,) = host.kernel.filters.values()
    host.kernel.put_filter(replace(rule, actions=(), foreign_actions=True))
    assert shape(host.due()) == [("replace", "filter")]
    host.settle()
    assert host.installed() == host.expected()


@pytest.mark.parametrize("edit", [{"skip_hw": True}, {"skip_sw": True}, {"foreign_actions": True}])
def test_a_rule_with_other_flags_or_a_further_action_is_replaced(edit):
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    (rule,) = host.kernel.filters.values()
    host.kernel.put_filter(replace(rule, **edit))
    assert shape(host.due()) == [("replace", "filter")]


def test_of_two_rules_of_ours_for_a_mac_the_first_is_kept():
    """Flower allows none but in a dump in whose middle a rule moved."""
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    snapshot, wanted = host.look()
    (rule,) = snapshot.filters
    (operation,) = plan(replace(snapshot, filters=(replace(rule, handle=rule.handle + 1), rule)), wanted)
    assert isinstance(operation.target, Filter)
    assert (operation.kind, operation.target.handle) == (OperationKind.DELETE, rule.handle + 1)


def test_rules_of_an_earlier_preference_go_after_the_new_ones_are_there():
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    host.config = another(host.config, pref=300)
    assert shape(host.due()) == [("add", "filter"), ("delete", "filter")]
    host.settle()
    assert {rule.pref for rule in host.kernel.filters.values()} == {300}


def test_a_port_that_is_no_longer_managed_loses_its_rules():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.settle()
    host.config = another(host.config, application_macs={"rep0": ()})
    assert shape(host.due()) == [("delete", "filter")]


def test_our_action_that_somebody_elses_rule_binds_is_left():
    """The kernel would refuse to delete it (EPERM) in every pass."""
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    action = action_of(host, vtep(2))
    host.kernel.put_filter(Filter(host.index("vx200"), 5, 1, "flower", B, (action,)))
    host.withdraw(A)
    host.settle()
    assert (action.kind, action.index) in host.kernel.actions
    assert host.kernel.leads(host.index("rep0"), A, host.config.pref) is None


@pytest.mark.parametrize("learned_on", ["rep0", "rep1", "vx100"])
def test_an_applications_mac_that_was_learned_becomes_static(learned_on):
    host = EdgeHost()
    host.learn(APPLICATION, learned_on)
    entry = FdbEntry(host.index("rep0"), APPLICATION, own=False, static=True)
    operation = next(o for o in host.due() if o.key[2] == f"{APPLICATION} 0")
    assert (operation.kind, operation.target) == (OperationKind.REPLACE, entry)
    host.settle()
    assert entry in host.kernel.fdb.values()


def test_a_change_of_routes_writes_nothing():
    """I11: at an edge fault only next hops change."""
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.settle()
    before = forwarding_digest(host.kernel.snapshot())
    host.kernel.routes = [Route("10.255.0.2/32", 254, 186, (NextHop(3, "fe80::1", dead=True), NextHop(4, "fe80::2")))]
    host.kernel.set_link(host.index("rep1"), carrier=False)
    assert host.due() == ()
    assert forwarding_digest(host.kernel.snapshot()) == before


@pytest.mark.parametrize("offload", [OffloadPolicy.NONE, OffloadPolicy.REQUIRE])
def test_flagged_rules_carry_their_actions_instead_of_standalone_ones(offload):
    host = one_port(offload=offload)
    host.kernel.hardware = Hardware()
    host.announce(A, vtep(2))
    host.announce(B, vtep(2))
    assert shape(host.due()) == [("add", "clsact"), ("add", "filter"), ("add", "filter")]
    host.settle()
    assert host.installed() == host.expected()
    assert len(host.kernel.actions) == 2  # shared all the same: one key, one redirect
    host.withdraw(A)
    host.withdraw(B)
    host.settle()
    assert not host.kernel.actions  # gone with the last rule


def test_flagged_rules_are_moved_to_a_new_redirect():
    """What filters made cannot be repaired in place: the kernel offloads no change of it."""
    host = one_port(offload=OffloadPolicy.REQUIRE)
    host.kernel.hardware = Hardware()
    host.announce(A, vtep(2))
    host.settle()
    host.recreate(ENCAPSULATION)
    assert shape(host.due()) == [("replace", "filter")]
    host.settle()
    assert host.installed() == host.expected()


@pytest.mark.parametrize("offload", list(OffloadPolicy))
def test_another_offload_policy_replaces_every_rule_once(offload):
    host = one_port(offload=OffloadPolicy.PREFER)
    host.kernel.hardware = Hardware()
    host.announce(A, vtep(2))
    host.settle()
    host.config = another(host.config, offload=offload)
    host.settle()
    assert host.installed() == host.expected()
    (rule,) = host.kernel.filters.values()
    assert (rule.skip_hw, rule.skip_sw) == (offload.skip_hw, offload.skip_sw)


def test_a_dump_without_its_actions_moves_no_rule():
    """The filters tell of their actions too; a short second dump must not cost 10,000 writes."""
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.settle()
    snapshot, wanted = host.look()
    assert plan(replace(snapshot, actions=()), wanted) == ()


def test_a_row_that_is_dumped_twice_is_one():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.settle()
    snapshot, wanted = host.look()
    assert plan(replace(snapshot, filters=snapshot.filters * 2, fdb=snapshot.fdb * 2), wanted) == ()


def test_a_plan_that_deletes_most_rules_is_worth_a_second_look():
    host = one_port()
    for number in range(20):
        host.announce(remote_mac(number), vtep(2))
    host.settle()
    own = len(own_filters(host.kernel.snapshot(), host.config.pref))
    for number in range(10):
        host.withdraw(remote_mac(number))
    assert not is_sweeping(host.due(), own)  # 10 of 20
    for number in range(10, 20):
        host.withdraw(remote_mac(number))
    assert is_sweeping(host.due(), own)


def test_flush_leaves_only_what_is_not_ours():
    host = EdgeHost()
    theirs = Filter(host.index("rep0"), 10, 1, "flower", C, foreign_actions=True)
    host.kernel.put_filter(theirs)
    host.kernel.actions[ActionKind.MIRRED, 3] = Action(ActionKind.MIRRED, 3)
    host.announce(A, vtep(2))
    host.settle()
    assert set(host.kernel.apply(flush(host.kernel.snapshot(), host.config.pref))) == {0}
    assert list(host.kernel.filters.values()) == [theirs]
    assert list(host.kernel.actions) == [(ActionKind.MIRRED, 3)]


def test_the_tally_counts_right_rules_only():
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(2))
    host.settle()
    host.kernel.put_filter(Filter(host.index("rep0"), 10, 1, "u32"))
    host.announce(B, vtep(3))
    counts = tally(*host.look())
    assert (counts.desired, counts.right, counts.own, counts.foreign) == (2, 1, 2, 1)
    assert (counts.in_hw, counts.not_in_hw) == (0, 1)


@given(seed=st.integers(0, 1 << 20))
def test_digests_name_content_whatever_its_order(seed):
    host = EdgeHost()
    for number in range(6):
        host.announce(remote_mac(number), vtep(2 + number % 2))
    host.settle()
    pref = host.config.pref
    first, second = host.kernel.snapshot(), host.kernel.snapshot(Random(seed))
    assert (forwarding_digest(first), rules_digest(first, pref)) == (
        forwarding_digest(second),
        rules_digest(second, pref),
    )
    host.announce(A, vtep(4))
    assert forwarding_digest(host.kernel.snapshot()) != forwarding_digest(first)
    assert rules_digest(host.kernel.snapshot(), pref) == rules_digest(first, pref)
    host.settle()
    assert rules_digest(host.kernel.snapshot(), pref) != rules_digest(first, pref)


@given(
    old=st.dictionaries(st.integers(0, 8), st.integers(2, 5)),
    new=st.dictionaries(st.integers(0, 8), st.integers(2, 5)),
    seed=st.integers(0, 1 << 20),
)
def test_any_set_of_rules_becomes_any_other_in_one_pass(old, new, seed):
    """I6; and every prefix of the writes can be the last one (I4, I10)."""
    host = EdgeHost()
    for number, remote in old.items():
        host.announce(remote_mac(number), vtep(remote))
    host.settle()
    for number in old:
        host.withdraw(remote_mac(number))
    for number, remote in new.items():
        host.announce(remote_mac(number), vtep(remote))
    operations = host.due()
    stop = seed % (len(operations) + 1)
    assert set(host.kernel.apply(operations[:stop])) <= {0}
    host.settle()
    assert host.installed() == host.expected()


def test_a_thousand_macs_come_and_go():
    host = one_port()
    for number in range(300):
        host.announce(remote_mac(number), vtep(2 + number % 40))
    host.settle()
    for number in range(0, 300, 2):
        host.withdraw(remote_mac(number))
    for number in range(300, 400):
        host.announce(remote_mac(number), vtep(2 + number % 7))
    assert host.settle() == 1
    assert host.installed() == host.expected()
    assert len(host.kernel.filters) == 250
    handles = sorted(rule.handle for rule in host.kernel.filters.values())
    assert handles[0] >= ownership.RANGE_START


def test_a_kernel_without_flower_is_told_apart_from_drift():
    host = one_port()
    host.announce(A, vtep(2))
    host.kernel.fault = lambda operation: errno.ENOENT if operation.key[0] == "filter" else 0
    _, errnos = host.run()
    assert errnos == [0, 0, 0, errno.ENOENT]
    assert not host.kernel.filters


def test_nothing_is_due_without_settings():
    host = EdgeHost()
    host.config = ForwardingConfig(ENCAPSULATION)
    host.announce(A, vtep(2))
    assert host.due() == ()

"""Which writes are due, in which order, and how little: sharing, repair in place, adoption, ownership."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._host.netlink.objects import Action, ActionKind, Clsact, FdbEntry, Filter, NextHop, Route
from services.reconciler.core import ownership
from services.reconciler.core.config import ForwardingConfig, OffloadPolicy
from services.reconciler.core.digest import forwarding_digest, rules_digest
from services.reconciler.core.operation import OperationKind, Phase
from services.reconciler.core.ownership import tunnel_of
from services.reconciler.core.plan import flush, plan
from services.reconciler.core.problems import ProblemKind
from tests.support.edge_host import (
    APPLICATION,
    ENCAPSULATION,
    EdgeHost,
    another,
    one_port,
    remote_mac,
    shape,
    tunnel_to,
    vtep,
)
from tests.support.model_kernel import Hardware

A = remote_mac(1)
B = remote_mac(2)
C = remote_mac(3)


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
    assert (
        plan(*host.observe(Random(1))).operations == ()
    )  # nothing is kept between passes, so this is a new process's first
    assert host.settle() == 0
    assert host.kernel.writes == written


def test_a_mac_that_moves_is_replaced_by_handle_in_one_write():
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    host.settle()
    host.announce(A, vtep(3))
    (replaced,) = host.due()
    assert (replaced.kind, replaced.phase, replaced.reason) == (OperationKind.REPLACE, Phase.WRONG, "leads elsewhere")
    assert isinstance(replaced.before, Filter)
    assert tunnel_of(replaced.before) == tunnel_to(vtep(2))
    host.run()
    (gone,) = host.due()  # only what is unbound can be deleted
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
    ]


def test_rules_are_withdrawn_first_thing_when_the_encapsulation_device_is_gone():
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    host.kernel.delete_link(host.index(ENCAPSULATION))
    assert [o.phase for o in host.run()[0]] == [Phase.WRONG]
    assert [o.phase for o in host.run()[0]] == [Phase.UNUSED, Phase.UNUSED]
    assert (host.kernel.filters, host.kernel.actions) == ({}, {})


def test_a_rule_edited_to_drop_is_still_ours_where_it_was_seen_before():
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    (rule,) = host.kernel.filters.values()
    host.kernel.put_filter(replace(rule, actions=(), foreign_actions=True))
    assert shape(host.due()) == [("replace", "filter")]
    host.settle()
    assert host.installed() == host.expected()


def test_a_foreign_filter_with_a_handle_of_our_range_is_never_written():
    """Somebody's drop in our preference, with a handle of our range and without our cookie."""
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    foreign = Filter(host.index("rep0"), 21_000, 0x54FFFF00, "flower", B, foreign_actions=True)
    host.kernel.put_filter(foreign)
    assert host.due() == ()
    host.announce(B, vtep(2))
    assert host.due() == ()
    assert [(p.kind, p.place) for p in host.observe()[1].problems] == [(ProblemKind.RULE_TAKEN, "rep0")]
    assert foreign not in [operation.target for operation in flush(host.observe()[0], 21_000)]
    host.withdraw(A)
    host.settle()
    assert list(host.kernel.filters.values()) == [foreign]


def test_a_rule_that_was_edited_while_no_reconciler_ran_is_told_and_not_written():
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    (rule,) = host.kernel.filters.values()
    host.kernel.put_filter(replace(rule, actions=(), foreign_actions=True))
    host.restart_reconciler()
    assert not [operation for operation in host.due() if isinstance(operation.target, Filter)]
    assert [p.kind for p in host.observe()[1].problems] == [ProblemKind.RULE_TAKEN]


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
    snapshot, wanted = host.observe()
    (rule,) = snapshot.filters
    (operation,) = plan(replace(snapshot, filters=(replace(rule, handle=rule.handle + 1), rule)), wanted).operations
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


def test_a_row_that_is_dumped_twice_is_one():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.settle()
    snapshot, wanted = host.observe()
    assert plan(replace(snapshot, filters=snapshot.filters * 2, fdb=snapshot.fdb * 2), wanted).operations == ()


def test_flush_leaves_only_what_is_not_ours():
    host = EdgeHost()
    theirs = Filter(host.index("rep0"), 10, 1, "flower", C, foreign_actions=True)
    host.kernel.put_filter(theirs)
    host.kernel.actions[ActionKind.MIRRED, 3] = Action(ActionKind.MIRRED, 3)
    host.announce(A, vtep(2))
    host.settle()
    host.kernel.linger = 1
    first = host.kernel.apply(flush(host.kernel.snapshot(), host.config.pref))
    assert set(first) == {0, errno.EPERM}  # the actions are still held by what is just gone
    host.kernel.age()
    host.kernel.apply(flush(host.kernel.snapshot(), host.config.pref))
    assert list(host.kernel.filters.values()) == [theirs]
    assert list(host.kernel.actions) == [(ActionKind.MIRRED, 3)]


def test_the_tally_counts_right_rules_only():
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(2))
    host.settle()
    host.kernel.put_filter(Filter(host.index("rep0"), 10, 1, "u32"))
    host.announce(B, vtep(3))
    counts = plan(*host.observe()).tally
    assert (counts.desired, counts.in_sync, counts.managed, counts.unmanaged) == (2, 1, 2, 1)
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
    assert host.settle() == 2  # the second only for the actions of VTEPs that nobody is behind any more
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

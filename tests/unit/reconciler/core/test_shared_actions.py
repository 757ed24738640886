"""Shared actions: how few, under which index, repaired in place or not, and gone once the kernel lets go of them."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from services._host.netlink.objects import Action, ActionKind, Filter, Tunnel
from services.reconciler.core import ownership
from services.reconciler.core.config import OffloadPolicy
from services.reconciler.core.operation import OperationKind
from services.reconciler.core.plan import flush, plan
from services.reconciler.core.problems import ProblemKind
from tests.support.edge_host import ENCAPSULATION, EdgeHost, failing, one_port, remote_mac, shape, tunnel_to, vtep
from tests.support.model_kernel import NOWHERE, Hardware

A = remote_mac(1)
B = remote_mac(2)


def action_of(host: EdgeHost, destination: str) -> Action:
    tunnel = tunnel_to(destination)
    return next(a for a in host.kernel.actions.values() if a.tunnel == tunnel)


def redirect_of(host: EdgeHost) -> Action:
    return next(a for a in host.kernel.actions.values() if a.kind is ActionKind.MIRRED)


def replace_with_cookie(host: EdgeHost, action: Action, **content: Tunnel | int) -> None:
    """`tc actions replace` with somebody else's cookie: without one the kernel would keep ours."""
    changed = replace(action, cookie=b"OVS-" + bytes(12), **content)
    host.kernel.actions[action.kind, action.index] = changed


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
    host.settle()
    assert host.installed() == host.expected()


@pytest.mark.parametrize("restart", [False, True])
def test_an_action_with_another_cookie_takes_no_rule_while_the_other_action_has_ours(restart):
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    replace_with_cookie(host, redirect_of(host), redirect_to=host.index("rep0"))
    assert host.installed() == {("rep0", A): NOWHERE}
    if restart:
        host.restart_reconciler()
    host.settle()
    assert host.installed() == host.expected() == {("rep0", A): tunnel_to(vtep(2))}


def test_rules_of_a_vtep_whose_actions_all_have_another_cookie_are_put_right_by_who_knew_them():
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    host.settle()
    replace_with_cookie(host, redirect_of(host), redirect_to=host.index("rep0"))
    replace_with_cookie(host, action_of(host, vtep(2)), tunnel=tunnel_to(vtep(2)))
    host.settle()
    assert host.installed() == host.expected()


def test_rules_of_a_vtep_whose_actions_all_have_another_cookie_are_told_and_left_after_a_restart():
    """Nothing marks them any more. The other VTEP's still carry its cookie; deleted by hand, they are made anew."""
    host = one_port()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    host.settle()
    replace_with_cookie(host, redirect_of(host), redirect_to=host.index("rep0"))
    replace_with_cookie(host, action_of(host, vtep(2)), tunnel=tunnel_to(vtep(2)))
    host.restart_reconciler()
    host.settle()
    assert host.installed() == {("rep0", A): NOWHERE, ("rep0", B): tunnel_to(vtep(3))}
    assert [(p.kind, p.place, p.subjects) for p in host.observe()[1].problems] == [
        (ProblemKind.RULE_TAKEN, "rep0", (A,))
    ]
    for rule in [rule for rule in host.kernel.filters.values() if rule.mac == A]:
        host.kernel.remove_filter(rule)
    host.settle()
    assert host.installed() == host.expected()


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


def test_a_dump_without_its_actions_moves_no_rule():
    """The filters tell of their actions too; a short second dump must not cost 10,000 writes."""
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.settle()
    snapshot, wanted = host.observe()
    assert plan(replace(snapshot, actions=()), wanted).operations == ()


def test_actions_are_deleted_once_the_kernel_has_let_go_of_them():
    host = one_port()
    host.kernel.linger = 2
    host.announce(A, vtep(2))
    host.settle()
    host.withdraw(A)
    failed = [code for _ in range(6) for code in host.run()[1] if code]
    assert failed == []  # no delete is tried that the kernel would refuse
    assert not host.kernel.actions


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_no_rule_binds_an_action_before_its_repair_is_seen(code):
    """Else, were the repair to fail, MACs would newly be led astray (I5), or into the black hole of a dead redirect."""
    host = one_port()
    host.announce(A, vtep(2))
    host.settle()
    host.recreate(ENCAPSULATION)
    host.announce(B, vtep(2))
    host.kernel.fault = failing(code, 1)
    host.run()
    assert host.kernel.leads(host.index("rep0"), B, host.config.pref) is None
    host.settle()
    assert host.installed() == host.expected()

"""Which MAC is behind which VTEP, and what is said of those in doubt (thesis 3.4.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services._host.netlink.objects import ETH_P_ALL, Action, ActionKind, FdbEntry, Filter, Snapshot, Tunnel, Vxlan
from services.reconciler.core.config import ForwardingConfig, OffloadPolicy
from services.reconciler.core.desired import Desired, desired
from services.reconciler.core.problems import ProblemKind
from tests.support.edge_host import APPLICATION, ENCAPSULATION, EdgeHost, another, remote_mac, tunnel_to, vtep

A = remote_mac(1)
B = remote_mac(2)


def wanted(host: EdgeHost) -> Desired:
    return host.observe()[1]


def kinds(host: EdgeHost) -> list[ProblemKind]:
    return [problem.kind for problem in wanted(host).problems]


def macs(host: EdgeHost) -> set[str]:
    return {rule.mac for rule in wanted(host).rules}


def test_every_managed_port_of_the_bridge_gets_a_rule_for_every_remote_mac():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.announce(B, vtep(3))
    result = wanted(host)
    rep0, rep1 = host.index("rep0"), host.index("rep1")
    # 2 ports in br0 x 2 MACs; rep2 is in br1, which has heard of none.
    assert [(rule.ifindex, rule.mac, rule.tunnel) for rule in result.rules] == [
        (rep0, A, tunnel_to(vtep(2))),
        (rep0, B, tunnel_to(vtep(3))),
        (rep1, A, tunnel_to(vtep(2))),
        (rep1, B, tunnel_to(vtep(3))),
    ]
    assert result.tunnels == (tunnel_to(vtep(2)), tunnel_to(vtep(3)))
    assert result.redirect_to == host.index(ENCAPSULATION)
    assert result.clsact == {rep0, rep1}
    assert result.problems == ()


def test_bridges_have_their_own_vni_and_their_own_macs():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.announce(A, vtep(3), "vx200")
    assert {(rule.ifindex, rule.tunnel) for rule in wanted(host).rules} == {
        (host.index("rep0"), tunnel_to(vtep(2))),
        (host.index("rep1"), tunnel_to(vtep(2))),
        (host.index("rep2"), tunnel_to(vtep(3), vni=200)),
    }


def test_entries_that_differ_in_vlan_only_make_one_rule():
    host = EdgeHost()
    host.announce(A, vtep(2), vlans=(0, 1, 7))
    assert len(wanted(host).rules) == 2  # rep0 and rep1


def test_a_mac_needs_both_entries():
    host = EdgeHost()
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=True, destination=vtep(2), extern_learn=True))
    host.kernel.put_row(FdbEntry(host.index("vx100"), B, own=False, extern_learn=True))
    assert not wanted(host).rules
    assert not wanted(host).problems  # zebra is about to write the other one


def test_an_entry_that_only_the_bridge_learned_is_no_announcement():
    host = EdgeHost()
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=True, destination=vtep(2)))
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=False))
    assert not wanted(host).rules


@pytest.mark.parametrize("mac", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01"])
def test_floods_and_groups_are_left_to_the_bridge(mac):
    host = EdgeHost()
    host.announce(mac, vtep(2))
    assert not wanted(host).rules


def test_two_destinations_are_a_problem_and_no_rule():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=True, destination=vtep(3), static=True))
    host.announce(B, vtep(3))
    assert macs(host) == {B}
    (problem,) = wanted(host).problems
    assert (problem.kind, problem.place, problem.subjects) == (ProblemKind.TWO_DESTINATIONS, "vx100", (A,))
    assert A in problem.text
    assert "bridge fdb del" in problem.text


def test_a_nexthop_group_is_a_problem_and_no_rule():
    host = EdgeHost()
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=True, nexthop_id=7, extern_learn=True))
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=False, extern_learn=True))
    assert not wanted(host).rules
    assert kinds(host) == [ProblemKind.MULTIHOMED]


@pytest.mark.parametrize("address", ["10.255.0.1", "239.1.1.1", "0.0.0.0", "fd00::2"])
def test_an_address_that_is_no_remote_vtep_is_a_problem(address):
    host = EdgeHost()
    host.announce(A, address)
    assert not wanted(host).rules
    assert kinds(host) == [ProblemKind.UNUSABLE_DESTINATION]


def test_ipv6_vteps_always_carry_a_checksum():
    host = EdgeHost(local="fd00::1")
    host.config = another(host.config, checksum=False)
    host.announce(A, "fd00::2")
    assert wanted(host).tunnels == (Tunnel("fd00::1", "fd00::2", 100, 4789, checksum=True),)


def test_an_entry_with_a_vni_and_port_of_its_own_keeps_them():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.drop_rows(host.index("vx100"), A, own=True)
    host.kernel.put_row(FdbEntry(host.index("vx100"), A, own=True, destination=vtep(2), vni=300, port=4800))
    assert wanted(host).tunnels == (Tunnel("10.255.0.1", vtep(2), 300, 4800),)


def test_a_mac_on_a_local_port_has_no_rule():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.learn(A, "rep1")
    assert not wanted(host).rules
    assert A in wanted(host).elsewhere[host.index("rep0")]


def test_a_mac_here_in_one_vlan_and_there_in_another_is_a_problem():
    host = EdgeHost()
    host.announce(A, vtep(2), vlans=(0,))
    host.kernel.put_row(FdbEntry(host.index("rep1"), A, own=False, vlan=1))
    assert not wanted(host).rules
    assert kinds(host) == [ProblemKind.TWO_PLACES]


def test_an_applications_mac_gets_a_static_entry():
    host = EdgeHost()
    assert wanted(host).static == (
        FdbEntry(host.index("rep0"), APPLICATION, own=False, static=True),
        FdbEntry(host.index("rep2"), "02:00:00:00:00:02", own=False, static=True),
    )


def test_an_applications_mac_that_another_host_announces_is_a_problem_and_no_fight():
    host = EdgeHost()
    host.announce(APPLICATION, vtep(2))
    result = wanted(host)
    assert kinds(host) == [ProblemKind.CLAIMED_ELSEWHERE]
    assert "vx100" in result.problems[0].text
    assert APPLICATION not in {entry.mac for entry in result.static}
    assert not result.rules


def test_one_mac_for_two_ports_of_a_bridge_is_a_problem():
    host = EdgeHost()
    host.config = another(host.config, application_macs={"rep0": (APPLICATION,), "rep1": (APPLICATION,)})
    assert kinds(host) == [ProblemKind.CLAIMED_ELSEWHERE]
    assert not wanted(host).static


def test_an_applications_mac_that_is_the_ports_own_is_a_problem():
    host = EdgeHost()
    own = host.kernel.links[host.index("rep0")].mac
    host.config = another(host.config, application_macs={"rep0": (own,)})
    assert kinds(host) == [ProblemKind.PORT_MAC]
    assert not wanted(host).static


def test_ports_that_are_missing_or_in_no_bridge():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.set_link(host.index("rep1"), master=0)
    host.kernel.delete_link(host.index("rep2"))
    assert kinds(host) == [ProblemKind.PORT_MISSING, ProblemKind.PORT_UNBRIDGED]
    assert {rule.ifindex for rule in wanted(host).rules} == {host.index("rep0")}


def test_a_bridge_without_a_vtep_or_with_two():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.make("vx300", "vxlan", "br0", Vxlan(300, "10.255.0.1", 4789, external=False))
    host.kernel.delete_link(host.index("vx200"))
    assert kinds(host) == [ProblemKind.VTEP_AMBIGUOUS, ProblemKind.VTEP_MISSING]
    assert not wanted(host).rules
    assert len(wanted(host).static) == 2  # an application's MAC stays known all the same


@pytest.mark.parametrize("vxlan", [Vxlan(100, None, 4789, external=False), Vxlan(0, "10.255.0.1", 4789, external=True)])
def test_a_vtep_without_an_address_or_vni(vxlan):
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.set_link(host.index("vx100"), vxlan=vxlan)
    assert kinds(host) == [ProblemKind.VTEP_ADDRESS]


@pytest.mark.parametrize("fault", ["missing", "plain", "down", "bridged"])
def test_without_a_usable_encapsulation_device_there_is_no_rule(fault):
    """A redirect there would lose every packet, or ignore the tunnel key; the bridge delivers them."""
    host = EdgeHost()
    host.announce(A, vtep(2))
    index = host.index(ENCAPSULATION)
    if fault == "missing":
        host.kernel.delete_link(index)
    elif fault == "plain":
        host.kernel.set_link(index, vxlan=Vxlan(9, "10.255.0.1", 4790, external=False))
    elif fault == "down":
        host.kernel.set_link(index, up=False)
    else:
        host.kernel.set_link(index, master=host.index("br1"))
    result = wanted(host)
    assert (result.rules, result.redirect_to) == ((), 0)
    assert ProblemKind.ENCAPSULATION_DEVICE in kinds(host)


def test_without_ports_no_encapsulation_device_is_missed():
    """A host whose paths alone are looked at."""
    host = EdgeHost()
    host.kernel.delete_link(host.index(ENCAPSULATION))
    without_ports = replace(wanted(host).config, application_macs={})
    assert desired(host.kernel.snapshot(), without_ports).problems == ()


def foreign(host: EdgeHost, mac: str, pref: int) -> Filter:
    return Filter(host.index("rep0"), pref, 1, "flower", mac, foreign_actions=True)


@pytest.mark.parametrize(("pref", "words"), [(10, "come before"), (60_000, "come after")])
def test_a_foreign_rule_for_the_same_mac_in_another_pref_is_told(pref, words):
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.put_filter(foreign(host, A, pref))
    assert macs(host) == {A}
    (problem,) = wanted(host).problems
    assert (problem.kind, problem.place, problem.subjects) == (ProblemKind.SHADOWED, "rep0", (A,))
    assert words in problem.what


def test_a_foreign_rule_in_our_pref_keeps_its_mac():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.announce(B, vtep(2))
    host.kernel.put_filter(foreign(host, A, host.config.pref))
    here = {rule.mac for rule in wanted(host).rules if rule.ifindex == host.index("rep0")}
    assert here == {B}
    assert kinds(host) == [ProblemKind.RULE_TAKEN]


def test_a_foreign_rule_in_our_pref_that_does_not_match_one_mac_is_reported():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.put_filter(replace(foreign(host, A, host.config.pref), mac=None))
    assert macs(host) == {A}, "flower takes both, so the managed rule is written all the same"
    (problem,) = wanted(host).problems
    assert (problem.kind, problem.place) == (ProblemKind.SHADOWED, "rep0")
    assert f"preference {host.config.pref}" in problem.what


@pytest.mark.parametrize("changes", [{"kind": "u32", "mac": None}, {"protocol": 0x0800}])
def test_a_foreign_rule_of_another_kind_or_protocol_closes_our_pref(changes):
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.put_filter(replace(foreign(host, A, host.config.pref), **changes))
    assert {rule.ifindex for rule in wanted(host).rules} == {host.index("rep1")}
    assert kinds(host) == [ProblemKind.PREF_TAKEN]


def test_an_ingress_qdisc_in_clsacts_place_is_told():
    host = EdgeHost()
    host.announce(A, vtep(2))
    host.kernel.ingress.add(host.index("rep0"))
    assert {rule.ifindex for rule in wanted(host).rules} == {host.index("rep1")}
    assert kinds(host) == [ProblemKind.INGRESS_QDISC]


def test_rows_of_a_vanished_device_say_nothing():
    """A torn dump: the row is there, its device is not."""
    host = EdgeHost()
    snapshot = host.kernel.snapshot()
    torn = replace(snapshot, fdb=(*snapshot.fdb, FdbEntry(999, A, own=False, extern_learn=True)))
    assert desired(torn, host.config).rules == ()


def test_an_empty_kernel_is_no_error():
    result = desired(Snapshot(), ForwardingConfig("vxenc0", {"rep0": ()}))
    assert [problem.kind for problem in result.problems] == [
        ProblemKind.ENCAPSULATION_DEVICE,
        ProblemKind.PORT_MISSING,
    ]


@pytest.mark.parametrize(
    "macs",
    [
        ("02:00:00:00:00:01", "02:00:00:00:00:01"),
        ("01:00:5e:00:00:01",),
        ("02:0:0:0:0:1",),
        ("02:00:00:00:00:0A",),
        ("",),
    ],
)
def test_settings_that_name_no_machines_mac_are_refused(macs):
    with pytest.raises(ValueError, match="rep0"):
        ForwardingConfig("vxenc0", {"rep0": macs})


@pytest.mark.parametrize("pref", [0, 65_536])
def test_settings_with_an_impossible_pref_are_refused(pref):
    with pytest.raises(ValueError, match="pref"):
        ForwardingConfig("vxenc0", pref=pref)


def test_the_offload_policy_says_what_the_kernel_is_asked():
    assert [(p.skip_hw, p.skip_sw, p.action_flags) for p in OffloadPolicy] == [
        (True, False, 2),
        (False, False, 0),
        (False, True, 4),
    ]


def test_a_problem_lists_three_examples():
    host = EdgeHost()
    for number in range(5):
        host.announce(remote_mac(number), "10.255.0.1")
    text = wanted(host).problems[0].text
    assert f"({remote_mac(0)}, {remote_mac(1)}, {remote_mac(2)} and 2 more)" in text


def test_what_is_ours_and_what_is_not():
    cookie = b"THRN" + bytes(12)
    ours = Action(ActionKind.MIRRED, 1, cookie)
    theirs = Action(ActionKind.MIRRED, 2)
    assert Filter(1, 5, 1, "flower", A, (ours,)).managed
    assert not Filter(1, 5, 1, "flower", A, (theirs,)).managed
    assert Filter(1, 5, 1, "flower", A).protocol == ETH_P_ALL

"""The rules of the fast path, one by one, on a clock of the test's own."""

from __future__ import annotations

import pytest

from services.fastpath.override_decisions import BFDD, OverrideDecisions
from services.fastpath.values import Announce, FrrRoute, Hop, Limits, RemovalReason, Write

TOR1, TOR2 = "10.255.0.101", "10.255.0.102"
H2, H3 = "10.255.0.2", "10.255.0.3"
P1, P2, P3 = (Hop(index, b"via", 4) for index in (11, 12, 13))


def route(*hops):
    return FrrRoute(hops, b"src")


@pytest.fixture
def core():
    """Two uplinks, both up; two hosts over both; at time 0."""
    made = OverrideDecisions(("p1", "p2"), Limits())
    for name, index, tor in (("p1", 11, TOR1), ("p2", 12, TOR2)):
        made.link(name, index, carrier=True, now_s=0)
        made.bfd(name, "up", 0)
        made.set_router_ids({name: tor})
    made.update_routes({H2: route(P1, P2), H3: route(P1, P2)}, 0)
    return made


def test_a_session_that_leaves_up_takes_its_hop_out_everywhere_and_is_told(core) -> None:
    outcome = core.bfd("p1", "down", 10)

    assert outcome.writes == [Write(H2, route(P2)), Write(H3, route(P2))]
    assert outcome.announce == Announce("p1", TOR1)


def test_lost_carrier_does_the_same(core) -> None:
    assert [write.route for write in core.link("p2", 12, carrier=False, now_s=10).writes] == [route(P1), route(P1)]


def test_the_session_that_follows_lost_carrier_is_no_second_fault(core) -> None:
    core.link("p1", 11, carrier=False, now_s=10)
    outcome = core.bfd("p1", "down", 10.1)

    assert not outcome.writes
    assert outcome.announce is None
    assert len(core.uplinks["p1"].faults.times_s) == 1


@pytest.mark.parametrize("state", ["adm-down", "remote-adm-down", None, "up"])
def test_only_a_session_that_fails_is_a_fault(core, state) -> None:
    assert not core.bfd("p1", state, 10).writes


@pytest.mark.parametrize("state", ["adm-down", "remote-adm-down"])
def test_bgp_that_is_closed_with_bfd_is_no_fault_and_later_on_it_is(core, state) -> None:
    """FRR closes BGP because BFD was closed. Nobody watches the path then but BGP, so its end counts again soon."""
    core.bfd("p1", state, 10)
    assert not core.bgp_closed("p1", 10.9).writes
    assert core.bgp_closed("p1", 11.1).writes


def test_a_session_that_was_never_up_is_no_fault() -> None:
    core = OverrideDecisions(("p1", "p2"), Limits())
    for name, index in (("p1", 11), ("p2", 12)):
        core.link(name, index, carrier=True, now_s=0)
    core.update_routes({H2: route(P1, P2)}, 0)

    assert not core.bfd("p1", "down", 1).writes


def test_a_hop_that_is_known_to_be_dead_is_no_way_out() -> None:
    """Begun in the middle of a fault: p1 is down and nobody knows since when. p2 fails: nothing is left to go by."""
    core = OverrideDecisions(("p1", "p2", "p3"), Limits())
    for name, index in (("p1", 11), ("p2", 12), ("p3", 13)):
        core.link(name, index, carrier=True, now_s=0)
        core.bfd(name, "down" if name == "p1" else "up", 0)
    core.update_routes({H2: route(P1, P2), H3: route(P1, P2, P3)}, 0)

    assert core.bfd("p2", "down", 1).writes == [Write(H3, route(P3))]


def test_the_last_hop_stays(core) -> None:
    core.update_routes({H2: route(P1)}, 1)

    assert core.bfd("p1", "down", 10).writes == [Write(H3, route(P2))]


def test_frr_without_the_dead_hop_ends_the_override_at_once(core) -> None:
    core.bfd("p1", "down", 10)
    outcome = core.update_routes({H2: route(P2)}, 10.07)

    assert outcome.writes == [Write(H2, None)]
    assert [(row.destination, row.reason) for row in outcome.removed] == [(H2, RemovalReason.FRR_CONVERGED)]
    assert outcome.removed[0].held_s == pytest.approx(0.07)


def test_frr_without_the_route_ends_it_too(core) -> None:
    core.bfd("p1", "down", 10)

    assert [row.reason for row in core.update_routes({H2: None}, 10.07).removed] == [RemovalReason.FRR_WITHDREW]


def test_after_hand_back_the_dead_hop_is_frrs_matter(core) -> None:
    """BGP may be there before BFD: what FRR says after it had agreed counts."""
    core.bfd("p1", "down", 10)
    core.update_routes({H2: route(P2), H3: route(P2)}, 10.07)

    assert not core.update_routes({H2: route(P1, P2)}, 12).writes


def test_a_blip_is_held_until_t_max_and_recovery_writes_nothing(core) -> None:
    core.bfd("p1", "down", 10)

    assert not core.bfd("p1", "up", 10.3).writes
    assert not core.tick(10.99).writes
    assert core.due_s == pytest.approx(11)
    assert [row.reason for row in core.tick(11).removed] == [RemovalReason.TIMEOUT] * 2


def test_while_the_uplink_is_dead_it_is_held_beyond_t_max_with_one_alarm(core) -> None:
    core.bfd("p1", "down", 10)
    outcome = core.tick(11)

    assert not outcome.writes
    assert [(status.kind, status.alarm) for status in outcome.statuses] == [("not_converging", True)]
    assert not core.tick(30).statuses
    assert [row.reason for row in core.bfd("p1", "up", 31).removed] == [RemovalReason.TIMEOUT] * 2


def test_another_hosts_word_counts_for_its_own_route_and_dies_at_t_max(core) -> None:
    verdict, outcome = core.peer_fault(H2, TOR1, 10)

    assert (verdict, outcome.writes) == ("applied", [Write(H2, route(P2))])
    assert core.due_s == pytest.approx(11)
    assert core.tick(11).writes == [Write(H2, None)]


def test_saying_it_again_does_not_make_it_last(core) -> None:
    core.peer_fault(H2, TOR1, 10)

    assert core.peer_fault(H2, TOR1, 10.9)[0] == "nothing_to_do"
    assert core.tick(11).writes == [Write(H2, None)]


def test_what_others_say_never_takes_the_last_hop(core) -> None:
    core.peer_fault(H2, TOR1, 10)
    verdict, outcome = core.peer_fault(H2, TOR2, 10.1)

    # Both words together would leave nothing: FRR's own route counts again.
    assert (verdict, outcome.writes) == ("nothing_to_do", [Write(H2, None)])


def test_a_fault_seen_here_beats_what_another_host_says(core) -> None:
    core.peer_fault(H2, TOR1, 10)
    outcome = core.bfd("p2", "down", 10.1)

    assert outcome.writes == [Write(H2, route(P1)), Write(H3, route(P1))]


@pytest.mark.parametrize(("origin", "tor", "verdict"), [(H2, "9.9.9.9", "unknown_tor"), ("10.9.9.9", TOR1, "no_route")])
def test_words_about_what_we_do_not_know_do_nothing(core, origin, tor, verdict) -> None:
    assert core.peer_fault(origin, tor, 10)[0] == verdict
    assert not core.overrides


def test_a_host_that_tells_of_too_many_faults_is_not_listened_to(core) -> None:
    """Three are fine within ten seconds; the fourth is one too many, and for 30 s so is every other one."""
    for now_s in (10, 12, 14):
        assert core.peer_fault(H2, TOR1, now_s)[0] == "applied"
        core.tick(now_s + 1)

    assert core.peer_fault(H2, TOR1, 16)[0] == "flap_damped"
    assert core.peer_fault(H2, TOR1, 45.9)[0] == "flap_damped"
    assert core.peer_fault(H3, TOR1, 16)[0] == "applied"
    assert core.peer_fault(H2, TOR1, 46.1)[0] == "applied"


def test_too_many_faults_leave_frr_in_charge(core) -> None:
    for now_s in (10, 12, 14):
        assert core.bfd("p1", "down", now_s).writes
        core.bfd("p1", "up", now_s + 1)

    outcome = core.bfd("p1", "down", 16)
    assert not core.overrides
    assert [(status.kind, status.alarm) for status in outcome.statuses] == [("flap_damped", True)]
    assert outcome.announce is None
    core.bfd("p1", "up", 17)
    core.bfd("p1", "down", 30)
    assert not core.overrides
    core.bfd("p1", "up", 31)
    assert [status.kind for status in core.tick(46).statuses] == ["flap_damping_ended"]
    assert core.bfd("p1", "down", 46.1).writes


def test_no_live_uplink_leaves_frr_in_charge(core) -> None:
    core.bfd("p1", "down", 10)
    outcome = core.bfd("p2", "down", 10.01)

    assert [write.route for write in outcome.writes] == [None, None]
    assert {row.reason for row in outcome.removed} == {RemovalReason.FLAP_DAMPED}
    core.tick(core.due_s)
    assert core.due_s == pytest.approx(40.01)


def test_blind_makes_nothing_new_and_forgets_the_sessions(core) -> None:
    core.bfd("p1", "down", 10)
    core.update_routes({H3: route(P2)}, 10.05)
    core.input_lost(BFDD, "closed", 10.1)
    assert list(core.overrides) == [H2]
    assert [status.kind for status in core.link("p2", 12, carrier=False, now_s=10.2).statuses] == ["suppressed"]
    core.link("p2", 12, carrier=True, now_s=10.3)
    assert core.peer_fault(H3, TOR1, 10.3)[0] == "input_lost"

    # Its cause is not known any more: T_max ends it.
    assert [row.reason for row in core.tick(11).removed] == [RemovalReason.TIMEOUT]


def test_sessions_after_a_restart_of_bfdd_begin_anew(core) -> None:
    core.input_lost(BFDD, "closed", 10)
    core.input_restored(BFDD, 11)

    assert not core.bfd("p1", "down", 11).writes
    core.bfd("p1", "up", 12)
    assert core.bfd("p1", "down", 13).writes


def test_frr_that_loses_another_hop_meanwhile_is_followed() -> None:
    core = OverrideDecisions(("p1", "p2", "p3"), Limits())
    for name, index in (("p1", 11), ("p2", 12), ("p3", 13)):
        core.link(name, index, carrier=True, now_s=0)
        core.bfd(name, "up", 0)
    core.update_routes({H2: route(P1, P2, P3)}, 0)

    assert core.bfd("p1", "down", 1).writes == [Write(H2, route(P2, P3))]
    assert core.update_routes({H2: route(P1, P3)}, 1.01).writes == [Write(H2, route(P3))]
    assert core.update_routes({H2: route(P1)}, 1.02).writes == [Write(H2, None)]


def test_a_link_that_is_deleted_is_a_fault_and_its_successor_is_known(core) -> None:
    assert [write.route for write in core.link("p1", 0, carrier=False, now_s=10).writes] == [route(P2), route(P2)]
    new = Hop(21, b"via", 4)
    core.update_routes({H2: route(P2), H3: route(P2)}, 10.1)
    core.link("p1", 21, carrier=True, now_s=11)
    core.bfd("p1", "up", 12)
    core.update_routes({H2: route(new, P2)}, 12)

    assert core.bfd("p1", "down", 13).writes == [Write(H2, route(P2))]


def test_what_the_kernel_refuses_is_given_up(core) -> None:
    core.bfd("p1", "down", 10)
    outcome = core.override_rejected(H2, "no", 10.001)

    assert outcome.writes == [Write(H2, None)]
    assert outcome.statuses[0].alarm
    assert list(core.overrides) == [H3]


def test_what_others_deleted_is_not_deleted_again(core) -> None:
    core.bfd("p1", "down", 10)
    outcome = core.routes_deleted([H2, "10.9.9.9"], RemovalReason.LOST, 10.1)

    assert not outcome.writes
    assert [row.destination for row in outcome.removed] == [H2]


def test_a_new_look_at_all_routes_is_a_change_of_each(core) -> None:
    core.bfd("p1", "down", 10)
    outcome = core.replace_routes({H3: route(P2), "10.255.0.4": route(P1, P2)}, 10.05)

    assert {row.destination: row.reason for row in outcome.removed} == {
        H2: RemovalReason.FRR_WITHDREW,
        H3: RemovalReason.FRR_CONVERGED,
    }
    assert set(core.routes) == {H3, "10.255.0.4"}


def test_a_switch_that_closes_its_session_is_left_until_frr_agrees_or_t_max(core) -> None:
    outcome = core.bgp_closed("p1", 10)
    assert outcome.writes == [Write(H2, route(P2)), Write(H3, route(P2))]
    assert outcome.announce is None, "the others reach us through it"
    assert [row.reason for row in core.update_routes({H2: route(P2)}, 10.07).removed] == [RemovalReason.FRR_CONVERGED]
    assert [row.reason for row in core.tick(11).removed] == [RemovalReason.TIMEOUT]


def test_both_switches_closing_leave_frrs_route(core) -> None:
    """Our own bgpd ends, say: both sessions close."""
    core.bgp_closed("p1", 10)

    assert [write.route for write in core.bgp_closed("p2", 10.001).writes] == [None, None]


def test_a_session_that_fails_afterwards_is_a_fault_of_its_own(core) -> None:
    core.bgp_closed("p1", 10)
    outcome = core.bfd("p1", "down", 10.12)

    assert not outcome.writes
    assert outcome.announce == Announce("p1", TOR1)
    assert not core.tick(11.5).removed, "held for what is dead here"


def test_a_switch_that_closes_again_and_again_is_not_listened_to(core) -> None:
    for now_s in (10, 12, 14):
        assert core.bgp_closed("p1", now_s).writes
        core.tick(now_s + 1)

    assert [status.kind for status in core.bgp_closed("p1", 16).statuses] == ["peer_flap_damped"]
    assert not core.overrides


def test_a_closing_of_what_frr_does_not_use_counts_for_nothing(core) -> None:
    """Two connections of a new session collide, and one is closed: FRR has no route over the uplink yet."""
    core.replace_routes({H2: route(P2)}, 9)
    for now_s in (10, 11, 12, 13, 14):
        assert core.bgp_closed("p1", now_s) == core.tick(now_s), "nothing written, nothing said"
    core.replace_routes({H2: route(P1, P2)}, 15)

    assert core.bgp_closed("p1", 15.5).writes == [Write(H2, route(P2))]


def test_an_override_leaves_what_dies_without_being_a_fault() -> None:
    """A session that was switched off, and then is down, was never seen to fail."""
    core = OverrideDecisions(("p1", "p2", "p3"), Limits())
    for name, index in (("p1", 11), ("p2", 12), ("p3", 13)):
        core.link(name, index, carrier=True, now_s=0)
        core.bfd(name, "up", 0)
    core.update_routes({H2: route(P1, P2, P3)}, 0)
    core.bfd("p2", "adm-down", 1)
    assert core.bfd("p1", "down", 2).writes == [Write(H2, route(P2, P3))]

    assert core.bfd("p2", "down", 2.1).writes == [Write(H2, route(P3))]

"""The rules of ownership one by one; `test_replica_faults` has several replicas follow them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.leases.lease_manager import (
    EPOCH_JUMP_MS,
    FORGET_LEASE_S,
    FORGET_REPLICA_S,
    LeaseChange,
    LeaseManager,
    LeaseTimeouts,
    StoredLease,
    Swap,
    preferred_owner,
)

TTL_S = 2.0
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


def apps_of(me: str, other: str) -> str:
    """An application that should be ours if both live."""
    return next(f"app{number}" for number in range(100) if preferred_owner(f"app{number}", (me, other)) == me)


APP = apps_of("a", "b")
WALL_MS = 1_000


@pytest.fixture
def a() -> LeaseManager:
    """Replica a at 10 s, just renewed; b holds the lease and was heard at 7 s."""
    a = LeaseManager("a", LeaseTimeouts(TTL_S), announced={APP})
    a.renewed(8.5, 8.5)
    a.renewed(10.0, 10.0)
    a.observe_heartbeat("b", 1, 7.0)
    a.observe_lease(APP, StoredLease("b", 5, 2), 7.0)
    return a


def own(a: LeaseManager, *, now_s: float = 10.0) -> Swap:
    """Take a free lease."""
    a.lease_read(APP, StoredLease("", 5, 3), now_s)
    swap = a.swap(APP, now_s, WALL_MS)
    assert swap is not None
    a.swap_stored(swap, 4, now_s)
    return swap


# -- who should own ----------------------------------------------------------------------------------------------


def test_shares_are_balanced():
    live = ("r1", "r2", "r3")

    shares = Counter(preferred_owner(f"app{number}", live) for number in range(900))

    assert set(shares) == set(live)
    assert all(250 <= share <= 350 for share in shares.values()), shares


@given(app=NAMES, live=st.lists(NAMES, min_size=2, max_size=8, unique=True), which=st.integers(0, 7))
def test_only_what_a_replica_owned_moves_when_it_goes(app, live, which):
    owner, gone = preferred_owner(app, tuple(live)), live[which % len(live)]
    rest = tuple(name for name in live if name != gone)

    assert owner in live
    assert preferred_owner(app, tuple(reversed(live))) == owner
    assert gone == owner or preferred_owner(app, rest) == owner


def test_without_live_replicas_there_is_no_preferred_owner():
    assert preferred_owner("app", ()) is None


# -- taking over -------------------------------------------------------------------------------------------------


def test_a_free_lease_is_taken_under_a_higher_epoch(a):
    swap = own(a)

    assert swap == Swap(APP, StoredLease("a", WALL_MS, 3), swap.generation)
    assert a.take_changes() == [LeaseChange(APP, WALL_MS)]
    assert (a.held, a.owner(APP), a.may_decide(10.1)) == ({APP: WALL_MS}, "a", True)


def test_the_epoch_rises_where_our_clock_is_behind(a):
    a.lease_read(APP, StoredLease("", 5_000, 3), 10.0)

    assert a.swap(APP, 10.0, WALL_MS).lease.epoch == 5_001


def test_what_is_taken_at_different_times_shares_an_epoch_where_it_can(a):
    """An order to a node is of one epoch: fewer epochs are fewer messages."""
    own(a)
    others = [f"more{number}" for number in range(30)]
    a.announced.update(others)
    for number, app in enumerate(others):
        a.lease_read(app, StoredLease("", 7 * number, 20 + number) if number else StoredLease(), 10.0)
        a.swap_stored(a.swap(app, 10.0, WALL_MS + number), 100 + number, 10.0)

    assert set(a.held.values()) == {WALL_MS}


def test_an_epoch_that_was_seen_is_passed_also_where_the_lease_has_become_unreadable(a):
    a.observe_lease(APP, StoredLease("b", 9_000, 4), 10.0)
    a.lease_read(APP, StoredLease(revision=5), 10.0)

    assert a.swap(APP, 10.0, WALL_MS).lease == StoredLease("a", 9_001, 5)


def test_a_silent_owner_is_robbed_after_a_direct_read_only(a):
    assert APP in a.leases_to_read(10.0)
    a.lease_read(APP, StoredLease("b", 5, 2), 10.0)
    assert a.swap(APP, 10.0, WALL_MS) is None

    a.heartbeat_read("b", 1, 10.0, 10.1)

    assert a.swap(APP, 10.1, WALL_MS) == Swap(APP, StoredLease("a", WALL_MS, 2), 1)


def test_a_heartbeat_that_was_read_before_the_lease_does_not_count(a):
    """Its owner may have come back in between, and renewed the lease."""
    a.heartbeat_read("b", 1, 9.9, 9.95)
    a.lease_read(APP, StoredLease("b", 5, 2), 10.0)

    assert a.swap(APP, 10.1, WALL_MS) is None


def test_a_read_that_was_sent_too_early_does_not_count(a):
    """The heartbeat was seen at 7 s, so its sender may decide until 9 s."""
    a.lease_read(APP, StoredLease("b", 5, 2), 8.8)
    a.heartbeat_read("b", 1, 8.9, 10.0)

    assert a.swap(APP, 10.0, WALL_MS) is None


def test_an_owner_that_lives_is_not_robbed(a):
    a.lease_read(APP, StoredLease("b", 5, 2), 10.0)
    a.heartbeat_read("b", 2, 10.0, 10.1)

    assert a.swap(APP, 10.1, WALL_MS) is None
    assert APP not in a.leases_to_read(10.2)


def test_a_lease_that_is_due_is_read_again_whoever_is_believed_to_own_it(a):
    """A read that was answered late told of a live owner, which had released it meanwhile: free, and due to a."""
    own(a)
    a.renewed(14.0, 14.0)
    a.observe_heartbeat("b", 10, 14.0)
    assert APP in a.leases_to_read(14.0)
    a.observe_lease(APP, StoredLease("b", 2_000, 5), 14.01)
    a.observe_lease(APP, StoredLease("", 2_000, 6), 14.01)
    a.lease_read(APP, StoredLease("b", 2_000, 5), 14.0)
    assert APP in a.leases_to_read(14.1), "older than what the watch has told"
    a.lease_read(APP, StoredLease("b", 2_000, 6), 14.2)
    a.renewed(15.1, 15.1)
    a.observe_heartbeat("b", 11, 15.1)

    assert APP in a.leases_to_read(15.3)


def test_an_answer_to_a_swap_does_not_overwrite_what_is_newer(a):
    a.lease_read(APP, StoredLease("", 5, 3), 10.0)
    swap = a.swap(APP, 10.0, WALL_MS)
    a.observe_lease(APP, StoredLease("b", 2_000, 5), 10.1)

    a.swap_stored(swap, 4, 10.2)

    assert a.leases[APP].revision == 5
    assert APP in a.leases_to_read(10.2)


def test_an_unknown_owner_gets_its_time_to_live(a):
    a.observe_lease(APP, StoredLease("c", 5, 2), 10.0)
    for now_s, expected in ((10.0, None), (11.9, None), (12.1, StoredLease("a", WALL_MS, 2))):
        a.renewed(now_s, now_s)
        assert now_s == 11.9 or APP in a.leases_to_read(now_s)
        a.lease_read(APP, StoredLease("c", 5, 2), now_s)
        a.heartbeat_read("c", 0, now_s, now_s)
        swap = a.swap(APP, now_s, WALL_MS)
        assert (swap.lease if swap else None) == expected


def test_what_another_should_own_is_left_to_it(a):
    a.observe_heartbeat("b", 2, 10.0)
    theirs = apps_of("b", "a")
    a.announced.add(theirs)
    a.lease_read(theirs, StoredLease("", 5, 3), 10.0)

    assert theirs not in a.leases_to_read(10.0)
    assert a.swap(theirs, 10.0, WALL_MS) is None


def test_a_lease_in_our_name_that_we_know_nothing_of_is_taken_anew(a):
    """The answer to our own swap was lost."""
    a.observe_lease(APP, StoredLease("a", 7, 3), 10.0)
    assert APP in a.leases_to_read(10.0)
    a.lease_read(APP, StoredLease("a", 7, 3), 10.0)

    assert a.swap(APP, 10.0, 1).lease == StoredLease("a", 8, 3)


def test_a_replica_that_joins_first_observes_the_others():
    newcomer = LeaseManager("n", LeaseTimeouts(TTL_S))
    assert newcomer.membership_known(10.0), "nobody is there"
    newcomer.observe_heartbeat("b", 1, 10.0)
    newcomer.observe_heartbeat("dead", 2, 10.0)
    assert not newcomer.membership_known(10.1)

    newcomer.observe_heartbeat("b", 3, 10.4)

    assert not newcomer.membership_known(11.9)
    assert newcomer.membership_known(12.1)
    assert newcomer.live(12.1) == ("b",)


# -- giving up ---------------------------------------------------------------------------------------------------


def test_an_application_is_released_before_it_is_handed_to_a_replica_that_joins(a):
    theirs = apps_of("b", "a")
    a.announced.add(theirs)
    a.lease_read(theirs, StoredLease("", 1, 8), 10.0)
    a.swap_stored(a.swap(theirs, 10.0, WALL_MS), 9, 10.0)
    a.take_changes()
    assert theirs not in a.leases_to_read(10.0)

    a.observe_heartbeat("b", 2, 10.5)

    assert theirs in a.leases_to_read(10.5)
    a.lease_read(theirs, StoredLease("a", WALL_MS, 9), 10.5)
    assert a.swap(theirs, 10.5, WALL_MS) == Swap(theirs, StoredLease("", WALL_MS, 9))
    assert a.take_changes() == [LeaseChange(theirs, None)], "before the swap is carried out"
    assert a.lost == 0


def test_what_is_withdrawn_is_released(a):
    own(a)
    a.announced.clear()

    assert a.leases_to_read(10.1) == [APP]
    assert a.swap(APP, 10.1, WALL_MS).lease.owner == ""


def test_leaving_gives_up_everything(a):
    own(a)

    assert a.release_all() == [Swap(APP, StoredLease("", WALL_MS, 4))]
    assert a.held == {}
    assert not a.renewed_lately(10.1)


def test_a_watch_that_contradicts_is_a_reason_to_look_and_no_more(a):
    own(a)
    a.take_changes()
    a.observe_lease(APP, StoredLease("", 5, 3), 10.1)
    assert a.held
    assert a.leases_to_read(10.1) == [APP]

    a.lease_read(APP, StoredLease("a", WALL_MS, 4), 10.1)
    assert a.leases_to_read(10.2) == []

    a.observe_lease(APP, StoredLease("b", 2_000, 5), 10.3)
    a.lease_read(APP, StoredLease("b", 2_000, 5), 10.3)
    assert a.take_changes() == [LeaseChange(APP, None, lost=True)]
    assert (a.lost, a.owner(APP)) == (1, "b")


def test_a_read_older_than_the_watch_is_repeated(a):
    a.observe_heartbeat("b", 2, 10.0)
    a.observe_lease(APP, StoredLease("", 5, 3), 10.0)

    a.lease_read(APP, StoredLease("b", 5, 2), 9.9)

    assert APP in a.leases_to_read(10.1)
    a.lease_read(APP, StoredLease("b", 5, 2), 10.1)
    assert APP not in a.leases_to_read(10.2), "so it is the truth: the store has begun anew"


# -- one's own silence -------------------------------------------------------------------------------------------


def test_the_time_to_live_counts_from_sending_the_heartbeat(a):
    own(a)
    a.renewed(10.5, 11.9)

    assert a.may_decide(12.5)
    assert not a.may_decide(12.6)
    assert a.leases_to_read(12.6) == []
    assert a.swap(APP, 12.6, WALL_MS) is None


def test_after_a_silence_every_lease_is_swapped_before_anything_is_decided(a):
    own(a)
    a.renewed(13.0, 13.0)
    assert not a.may_decide(13.0)

    assert APP in a.leases_to_read(13.0)
    a.lease_read(APP, StoredLease("a", WALL_MS, 4), 13.0)
    assert not a.may_decide(13.0), "a successor may be about to swap it"
    swap = a.swap(APP, 13.0, 9_000)
    assert swap.lease == StoredLease("a", WALL_MS, 4), "the same epoch: nobody else had it"
    a.swap_stored(swap, 6, 13.1)

    assert a.may_decide(13.1)
    assert a.take_changes() == [LeaseChange(APP, WALL_MS)], "the first one only"


def test_a_conflict_after_a_silence_is_a_loss(a):
    own(a)
    a.renewed(13.0, 13.0)
    a.lease_read(APP, StoredLease("a", WALL_MS, 4), 13.0)

    a.swap_conflicted(a.swap(APP, 13.0, WALL_MS))

    assert a.held == {}
    assert a.lost == 1


def test_a_swap_from_before_a_silence_confirms_nothing(a):
    a.lease_read(APP, StoredLease("", 5, 3), 10.0)
    swap = a.swap(APP, 10.0, WALL_MS)
    a.renewed(13.0, 13.0)
    a.swap_stored(swap, 4, 13.0)

    assert a.held == {APP: WALL_MS}
    assert not a.may_decide(13.0)
    assert APP in a.leases_to_read(13.0)


def test_peers_alive_before_an_interruption_get_time_to_reconnect(a):
    a.observe_heartbeat("b", 2, 9.9)
    a.interrupted()
    a.renewed(11.0, 11.0)
    for now_s in (12.5, 14.0, 15.4):
        a.renewed(now_s, now_s)
        assert a.live(now_s) == ("a", "b")

    a.renewed(15.6, 15.6)
    assert a.live(15.6) == ("a",)


def test_the_dead_are_not_revived_by_an_interruption(a):
    a.interrupted()
    a.renewed(11.0, 11.0)

    assert a.live(11.0) == ("a",)


def test_agents_that_know_a_newer_epoch_are_outdone_if_the_lease_is_ours(a):
    own(a)
    a.report_stale_epoch(APP)
    assert APP in a.leases_to_read(10.1)
    a.lease_read(APP, StoredLease("a", WALL_MS, 4), 10.1)

    swap = a.swap(APP, 10.1, WALL_MS)

    assert swap.lease.epoch == WALL_MS + EPOCH_JUMP_MS
    a.swap_stored(swap, 5, 10.2)
    assert a.take_changes()[-1] == LeaseChange(APP, WALL_MS + EPOCH_JUMP_MS)
    assert a.leases_to_read(10.3) == []


def test_a_refusal_that_comes_while_the_lease_is_being_confirmed_is_not_forgotten(a):
    own(a)
    a.renewed(15.0, 15.0)  # interrupted for longer than the time to live: the lease is to be confirmed
    a.lease_read(APP, StoredLease("a", WALL_MS, 4), 15.1)
    swap = a.swap(APP, 15.1, WALL_MS)
    a.report_stale_epoch(APP)

    a.swap_stored(swap, 5, 15.2)

    assert swap.lease.epoch == WALL_MS
    assert APP in a.leases_to_read(15.3), "no order would be obeyed, for ever"


# -- tidying -----------------------------------------------------------------------------------------------------


def test_long_dead_replicas_are_forgotten_after_a_direct_read(a):
    late_s = 7.0 + FORGET_REPLICA_S + 1
    assert a.expired_replicas(late_s) == []
    a.heartbeat_read("b", 1, late_s, late_s)
    assert a.expired_replicas(late_s) == ["b"]

    a.observe_heartbeat("b", 0, late_s)
    a.observe_lease(APP, StoredLease(), late_s)
    assert a.expired_replicas(late_s + FORGET_REPLICA_S + 1) == []
    assert a.suspects(late_s + FORGET_REPLICA_S + 1) == []


def test_free_leases_are_deleted_when_clocks_must_have_passed_their_epoch(a):
    a.observe_lease(APP, StoredLease("", 5, 3), 10.0)
    a.observe_lease("old", StoredLease("", 5, 4), 10.0)
    a.observe_lease("held", StoredLease("b", 5, 5), 10.0)

    assert a.unused_leases(10.0 + FORGET_LEASE_S - 1) == []
    assert a.unused_leases(10.0 + FORGET_LEASE_S + 1) == ["old"]


def test_an_application_announced_again_after_its_lease_was_deleted_gets_an_epoch_that_agents_do_not_know(a):
    """Another replica, which started later, gave it a higher epoch than this one has given anything."""
    own(a)
    app = next(name for name in (f"again{n}" for n in range(100)) if preferred_owner(name, ("a", "b")) == "a")
    a.observe_lease(app, StoredLease("", 5_000, 6), 10.0)  # withdrawn
    a.observe_lease(app, StoredLease(), 10.0)  # deleted in the end
    a.announced.add(app)

    a.lease_read(app, StoredLease(), 10.0)
    swap = a.swap(app, 10.0, WALL_MS)

    assert swap is not None
    assert swap.lease == StoredLease("a", 5_001, 0)

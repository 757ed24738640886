"""The rules of ownership one by one; `test_members_model` has replicas follow them in random histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.leases import Members, preferred_owner
from services.allocator.ownership.members import (
    MOST_UNABLE,
    NO_RECORD,
    RETRY_UNABLE_S,
    WRITER_BITS,
    Able,
    Action,
    Announced,
    EarlierVersion,
    Event,
    Failed,
    HeartbeatsRead,
    HeartbeatStored,
    ReadHeartbeats,
    ReadRecord,
    RecordRead,
    RecordWritten,
    Refused,
    Stop,
    StoreHeartbeat,
    Tick,
    TryToServe,
    Unable,
    View,
    Watched,
    WriteConflict,
    WriteRecord,
    held,
    may_act,
    next_epoch,
    step,
)

TTL_S = 2.0
WALL_MS = 1_000
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


def app_of(owner: str, *replicas: str) -> str:
    return next(f"app{n}" for n in range(100) if preferred_owner(f"app{n}", tuple(sorted(replicas))) == owner)


MINE, THEIRS = app_of("a", "a", "b"), app_of("b", "a", "b")
BOTH = Members(epoch=50, previous=40, replicas=("a", "b"))


def take(view: View, now_s: float, *events: Event) -> tuple[View, list[Action]]:
    """Observe one after another at one time; the actions of all."""
    actions: list[Action] = []
    for event in events:
        view, more = step(view, event, now_s, WALL_MS)
        actions += more
    return view, actions


def written(actions: list[Action]) -> list[WriteRecord]:
    return [action for action in actions if isinstance(action, WriteRecord)]


@pytest.fixture
def a() -> View:
    """Replica a at 10 s: a member beside b, with all that it knows confirmed just now."""
    view = View("a", TTL_S, 12.0, announced=frozenset({MINE, THEIRS}))
    view, _ = take(view, 10.0, HeartbeatStored(10.0), RecordRead(BOTH, 7, 10.0), HeartbeatsRead({"b": 5}, 10.0))
    return view


def later(view: View, now_s: float, *, b_lives: bool = True) -> View:
    """Rounds until ``now_s``, all answered at once; b renews its heartbeat, or does not."""
    at_s = max(view.heartbeat_s, view.answered_s)
    while at_s < now_s - 1e-9:
        at_s = min(now_s, at_s + 0.5)
        beat = HeartbeatsRead({"b": int(at_s * 10) if b_lives else 5}, at_s)
        view, actions = take(view, at_s, beat, RecordRead(view.record, view.revision, at_s), HeartbeatStored(at_s))
        assert not written(actions) or not b_lives
    return view


# -- who owns ------------------------------------------------------------------------------------------------------


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


def test_without_replicas_or_with_an_unknown_rule_there_is_no_owner():
    assert preferred_owner("app", ()) == ""
    assert BOTH.model_copy(update={"rule": "other"}).owner(MINE) == ""
    assert BOTH.model_copy(update={"unable": {MINE: ("a",)}}).owner(MINE) == "b"


def test_a_member_acts_for_what_the_record_gives_to_it(a):
    assert held(a) == {MINE: 50}
    assert may_act(a, 10.0)


def test_an_application_announced_later_has_the_epoch_of_the_record_and_a_withdrawn_one_none(a):
    more = next(f"more{n}" for n in range(100) if BOTH.owner(f"more{n}") == "a")
    a, _ = take(a, 10.1, Announced(more))
    assert held(a) == {MINE: 50, more: 50}

    a, _ = take(a, 10.1, Announced(MINE, announced=False))
    assert held(a) == {more: 50}


def test_who_held_the_record_before_keeps_its_epoch_and_who_missed_one_takes_the_newest(a):
    """Another may have owned it by the one that was missed, and its orders may still be under way."""
    next_one = Members(epoch=60, previous=50, replicas=("a",))
    kept, _ = take(a, 10.1, RecordRead(next_one, 8, 10.1))
    assert held(kept) == {MINE: 50, THEIRS: 60}

    missed, _ = take(a, 10.1, RecordRead(next_one.model_copy(update={"previous": 55}), 9, 10.1))
    assert held(missed) == {MINE: 60, THEIRS: 60}


# -- for how long --------------------------------------------------------------------------------------------------


def test_the_time_to_live_counts_from_sending_the_read_and_the_heartbeat(a):
    a, _ = take(a, 11.9, RecordRead(BOTH, 7, 10.5), HeartbeatStored(10.8))
    assert may_act(a, 12.5)
    assert not may_act(a, 12.6)

    a, _ = take(a, 12.5, RecordRead(BOTH, 7, 12.4))
    assert may_act(a, 12.8)
    assert not may_act(a, 12.9), "its heartbeat is too old: others may have removed it"


def test_a_heartbeat_is_sent_only_when_a_read_was_answered(a):
    """Who can write and not read would otherwise live for ever, and act for nothing."""
    _, actions = take(a, 10.5, Tick(), HeartbeatsRead({}, 10.5), Failed(10.4))
    assert actions == [ReadHeartbeats(("b",)), ReadRecord()]

    _, actions = take(a, 10.5, RecordRead(BOTH, 7, 10.5))
    assert actions == [StoreHeartbeat()]


def test_in_an_outage_of_the_store_an_owner_goes_on_for_as_long_as_it_is_seen_to_fail(a):
    for now_s in (11.5, 13.0, 14.5):
        a, _ = take(a, now_s, Failed(now_s - 1.0))
        assert may_act(a, now_s + 1.9)
    assert not may_act(a, 14.5 + 2.1)
    for now_s in (16.0, 17.5, 19.0, 20.5, 22.0, 23.5):
        a, _ = take(a, now_s, Failed(now_s - 1.0))
    assert may_act(a, 24.0)  # 10 s, 2 to live and 12 of patience
    assert not may_act(a, 24.1)


def test_one_failure_after_a_gap_is_no_outage(a):
    """It was frozen; the store may have answered others meanwhile, and they have removed it."""
    frozen, _ = take(a, 16.0, Failed(15.9))
    assert not may_act(frozen, 16.0)

    late, _ = take(a, 12.5, Failed(10.4))
    assert not may_act(late, 12.5), "the answer may have come in time"


@pytest.mark.parametrize("sign", [Watched(8), Refused(MINE, 60)])
def test_a_sign_that_others_have_the_store_ends_the_patience_until_a_read(a, sign):
    a, _ = take(a, 11.5, sign)
    for now_s in (11.9, 12.9):
        a, _ = take(a, now_s, Failed(now_s - 0.5))
    assert not may_act(a, 13.0)


# -- the record ----------------------------------------------------------------------------------------------------


def test_a_replica_joins_after_its_heartbeat_was_stored():
    fresh = View("a", TTL_S)
    fresh, actions = take(fresh, 10.0, Tick(), RecordRead(NO_RECORD, 0, 10.0))
    assert not written(actions)
    assert StoreHeartbeat() in actions

    _, actions = take(fresh, 10.1, HeartbeatStored(10.0))

    [write] = written(actions)
    assert (write.record.replicas, write.record.previous, write.revision) == (("a",), 0, 0)


def test_a_silent_member_is_removed_after_a_series_of_reads_that_spans_the_time_to_live(a):
    for now_s in (10.5, 11.0, 11.5, 11.9):
        a, actions = take(a, now_s, HeartbeatsRead({"b": 5}, now_s), RecordRead(BOTH, 7, now_s), HeartbeatStored(now_s))
        assert not written(actions)

    a, actions = take(a, 12.0, HeartbeatsRead({"b": 5}, 12.0))

    [write] = written(actions)
    assert write.record.replicas == ("a",)
    assert write.revision == 7


def test_a_gap_begins_the_series_anew(a):
    """The store was away for all: the first to reach it again would remove the others."""
    a, _ = take(a, 15.0, RecordRead(BOTH, 7, 15.0), HeartbeatStored(15.0))
    for now_s in (15.0, 15.9, 16.8):
        a, actions = take(a, now_s, HeartbeatsRead({"b": 5}, now_s), RecordRead(BOTH, 7, now_s), HeartbeatStored(now_s))
        assert not written(actions)


def test_an_answer_that_came_late_says_nothing_of_a_heartbeat_that_has_changed_since(a):
    a, _ = take(a, 10.5, HeartbeatsRead({"b": 6}, 10.5), HeartbeatsRead({"b": 5}, 10.4))

    assert a.peers["b"].revision == 6


def test_what_a_replica_cannot_serve_it_says_before_it_gives_it_up(a):
    a, actions = take(a, 10.1, Unable(MINE))

    assert held(a) == {}
    [write] = written(actions)
    assert (write.record.replicas, write.record.unable) == (("a", "b"), {MINE: ("a",)})


def test_it_is_tried_again_after_half_a_minute_and_soon_where_nobody_is_left(a):
    record = BOTH.model_copy(update={"epoch": 2_000, "previous": 50, "unable": {MINE: ("a",)}})
    a, _ = take(a, 10.1, Unable(MINE), RecordWritten(record, 8, 10.1))
    a = later(a, 10.1 + RETRY_UNABLE_S - 1)
    _, actions = take(a, 10.1 + RETRY_UNABLE_S - 1, Tick())
    assert TryToServe(MINE) not in actions
    a, actions = take(a, 10.1 + RETRY_UNABLE_S, Tick())
    assert TryToServe(MINE) in actions
    a, actions = take(a, 10.2 + RETRY_UNABLE_S, Able(MINE))
    assert written(actions)[0].record.unable == {}

    nobody = record.model_copy(update={"unable": {MINE: ("a", "b")}})
    b_too, _ = take(replace(a, unable={MINE: 10.1}, record=nobody, round_s=10.0), 11.2, Tick())
    assert b_too.unable == {MINE: 11.2}


def test_what_waits_to_be_told_is_not_tried(a):
    a, _ = take(a, 10.1, Unable(MINE, until_able=True), Unable(MINE))
    _, actions = take(a, 100.0, Tick())

    assert TryToServe(MINE) not in actions


def test_who_can_serve_next_to_nothing_is_no_member(a):
    a, actions = take(a, 10.1, *(Unable(f"app{number}") for number in range(MOST_UNABLE)))
    assert all(write.record.replicas == ("a", "b") for write in written(actions))

    a, _ = take(a, 10.1, WriteConflict(), Unable("one more"))
    _, actions = take(a, 10.2, RecordRead(BOTH, 7, 10.2))

    assert written(actions)[0].record.replicas == ("b",)


def test_announcements_that_no_replica_can_read_turn_none_out(a):
    """Who may announce could write more of them than `MOST_UNABLE`."""
    a, _ = take(
        a, 10.1, *(Unable(f"app{number}", until_able=True) for number in range(MOST_UNABLE + 5)), WriteConflict()
    )
    _, actions = take(a, 10.2, RecordRead(BOTH, 7, 10.2))

    [write] = written(actions)
    assert write.record.replicas == ("a", "b")
    assert len(write.record.unable) == MOST_UNABLE


def test_a_removed_member_is_unable_to_nothing(a):
    record = BOTH.model_copy(update={"unable": {"x": ("b",), "y": ("b",)}})
    a = replace(a, record=record, peers={"b": replace(a.peers["b"], since_s=8.0)})

    _, actions = take(a, 10.1, HeartbeatsRead({"b": 5}, 10.1))

    assert written(actions)[0].record.unable == {}


def test_leaving_is_a_write_until_which_it_acts_on(a):
    a, actions = take(a, 10.1, Stop())
    [write] = written(actions)
    assert write.record.replicas == ("b",)
    assert held(a)

    a, actions = take(a, 10.2, RecordWritten(write.record, 8, 10.1))

    assert held(a) == {}
    assert actions == [], "no heartbeat any more, and it does not join again"


def test_a_conflict_is_followed_by_a_read_before_the_next_write(a):
    """Another write at once would find the same, and so on."""
    a, _ = take(a, 10.1, Stop())
    a, actions = take(a, 10.2, WriteConflict())
    assert actions == [ReadRecord()]
    a, actions = take(a, 10.25, RecordRead(BOTH, 7, 10.15))
    assert not written(actions), "sent before the conflict"

    newer = Members(epoch=60, previous=50, replicas=("a", "b", "c"))
    _, actions = take(a, 10.3, RecordRead(newer, 8, 10.2))

    [write] = written(actions)
    assert (write.record.replicas, write.revision) == (("b", "c"), 8)


def test_an_older_record_is_neither_believed_nor_acted_under_and_is_written_over(a):
    older = Members(epoch=40, previous=30, replicas=("a",))
    a, actions = take(a, 11.0, RecordRead(older, 3, 11.0))

    assert a.record == BOTH
    assert a.confirmed_s == 10.0
    [write] = written(actions)
    assert write.revision == 3
    assert write.record.epoch > 50
    a, actions = take(a, 11.1, WriteConflict())
    assert actions == [ReadRecord()], "it was only the read"


def test_another_record_of_the_same_epoch_is_doubted(a):
    """A store that lost its newest writes has let two replace the same one."""
    a, actions = take(a, 10.1, RecordRead(BOTH.model_copy(update={"replicas": ("b",)}), 7, 10.1))

    assert held(a) == {MINE: 50}
    assert written(actions)[0].record.epoch > 50


@given(above=st.integers(0, 1 << 50), wall_ms=st.integers(0, 1 << 50), name=NAMES, other=NAMES)
def test_an_epoch_rises_and_its_low_bits_are_its_writers(above, wall_ms, name, other):
    epoch = next_epoch(name, above, wall_ms)

    assert max(above + 1, wall_ms) <= epoch < max(above + 1, wall_ms) + (1 << WRITER_BITS)
    bits = (1 << WRITER_BITS) - 1
    if next_epoch(other, 0, 0) & bits != next_epoch(name, 0, 0) & bits:
        assert next_epoch(other, above, wall_ms) != epoch


# -- agents that know better ---------------------------------------------------------------------------------------


def test_an_application_whose_orders_are_refused_is_stopped_for_and_taken_again_under_a_newer_record(a):
    a, actions = take(a, 10.1, Refused(MINE, 70))
    assert held(a) == {}
    assert ReadRecord() in actions

    a, _ = take(a, 10.2, RecordRead(Members(epoch=80, previous=50, replicas=("a", "b")), 8, 10.2))

    assert held(a) == {MINE: 80}


def test_where_there_is_no_newer_record_it_writes_one(a):
    a, actions = take(a, 10.1, Refused(MINE, 5_000))

    [write] = written(actions)
    assert write.record.epoch > 5_000
    assert write.record.replicas == BOTH.replicas
    a, _ = take(a, 10.2, RecordWritten(write.record, 8, 10.1))
    assert held(a) == {MINE: write.record.epoch}


def test_a_refusal_of_an_older_epoch_came_late(a):
    assert take(a, 10.1, Refused(MINE, 50), Refused(THEIRS, 70)) == (a, [])


# -- other versions ------------------------------------------------------------------------------------------------


def test_beside_a_version_with_leases_it_neither_acts_nor_joins(a):
    a, _ = take(a, 10.1, EarlierVersion())
    assert not may_act(a, 10.1)
    _, actions = take(a, 10.1, Unable(MINE))
    assert not written(actions)

    assert may_act(later(a, 10.1 + 2 * TTL_S + 0.1), 10.1 + 2 * TTL_S + 0.1)


def test_epochs_of_leases_are_passed(a):
    _, actions = take(a, 10.1, EarlierVersion(epoch=9_000))

    assert written(actions)[0].record.epoch > 9_000


def test_the_first_record_is_written_beyond_the_epochs_of_leases():
    fresh, _ = take(View("a", TTL_S), 10.0, EarlierVersion(epoch=9_000), HeartbeatStored(10.0))

    _, actions = take(fresh, 10.1, RecordRead(NO_RECORD, 0, 10.1))

    assert written(actions)[0].record.epoch > 9_000


def test_under_an_unknown_rule_it_owns_nothing_and_writes_only_when_its_members_are_silent(a):
    other = BOTH.model_copy(update={"rule": "other", "epoch": 60, "previous": 50, "replicas": ("b",)})
    a, actions = take(a, 10.1, RecordRead(other, 8, 10.1))
    assert held(a) == {}
    assert not written(actions)

    a = replace(a, peers={"b": replace(a.peers["b"], since_s=8.0)})
    _, actions = take(a, 10.2, HeartbeatsRead({"b": 5}, 10.2))

    [write] = written(actions)
    assert (write.record.replicas, write.record.rule) == (("a",), BOTH.rule)

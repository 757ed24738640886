"""Several replicas over a store that delays, loses and conflicts: never two in one epoch, and soon always one."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from schemas.leases import MEMBERS_KEY, Heartbeat, Lease, preferred_owner
from services._runtime.bus.api import Entry
from services.allocator.ownership.members import RETRY_UNABLE_S
from services.allocator.ownership.membership import MOST_EPOCHS_AHEAD_MS, REPLICA
from tests.support.examples import examples
from tests.support.replica_lab import ReplicaLab

APPS = [f"app{number}" for number in range(4)]
TTL_S = 2.0
TAKEOVER_S = TTL_S + 1.0
"""A round until the newest heartbeat was read, silence, and a round."""
RECOVERY_S = TAKEOVER_S + 3.0
"""After an interruption of everyone: others are given time to reconnect too."""
WHICH = st.integers(0, 7)


class Replicas(RuleBasedStateMachine):
    """Random faults; after each history, calm."""

    @initialize(skews=st.lists(st.integers(-5_000, 5_000), min_size=3, max_size=3))
    def begin(self, skews: list[int]) -> None:
        self.lab = ReplicaLab(apps=set(APPS))
        for skew_ms in skews:
            self.lab.start(skew_ms)

    def pick(self, which: int):
        return self.lab.members[which % len(self.lab.members)]

    @rule(seconds=st.sampled_from([0.05, 0.3, 0.6, 1.5, 2.5]))
    def live(self, seconds):
        self.lab.live(seconds)

    @rule(which=WHICH)
    @precondition(lambda self: len(self.lab.members) < 4)
    def start(self, which):
        self.lab.start(which * 100)

    @rule(which=WHICH)
    @precondition(lambda self: len(self.lab.members) > 1)
    def crash(self, which):
        self.lab.crash(self.pick(which))

    @rule(which=WHICH)
    @precondition(lambda self: len(self.lab.members) > 1)
    def stop(self, which):
        self.lab.stop(self.pick(which))

    @rule(which=WHICH, what=st.sampled_from(["frozen", "holds_requests", "holds_answers", "holds_news"]))
    def toggle(self, which, what):
        member = self.pick(which)
        setattr(member, what, not getattr(member, what))

    @rule(which=WHICH, operation=WHICH, how=st.sampled_from(["apply", "reply", "lose"]))
    def move_one(self, which, operation, how):
        member = self.pick(which)
        if member.operations and not member.frozen:
            chosen = member.operations[operation % len(member.operations)]
            if how == "reply":
                chosen.apply()
            getattr(chosen, how)()
            self.lab.settle()
            self.lab.check()

    @rule()
    def server(self):
        if self.lab.down:
            self.lab.mend()
        else:
            self.lab.break_connections()

    @rule(which=WHICH, app=st.sampled_from(APPS), announced=st.booleans())
    def hear(self, which, app, announced):
        self.lab.announce(app, self.pick(which), announced=announced)
        self.lab.apps = set(APPS)

    def teardown(self):
        if not hasattr(self, "lab"):
            return
        try:
            calm(self.lab)
        finally:
            self.lab.close()


def calm(lab):
    """Every application has its rightful owner soon, and then nothing moves."""
    lab.chance = None
    lab.mend()
    for member in lab.members:
        member.frozen = member.holds_requests = member.holds_answers = member.holds_news = False
        for operation in member.operations:
            operation.apply_s = operation.reply_s = 0
    for app in lab.apps:
        lab.announce(app)
    lab.live(RECOVERY_S)
    live = tuple(sorted(member.replicas.id for member in lab.members))
    assert lab.owners() == {app: [preferred_owner(app, live)] for app in lab.apps}
    written = len(lab.store.writes)
    lab.live(2 * TTL_S)
    assert len(lab.store.writes) == written, "the record changes although nothing happens"


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages_and_replicas_that_come_late_never_make_two_decide_in_one_epoch(seed):
    """What a replica has sent may be carried out long after it has been given up."""
    lab = ReplicaLab(apps={"a", "b"}, chance=Random(seed))
    try:
        for _ in range(3):
            lab.start()
        lab.wander(20.0)
        calm(lab)
    finally:
        lab.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_application_has_an_owner_again_where_reads_were_answered_late_after_a_freeze(seed):
    """The watch may tell of a newer lease before the answer to an earlier read comes, and tells each revision once."""
    chance, lab = Random(seed), ReplicaLab(apps=set(APPS))
    try:
        for _ in range(3):
            lab.start()
        lab.live(RECOVERY_S)
        calm_s = lab.loop.now_s + 25.0
        for member in lab.members:
            member.read_delay_s = lambda: chance.choice((0.0, 0.0, 0.05, 0.15)) if lab.loop.now_s < calm_s else 0.0
        while lab.loop.now_s < calm_s:
            for member in lab.members:
                member.frozen = chance.random() < 0.3
            lab.live(chance.choice((1.0, 3.0, 5.0)))
        calm(lab)
    finally:
        lab.close()


@pytest.fixture
def lab():
    lab = ReplicaLab(apps={f"app{number}" for number in range(12)})
    for _ in range(3):
        lab.start()
    lab.live(1.0)
    yield lab
    lab.close()


def busiest(lab):
    return max(lab.members, key=lambda member: len(member.owned))


def seconds_until(lab, condition, within_s):
    start_s = lab.loop.now_s
    while not condition():
        assert lab.loop.now_s - start_s < within_s
        lab.live(0.05)
    return lab.loop.now_s - start_s


def everyone_is_owned(lab):
    return all(len(owners) == 1 for owners in lab.owners().values())


def test_three_replicas_share(lab):
    assert everyone_is_owned(lab)
    assert sum(bool(member.owned) for member in lab.members) > 1


def test_a_crash_is_made_up_for_within_the_bound(lab):
    victim = busiest(lab)
    others = {app: owners for app, owners in lab.owners().items() if app not in victim.owned}
    assert victim.owned

    lab.crash(victim)
    seconds_until(lab, lambda: everyone_is_owned(lab), TAKEOVER_S)

    assert {app: lab.owners()[app] for app in others} == others, "what others own does not move"


def test_a_graceful_stop_is_made_up_for_at_once(lab):
    lab.stop(busiest(lab))

    seconds_until(lab, lambda: everyone_is_owned(lab), 0.3)


def test_a_frozen_owner_stops_deciding_by_itself_and_rejoins(lab):
    victim = busiest(lab)
    apps = dict(victim.owned)
    victim.frozen = True
    lab.live(TAKEOVER_S)
    assert everyone_is_owned(lab)
    assert victim.owned == apps, "it does not know yet"
    assert not victim.deciding

    victim.frozen = False
    lab.live(1.0)

    assert victim.replicas.lost == len(apps)
    assert everyone_is_owned(lab)
    assert victim.owned.keys() == apps.keys(), "it is live again, so they are handed back"
    assert all(victim.owned[app] > epoch for app, epoch in apps.items())


def test_a_replica_that_joins_is_handed_its_share(lab):
    newcomer = lab.start()

    seconds_until(lab, lambda: bool(newcomer.owned), 1.0)
    seconds_until(lab, lambda: everyone_is_owned(lab), 0.3)

    live = tuple(sorted(member.replicas.id for member in lab.members))
    assert lab.owners() == {app: [preferred_owner(app, live)] for app in lab.apps}


def test_replicas_that_join_after_a_death_leave_no_share_to_the_dead_one(lab):
    """Its heartbeat is still stored; they cannot know how old it is."""
    lab.crash(busiest(lab))
    lab.live(3.0)
    for _ in range(4):
        lab.start()
        ownerless_s = 0.0
        for _ in range(80):
            lab.live(0.05)
            ownerless_s += 0.05 * (not everyone_is_owned(lab))
        assert ownerless_s <= 0.3


@pytest.mark.parametrize("outage_s", [0.2, 1.0, 1.9, 2.1, 5.0])
def test_an_outage_of_the_server_moves_nothing(lab, outage_s):
    """Although replicas come back one after another."""
    before = {member.replicas.id: dict(member.owned) for member in lab.members}
    lab.break_connections()
    lab.live(outage_s)
    late = lab.members[0]
    late.holds_requests = True
    lab.mend()
    lab.live(1.8)
    late.holds_requests = False
    lab.live(RECOVERY_S)

    assert {member.replicas.id: dict(member.owned) for member in lab.members} == before
    assert everyone_is_owned(lab)


def test_silent_watches_move_nothing_and_deaths_are_noticed_all_the_same(lab):
    for member in lab.members:
        member.holds_news = True
    before = lab.owners()
    lab.live(10.0)
    assert lab.owners() == before

    lab.crash(busiest(lab))

    seconds_until(lab, lambda: everyone_is_owned(lab), TTL_S + TAKEOVER_S)


def test_an_application_of_which_an_agent_knows_a_newer_epoch_is_taken_anew_above_it(lab):
    """The store lost its newest writes, and the last owner's clock was ahead."""
    member = busiest(lab)
    app, epoch = next(iter(member.owned.items()))

    lab.loop.call_soon(member.replicas.report_newer_epoch, app, epoch + 3_600_000)
    lab.live(0.5)

    assert member.owned[app] > epoch + 3_600_000
    assert len(lab.owners()[app]) == 1


def test_an_agent_cannot_exhaust_the_epochs(lab):
    member = busiest(lab)
    app = next(iter(member.owned))
    wall_ms = member.time_ns() // 1_000_000

    lab.loop.call_soon(member.replicas.report_newer_epoch, app, (1 << 62) - 1)
    lab.live(0.5)

    assert wall_ms < member.owned[app] < wall_ms + MOST_EPOCHS_AHEAD_MS + 10_000
    assert len(lab.owners()[app]) == 1


@pytest.mark.parametrize("what", ["emptied", "unreadable"])
def test_a_record_that_is_gone_or_cannot_be_read_is_written_again(lab, what):
    before = {member.replicas.id: set(member.owned) for member in lab.members}
    if what == "emptied":
        lab.store.entries.clear()
        for member in lab.members:
            member.news.append((MEMBERS_KEY, None))
    else:
        lab.store.revision += 1
        lab.store.entries[MEMBERS_KEY] = Entry(MEMBERS_KEY, None, lab.store.revision)

    lab.live(RECOVERY_S)

    assert everyone_is_owned(lab)
    assert {member.replicas.id: set(member.owned) for member in lab.members} == before


def test_what_is_withdrawn_is_given_up_at_once(lab):
    lab.announce("app3", announced=False)

    assert not any("app3" in member.owned for member in lab.members)


def test_the_heartbeat_of_the_dead_is_deleted_in_the_end(lab):
    victim = lab.members[0]
    lab.crash(victim)
    lab.live(100.0)

    assert f"{REPLICA}{victim.replicas.id}" not in lab.store.entries
    assert {f"{REPLICA}{member.replicas.id}" for member in lab.members} <= set(lab.store.entries)


def test_an_application_goes_to_a_replica_that_can_serve_it(lab):
    member = busiest(lab)
    app = next(iter(member.owned))
    rest = member.owned.keys() - {app}
    member.unservable.add(app)
    lab.announce(app, announced=False)

    lab.announce(app)
    lab.live(0.5)

    assert lab.store.record().unable == {app: (member.replicas.id,)}
    assert len(lab.owners()[app]) == 1
    assert rest <= member.owned.keys(), "what it can serve stays"
    written = len(lab.store.writes)
    lab.live(RETRY_UNABLE_S - 5)
    assert len(lab.store.writes) == written

    member.unservable.clear()
    lab.live(10)

    assert lab.store.record().unable == {}
    assert lab.owners()[app] == [member.replicas.id]


def test_what_nobody_can_serve_is_tried_again_soon_and_nothing_is_written_meanwhile(lab):
    for member in lab.members:
        member.unservable.add("app3")
    lab.announce("app3", announced=False)
    lab.announce("app3")
    lab.live(2.0)
    assert lab.owners()["app3"] == []
    assert lab.members[0].replicas.ownerless() == 1
    written = len(lab.store.writes)
    lab.live(10.0)
    assert len(lab.store.writes) == written

    lab.members[1].unservable.clear()
    lab.live(TTL_S)

    assert lab.owners()["app3"] == [lab.members[1].replicas.id]


def test_an_announcement_that_a_replica_cannot_read_is_left_to_the_others(lab):
    """Also before any of them has taken it, and for as long as it is so."""
    owner = preferred_owner("new", tuple(member.replicas.id for member in lab.members))
    due = next(member for member in lab.members if member.replicas.id == owner)
    lab.loop.call_soon(partial(due.replicas.set_able, "new", able=False))
    others = [member for member in lab.members if member is not due]
    lab.announce("new", *others)
    lab.live(0.5)
    assert len(lab.owners()["new"]) == 1
    written = len(lab.store.writes)
    lab.live(2 * RETRY_UNABLE_S)
    assert len(lab.store.writes) == written

    lab.loop.call_soon(partial(due.replicas.set_able, "new", able=True))
    lab.announce("new", due)
    lab.live(0.5)

    assert lab.owners()["new"] == [due.replicas.id]


# -- another version -----------------------------------------------------------------------------------------------


def earlier_version(lab, seconds):
    """A replica of the version that has a lease for each application renews its heartbeat."""
    for _ in range(round(seconds / 0.5)):
        lab.store.write(f"{REPLICA}old", Lease(owner="old", epoch=0, time_ns=0), lab.loop.now_s)
        lab.live(0.5)


def test_leases_of_the_version_before_are_taken_over_once_it_has_stopped():
    lab = ReplicaLab(apps=set(APPS))
    far_ahead = 5_000_000
    for app in APPS:
        lab.store.write(f"app.{app}", Lease(owner="old", epoch=far_ahead, time_ns=0), 0)
    lab.store.write(f"{REPLICA}old", Lease(owner="old", epoch=0, time_ns=0), 0)
    lab.start()
    lab.start()
    earlier_version(lab, 10.0)
    assert not any(lab.owners().values()), "it may still decide"
    assert [member.replicas.not_ready() for member in lab.members] == [None, None], "a rollout waits for it"

    seconds_until(lab, lambda: everyone_is_owned(lab), 2 * TTL_S + 2.0)

    assert min(epoch for member in lab.members for epoch in member.owned.values()) > far_ahead
    lab.live(100.0)
    assert set(lab.store.entries) == {MEMBERS_KEY, f"{REPLICA}r1", f"{REPLICA}r2"}
    lab.close()


def test_beside_a_replica_of_the_version_before_nobody_acts(lab):
    """It knows nothing of a record of members, and takes every lease."""
    earlier_version(lab, 0.5)
    assert not any(lab.owners().values())
    lab.live(2 * TTL_S + 1.0)
    assert everyone_is_owned(lab)


def test_under_a_rule_that_it_does_not_know_a_replica_owns_nothing(lab):
    for member in list(lab.members[1:]):
        lab.crash(member)
    (left,) = lab.members
    record = lab.store.record()
    newer = record.model_copy(update={"rule": "jump-hash", "epoch": record.epoch + 5_000, "previous": record.epoch})

    def live(seconds):
        for _ in range(round(seconds / 0.5)):
            for name in ("r2", "r3"):
                lab.store.write(f"{REPLICA}{name}", Heartbeat(replica=name, epoch=0, time_ns=0), lab.loop.now_s)
            lab.live(0.5)

    lab.store.write(MEMBERS_KEY, newer, lab.loop.now_s)
    live(10.0)
    assert (left.owned, lab.store.record()) == ({}, newer)
    assert "another version's rule: jump-hash" in left.replicas.not_ready()

    lab.live(TAKEOVER_S)
    assert everyone_is_owned(lab), "its members are dead"
    assert lab.store.record().replicas == (left.replicas.id,)


# -- the store is away ---------------------------------------------------------------------------------------------


def patient_lab(replicas=3):
    """Owners that go on for 12 s beyond the time to live while the store answers nothing."""
    lab = ReplicaLab(apps=set(APPS), store_outage_grace_s=12.0)
    for _ in range(replicas):
        lab.start()
    lab.live(RECOVERY_S)
    assert everyone_is_owned(lab)
    return lab


def test_a_pause_with_a_heartbeat_under_way_is_no_outage():
    """The answer may have come in time: nobody was there to read it, and others may have taken over."""
    lab = patient_lab(replicas=1)
    (member,) = lab.members
    member.holds_answers = True
    lab.live(0.6)
    assert member.operations
    assert everyone_is_owned(lab)

    lab.loop.now_s += 6.0
    lab.settle()

    assert not any(lab.owners().values())
    member.holds_answers = False
    lab.live(RECOVERY_S)
    assert everyone_is_owned(lab)
    lab.close()


def test_an_owner_that_was_frozen_while_the_store_was_away_does_not_go_on_by_one_failure():
    """Its successor may have been elected: one refused operation says nothing of the seconds before it."""
    lab = patient_lab()
    victim = busiest(lab)
    victim.frozen = True
    lab.live(TAKEOVER_S)
    victim.holds_requests = True  # it alone is cut off when it continues
    victim.frozen = False
    for _ in range(60):
        lab.live(0.05)
        for operation in list(victim.operations):
            operation.lose()
        assert not victim.deciding
    lab.close()


def test_during_an_outage_of_the_store_owners_go_on():
    """A cluster that has lost the server that led needs 4 to 9 s for another one; nobody can take over meanwhile."""
    lab = patient_lab()
    before, owned = lab.owners(), [dict(member.owned) for member in lab.members]

    lab.down = True
    for _ in range(36):
        lab.live(0.25)
        assert lab.owners() == before
    lab.mend()
    lab.live(RECOVERY_S)

    assert lab.owners() == before
    assert [dict(member.owned) for member in lab.members] == owned  # the epochs, too
    lab.close()


def test_but_not_for_ever():
    lab = patient_lab(replicas=1)

    lab.down = True
    lab.live(13.0)
    assert everyone_is_owned(lab)
    lab.live(1.5)  # 2 s to live and 12 of patience, less half a second since the last heartbeat
    assert not any(lab.owners().values())
    lab.mend()
    lab.live(RECOVERY_S)
    assert everyone_is_owned(lab)
    lab.close()


def test_an_agent_that_knows_a_successor_ends_it():
    lab = patient_lab()
    member = busiest(lab)
    app, epoch = next(iter(member.owned.items()))
    lab.down = True
    lab.live(5.0)
    assert member.deciding

    lab.loop.call_soon(member.replicas.report_newer_epoch, app, epoch + 1)
    lab.settle()

    assert not member.deciding
    lab.close()

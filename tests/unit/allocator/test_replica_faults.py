"""Several replicas over a store that delays, loses and conflicts: never two that decide, and soon always one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from services.allocator.leases.lease_manager import preferred_owner
from services.allocator.leases.membership import APP, REPLICA
from tests.support.examples import examples
from tests.support.replica_lab import ReplicaLab

APPS = [f"app{number}" for number in range(4)]
TTL_S = 2.0
TAKEOVER_S = TTL_S + 0.5
"""Silence, then a round and three messages."""
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
    assert len(lab.store.writes) == written, "leases change hands although nothing happens"


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages_and_replicas_that_come_late_never_make_two_decide(seed):
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


def test_a_frozen_owner_stops_deciding_before_others_begin_and_rejoins(lab):
    victim = busiest(lab)
    apps = dict(victim.owned)
    victim.frozen = True
    lab.live(TAKEOVER_S)
    assert everyone_is_owned(lab)
    assert victim.owned == apps, "it does not know yet"
    assert not victim.deciding

    victim.frozen = False
    lab.live(1.0)

    assert victim.replicas.leases.lost == len(apps)
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


def test_a_lease_that_agents_contradict_is_taken_anew_far_ahead(lab):
    """The store was lost, and the last owner's clock was ahead."""
    member = busiest(lab)
    app, epoch = next(iter(member.owned.items()))

    member.replicas.report_stale_epoch(app)
    lab.live(0.5)

    assert member.owned[app] >= epoch + 3_600_000
    assert len(lab.owners()[app]) == 1


def test_an_emptied_store_is_filled_again(lab):
    lab.store.entries.clear()
    lab.store.epochs.clear()
    for member in lab.members:
        member.news += [(f"{APP}{app}", None) for app in lab.apps]

    lab.live(RECOVERY_S)

    assert everyone_is_owned(lab)
    assert {key for key in lab.store.entries if key.startswith(APP)} == {f"{APP}{app}" for app in lab.apps}


def test_what_is_withdrawn_is_given_up_and_forgotten_in_the_end(lab):
    lab.announce("app3", announced=False)
    lab.live(0.5)
    assert not any("app3" in member.owned for member in lab.members)
    assert lab.store.entries[f"{APP}app3"].message.owner == ""

    victim = lab.members[0]
    lab.crash(victim)
    lab.live(100.0)

    assert f"{REPLICA}{victim.replicas.id}" not in lab.store.entries
    assert f"{APP}app3" in lab.store.entries, "its epoch may still be needed"

"""Whatever happens in whatever order, the table never holds what it must not (rules 2, 5, 6, 8, 11)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.fastpath.backup_tables import BackupTableDecisions
from services.fastpath.override_decisions import BFDD, REMOTE_SIGNALS
from services.fastpath.values import BackupRule, FrrRoute, Hop, Limits, RemovalReason
from tests.support.examples import examples

UPLINKS = {"p1": 11, "p2": 12, "p3": 13}
TORS = {"p1": "1.1.1.1", "p2": "2.2.2.2", "p3": "2.2.2.2"}
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
LIMITS = Limits()
indexes = st.sampled_from([*UPLINKS.values(), 99])
routes = st.lists(indexes, min_size=1, max_size=4, unique=True).map(
    lambda found: FrrRoute(tuple(Hop(index, b"gw%d" % index) for index in found))
)
uplinks = st.sampled_from(list(UPLINKS))
hosts = st.sampled_from(HOSTS)


class FastPathMachine(RuleBasedStateMachine):
    """Applies every write to a table, as the kernel would, and compares."""

    backup_table_above = 1_000

    def __init__(self) -> None:
        super().__init__()
        self.core = BackupTableDecisions(UPLINKS, LIMITS, self.backup_table_above)
        self.now_s = 100.0
        self.frr: dict[str, FrrRoute] = {}
        self.tables: dict[int, dict[str, FrrRoute]] = {number: {} for number in range(4)}
        self.active: set[int] = set()
        self.table: dict[str, FrrRoute] = {}
        """What packets find before FRR's routes: of two tables that of overrides comes first."""
        self.born_s: dict[str, float] = {}
        self.carrier = dict.fromkeys(UPLINKS, True)
        self.bfd: dict[str, str | None] = dict.fromkeys(UPLINKS)
        self.seeing = True

    def apply(self, outcome):
        self.write(outcome.writes)
        for removed in outcome.removed:
            assert removed.destination not in self.tables[0]
        return outcome

    def write(self, writes):
        for write in writes:
            if isinstance(write, BackupRule):
                (self.active.add if write.on else self.active.remove)(write.table)
            elif write.route is None:
                known = self.tables[write.table].pop(write.destination, None)
                assert known is not None or write.table, "an override that is not there is not deleted"
            else:
                self.tables[write.table][write.destination] = write.route
        self.look()

    def look(self):
        assert len(self.active) <= 1
        self.table = {}
        for number in (*self.active, 0):
            self.table |= self.tables[number]
        for destination in self.born_s.keys() - self.table.keys():
            del self.born_s[destination]
        for destination in self.table:
            self.born_s.setdefault(destination, self.now_s)

    @initialize(found=st.dictionaries(hosts, routes), up=st.booleans())
    def begin(self, found, up):
        for name, index in UPLINKS.items():
            self.apply(self.core.link(name, index, carrier=True, now_s=self.now_s))
            if up:
                self.bfd[name] = "up"
                self.apply(self.core.bfd(name, "up", self.now_s))
        self.core.set_router_ids(TORS)
        self.frr = dict(found)
        self.apply(self.core.replace_routes(found, self.now_s))

    @rule(destination=hosts, route=st.none() | routes)
    def frr_changes(self, destination, route):
        before = set(self.table)
        if route is None:
            self.frr.pop(destination, None)
        else:
            self.frr[destination] = route
        self.apply(self.core.update_routes({destination: route}, self.now_s))
        assert set(self.table) <= before, "a route of FRR never makes an override"

    @rule(name=uplinks, state=st.sampled_from(["up", "down", "init", "adm-down", "remote-adm-down", None]))
    def session_changes(self, name, state):
        if not self.seeing:
            return
        self.bfd[name] = state
        before, old = dict(self.table), dict(self.born_s)
        self.apply(self.core.bfd(name, state, self.now_s))
        if state == "up":
            self.only_expired_releases(before, old)

    @rule(name=uplinks, up=st.booleans())
    def carrier_changes(self, name, up):
        before, old = dict(self.table), dict(self.born_s)
        self.carrier[name] = up
        self.apply(self.core.link(name, UPLINKS[name], carrier=up, now_s=self.now_s))
        if not up:  # as where it was switched off: what went that way is gone, and nobody says so
            for number in {1, 2, 3} - self.active:
                rows = self.tables[number]
                self.tables[number] = {
                    n: r for n, r in rows.items() if UPLINKS[name] not in {h.ifindex for h in r.hops}
                }
        if up:
            self.only_expired_releases(before, old)
        if not self.seeing:
            assert set(self.table) <= set(before), "blind: nothing new"

    def only_expired_releases(self, before, born_s):
        for destination in self.table.keys() | before.keys():
            if self.table.get(destination) != before.get(destination):
                assert destination in before, "recovery never makes an override"
                assert self.now_s >= born_s[destination] + LIMITS.t_max_s, "recovery releases nothing before T_max"

    @rule(origin=hosts, tor=st.sampled_from(["1.1.1.1", "2.2.2.2", "3.3.3.3", ""]))
    def peer_tells(self, origin, tor):
        before = dict(self.table)
        _, outcome = self.core.peer_fault(origin, tor, self.now_s)
        self.apply(outcome)
        for destination in HOSTS:
            if destination != origin and self.table.get(destination) != before.get(destination):
                assert destination not in self.table, "another's word is for its own route only"

    @rule(name=uplinks)
    def switch_closes_its_session(self, name):
        before = set(self.table)
        self.apply(self.core.bgp_closed(name, self.now_s))
        if not self.seeing:
            assert set(self.table) <= before, "blind: nothing new"

    @rule(seconds=st.sampled_from([0.001, 0.3, 0.7, 1.0, 4.0, 11.0, 31.0]))
    def time_passes(self, seconds):
        """The loop wakes when it said it would."""
        ends_s = self.now_s + seconds
        for _ in range(100):
            if self.core.due_s > ends_s:
                break
            self.now_s = max(self.now_s, self.core.due_s)
            self.apply(self.core.tick(self.now_s))
        else:
            raise AssertionError("time stands still")
        self.now_s = ends_s

    @rule()
    def bfdd_is_lost(self):
        self.seeing = False
        self.bfd = dict.fromkeys(UPLINKS)
        before = dict(self.table)
        self.apply(self.core.input_lost(BFDD, "closed", self.now_s))
        assert set(self.table) <= set(before)

    @rule()
    def bfdd_is_back(self):
        self.seeing = True
        self.apply(self.core.input_restored(BFDD, self.now_s))

    @rule(destination=hosts)
    def the_kernel_refuses(self, destination):
        self.apply(self.core.override_rejected(destination, "no", self.now_s))
        assert destination not in self.tables[0]

    @rule(hops=st.lists(st.sampled_from(list(UPLINKS.values())), min_size=2, max_size=3, unique=True))
    def all_is_well(self, hops):
        """As most of the time: everything up, FRR's routes wide, all tables ready."""
        self.bfdd_is_back()
        for name in UPLINKS:
            self.carrier_changes(name, up=True)
            self.session_changes(name, "up")
        wide = FrrRoute(tuple(Hop(index, b"gw%d" % index) for index in hops))
        for destination in HOSTS:
            self.frr_changes(destination, wide)
        while self.core.has_unwritten_rows:
            self.rows_are_kept_ready(5)

    @rule(most=st.integers(1, 5))
    def rows_are_kept_ready(self, most):
        before = dict(self.table)
        self.write(self.core.prepare(most))
        assert self.table == before, "what is kept ready means nothing yet"

    @rule(number=st.integers(0, 3), destination=hosts)
    def other_hands_delete_a_row(self, number, destination):
        if self.tables[number].pop(destination, None) is None:
            return
        self.look()
        if number:
            self.core.row_deleted(number, destination)
        else:
            self.apply(self.core.routes_deleted([destination], RemovalReason.LOST, self.now_s))

    @rule()
    def other_hands_delete_the_rule(self):
        for number in list(self.active):
            self.apply(self.core.backup_rule_rejected(number, "gone", self.now_s))

    @rule()
    def the_watchdog_flushes(self):
        for rows in self.tables.values():
            rows.clear()
        self.active.clear()
        outcome = self.core.all_routes_deleted(RemovalReason.LOST, self.now_s)
        assert not outcome.writes
        self.look()
        assert not self.core.active_overrides

    def dead(self, index):
        return any(
            not self.carrier[name] or self.bfd[name] in {"down", "init"}
            for name, own in UPLINKS.items()
            if own == index
        )

    @invariant()
    def the_table_is_what_the_core_believes(self):
        assert self.tables[0] == {name: override.route for name, override in self.core.overrides.items()}
        if self.active:
            backup = self.core.backup_tables[self.core.active.name]
            assert self.active == {backup.number}
            assert self.tables[backup.number] == backup.rows
        else:
            assert self.core.active is None

    @invariant()
    def overrides_are_frrs_routes_without_dead_hops(self):
        for destination, route in self.table.items():
            frr = self.frr[destination].hops
            assert route.hops, "never no hop"
            assert set(route.hops) < set(frr), "only hops of FRR, and not all of them"
            assert not any(self.dead(hop.ifindex) for hop in route.hops), "never through what is dead"

    @invariant()
    def nothing_outlives_its_cause(self):
        for destination, override in self.core.overrides.items():
            named = {hop.ifindex for hop in self.frr[destination].hops}
            assert override.marks
            assert override.marks.keys() <= named, "FRR agrees: it is over"
            for index, mark in override.marks.items():
                if self.now_s > mark.since_s + LIMITS.t_max_s:
                    assert mark.cause not in REMOTE_SIGNALS, "another's word dies at T_max"
                    assert self.dead(index), "held beyond T_max only for what is dead here"

    @invariant()
    def nor_does_the_group(self):
        if self.core.active is not None:
            mark = self.core._active_mark
            rows = self.core.backup_tables[self.core.active.name].rows
            for destination in rows:
                assert self.core.active.ifindex in {hop.ifindex for hop in self.frr[destination].hops}
            if self.now_s > mark.since_s + LIMITS.t_max_s:
                assert mark.cause not in REMOTE_SIGNALS
                assert self.dead(self.core.active.ifindex)

    @invariant()
    def the_damper_holds(self):
        if self.now_s < self.core.flap_damped_until_s:
            assert not self.table


class GroupedMachine(FastPathMachine):
    """With a table per uplink that is kept ready, from the first destination on."""

    backup_table_above = 0


FastPathMachine.TestCase.settings = GroupedMachine.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None
)
TestFastPath = FastPathMachine.TestCase
TestManyDestinations = GroupedMachine.TestCase


def test_a_destination_that_is_overridden_for_two_uplinks_is_not_told_as_released_with_the_first() -> None:
    state = GroupedMachine()
    state.begin(found={}, up=False)
    state.all_is_well(hops=[11, 12, 13])
    for name in ("p1", "p2", "p2"):
        state.switch_closes_its_session(name=name)
    state.all_is_well(hops=[11, 13])
    state.the_table_is_what_the_core_believes()

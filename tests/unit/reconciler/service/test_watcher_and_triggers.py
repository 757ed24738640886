"""Differences of looks, put together where many; and when to look."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.network import RouteKind
from services._host.netlink.objects import FdbEntry, Link, NextHop, Route, Snapshot
from services.reconciler.triggers import MAX_BACKOFF_S, MAX_DEBOUNCE_S, EventBatch, ResyncTimers
from services.reconciler.watcher import MAX_DESTINATIONS, Watcher
from tests.support.fake_network import mac

P1 = Link(21, "p1", "veth", "02:00:00:00:00:01", 1500, up=True, carrier=True)
DOWN = Link(21, "p1", "veth", "02:00:00:00:00:01", 1500, up=True, carrier=False)


def macs(vtep_of):
    return tuple(FdbEntry(21, address, own=True, destination=vtep) for address, vtep in vtep_of.items())


def routes(*prefixes, hop=21, table=254, protocol=186):
    return tuple(Route(prefix, table, protocol, (NextHop(hop),)) for prefix in prefixes)


def test_the_first_look_is_no_news_and_an_equal_one_neither():
    watcher = Watcher()
    snapshot = Snapshot(links=(P1,), routes=routes("10.0.0.1/32"), fdb=macs({mac(1): "10.255.0.2"}))
    assert watcher.update(snapshot) == []
    assert watcher.update(snapshot) == []


def test_links_routes_and_macs():
    watcher = Watcher(frozenset({100}))
    watcher.update(Snapshot(links=(P1,), routes=routes("10.0.0.1/32"), fdb=macs({mac(1): "10.255.0.2"})))
    foreign = routes("192.0.2.0/24", protocol=2) + routes("10.0.0.1/32", table=100)

    found = watcher.update(Snapshot(links=(DOWN,), routes=foreign, fdb=macs({mac(1): "10.255.0.3"})))

    assert [(c.kind, c.destinations, c.interface, c.before, c.after) for c in found] == [
        (RouteKind.LINK, (), "p1", ("up", "carrier"), ("up", "no carrier")),
        (RouteKind.ROUTE, ("10.0.0.1/32",), "", ("p1",), ()),
        (RouteKind.FDB, (mac(1),), "p1", ("10.255.0.2",), ("10.255.0.3",)),
    ]


def test_many_to_which_the_same_happened_are_put_together():
    watcher = Watcher()
    watcher.update(Snapshot(links=(P1,)))
    table = {mac(number): f"10.255.0.{number % 2}" for number in range(1_200)}

    found = watcher.update(Snapshot(links=(P1,), fdb=macs(table)))

    assert len(found) == 4, "two VTEPs with 600 MACs each, at most 500 together"
    assert max(len(change.destinations) for change in found) == MAX_DESTINATIONS
    assert {m: change.after[0] for change in found for m in change.destinations} == table


@given(st.lists(st.dictionaries(st.integers(0, 40), st.integers(1, 3)), max_size=8), st.data())
def test_whatever_is_held_back_the_told_changes_add_up(states, data):
    watcher, told = Watcher(), {}
    watcher.update(Snapshot(links=(P1,)))
    for state in [*states, states[-1] if states else {}]:
        table = {mac(number): f"10.255.0.{vtep}" for number, vtep in state.items()}
        last = state is (states[-1] if states else state)
        held_back = False if last else data.draw(st.booleans())
        for change in watcher.update(Snapshot(links=(P1,), fdb=macs(table)), defer_macs=held_back):
            for address in change.destinations:
                assert told.get(address, ()) == change.before
                told[address] = change.after
    assert {address: after[0] for address, after in told.items() if after} == table


def test_a_burst_is_waited_for_but_not_for_ever():
    batch = EventBatch()
    assert batch.due_s() is None
    batch.add({"fdb": 1}, 10.0)
    assert batch.due_s() == 10.005
    for step in range(100):
        batch.add({"route": 1}, 10.0 + step / 1_000)
    assert batch.due_s() == 10.0 + MAX_DEBOUNCE_S
    taken = batch.take()
    assert (taken.causes, taken.first_s, taken.only_routes) == ({"fdb": 1, "route": 100}, 10.0, False)
    assert batch.due_s() is None
    batch.add({"route": 1, "nexthop": 1}, 11.0)
    assert batch.only_routes


def test_idle_looks_take_no_more_than_their_share():
    timers = ResyncTimers(interval_s=1.0, cpu_share=0.005)
    timers.reconciled(100.0, 0.002, failed=False)
    assert timers.full_s == 101.0, "2 ms of processor time each second are within half of the share"
    timers.reconciled(100.0, 0.1, failed=False)
    assert timers.full_s == 140.0
    timers.probed(100.0, 0.01)
    assert timers.probe_s == 104.0
    timers.reconciled(100.0, 5.0, failed=False)
    assert timers.full_s == 220.0, "but once in two minutes"


def test_failures_back_off_and_success_forgets_them():
    timers = ResyncTimers(interval_s=1.0, cpu_share=0.005)
    waits = []
    for _ in range(9):
        timers.reconciled(100.0, 0.0, failed=True)
        waits.append(round(timers.retry_s - 100.0, 3))
    assert waits == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, MAX_BACKOFF_S, MAX_BACKOFF_S]
    timers.reconciled(100.0, 0.0, failed=False)
    assert timers.retry_s is None
    timers.reconciled(100.0, 0.3, failed=True)
    assert timers.retry_s == 100.3, "a dear attempt is not repeated before it is paid for"

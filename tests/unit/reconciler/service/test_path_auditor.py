"""Kernel, FRR and BFD: what counts as a disagreement, how long it must last, and what is told of it."""

import json
from dataclasses import replace

import pytest

from schemas.network import RouteKind
from services._edge.frr import Frr
from services._edge.override_tables import OverrideTables
from services._host.netlink.objects import FdbEntry, Link, NextHop, Route, Snapshot
from services.reconciler.inaccessible import MAX_QUERIES, destinations_to_query, read_inaccessible, show_bgp_command
from services.reconciler.path_auditor import PathAuditor
from services.reconciler.path_comparison import FrrState, PathComparison, Sessions, read_routes, read_sessions
from services.reconciler.ports import MalformedReplyError
from tests.support.deadline import until
from tests.support.fake_frr import FakeFrr
from tests.support.fake_network import UPLINKS, FakeDaemons, mac
from tests.support.manual_clock import ManualClock
from tests.support.reconciler_lab import memory_lab

VTEP = "10.255.0.2"
P1, P2 = UPLINKS
BOTH_UP = Sessions(frozenset({"p1", "p2"}))


def link(ifindex, name):
    return Link(ifindex, name, "veth", "02:00:00:00:00:01", 1500, up=True, carrier=True)


def seen(*hops, table=254, gateway="169.254.0.1"):
    """A VTEP, and the kernel's route to it."""
    routes = (Route(f"{VTEP}/32", table, 186, tuple(NextHop(hop, gateway) for hop in hops)),) if hops else ()
    remote = FdbEntry(11, mac(1), own=True, destination=VTEP)
    links = (link(P1, "p1"), link(P2, "p2"))
    return Snapshot(links=links, fdb=(remote,), routes=routes, lookups=(255, 100, 254, 253))


def judged(snapshot, frr, sessions=BOTH_UP):
    routes = None if frr is None else {f"{VTEP}/32": frr}
    (path,) = PathComparison(snapshot, FrrState(routes, sessions), OverrideTables().numbers).paths()
    return path


@pytest.mark.parametrize(
    ("hops", "frr", "sessions", "reason"),
    [
        ((P1, P2), ("p1", "p2"), BOTH_UP, ""),
        # The far end has lost its link to the other switch: ordinary.
        ((P2,), ("p2",), BOTH_UP, ""),
        # FRR 8.4 after a carrier flap.
        ((P2,), ("p1", "p2"), BOTH_UP, "the kernel forwards over 169.254.0.1@p2, FRR says p1 and p2"),
        ((), ("p1",), BOTH_UP, "the kernel forwards over nothing, FRR says p1"),
        ((P1, P2), ("p1", "p2"), Sessions(frozenset({"p2"}), frozenset({"p1"})), "over 169.254.0.1@p1, where BFD is"),
        # No session watches these uplinks.
        ((P1, P2), ("p1", "p2"), Sessions(), ""),
        ((P1,), None, BOTH_UP, ""),
    ],
)
def test_who_disagrees(hops, frr, sessions, reason):
    path = judged(seen(*hops), frr, sessions)

    assert reason in path.reason
    assert bool(reason) == bool(path.reason)


def test_gateways_of_numbered_links_are_compared():
    assert judged(seen(P1, gateway="192.0.2.0"), ("192.0.2.0@p1",)).reason == ""
    assert "FRR says 192.0.2.9@p1" in judged(seen(P1, gateway="192.0.2.0"), ("192.0.2.9@p1",)).reason
    down = Sessions(frozenset(), frozenset({"192.0.2.0"}))
    assert "BFD is down" in judged(seen(P1, gateway="192.0.2.0"), ("192.0.2.0@p1",), down).reason


def test_dead_next_hops_and_the_fast_paths_table():
    snapshot = seen(P1, P2)
    (route,) = snapshot.routes
    dead = replace(route, next_hops=(replace(route.next_hops[0], dead=True), route.next_hops[1]))
    override = replace(route, table=100, next_hops=route.next_hops[1:])

    path = judged(replace(snapshot, routes=(dead, override)), ("p2",))

    assert (path.reason, path.kernel, path.override) == ("", ("169.254.0.1@p2",), ("169.254.0.1@p2",))


def test_an_override_of_many_stands_in_the_table_that_its_rule_switched_on():
    """Above `backup_table_above` each uplink has a backup table; it counts once a rule activates it."""
    snapshot = seen(P1, P2)
    (route,) = snapshot.routes
    over = {number: NextHop(number, "169.254.0.1") for number in (P1, P2, 23)}
    rows = {101: over[P2], 102: over[P1]}
    ready = replace(
        snapshot, routes=(route, *(replace(route, table=table, next_hops=(hop,)) for table, hop in rows.items()))
    )
    assert judged(ready, ("p1", "p2")).override == ()

    switched = replace(ready, lookups=(255, 100, 101, 254, 253))
    assert judged(switched, ("p1", "p2")).override == ("169.254.0.1@p2",)
    assert judged(replace(ready, lookups=(255, 102, 254)), ("p1", "p2")).override == ("169.254.0.1@p1",)

    # Another host's word about one destination goes into the table that comes first.
    word = replace(route, table=100, next_hops=(over[23],))
    assert judged(replace(switched, routes=(*ready.routes, word)), ("p1", "p2")).override == ("169.254.0.1@23",)


def test_answers_of_frr():
    hop = {"fib": True, "ip": "fe80::1", "afi": "ipv6", "interfaceName": "p1"}
    routes = {
        "10.255.0.2/32": [
            {"selected": True, "nexthops": [hop, {**hop, "fib": False, "interfaceName": "p2"}]},
            {"nexthops": [{**hop, "interfaceName": "p3"}]},
        ],
        "0.0.0.0/0": "nonsense",
    }
    assert read_routes(routes) == {"10.255.0.2/32": ("p1",)}
    told_to = "neighbor signaled session down"
    peers = [
        {"peer": "fe80::1", "interface": "p1", "status": "up"},
        {"peer": "192.0.2.2", "status": "down"},
        {"peer": "10.255.0.9", "status": "up", "multihop": True},
        {"peer": "fe80::2", "interface": "p2", "status": "shutdown"},
        # As FRR 8.4.4 says it where the other side was shut down, and where that has lost us.
        {"interface": "p3", "status": "down", "diagnostic": told_to, "remote-diagnostic": "ok"},
        {"interface": "p4", "status": "down", "diagnostic": told_to, "remote-diagnostic": "control detection expired"},
    ]
    closed = ("BFD on p2 was closed administratively here", "BFD on p3 was closed administratively by the switch")
    assert read_sessions(peers) == Sessions(frozenset({"p1"}), frozenset({"192.0.2.2", "p4"}), closed)
    for read in (read_routes, read_sessions):
        with pytest.raises(MalformedReplyError):
            read("% nothing")


class Audit:
    """An auditor by hand: `at` moves the clock and compares."""

    def __init__(self):
        self.clock = ManualClock()
        self.daemons = FakeDaemons({VTEP: ("p1", "p2")}, {"p1": "up", "p2": "up"})
        self.auditor = PathAuditor(self.daemons, self.clock, 0.5)
        self.snapshot = seen(P1, P2)
        self.news = []
        self.auditor.on_path_status = self._take

    def _take(self, verdict):
        self.news.append(verdict)

    async def after(self, seconds):
        await self.clock.advance(seconds)
        await self.auditor._compare(lambda: self.snapshot)
        news, self.news = self.news, []
        return [(verdict.path is not None, verdict.agree, round(verdict.lasted_s, 1)) for verdict in news]


async def test_only_what_lasts_is_told_and_once():
    audit = Audit()
    assert await audit.after(0) == []
    audit.snapshot = seen(P2)
    assert await audit.after(0.5) == []
    assert await audit.after(0.5) == []
    assert await audit.after(0.5) == [(True, False, 0.0)], "1 s after it was seen first"
    assert audit.auditor.tracker.disagreements == 1
    assert await audit.after(0.5) == []
    audit.snapshot = seen(P1, P2)
    assert await audit.after(0.5) == [(True, True, 2.0)]
    assert (audit.auditor.tracker.disagreements, audit.auditor.tracker.alarms) == (0, 1)


async def test_convergence_is_no_disagreement():
    audit = Audit()
    audit.daemons.sessions["p1"] = "down"
    assert await audit.after(0) == []
    audit.daemons.routes[VTEP] = ("p2",)
    assert await audit.after(0.1) == []
    audit.snapshot = seen(P2)
    assert await audit.after(0.1) == []
    audit.snapshot = seen(P1, P2)
    assert await audit.after(2) == [], "a new doubt begins at zero"


async def test_frr_away_is_told_once_and_takes_no_doubt_back():
    audit = Audit()
    audit.snapshot = seen(P2)
    await audit.after(0)
    assert await audit.after(1.1) == [(True, False, 0.0)]
    audit.daemons.away = "does not run"
    assert await audit.after(0.5) == []
    assert await audit.after(1.0) == [(False, False, 0.0)]
    assert await audit.after(1.0) == []
    audit.daemons.away = ""
    assert await audit.after(0.5) == [(False, True, 2.5)]
    audit.snapshot = seen(P1, P2)
    assert await audit.after(0.5) == [(True, True, 4.6)]


async def test_a_withdrawn_destination_ends_its_disagreement():
    audit = Audit()
    audit.snapshot = seen(P2)
    await audit.after(0)
    await audit.after(1.1)
    audit.snapshot = Snapshot()
    assert await audit.after(0.5) == [(True, True, 1.6)]


async def test_a_rule_that_switches_a_table_on_is_seen(tmp_path, monkeypatch):
    lab = memory_lab(tmp_path, path_audit="on", path_audit_s=0.1)
    lab.put_in_place(monkeypatch)
    lab.network.learn(mac(1), VTEP)
    lab.network.route(VTEP, P1, P2)
    lab.network.route(VTEP, P2, table=101)
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler._paths()[0], what="the first comparison")
        looks = lab.network.looks
        lab.network.lookups = (255, 100, 101, 254)
        lab.network.happen("rule")
        await until(lambda: reconciler._paths()[0][0].override == ("169.254.0.1@p2",), what="the override")
        assert lab.network.looks == looks, "only what says which way packets go was read"
    await lab.bus.close(1)
    await lab.ours.close(1)


async def test_a_path_that_bgpd_calls_inaccessible_is_told_while_bfd_is_up():
    """FRR issue 21769: kernel and zebra agree on one next hop, and BGP and BFD are up on both."""
    audit = Audit()
    audit.daemons.routes[VTEP] = ("p2",)
    audit.daemons.inaccessible[VTEP] = ("p1",)
    audit.snapshot = seen(P2)
    await audit.after(0)  # the first look at the forwarding table
    assert await audit.after(0.5) == []
    assert await audit.after(0.5) == []
    assert await audit.after(0.5) == [(True, False, 0.0)], "within 2 s of its begin"
    (path,) = audit.auditor.paths
    assert path.reason.startswith("BGP and BFD are up over p1, but bgpd calls the next hop inaccessible")
    assert "clear bgp p1" in path.reason
    del audit.daemons.inaccessible[VTEP]
    audit.daemons.routes[VTEP] = ("p1", "p2")
    audit.snapshot = seen(P1, P2)
    assert await audit.after(0.5) == [(True, True, 1.5)]


async def test_a_vtep_whose_every_path_is_inaccessible_is_told_although_it_has_left_the_table():
    audit = Audit()
    assert await audit.after(0) == []
    audit.daemons.routes.clear()
    audit.daemons.inaccessible[VTEP] = ("p1", "p2")
    audit.snapshot = Snapshot(links=audit.snapshot.links)
    assert [news for _ in range(4) for news in await audit.after(0.5)] == [(True, False, 0.0)]
    audit.daemons.inaccessible.clear()
    assert await audit.after(0.5) == [(True, True, 2.0)]


async def test_a_fault_at_the_far_end_is_no_inaccessible_path():
    """No path in bgpd over p1 any more, though BFD is up there: that is what BGP is for."""
    audit = Audit()
    audit.daemons.routes[VTEP] = ("p2",)
    audit.snapshot = seen(P2)
    assert [news for _ in range(6) for news in await audit.after(0.5)] == []


async def test_bgpd_is_asked_only_about_destinations_that_lack_an_uplink():
    audit = Audit()
    for _ in range(3):
        await audit.after(0.5)
    assert audit.daemons.questions == 3 * 2, "zebra and bfdd"


@pytest.mark.parametrize(
    ("change", "uplinks"),
    [
        ({}, ("p1",)),
        ({"stale": True}, ()),
        ({"nexthops": [{"accessible": True}, {"accessible": False}]}, ()),
        ({"nexthops": []}, ()),
        ({"peer": {"peerId": "fe80::1", "interface": "p3"}}, ()),
        ({"peer": {"peerId": "192.0.2.2"}}, ("192.0.2.2",)),
    ],
)
def test_which_paths_bgpd_calls_inaccessible(change, uplinks):
    path = {"nexthops": [{"accessible": False}], "peer": {"peerId": "fe80::1", "interface": "p1"}, **change}
    assert read_inaccessible({"paths": [path]}, {"p1", "192.0.2.2"}) == uplinks


def test_questions_to_bgpd_are_bounded():
    vteps = [f"10.255.{number >> 8}.{number & 255}" for number in range(5_000)]
    assert len(destinations_to_query(vteps, (), {}, {"p1"})) == MAX_QUERIES
    assert destinations_to_query(vteps, (), {}, ()) == (), "without BFD nobody knows whether the way is whole"
    with pytest.raises(MalformedReplyError):
        read_inaccessible("% nothing", {"p1"})


async def test_a_bgpd_on_its_socket_is_asked(tmp_path):
    """A false bgpd that speaks FRR's protocol, with an answer as FRR gives it."""
    path = {
        "aspath": {"string": "65101 65002"},
        "nexthops": [{"ip": "fe80::1", "afi": "ipv6", "scope": "link-local", "accessible": False, "used": True}],
        "peer": {"peerId": "fe80::1", "routerId": "10.255.1.1", "interface": "p1", "type": "external"},
    }
    fine = {**path, "valid": True, "nexthops": [{"accessible": True}], "peer": {"interface": "p2"}}
    hop = {"fib": True, "ip": "fe80::2", "afi": "ipv6", "interfaceName": "p2"}
    answers = {
        "zebra": {"show ip route json": json.dumps({f"{VTEP}/32": [{"selected": True, "nexthops": [hop]}]})},
        "bfdd": {"show bfd peers json": json.dumps([{"interface": name, "status": "up"} for name in ("p1", "p2")])},
        "bgpd": {show_bgp_command(VTEP): json.dumps({"prefix": f"{VTEP}/32", "paths": [path, fine]})},
    }
    async with FakeFrr(tmp_path, answers):
        auditor = PathAuditor(Frr(directory=tmp_path), ManualClock(), 0.5)
        for _ in range(2):
            await auditor._compare(lambda: seen(P2))
    assert "over p1" in auditor.paths[0].reason


async def test_nothing_is_judged_while_the_kernel_is_unreadable():
    audit = Audit()
    audit.snapshot = None
    assert await audit.after(5) == []


async def test_the_service_tells_within_two_seconds(tmp_path, monkeypatch):
    lab = memory_lab(tmp_path, path_audit="on", path_audit_s=0.3)
    lab.put_in_place(monkeypatch)
    await lab.listen()
    lab.network.learn(mac(1), VTEP)
    lab.network.route(VTEP, P1, P2)
    lab.daemons.routes[VTEP] = ("p1", "p2")
    lab.daemons.sessions.update(p1="up", p2="up")
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last and lab.daemons.questions > 2, what="the first comparison")
        lab.network.route(VTEP, P2)
        began = reconciler._clock.monotonic()
        await until(lambda: any(e.kind is RouteKind.DISAGREEMENT for e in lab.routes), what="the alarm")
        assert reconciler._clock.monotonic() - began < 60
        lab.network.route(VTEP, P1, P2)
        await until(lambda: any(e.kind is RouteKind.AGREEMENT for e in lab.routes), what="its end")
        lab.daemons.away = "does not run"
        await until(lambda: any(e.kind is RouteKind.FRR for e in lab.routes), what="that FRR is away")

    told = {event.kind: event for event in lab.routes}
    assert told[RouteKind.DISAGREEMENT].alarm
    assert told[RouteKind.DISAGREEMENT].after == ("169.254.0.1@p2",)
    assert told[RouteKind.DISAGREEMENT].frr == ("p1", "p2")
    assert told[RouteKind.AGREEMENT].latency_us > 1_000_000
    assert told[RouteKind.FRR].after == ("away",)
    assert [event.seq for event in lab.routes] == list(range(1, len(lab.routes) + 1))
    await lab.bus.close(1)
    await lab.ours.close(1)

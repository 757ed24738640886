"""What other hosts tell of paths: hints that start a look and mark a VTEP, bounded whatever one host tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.network import NetworkStateReply, NetworkStateRequest, RouteEvent, RouteKind
from schemas.subjects import RECONCILER_STATE, ROUTE_EVENTS
from services._edge.frr_drain import drained
from services.reconciler.drain_watch import POLL_INTERVAL_S, REPUBLISH_INTERVAL_S, DrainWatch
from services.reconciler.hints import (
    DRAIN_HINT_EXPIRY_S,
    HINT_EXPIRY_S,
    MAX_EVENTS_PER_S,
    MAX_HINTS_PER_NODE,
    MAX_NODES,
    MIN_TRIGGER_INTERVAL_S,
    RouteHints,
)
from tests.support.deadline import until
from tests.support.fake_network import LOCAL, UPLINKS, FakeDaemons, mac
from tests.support.manual_clock import ManualClock
from tests.support.reconciler_lab import memory_lab

pytestmark = pytest.mark.virtual_time


OWN, VTEP, OTHER = "10.255.0.1", "10.255.0.2", "10.255.0.3"
VTEPS = {VTEP, OTHER}


def event(kind, **fields):
    return RouteEvent(kind=kind, **{"node": "n2", "incarnation": 1, "seq": 1, "source": "x", "time_ns": 1, **fields})


def narrowed(destination=f"{OTHER}/32", **fields):
    return event(RouteKind.ROUTE, destination=destination, before=("p1", "p2"), after=("p2",), vtep=VTEP, **fields)


DRAINED = event(RouteKind.DRAIN, interface="p1", vtep=VTEP, reason="p1 is drained")


def test_a_narrowed_route_makes_its_destination_suspect_and_starts_a_look():
    hints = RouteHints("n1", OWN)
    assert hints.add("n2", narrowed(), VTEPS, 0.0)
    assert hints.suspects(1.0) == {OTHER: "n2 says: its route has 1 of 2 next hops left"}
    widened = event(RouteKind.ROUTE, destination=f"{OTHER}/32", before=("p2",), after=("p1", "p2"))
    hints.add("n2", widened, VTEPS, 1.0)
    assert hints.suspects(1.0) == {}


def test_a_senders_narrowed_route_to_us_makes_the_sender_suspect():
    hints = RouteHints("n1", OWN)
    assert hints.add("n2", narrowed(f"{OWN}/32"), VTEPS, 0.0)
    assert set(hints.suspects(1.0)) == {VTEP}


def test_a_drain_lasts_until_it_is_taken_back_or_no_longer_told():
    hints = RouteHints("n1", OWN)
    assert hints.add("n2", DRAINED, VTEPS, 0.0)
    hints.add("n2", event(RouteKind.UNDRAIN, interface="p2", vtep=VTEP), VTEPS, 1.0)
    assert hints.suspects(HINT_EXPIRY_S + 1) == {VTEP: "n2 says: drain p1: p1 is drained"}, "p2 is another uplink"
    assert hints.suspects(DRAIN_HINT_EXPIRY_S) == {}
    hints.add("n2", DRAINED, VTEPS, 0.0)
    hints.add("n2", event(RouteKind.UNDRAIN, interface="p1", vtep=VTEP), VTEPS, 1.0)
    assert hints.suspects(2.0) == {}


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ("n1", DRAINED),
        ("n2", event(RouteKind.FDB, destination="02:00:00:00:00:01", vtep=VTEP)),
        ("n2", event(RouteKind.FRR, vtep=VTEP)),
        ("n2", narrowed("10.255.0.77/32")),
    ],
    ids=["our own", "a MAC", "FRR", "a VTEP that we do not send to"],
)
def test_what_starts_no_look(node, told):
    hints = RouteHints("n1", OWN)
    assert not hints.add(node, told, VTEPS, 0.0)
    assert hints.suspects(0.0) == {}


def test_nobody_takes_back_what_another_said():
    hints = RouteHints("n1", OWN)
    hints.add("n2", DRAINED, VTEPS, 0.0)
    hints.add("n3", event(RouteKind.UNDRAIN, interface="p1", vtep=VTEP, node="n2"), VTEPS, 0.5)
    assert VTEP in hints.suspects(1.0), "the name in the message counts for nothing"


def test_looks_are_rare_and_a_flood_is_refused():
    hints = RouteHints("n1", OWN)
    looks = sum(hints.add("n2", narrowed(), VTEPS, number * 0.01) for number in range(100))
    assert 1 <= looks <= 1.0 / MIN_TRIGGER_INTERVAL_S
    for _ in range(MAX_EVENTS_PER_S):
        hints.add("n2", narrowed(), VTEPS, 5.0)
    assert not hints.flooded
    hints.add("n2", narrowed(), VTEPS, 5.0)
    assert hints.flooded
    assert not hints.add("n3", DRAINED, VTEPS, 9.0)
    hints.resume()
    assert hints.add("n3", DRAINED, VTEPS, 10.0)


def test_a_hostile_sentence_is_short_and_printable():
    hints = RouteHints("n1", OWN)
    hints.add("n2", event(RouteKind.DRAIN, vtep=VTEP, reason="\x1b[2J" + "x" * 9_000), VTEPS, 0.0)
    (text,) = hints.suspects(0.0).values()
    assert text.isprintable()
    assert len(text) < 200


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(RouteKind), st.integers(0, 300), st.text(max_size=3)), max_size=150
    )
)
def test_memory_is_bounded_by_what_this_host_sends_to(told):
    vteps = {f"10.0.0.{number}" for number in range(200)}
    hints = RouteHints("n1", OWN)
    for number, (node, kind, first, interface) in enumerate(told):
        also = tuple(f"10.0.0.{first + more}" for more in range(100))
        one = event(kind, destination=f"10.0.0.{first}", also=also, vtep=f"10.0.0.{first}", interface=interface)
        hints.add(f"n{node}", one, vteps, number * 0.1)
    assert set(hints.suspects(0.0)) <= vteps
    assert all(len(each) <= MAX_HINTS_PER_NODE for each in hints._hints.values())
    assert "n1" not in hints._hints


def test_the_number_of_nodes_is_bounded():
    hints = RouteHints("n1", OWN)
    for number in range(MAX_NODES + 10):
        hints.add(f"x{number}", DRAINED, VTEPS, float(number))
    assert len(hints._hints) == MAX_NODES


RUNNING = """
 address-family ipv4 unicast
  neighbor p1 route-map TURNBUCKLE-DRAIN-IN in
  neighbor p1 route-map TURNBUCKLE-DRAIN-OUT out
  neighbor p2 route-map TURNBUCKLE-DRAIN-IN in
  neighbor p3 route-map OTHER out
"""


def test_an_uplink_is_drained_with_both_route_maps():
    assert drained(RUNNING) == {"p1"}
    assert drained("route-map TURNBUCKLE-DRAIN-IN permit 10\n") == frozenset()


async def test_a_drain_is_told_once_again_each_ten_minutes_and_when_it_ends():
    clock, daemons, told = ManualClock(), FakeDaemons(running=RUNNING), []
    watch = DrainWatch(daemons, clock, lambda uplink, is_drained: told.append((uplink, is_drained)))
    for _ in range(3):
        await watch.poll()
        await clock.advance(POLL_INTERVAL_S)
    assert told == [("p1", True)]
    daemons.away = "does not run"
    await watch.poll()
    assert watch.drained == ("p1",), "bgpd that does not answer takes nothing back"
    daemons.away = ""
    await clock.advance(REPUBLISH_INTERVAL_S)
    await watch.poll()
    daemons.running = "! restarted: nothing of it is left"
    await watch.poll()
    assert told == [("p1", True), ("p1", True), ("p1", False)]


@pytest.fixture
async def lab(tmp_path, monkeypatch):
    lab = memory_lab(tmp_path, path_audit="on", path_audit_s=60.0)
    lab.put_in_place(monkeypatch)
    await lab.listen()
    lab.network.learn(mac(1), VTEP)
    lab.network.route(VTEP, *UPLINKS)
    lab.daemons.routes[VTEP] = ("p1", "p2")
    lab.daemons.sessions.update(p1="up", p2="up")
    yield lab
    await lab.bus.close(1)
    await lab.ours.close(1)


async def state(lab):
    reply = await lab.ask(RECONCILER_STATE, NetworkStateRequest())
    assert isinstance(reply, NetworkStateReply)
    return reply


async def test_a_reconciler_looks_at_once_and_shows_the_hint(lab):
    async with lab.reconciler() as reconciler:
        # The first comparison comes before the first look at the kernel.
        await until(lambda: reconciler.loop.last, what="the first look")
        reconciler._auditor.changed()
        await until(lambda: reconciler._paths()[0], what="the first comparison")
        route_only, questions = reconciler.loop.counts.route_only, lab.daemons.questions
        lab.ours.publish_event(ROUTE_EVENTS.subject("tb", node="n2"), DRAINED, message_id="1")
        await until(lambda: reconciler.loop.counts.route_only > route_only, what="a look at the kernel's paths")
        await until(lambda: lab.daemons.questions > questions, what="questions to FRR")
        (path,) = (await state(lab)).paths
        assert path.suspect == "n2 says: drain p1: p1 is drained"
        assert path.agree, "a hint is no verdict"
        assert lab.network.model.writes == reconciler.loop.counts.writes


async def test_a_flood_closes_the_subscription_and_the_reconciler_goes_on(lab):
    async with lab.reconciler() as reconciler:
        await until(lambda: reconciler.loop.last, what="the first look")
        for number in range(MAX_EVENTS_PER_S + 50):
            lab.ours.publish_event(ROUTE_EVENTS.subject("tb", node="n2"), narrowed(), message_id=str(number))
        await until(lambda: reconciler._listener.paused, what="the end of listening")
        heard = lab.bus.counters["received"]
        lab.ours.publish_event(ROUTE_EVENTS.subject("tb", node="n3"), DRAINED, message_id="after the flood")
        lab.network.learn(mac(2), VTEP)
        await until(lambda: len(lab.rules) == 2, what="a rule as ever")
        assert lab.bus.counters["received"] == heard


async def test_a_drained_uplink_is_told_with_this_hosts_vtep(lab):
    async with lab.reconciler():
        lab.daemons.running = RUNNING
        await until(lambda: any(told.kind is RouteKind.DRAIN for told in lab.routes), what="the drain")
        assert (await state(lab)).drained == ("p1",)
        lab.daemons.running = ""
        await until(lambda: any(told.kind is RouteKind.UNDRAIN for told in lab.routes), what="its end")
    (told,) = [each for each in lab.routes if each.kind is RouteKind.DRAIN]
    assert (told.node, told.interface, told.vtep, told.cause) == ("n1", "p1", LOCAL, "operator")

"""Links: their file, who uses them, where jobs are placed beside others, and what the paths of nodes make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.network import RouteEvent, RouteKind
from schemas.scheduling import (
    ClusterLink,
    JobAction,
    JobControlled,
    JobSubmitted,
    OrderAction,
    Pace,
    ScheduleEvent,
    WorkerChange,
    WorkEvent,
    WorkReply,
)
from services._runtime.settings_error import UnusableSettingsError
from services.scheduler.core.candidates import well_placed
from services.scheduler.core.decide import decide
from services.scheduler.core.entries import decided
from services.scheduler.core.jobs import Job, Node, Phase
from services.scheduler.core.orders import news, pace_orders
from services.scheduler.core.placement import Room
from services.scheduler.core.policies import ArrivalOrder
from services.scheduler.core.shared_links import LinkUse, profile_of, users
from services.scheduler.core.state import State, fold
from services.scheduler.core.uplinks import Uplinks
from services.scheduler.topology import read_topology
from tests.support.scheduled_jobs import entry, job_spec
from tests.support.traffic import LINK, MBIT, profile, two_jobs

NOW_NS = 10**18


def test_a_topology_is_read(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("links:\n  up-2: {rate: 25Gbit, nodes: [n3, n4]}\n  up-1: {rate: 100 Mbit, nodes: [n2, n1, n2]}\n")
    assert read_topology(file) == (
        ClusterLink(link="up-1", bits_per_s=100 * MBIT, nodes=("n1", "n2")),
        ClusterLink(link="up-2", bits_per_s=25_000 * MBIT, nodes=("n3", "n4")),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "links:\n  up: {rate: 25Gbyte, nodes: [n1]}\n",
            ":2: links.up.rate: '25Gbyte' is no rate: write it such as 100Mbit",
        ),
        ("links:\n  up: {nodes: [n1]}\n", ":2: 'links.up.rate' is missing"),
        ("links:\n  up: {rate: 1Gbit, nodes: [n1], speed: 1}\n", ":2: unknown field 'links.up.speed'"),
        ("links:\n  up: {rate: 0, nodes: [n1]}\n", ":2: links.up.rate: "),
        ("links:\n  up: {rate: 1Gbit, nodes: []}\n", ":2: links.up.nodes: "),
        ("link: {}\n", ":1: unknown field 'link': did you mean 'links'?"),
        ("links: {\n", "not valid YAML"),
    ],
)
def test_what_is_wrong_with_a_topology_is_said_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    with pytest.raises(UnusableSettingsError) as refusal:
        read_topology(file)
    assert problem in str(refusal.value)


def test_a_topology_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableSettingsError, match=r"none\.yaml cannot be read: No such file"):
        read_topology(tmp_path / "none.yaml")


def test_a_job_uses_a_link_with_workers_on_both_sides() -> None:
    use = LinkUse([LINK])
    assert [list(use.links(nodes)) for nodes in (("n1", "n2"), ("n3", "n4"), ("n1",), ("n1", "n3"))] == [
        [],
        [],
        [],
        ["rack-1-up"],
    ]
    state = fold(State(), two_jobs(NOW_NS))
    assert users(state) == {"rack-1-up": ("a", "b")}


# -- placement -----------------------------------------------------------------------------------------------------


def test_candidates_begin_where_the_job_would_be_placed_anyway() -> None:
    nodes = [Node(name, 2, rack) for name, rack in {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}.items()]
    room = Room(nodes)
    job = Job("x", 4, 0.0)
    found = room.candidates(job, 8)
    assert found[0] == room.find(job) == ("n1", "n1", "n2", "n2")
    assert ("n3", "n3", "n4", "n4") in found
    assert len(found) == len(set(found)) <= 8
    copied = room.copy()
    copied.take(found[0], 1)
    assert (room.slots, copied.slots) == (8, 4)
    assert Room(nodes[:1]).candidates(job, 8) == []


def three_racks() -> State:
    """Slots are free for two workers in each of r2 and r3, one a node; a runs over both uplinks of r1 and r2."""
    log = two_jobs(NOW_NS)
    (first,) = log
    assert first.nodes is not None
    assert first.decision is not None
    nodes = {node.node: node.model_copy(update={"slots": 1}) for node in first.nodes}
    nodes |= {"n5": nodes["n4"].model_copy(update={"node": "n5", "rack": "r3"})}
    nodes |= {"n6": nodes["n4"].model_copy(update={"node": "n6", "rack": "r3"})}
    decision = first.decision.model_copy(update={"starts": first.decision.starts[:1]})
    links = (
        LINK,
        ClusterLink(link="rack-2-up", bits_per_s=100 * MBIT, nodes=("n3", "n4")),
        ClusterLink(link="rack-3-up", bits_per_s=100 * MBIT, nodes=("n5", "n6")),
    )
    entry = first.model_copy(update={"nodes": tuple(nodes.values()), "links": links, "decision": decision})
    return fold(State(), [entry])


def test_of_several_places_that_with_the_best_links_is_taken() -> None:
    """Job b has run before, and sends as long as a: beside a the link would have too much, also with shifts."""
    state = three_racks()
    drained = ScheduleEvent(leader="s", time_ns=NOW_NS, drained=("n6",))
    state = fold(state, [drained])
    profiles = (profile("a", 1_000, 600), profile("b", 1_000, 600))
    unknown, _ = decided(state, ScheduleEvent(leader="s", time_ns=NOW_NS), "index")
    assert unknown.decision is not None
    assert [start.nodes for start in unknown.decision.starts] == [("n2", "n4")]
    known = fold(state, [ScheduleEvent(leader="s", time_ns=NOW_NS, profiles=profiles)])
    entry, _ = decided(known, ScheduleEvent(leader="s", time_ns=NOW_NS), "index")
    assert entry.decision is not None
    (start,) = entry.decision.starts
    # n2 n4 shares both uplinks with a, n2 n5 and n4 n5 one of them.
    assert start.nodes in {("n2", "n5"), ("n4", "n5")}


@pytest.mark.parametrize("sends", ["gang", "stops"])
def test_starts_that_leave_room_to_jobs_that_stop_are_not_moved_into_each_others_places(sends: str) -> None:
    """As things are the gang would go to a1 and a2, and the wide job has no place but a1: that ended the service."""
    nodes = [Node("a1", 3, "a"), Node("a2", 3, "a"), Node("b1", 2, "b"), Node("b2", 2, "b")]
    stops = Job("stops", 2, 0.0, 0, phase=Phase.STOPPING, nodes=("a2", "a2"))
    gang, wide = Job("gang", 4, 1.0, 1), Job("wide", 3, 2.0, 2, slots_per_worker=3)
    assert Room(nodes, [stops]).find(gang) == ("a1", "a1", "a1", "a2")
    decision = decide([stops, gang, wide], nodes, ArrivalOrder(backfills=True), 10.0)
    starts = {start.job: start.nodes for start in decision.starts}
    assert starts == {"gang": ("b1", "b1", "b2", "b2"), "wide": ("a1",)}

    specs = [job_spec("gang", workers=4), job_spec("wide", slots=3), job_spec("stops", slots=2)]
    submitted = tuple(JobSubmitted(spec=spec) for spec in specs)
    state = fold(State(), [entry(links=(LINK,), submitted=submitted), entry(profiles=(profile(sends, 1_000, 600),))])

    assert {start.job: start.nodes for start in well_placed(state, decision, nodes).starts} == starts


@pytest.mark.parametrize(
    ("slots", "nodes", "shifts"), [(1, ("n1", "n3"), {"a": 2, "b": 1}), (2, ("n1", "n1"), {})], ids=["alike", "other"]
)
def test_a_preempted_job_keeps_its_profile_where_its_place_is_alike(
    slots: int, nodes: tuple[str, ...], shifts: dict[str, int]
) -> None:
    state = fold(State(), two_jobs(NOW_NS, slots))
    state = fold(
        state,
        [ScheduleEvent(leader="s", time_ns=NOW_NS, profiles=(profile("a", 1_240, 540), profile("b", 1_240, 540)))],
    )
    asked = ScheduleEvent(leader="s", time_ns=NOW_NS, controlled=(JobControlled(job="a", action=JobAction.PREEMPT),))
    stopped = tuple(
        WorkEvent(job="a", attempt=1, rank=rank, node=node, change=WorkerChange.STOPPED, time_ns=1)
        for rank, node in enumerate(("n1", "n3"))
    )
    for told in (asked, ScheduleEvent(leader="s", time_ns=NOW_NS, worked=stopped)):
        entry, _ = decided(state, told, "index")
        state = fold(state, [entry])
    assert (state.live["a"].attempt, state.live["a"].job.nodes) == (2, nodes)
    assert {job: shift.attempt for job, shift in state.traffic.shifts.items()} == shifts
    assert (profile_of(state, state.live["a"]) is not None) == bool(shifts)


# -- orders --------------------------------------------------------------------------------------------------------


def test_paces_are_ordered_where_rank_0_runs_and_withdrawn_where_there_is_no_shift() -> None:
    state = fold(State(), two_jobs(NOW_NS))
    ready = tuple(
        WorkEvent(job=job, attempt=1, rank=0, node=node, change=WorkerChange.READY, time_ns=1)
        for job, node in {"a": "n1", "b": "n2"}.items()
    )
    told = ScheduleEvent(
        leader="s", time_ns=NOW_NS, worked=ready, profiles=(profile("a", 1_240, 540), profile("b", 1_240, 540))
    )
    state = fold(state, [decided(state, told, "index")[0]])
    assert list(pace_orders(state, {})) == [], "nobody's turn is known yet"
    paces = {job: Pace(begin_ns=begin_ns, period_us=1_240_000) for begin_ns, job in enumerate(("a", "b"))}
    found = list(pace_orders(state, paces))
    assert [(order.job, order.node, order.ranks, order.action) for order in found] == [
        ("a", "n1", (0,), OrderAction.PACE),
        ("b", "n2", (0,), OrderAction.PACE),
    ]
    assert [order.pace for order in found] == list(paces.values())
    assert news(state, found[0], WorkReply(obeyed=True), 1) == (), "a reply without workers says nothing of them"
    gone = ScheduleEvent(leader="s", time_ns=NOW_NS, links=())
    state = fold(state, [decided(state, gone, "index")[0]])
    assert [(order.job, order.pace) for order in pace_orders(state, {})] == [("a", None), ("b", None)]


# -- paths -----------------------------------------------------------------------------------------------------------


def event(kind: RouteKind, source: str = "watcher", incarnation: int = 1, **fields: object) -> RouteEvent:
    plain = {"kind": kind, "node": "n1", "incarnation": incarnation, "seq": 1, "source": source, "time_ns": 1}
    return RouteEvent.model_validate(plain | fields)


BOTH, ONE = ("10.0.0.1@p1", "10.0.1.1@p2"), ("10.0.1.1@p2",)
LOST = event(RouteKind.ROUTE, destination="10.9.0.0/16", before=BOTH, after=ONE)
UP, DOWN = ("up", "carrier"), ("up", "no carrier")


def after(*events: RouteEvent) -> tuple[bool, bool]:
    """Cut off, and halved."""
    uplinks = Uplinks()
    for each in events:
        uplinks.fold(each)
    return uplinks.cut_off, uplinks.halved


@pytest.mark.parametrize(
    ("events", "cut_off", "halved"),
    [
        ((), False, False),
        ((event(RouteKind.LINK, interface="docker0", after=DOWN),), False, False),
        ((LOST,), False, True),
        ((LOST, event(RouteKind.ROUTE, destination="10.9.0.0/16", before=ONE, after=BOTH)), False, False),
        (
            (
                event(RouteKind.LINK, interface="p1", after=DOWN),
                LOST,
                event(RouteKind.LINK, interface="p2", after=DOWN),
            ),
            True,
            False,
        ),
        (
            (LOST, event(RouteKind.LINK, interface="p2", after=DOWN), event(RouteKind.LINK, interface="p2", after=UP)),
            False,
            True,
        ),
        ((event(RouteKind.OVERRIDE, "fast_path", interface="p1", after=ONE),), False, True),
        ((event(RouteKind.ROUTE, destination="10.9.0.7", before=ONE, after=()),), False, False),
        ((LOST, event(RouteKind.ROUTE, incarnation=2, destination="x", before=ONE, after=BOTH)), False, False),
        (
            (event(RouteKind.ROUTE, before=BOTH, after=BOTH), event(RouteKind.DRAIN, "auditor", interface="p1")),
            False,
            True,
        ),
        (
            (
                event(RouteKind.ROUTE, before=BOTH, after=BOTH),
                event(RouteKind.DRAIN, "auditor", interface="p1"),
                event(RouteKind.UNDRAIN, "auditor", interface="p1"),
            ),
            False,
            False,
        ),
    ],
)
def test_what_path_events_say_of_uplinks(events: tuple[RouteEvent, ...], cut_off: bool, halved: bool) -> None:
    assert after(*events) == (cut_off, halved)


def test_a_flood_of_interfaces_is_not_kept() -> None:
    uplinks = Uplinks()
    for number in range(1_000):
        uplinks.fold(event(RouteKind.LINK, interface=f"veth{number}", after=DOWN))
        uplinks.fold(event(RouteKind.ROUTE, before=(f"x@p{number}",), after=(f"x@q{number}",)))
    assert len(uplinks.named) <= 64
    assert len(uplinks.links_down) <= 64

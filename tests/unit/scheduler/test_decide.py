"""What a decision promises, for any jobs, nodes and policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.scheduler.core.attained import started
from services.scheduler.core.attained_service import AttainedService
from services.scheduler.core.decide import Terms, decide
from services.scheduler.core.jobs import Estimate, Job, Node, Phase
from services.scheduler.core.placement import Room
from services.scheduler.core.policies import ArrivalOrder, LargestIndex, Policy, Smallest, fewest_slots

NOW_S = 10_000.0
POLICIES: tuple[Policy, ...] = (
    ArrivalOrder(),
    ArrivalOrder(backfills=True),
    Smallest(key=fewest_slots),
    AttainedService(),
    LargestIndex(),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    sizes, equal = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)), draw(st.booleans())
    return tuple(
        Node(f"n{place}", size, draw(st.sampled_from("ab")), draw(st.integers(0, 4)) > 0, equal_workers=equal)
        for place, size in enumerate(sizes)
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[tuple[Job, ...], tuple[Node, ...]]:
    """Jobs that wait, and jobs that were placed on the nodes before."""
    nodes = draw(clusters())
    jobs: list[Job] = []
    for number in range(draw(st.integers(0, 12))):
        each = draw(st.integers(1, 3))
        job = Job(
            f"j{number}",
            each * draw(st.integers(1, 4)),
            draw(st.floats(0, NOW_S)),
            number,
            slots_per_worker=each,
            preemptible=draw(st.booleans()),
            estimate=draw(st.sampled_from([None, Estimate(60, 600, 6_000)])),
        )
        job = replace(job, counted_s=job.submitted_s)
        where = Room([replace(node, available=True) for node in nodes], jobs).find(job)
        if where is not None and draw(st.booleans()):
            job = started(job, draw(st.floats(job.submitted_s, NOW_S)), where, 0, draw(st.sampled_from([0.0, 1e9])))
            if draw(st.integers(0, 4)) == 0:
                job = replace(job, phase=Phase.STOPPING)
        jobs.append(job)
    return tuple(jobs), nodes


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(situations(), st.booleans())
def test_no_slot_is_given_twice(
    policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]], at_once: bool
) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, policy, NOW_S, Terms(stops_at_once=at_once))
    by_name = {job.name: job for job in jobs}
    gone = set(decision.preempts) if at_once else set()
    held = Counter[str]()
    for job in jobs:
        if job.name not in gone:
            held.update({name: job.slots_per_worker * job.nodes.count(name) for name in set(job.nodes)})
    for start in decision.starts:
        job = by_name[start.job]
        assert len(start.nodes) * job.slots_per_worker == job.slots, "all workers or none"
        assert job.phase is Phase.WAITING
        held.update({name: job.slots_per_worker * start.nodes.count(name) for name in set(start.nodes)})
    started_on = {name for start in decision.starts for name in start.nodes}

    assert all(held[node.name] <= node.slots for node in nodes)
    assert started_on <= {node.name for node in nodes if node.available}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(situations())
def test_only_those_are_preempted_that_may_be(
    policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]]
) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, policy, NOW_S)
    by_name = {job.name: job for job in jobs}
    for name in decision.preempts:
        job = by_name[name]
        assert job.phase is Phase.RUNNING
        assert job.preemptible
        assert policy.preemptive
        assert not policy.holds or job.held_until_s <= NOW_S


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(situations())
def test_every_job_has_its_turn_once(policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]]) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, policy, NOW_S)

    assert sorted(turn.job for turn in decision.turns) == sorted(job.name for job in jobs)
    assert {start.job for start in decision.starts} <= {turn.job for turn in decision.turns if turn.chosen}
    assert [job.name for job in decision.jobs if job.phase is Phase.RUNNING and job.name not in decision.preempts] == [
        job.name
        for job in decision.jobs
        if job.phase is Phase.RUNNING and next(turn for turn in decision.turns if turn.job == job.name).chosen
    ]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(situations())
def test_deciding_again_at_once_changes_nothing(
    policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]]
) -> None:
    jobs, nodes = situation
    first = decide(jobs, nodes, policy, NOW_S)
    starts = {start.job: start.nodes for start in first.starts}
    after = [
        started(job, NOW_S, starts[job.name], 0, 600)
        if job.name in starts
        else replace(job, phase=Phase.STOPPING)
        if job.name in first.preempts
        else job
        for job in first.jobs
    ]
    again = decide(after, nodes, policy, NOW_S)

    assert not set(again.preempts) & set(starts), "what was just started is not stopped for what waited behind it"


def job(name: str, slots: int, number: int, **fields: object) -> Job:
    return replace(Job(name, slots, float(number), number, counted_s=float(number)), **fields)  # type: ignore[arg-type]


def test_without_backfilling_the_head_of_the_queue_blocks_it() -> None:
    jobs = [job("large", 8, 0), job("small", 1, 1)]
    strict = decide(jobs, [Node("n", 4)], ArrivalOrder(), NOW_S)
    filling = decide(jobs, [Node("n", 4)], ArrivalOrder(backfills=True), NOW_S)

    assert strict.starts == ()
    assert [start.job for start in filling.starts] == ["small"]


def test_a_job_waits_until_the_preempted_one_has_stopped() -> None:
    nodes = [Node("n", 4)]
    long = started(job("long", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6)), 100.0, ("n",) * 4, 0, 0)
    short = job("short", 4, 1, estimate=Estimate(50, 60, 70))
    first = decide([long, short], nodes, LargestIndex(), NOW_S)
    assert (first.preempts, first.starts) == (("long",), ())

    stopping = replace(long, phase=Phase.STOPPING)
    assert decide([stopping, short], nodes, LargestIndex(), NOW_S + 1).starts == ()
    stopped = replace(stopping, phase=Phase.WAITING, nodes=())
    assert [start.job for start in decide([stopped, short], nodes, LargestIndex(), NOW_S + 2).starts] == ["short"]


def test_slots_that_become_free_piece_by_piece_are_kept_for_the_job_whose_turn_it_is() -> None:
    nodes = [Node("n", 4)]
    longs = [
        started(job(name, 2, number, estimate=Estimate(9e5, 1e6, 1.1e6)), 100.0, ("n",) * 2, 0, 0)
        for number, name in enumerate(("long-1", "long-2"))
    ]
    gang, small = job("gang", 4, 2, estimate=Estimate(50, 60, 70)), job("small", 1, 3, estimate=Estimate(5e4, 6e4, 7e4))
    first = decide([*longs, gang, small], nodes, LargestIndex(), NOW_S)
    assert (set(first.preempts), first.starts) == ({"long-1", "long-2"}, ())

    stopped, stopping = replace(longs[0], phase=Phase.WAITING, nodes=()), replace(longs[1], phase=Phase.STOPPING)
    between = decide([stopped, stopping, gang, small], nodes, LargestIndex(), NOW_S + 1)
    assert (between.starts, between.preempts) == ((), ())
    both = [stopped, replace(stopped, name="long-2", number=1), gang, small]
    assert [start.job for start in decide(both, nodes, LargestIndex(), NOW_S + 2).starts] == ["gang"]


def test_a_job_is_held_until_it_has_earned_what_its_preemption_costs() -> None:
    nodes = [Node("n", 4)]
    long = started(job("long", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6)), NOW_S - 599, ("n",) * 4, 0, 600)
    short = job("short", 4, 1, estimate=Estimate(50, 60, 70))

    assert decide([long, short], nodes, LargestIndex(), NOW_S).preempts == ()
    assert decide([long, short], nodes, LargestIndex(), NOW_S + 1).preempts == ("long",)


def test_who_has_waited_for_as_long_as_is_allowed_goes_first() -> None:
    old = job("old", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6))
    short = job("short", 4, 1, estimate=Estimate(50, 60, 70))
    week_s = 7 * 86_400.0
    bounded = LargestIndex(wait_at_most_s=week_s)

    assert [start.job for start in decide([old, short], [Node("n", 4)], bounded, week_s - 1).starts] == ["short"]
    assert [start.job for start in decide([old, short], [Node("n", 4)], bounded, week_s).starts] == ["old"]


def test_a_job_on_a_drained_node_stays_and_none_is_started_there() -> None:
    nodes = [Node("drained", 4, available=False), Node("n", 2)]
    stays = started(job("stays", 4, 0), 1.0, ("drained",) * 4, 0, 0)
    decision = decide([stays, job("next", 2, 1)], nodes, LargestIndex(), NOW_S)

    assert decision.preempts == ()
    assert [start.nodes for start in decision.starts] == [("n", "n")]


def test_slots_that_are_scattered_go_to_the_next_job() -> None:
    nodes = [Node("a", 2), Node("b", 2)]
    busy = [started(job(f"busy-{name}", 1, n, preemptible=False), 1.0, (name,), 0, 0) for n, name in enumerate("ab")]
    wide = job("wide", 2, 2, slots_per_worker=2, estimate=Estimate(50, 60, 70))
    narrow = job("narrow", 1, 3)

    assert [start.job for start in decide([*busy, wide, narrow], nodes, LargestIndex(), NOW_S).starts] == ["narrow"]


LONG, SHORT = Estimate(9e5, 1e6, 1.1e6), Estimate(50, 60, 70)


def test_no_job_is_preempted_for_one_with_as_many_workers_on_each_node_that_fits_nowhere() -> None:
    """Five workers on nodes of three and two: neither on one, nor as many on both, though there are five slots."""
    nodes = [Node("a", 3, equal_workers=True), Node("b", 2, equal_workers=True)]
    long = started(job("long", 1, 0, estimate=LONG), 1.0, ("a",), 0, 0)
    five, next_ = job("five", 5, 1, estimate=Estimate(5, 6, 7)), job("next", 4, 2, estimate=SHORT)
    decision = decide([long, five, next_], nodes, LargestIndex(), NOW_S)

    assert decision.preempts == ()
    assert [start.job for start in decision.starts] == ["next"], "two on each node"
    assert {turn.job: turn.chosen for turn in decision.turns} == {"five": False, "next": True, "long": True}


def test_no_job_is_preempted_for_one_whose_workers_are_larger_than_each_node() -> None:
    nodes = [Node("a", 2), Node("b", 2)]
    long = started(job("long", 2, 0, estimate=LONG), 1.0, ("a", "a"), 0, 0)
    wide = job("wide", 3, 1, slots_per_worker=3, estimate=SHORT)

    assert decide([long, wide], nodes, LargestIndex(), NOW_S).preempts == ()


def test_no_job_is_preempted_for_one_that_fits_on_drained_nodes_only() -> None:
    nodes = [Node("large", 4, available=False), Node("a", 2), Node("b", 2)]
    long = started(job("long", 4, 0, estimate=LONG), 1.0, ("a", "a", "b", "b"), 0, 0)
    wide = job("wide", 4, 1, slots_per_worker=4, estimate=SHORT)

    assert decide([long, wide], nodes, LargestIndex(), NOW_S).preempts == ()


def without_room() -> tuple[tuple[Job, ...], tuple[Node, ...]]:
    """Each node keeps one slot for a job that may not be preempted, so no node can have a worker of two."""
    stay = [started(job(f"stays-{name}", 1, n, preemptible=False), 1.0, (name,), 0, 0) for n, name in enumerate("ab")]
    long = [started(job(f"long-{name}", 1, n, estimate=LONG), 1.0, (name,), 0, 0) for n, name in enumerate("ab", 2)]
    wide = job("wide", 2, 4, slots_per_worker=2, estimate=SHORT)
    return (*stay, *long, wide), (Node("a", 2), Node("b", 2))


def test_no_job_is_preempted_for_one_that_would_find_no_room_beside_those_that_stay() -> None:
    jobs, nodes = without_room()
    decision = decide(jobs, nodes, LargestIndex(), NOW_S)

    assert decision.preempts == ()
    assert not next(turn.chosen for turn in decision.turns if turn.job == "wide")


def test_what_starts_while_others_stop_leaves_the_room_that_they_stop_for() -> None:
    """The gaps of both nodes are alike: on the first one the small job would take what the wide one waits for."""
    nodes = [Node("a", 4), Node("b", 2)]
    stopping = replace(started(job("long", 2, 0, estimate=LONG), 1.0, ("a", "a"), 0, 0), phase=Phase.STOPPING)
    wide = job("wide", 4, 1, slots_per_worker=4, estimate=SHORT)
    small = job("small", 2, 2, estimate=Estimate(90, 99, 110))
    decision = decide([stopping, wide, small], nodes, LargestIndex(), NOW_S)

    assert [(start.job, start.nodes) for start in decision.starts] == [("small", ("b", "b"))]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(situations())
def test_all_that_wait_for_others_to_stop_have_a_place_then(
    policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]]
) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, policy, NOW_S)
    starts = {start.job: start.nodes for start in decision.starts}
    stay = [
        replace(job, nodes=starts.get(job.name, job.nodes))
        for job in decision.jobs
        if job.name in starts or (job.phase is Phase.RUNNING and job.name not in decision.preempts)
    ]
    room, by_name = Room(nodes, stay), {job.name: job for job in jobs}
    for name in (turn.job for turn in decision.turns if turn.chosen):
        if by_name[name].phase is Phase.WAITING and name not in starts:
            where = room.find(by_name[name])
            assert where is not None, name
            room.take(where, by_name[name].slots_per_worker)


@pytest.mark.parametrize("policy", [Smallest(key=fewest_slots), LargestIndex()], ids=lambda each: type(each).__name__)
@given(situations())
@example(without_room())
def test_jobs_do_not_take_turns_while_nothing_else_happens(
    policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]]
) -> None:
    """Although none is held, and each decision is carried out at once: no job stops for one that does not start."""
    jobs, nodes = situation
    for _ in range(50):
        decision = decide(jobs, nodes, policy, NOW_S)
        starts = {start.job: start.nodes for start in decision.starts}
        jobs = tuple(
            started(job, NOW_S, starts[job.name], 0, 0)
            if job.name in starts
            else replace(job, phase=Phase.WAITING, nodes=(), rank=0.0)
            if job.name in decision.preempts or job.phase is Phase.STOPPING
            else job
            for job in decision.jobs
        )
        if not starts and not decision.preempts:
            return
    raise AssertionError(f"after 50 decisions: {decision}")


def test_workers_go_where_they_are_close_and_gaps_stay_large() -> None:
    nodes = [Node("a1", 8, "a"), Node("a2", 4, "a"), Node("b1", 4, "b"), Node("b2", 2, "b")]
    room = Room(nodes)

    assert room.find(job("four", 4, 0)) == ("a2",) * 4, "the smallest gap that is large enough"
    assert room.find(job("six", 6, 0)) == ("a1",) * 6, "on one node rather than in one rack on two"
    assert room.find(job("nine", 9, 0)) == (*("a1",) * 8, "a2"), "in one rack"
    assert room.find(job("fourteen", 14, 0)) is not None, "on any"
    assert room.find(job("nineteen", 19, 0)) is None


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(1, 2),
)
def test_a_place_is_found_exactly_if_there_is_one_with_as_many_workers_on_each_node_that_asks_for_it(
    rows: list[tuple[int, str, bool]], workers: int, size: int
) -> None:
    """Held against all ways to choose nodes: by count, as many on each; or any way on those that do not ask."""
    nodes = [Node(f"n{at}", slots, rack, equal_workers=equal) for at, (slots, rack, equal) in enumerate(rows)]
    wanted, asks = (
        job("j", workers * size, 0, slots_per_worker=size),
        {node.name for node in nodes if node.equal_workers},
    )
    gaps = [node.slots // size for node in nodes]
    evenly = any(workers % n == 0 and sum(gap >= workers // n for gap in gaps) >= n for n in range(1, workers + 1))
    anyhow = sum(gap for gap, node in zip(gaps, nodes, strict=True) if not node.equal_workers) >= workers
    places = Room(nodes).candidates(wanted, 8, by_device=True)

    assert bool(places) == (evenly or anyhow)
    assert (Room(nodes).find(wanted) is not None) == bool(places)
    for place in places:
        assert len(place) == workers
        assert all(place.count(node.name) * size <= node.slots for node in nodes)
        assert asks.isdisjoint(place) or len({place.count(name) for name in place}) == 1


@pytest.mark.parametrize("policy", [ArrivalOrder(backfills=True), LargestIndex()])
@pytest.mark.parametrize(("yields_to_s", "first"), [(0.0, "asked"), (100.0, "waited")])
def test_who_was_preempted_by_a_person_yields_to_those_that_waited(
    policy: Policy, yields_to_s: float, first: str
) -> None:
    """Without that the most wanted would take back the slots that it has just given up."""
    short, long = Estimate(50, 60, 70), Estimate(5_000, 6_000, 7_000)
    asked = Job("asked", 2, 0.0, 0, estimate=short, yields_to_s=yields_to_s)
    waited = Job("waited", 2, 50.0, 1, estimate=long)
    later = Job("later", 2, 150.0, 2, estimate=long)

    decision = decide((asked, waited, later), (Node("n1", 2),), policy, NOW_S)

    assert [start.job for start in decision.starts] == [first]
    assert [turn.job for turn in decision.turns][-1] == "later"


def test_who_yields_starts_where_the_others_do_not_fit() -> None:
    asked, wide = Job("asked", 1, 0.0, 0, yields_to_s=100.0), Job("wide", 4, 50.0, 1)

    decision = decide((asked, wide), (Node("n1", 2),), LargestIndex(), NOW_S)

    assert [start.job for start in decision.starts] == ["asked"]

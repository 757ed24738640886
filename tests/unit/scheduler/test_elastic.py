"""Jobs whose number of workers changes while they run: what holds of every decision and run, and each rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.comparison import POLICIES as SIMULATED
from services.scheduler.core.attained import (
    counted,
    ends_s,
    executed_s,
    pace,
    progress_slot_s,
    promoted,
    resized,
    service_slot_s,
    started,
    window_slot_s,
)
from services.scheduler.core.attained_service import AttainedService
from services.scheduler.core.decide import Decision, Terms, decide
from services.scheduler.core.explain import Explainer
from services.scheduler.core.forecast import Situation
from services.scheduler.core.gittins import NOTHING_OBSERVED
from services.scheduler.core.jobs import Elastic, Estimate, Job, Node, Phase
from services.scheduler.core.placement import Room
from services.scheduler.core.policies import ArrivalOrder, LargestIndex, Policy, Smallest, remaining_slot_s
from services.scheduler.core.simulation import Run, Span, simulate
from services.scheduler.core.sizes import goal, kept_nodes
from services.scheduler.core.speedup import speedups
from tests.support.examples import examples

NOW_S = 10_000.0
AT_ONCE = Terms(stops_at_once=True)
POLICIES: tuple[Policy, ...] = (
    ArrivalOrder(),
    ArrivalOrder(backfills=True),
    AttainedService(),
    LargestIndex(),
)


def between(least: int, most: int, model: str = "", **fields: object) -> Elastic:
    return replace(Elastic(least, most, speedups(model, most)), **fields)  # type: ignore[arg-type]


@st.composite
def sizes(draw: st.DrawFn, workers: int, pause_s: float, hold_s: float) -> Elastic | None:
    """Of a job that asks for so many workers; None: it has that many always."""
    if draw(st.integers(0, 3)) == 0:
        return None
    least, most = draw(st.integers(1, workers)), draw(st.integers(workers, workers + 6))
    return between(least, most, draw(st.sampled_from(["", "resnet50", "lm"])), pause_s=pause_s, hold_s=hold_s)


@st.composite
def situations(draw: st.DrawFn) -> tuple[tuple[Job, ...], tuple[Node, ...]]:
    """Jobs that wait, and jobs that run with one of their numbers of workers."""
    nodes = tuple(
        Node(f"n{place}", size, draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 5)) > 0)
        for place, size in enumerate(draw(st.lists(st.integers(1, 8), min_size=1, max_size=4)))
    )
    jobs: list[Job] = []
    for number in range(draw(st.integers(0, 10))):
        each, workers = draw(st.integers(1, 2)), draw(st.integers(1, 4))
        submitted_s = float(draw(st.integers(0, int(NOW_S))))
        job = Job(f"j{number}", each * workers, submitted_s, number, slots_per_worker=each, counted_s=submitted_s)
        elastic = draw(sizes(workers, 10.0, draw(st.sampled_from([0.0, 1e6]))))
        estimate = draw(st.sampled_from([None, Estimate(60, 600, 6_000)]))
        job = replace(job, preemptible=draw(st.booleans()), elastic=elastic, estimate=estimate)
        has = workers if elastic is None else draw(st.integers(elastic.least_workers, elastic.most_workers))
        empty = Room([replace(node, available=True) for node in nodes], jobs)
        where = empty.find(replace(job, slots=has * each))
        if where is not None and draw(st.booleans()):
            job = started(job, draw(st.floats(submitted_s, NOW_S)), where, 0, draw(st.sampled_from([0.0, 1e9])))
            job = replace(job, phase=draw(st.sampled_from([Phase.RUNNING] * 4 + [Phase.STOPPING])))
        jobs.append(job)
    return tuple(jobs), nodes


def after(jobs: Sequence[Job], decision: Decision) -> dict[str, tuple[str, ...]]:
    """Nodes of the workers of each job that runs once the decision is carried out at once."""
    found = {job.name: job.nodes for job in jobs if job.nodes and job.name not in decision.preempts}
    found |= {resize.job: resize.nodes for resize in decision.resizes}
    return found | {start.job: start.nodes for start in decision.starts}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(situations(), st.booleans())
def test_no_slot_is_given_twice_and_no_job_leaves_its_range(
    policy: Policy, situation: tuple[tuple[Job, ...], tuple[Node, ...]], at_once: bool
) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, policy, NOW_S, Terms(stops_at_once=at_once))
    by_name = {job.name: job for job in jobs}
    held = Counter[str]()
    running = after(jobs, decision)
    for job in jobs:
        has = Counter(running.get(job.name, ()))
        if not at_once:  # what a job gives up is in use until it has
            has |= Counter(job.nodes)
        held.update({name: count * job.slots_per_worker for name, count in has.items()})

    assert all(held[node.name] <= node.slots for node in nodes)
    for name, where in running.items():
        job = by_name[name]
        if job.elastic is None:
            assert len(where) * job.slots_per_worker == job.slots
        else:
            assert job.elastic.least_workers <= len(where) <= job.elastic.most_workers
    for resize in decision.resizes:
        before = by_name[resize.job]
        assert before.phase is Phase.RUNNING
        assert resize.job not in decision.preempts
        changed_by = Counter(before.nodes) - Counter(resize.nodes), Counter(resize.nodes) - Counter(before.nodes)
        assert bool(changed_by[0]) != bool(changed_by[1]), "workers leave or join; none moves"
        assert set(changed_by[1]) <= {node.name for node in nodes if node.available}


@given(situations(), st.sampled_from([ArrivalOrder(backfills=True), LargestIndex(), AttainedService()]))
@settings(max_examples=examples(300))
def test_no_job_waits_for_slots_of_which_others_have_more_than_they_need(
    situation: tuple[tuple[Job, ...], tuple[Node, ...]], policy: Policy
) -> None:
    """Of workers with one slot each, on nodes that can all be used, where no number of workers is held."""
    jobs = [
        replace(
            job,
            slots=len(job.nodes) if job.nodes else job.slots // job.slots_per_worker,
            slots_per_worker=1,
            size_held_until_s=0.0,
            phase=Phase.RUNNING if job.nodes else Phase.WAITING,
        )
        for job in situation[0]
    ]
    nodes = [replace(node, available=True) for node in situation[1]]
    decision = decide(jobs, nodes, policy, NOW_S, AT_ONCE)
    running = after(jobs, decision)
    by_name = {job.name: job for job in jobs}
    spare = sum(node.slots for node in nodes) - sum(len(where) for where in running.values())
    spare += sum(len(where) - _least(by_name[name]) for name, where in running.items())

    for job in jobs:
        assert job.name in running or _least(job) > spare


def _least(job: Job) -> int:
    """Workers, which have one slot each."""
    return job.slots if job.elastic is None else job.elastic.least_workers


@given(situations())
def test_no_job_is_preempted_that_could_shrink(situation: tuple[tuple[Job, ...], tuple[Node, ...]]) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, LargestIndex(), NOW_S, AT_ONCE)
    turns = {turn.job: turn for turn in decision.turns}
    for job in jobs:
        if job.name in decision.preempts and job.elastic is not None:
            usable = {node.name for node in nodes if node.available}
            assert turns[job.name].free_slots < job.least_slots or not usable.issuperset(job.nodes)


@given(situations(), st.booleans())
def test_a_held_number_of_workers_changes_only_instead_of_a_preemption(
    situation: tuple[tuple[Job, ...], tuple[Node, ...]], at_once: bool
) -> None:
    jobs, nodes = situation
    decision = decide(jobs, nodes, LargestIndex(), NOW_S, Terms(stops_at_once=at_once))
    turns = {turn.job: turn for turn in decision.turns}
    by_name = {job.name: job for job in jobs}
    for resize in decision.resizes:
        job = by_name[resize.job]
        if job.size_held_until_s > NOW_S:
            assert len(resize.nodes) < len(job.nodes)
            assert turns[job.name].free_slots < job.held_slots


# -- runs -------------------------------------------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn, pause_s: float = 0.0, hold_s: float = 0.0) -> list[Job]:
    rows = draw(
        st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 6), st.integers(1, 20_000)), min_size=1, max_size=12)
    )
    return [
        Job(f"j{n}", slots, at_s, duration_s=length, elastic=draw(sizes(slots, pause_s, hold_s)))
        for n, (at_s, slots, length) in enumerate(rows)
    ]


def run(name: str, jobs: list[Job], cost_s: float) -> Run:
    return simulate(jobs, [Node("a", 3), Node("b", 2)], SIMULATED[name][1](jobs), cost_s)


def by_job(found: Run) -> dict[str, list[Span]]:
    return {
        each.job.name: sorted((span for span in found.spans if span.job == each.job.name), key=lambda one: one.begin_s)
        for each in found.ended
    }


@pytest.mark.parametrize("name", ["index", "srsf", "las", "backfill", "fifo"])
@given(traces())
@settings(max_examples=examples(100))
def test_progress_and_service_add_up_whatever_the_numbers_of_workers_were(name: str, jobs: list[Job]) -> None:
    found = run(name, jobs, 0)

    assert {each.job.name for each in found.ended} | {each.name for each in found.too_large} == {j.name for j in jobs}
    for each in found.ended:
        spans, job = by_job(found)[each.job.name], each.job
        progress_s = sum((span.end_s - span.begin_s) * pace(job, len(span.nodes)) for span in spans)
        service = sum((span.end_s - span.begin_s) * len(span.nodes) for span in spans)
        assert progress_s == pytest.approx(job.duration_s or 0)
        assert job.executed_s == pytest.approx(job.duration_s or 0)
        assert service_slot_s(job, each.ended_s) == pytest.approx(service)
        ran_s = sum(span.end_s - span.begin_s for span in spans)
        assert ran_s + job.waited_s == pytest.approx(each.completion_s)
        assert len(spans) == job.starts + job.resizes
        if job.elastic is not None:
            assert all(job.elastic.least_workers <= len(span.nodes) <= job.elastic.most_workers for span in spans)
    changes = [
        (at_s, sign, node)
        for span in found.spans
        for node in span.nodes
        for at_s, sign in ((span.begin_s, 1), (span.end_s, -1))
    ]
    used = Counter[str]()
    for _, sign, node in sorted(changes, key=lambda change: (change[0], change[1])):
        used[node] += sign
        assert used[node] <= {"a": 3, "b": 2}[node]


@given(traces(pause_s=20.0, hold_s=200.0))
@settings(max_examples=examples(100))
def test_a_job_grows_only_after_ten_times_what_that_costs(jobs: list[Job]) -> None:
    found = run("index", jobs, 60)
    for spans in by_job(found).values():
        for before, then in pairwise(spans):
            if before.end_s == then.begin_s and len(then.nodes) > len(before.nodes):
                assert before.end_s - before.begin_s >= 200


@pytest.mark.parametrize("name", ["index", "srsf", "sjf", "backfill", "fifo"])
@given(traces(), st.sampled_from([0, 60]))
@settings(max_examples=examples(60))
def test_a_range_of_one_number_changes_nothing(name: str, jobs: list[Job], cost_s: float) -> None:
    """Durations and costs are whole seconds, so that no rounding tells them apart."""
    rigid = [replace(job, elastic=None) for job in jobs]
    fixed = [replace(job, elastic=between(job.slots, job.slots)) for job in jobs]

    assert run(name, fixed, cost_s).spans == run(name, rigid, cost_s).spans


# -- each rule --------------------------------------------------------------------------------------------------------


def job(name: str, slots: int, number: int, **fields: object) -> Job:
    return replace(Job(name, slots, float(number), number, counted_s=float(number)), **fields)  # type: ignore[arg-type]


def running(job: Job, workers: int, since_s: float = 100.0, node: str = "n") -> Job:
    return started(job, since_s, (node,) * workers, 0, 0)


def sizes_after(jobs: Sequence[Job], slots: int, policy: Policy | None = None) -> dict[str, int]:
    decision = decide(jobs, [Node("n", slots)], policy or ArrivalOrder(backfills=True), NOW_S, AT_ONCE)
    return {name: len(where) for name, where in after(jobs, decision).items()}


def test_a_job_shrinks_for_one_that_would_preempt_it() -> None:
    """By their estimates the short one goes first."""
    long = running(job("long", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6), elastic=between(1, 4)), 4)
    short = job("short", 3, 1, estimate=Estimate(50, 60, 70))
    decision = decide([long, short], [Node("n", 4)], LargestIndex(), NOW_S, AT_ONCE)

    assert decision.preempts == ()
    assert [(resize.job, len(resize.nodes)) for resize in decision.resizes] == [("long", 1)]
    assert [start.job for start in decision.starts] == ["short"]
    rigid = decide([replace(long, elastic=None), short], [Node("n", 4)], LargestIndex(), NOW_S, AT_ONCE)
    assert rigid.preempts == ("long",)


def test_a_job_whose_least_is_too_much_is_preempted() -> None:
    long = running(job("long", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6), elastic=between(2, 4)), 4)
    short = job("short", 3, 1, estimate=Estimate(50, 60, 70))

    assert decide([long, short], [Node("n", 4)], LargestIndex(), NOW_S, AT_ONCE).preempts == ("long",)


def test_those_shrink_first_that_the_policy_wants_last() -> None:
    first = running(job("first", 4, 0, elastic=between(1, 4)), 4)
    second = running(job("second", 4, 1, elastic=between(1, 4)), 4)
    third = job("third", 2, 2)

    assert sizes_after([first, second, third], 8) == {"first": 4, "second": 2, "third": 2}
    assert sizes_after([first, second, replace(third, slots=4)], 8) == {"first": 3, "second": 1, "third": 4}


def test_free_slots_go_where_they_add_the_most_speed() -> None:
    """A second worker adds 1 to the one of which nothing is known, and 4.223 / 2.497 - 1 = 0.69 to ResNet-50."""
    slow = running(job("slow", 1, 0, elastic=between(1, 2, "resnet50")), 1)
    fast = running(job("fast", 1, 1, elastic=between(1, 2)), 1)

    assert sizes_after([slow, fast], 3) == {"slow": 1, "fast": 2}
    assert sizes_after([slow, fast], 4) == {"slow": 2, "fast": 2}


def test_of_equal_jobs_the_most_wanted_grows_first() -> None:
    jobs = [running(job(name, 1, number, elastic=between(1, 2)), 1) for number, name in enumerate(("a", "b"))]

    assert sizes_after(jobs, 3) == {"a": 2, "b": 1}


def test_no_job_shrinks_for_another_to_grow() -> None:
    """The second worker of one would add more than the fourth of the other."""
    wide = running(job("wide", 4, 0, elastic=between(1, 4)), 4)
    narrow = running(job("narrow", 1, 1, elastic=between(1, 4)), 1)

    assert sizes_after([wide, narrow], 5) == {"wide": 4, "narrow": 1}


def test_a_number_of_workers_that_makes_it_slower_is_passed_over() -> None:
    """LM, 5 samples: 109, 186, 127 and 699 steps/s with 1, 2, 4 and 8 workers."""
    lm = job("lm", 2, 0, elastic=between(1, 8, "LM (batch size 5)"))

    assert sizes_after([lm], 4) == {"lm": 2}
    assert sizes_after([lm], 8) == {"lm": 8}


def test_a_job_starts_with_what_is_there_and_waits_for_less_than_its_least() -> None:
    elastic = job("elastic", 4, 0, elastic=between(2, 6))

    assert sizes_after([elastic], 8) == {"elastic": 6}
    assert sizes_after([elastic], 3) == {"elastic": 3}
    assert sizes_after([elastic], 1) == {}


def test_a_job_is_not_shrunk_while_its_number_of_workers_is_held_but_instead_of_a_preemption() -> None:
    held = replace(between(1, 4), pause_s=10.0, hold_s=100.0)
    long = running(job("long", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6), elastic=held), 4, NOW_S - 99)
    behind = job("behind", 1, 1, estimate=Estimate(9e7, 1e8, 1.1e8))
    before = job("before", 1, 1, estimate=Estimate(50, 60, 70))

    assert sizes_after([long, behind], 4, LargestIndex()) == {"long": 4}
    assert sizes_after([long, before], 4, LargestIndex()) == {"long": 3, "before": 1}
    assert sizes_after([replace(long, size_held_until_s=NOW_S), behind], 4, LargestIndex()) == {"long": 3, "behind": 1}


def test_a_held_job_grows_at_the_end_of_its_hold_although_nothing_else_happens() -> None:
    first = Job("first", 3, 0, duration_s=50)
    grows = Job("grows", 1, 0, duration_s=1_000, elastic=between(1, 4, pause_s=10.0, hold_s=100.0))
    found = simulate([first, grows], [Node("n", 4)], ArrivalOrder())
    spans = [(span.begin_s, span.end_s, len(span.nodes)) for span in found.spans if span.job == "grows"]

    # 900 s are left then, with four workers 292.5 s, after a pause of 10 s: 1 / 3.0769 of them.
    assert spans == [(0, 100, 1), (100, pytest.approx(110 + 900 / 3.07692, rel=1e-4), 4)]


def test_a_change_that_takes_longer_than_it_gains_is_not_made() -> None:
    """30 s are left with one worker, 15 s with two: 15 s are gained, and the pause takes 16, or 14."""
    about_to_end = job("j", 1, 0, estimate=Estimate(9_000, 9_930, 11_000), elastic=between(1, 2, pause_s=16.0))
    quicker = replace(about_to_end, elastic=between(1, 2, pause_s=14.0))

    assert sizes_after([running(about_to_end, 1)], 2) == {"j": 1}
    assert sizes_after([running(quicker, 1)], 2) == {"j": 2}


def test_a_job_with_workers_on_a_drained_node_keeps_its_number() -> None:
    drained, free = Node("drained", 2, available=False), Node("n", 4)
    stays = replace(running(job("stays", 2, 0, elastic=between(1, 4)), 2), nodes=("drained", "n"))
    decision = decide([stays, job("next", 3, 1)], [drained, free], ArrivalOrder(backfills=True), NOW_S, AT_ONCE)

    assert decision.resizes == ()
    assert [start.nodes for start in decision.starts] == [("n",) * 3]


def test_in_a_live_cluster_a_job_starts_on_slots_only_once_they_are_free() -> None:
    long = running(job("long", 4, 0, elastic=between(1, 4)), 4)
    short = job("short", 2, 1)
    decision = decide([long, short], [Node("n", 4)], ArrivalOrder(backfills=True), NOW_S)

    assert [(resize.job, len(resize.nodes)) for resize in decision.resizes] == [("long", 2)]
    assert decision.starts == ()
    shrunk = resized(long, NOW_S, ("n", "n"))
    again = decide([shrunk, short], [Node("n", 4)], ArrivalOrder(backfills=True), NOW_S + 1)
    assert [start.job for start in again.starts] == ["short"]
    assert again.resizes == ()


def test_workers_that_are_alone_on_their_node_leave_first() -> None:
    spread = replace(job("j", 5, 0), nodes=("a", "b", "b", "c", "b"))

    assert kept_nodes(spread, 4) == ("b", "b", "c", "b")
    assert kept_nodes(spread, 3) == ("b", "b", "b")
    assert kept_nodes(spread, 5) == spread.nodes


def test_a_job_that_asks_for_more_than_there_is_runs_with_less() -> None:
    large = Job("large", 8, 0, duration_s=100, elastic=between(2, 8))
    found = simulate([large], [Node("n", 4)], ArrivalOrder())

    assert found.too_large == ()
    # With 8 workers it is 4.706 times as fast as with one, with 4 3.077 times: 100 s become 153 s.
    assert found.ended[0].ended_s == pytest.approx(100 * 4.70588 / 3.07692, rel=1e-4)


# -- deadlines and budgets --------------------------------------------------------------------------------------------


def with_goal(**fields: object) -> Job:
    """1,000 s at most with one worker, 500 with 2, 400 with 3, 325 with 4: 1/1, 1/2, 1/2.5, 1/3.077."""
    return job("j", 1, 0, estimate=Estimate(600, 800, 1_000), elastic=between(1, 4, **fields))


@pytest.mark.parametrize(
    ("within_s", "workers", "said"),
    [
        (1_000, 1, "1 workers are the cheapest that meet its deadline: 1000 s at most of 1000 s"),
        (999, 2, "2 workers are the cheapest that meet its deadline: 500 s at most of 999 s"),
        (450, 3, "3 workers are the cheapest that meet its deadline: 400 s at most of 450 s"),
        (330, 4, "4 workers are the cheapest that meet its deadline: 325 s at most of 330 s"),
        (300, 4, "no size meets its deadline: 4 workers take 325 s of 300 s"),
    ],
)
def test_a_deadline_is_met_by_the_cheapest_size(within_s: float, workers: int, said: str) -> None:
    wanted = goal(with_goal(deadline_s=NOW_S + within_s), NOW_S)

    assert (wanted.workers, wanted.why) == (workers, said)


@pytest.mark.parametrize(
    ("budget", "workers", "said"),
    [
        # 1,000 slot-seconds with one worker and with two, 1,200 with three, 1,300 with four.
        (999, 1, "no size stays below its budget: 1 workers need 1000 of 999 slot-seconds"),
        (1_000, 2, "2 workers are the fastest below its budget: 1000 of 1000 slot-seconds at most"),
        (1_299, 3, "3 workers are the fastest below its budget: 1200 of 1299 slot-seconds at most"),
        (1_301, 4, "4 workers are the fastest below its budget: 1300 of 1301 slot-seconds at most"),
    ],
)
def test_a_budget_is_kept_by_the_fastest_size(budget: float, workers: int, said: str) -> None:
    wanted = goal(with_goal(budget_slot_s=budget), NOW_S)

    assert (wanted.workers, wanted.why) == (workers, said)


def test_without_an_estimate_a_deadline_takes_the_fastest_and_a_budget_the_cheapest() -> None:
    unknown = [replace(with_goal(**given), estimate=None) for given in ({"deadline_s": 1e9}, {"budget_slot_s": 1e9})]
    outrun = [replace(with_goal(**given), executed_s=1_000) for given in ({"deadline_s": 1e9}, {"budget_slot_s": 1e9})]

    assert [goal(each, NOW_S).workers for each in unknown] == [4, 1]
    assert [goal(each, NOW_S).workers for each in outrun] == [4, 1]


def test_a_job_with_a_deadline_grows_before_others_and_no_further_than_it_needs() -> None:
    urgent = job("urgent", 1, 1, estimate=Estimate(600, 800, 1_000), elastic=between(1, 8, deadline_s=NOW_S + 410))
    other = job("other", 1, 0, elastic=between(1, 8))

    assert sizes_after([other, urgent], 5) == {"other": 2, "urgent": 3}
    assert sizes_after([other, urgent], 9) == {"other": 6, "urgent": 3}


def test_a_job_above_what_its_goal_needs_gives_workers_up() -> None:
    urgent = running(with_goal(deadline_s=NOW_S + 5_000), 4, since_s=NOW_S)

    assert sizes_after([urgent], 4) == {"j": 1}


def test_a_pause_counts_against_a_deadline() -> None:
    """With two workers 500 s are left, and a change to them takes 20 s more: 510 s are too few, unless it has them."""
    within = {"deadline_s": NOW_S + 510, "pause_s": 20.0}

    assert goal(running(with_goal(**within), 1, since_s=NOW_S), NOW_S).workers == 3
    assert goal(running(with_goal(**within), 2, since_s=NOW_S), NOW_S).workers == 2


# -- counters ---------------------------------------------------------------------------------------------------------


def test_service_is_counted_by_the_workers_that_it_had() -> None:
    """Two workers for 100 s, a pause of 10 s, then four for 90 s; asked for are two."""
    begun = running(job("j", 2, 0, duration_s=1_000, elastic=between(1, 4, pause_s=10.0)), 2, since_s=0.0)
    grown = resized(begun, 100.0, ("n",) * 4)

    assert service_slot_s(grown, 100.0) == 200
    assert service_slot_s(grown, 105.0) == 200, "no progress in the pause"
    assert service_slot_s(grown, 200.0) == 200 + 4 * 90
    # 100 s with two, and 90 s that are 3.0769 / 2 as fast.
    assert executed_s(grown, 200.0) == pytest.approx(100 + 90 * 3.07692 / 2, rel=1e-4)
    assert progress_slot_s(grown, 200.0) == pytest.approx(2 * executed_s(grown, 200.0))
    assert ends_s(grown) == pytest.approx(110 + 900 * 2 / 3.07692, rel=1e-4)
    counted_then = counted(grown, 200.0)
    assert counted_then.restoring_s == 10
    assert service_slot_s(counted_then, 200.0) == window_slot_s(counted_then, 200.0) == 560
    assert window_slot_s(promoted(counted_then, 200.0), 200.0) == 0


def test_a_job_that_is_not_elastic_cannot_be_resized() -> None:
    with pytest.raises(ValueError, match="j: the number of its workers may not change"):
        resized(running(job("j", 2, 0), 2), NOW_S, ("n",))


def test_in_tiresias_queues_it_falls_by_the_slot_seconds_that_it_had() -> None:
    """3,250 slot-seconds are the first queue's: with four workers 812.5 s, although it asks for one."""
    policy = AttainedService()
    begun = policy.settle([running(job("j", 1, 0, duration_s=1e6, elastic=between(1, 4)), 4, since_s=0.0)], 0.0)

    assert policy.next_change_s(begun, 0.0) == 812.5
    assert policy.settle(begun, 812.0)[0].level == 0
    assert policy.settle(begun, 812.5)[0].level == 1


# -- reasons ----------------------------------------------------------------------------------------------------------


def said(name: str, jobs: Sequence[Job], slots: int, policy: Policy | None = None) -> str:
    policy, nodes = policy or ArrivalOrder(backfills=True), (Node("n", slots),)
    decision = decide(jobs, nodes, policy, NOW_S, AT_ONCE)
    return (
        Explainer(Situation(tuple(jobs), nodes, NOTHING_OBSERVED, NOW_S, 60.0), decision, {}, policy).explain(name).why
    )


def test_why_a_job_has_so_many_workers_is_explained() -> None:
    wide = running(job("wide", 4, 0, elastic=between(1, 4)), 4)
    held = replace(wide, elastic=between(1, 4, pause_s=10.0, hold_s=100.0), size_held_until_s=NOW_S + 40)

    assert "shrinks from 4 to 2 workers of 1 to 4: 2 slots are for next" in said("wide", [wide, job("next", 2, 1)], 4)
    # 3.0769 / 2
    narrow = replace(wide, nodes=("n", "n"))
    assert "grows from 2 to 4 workers of 1 to 4: 1.54 times as fast, on slots that" in said("wide", [narrow], 4)
    assert "has 4 workers of 1 to 4; 4 workers are its fastest" in said("wide", [wide], 4)
    assert "keeps 4 workers of 1 to 4 for 40 s: a change pauses it for 10 s, and 100 s have to be between two" in said(
        "wide", [held, job("next", 2, 1)], 4
    )
    new = job("new", 4, 0, elastic=between(2, 4))
    assert "starts with 3 workers of 2 to 4: 2.50 times as fast as one" in said("new", [new], 3)
    assert "needs 2 slots, and the cluster has 1: it will never start" in said("new", [new], 1)
    urgent = running(with_goal(deadline_s=NOW_S + 5_000), 4, since_s=NOW_S)
    assert "shrinks from 4 to 1 workers of 1 to 4: 1 workers are the cheapest that meet" in said("j", [urgent], 4)


def test_a_preempted_elastic_job_is_told_what_it_needs() -> None:
    long = running(job("long", 4, 0, estimate=Estimate(9e5, 1e6, 1.1e6), elastic=between(2, 4)), 4)
    short = job("short", 3, 1, estimate=Estimate(50, 60, 70))

    assert "preempted now: 1 slots are left for it, and it needs 2" in said("long", [long, short], 4, LargestIndex())


def test_where_no_job_is_elastic_no_time_of_change_is_awaited() -> None:
    found = simulate([Job("j", 1, 0, duration_s=100)], [Node("n", 1)], Smallest(key=remaining_slot_s))

    assert found.decisions == 2, "its arrival and its end"

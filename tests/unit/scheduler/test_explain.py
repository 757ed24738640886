"""Forecasts, and what is said of each job."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.scheduler.core.attained import started
from services.scheduler.core.decide import decide
from services.scheduler.core.explain import Explainer, Explanation, duration
from services.scheduler.core.forecast import Situation, forecast, left
from services.scheduler.core.gittins import NOTHING_OBSERVED, Observed
from services.scheduler.core.jobs import Estimate, Job, Node, Phase
from services.scheduler.core.policies import ArrivalOrder, LargestIndex, Policy

NOW_S = 10_000.0
NODES = (Node("n1", 4), Node("n2", 4))


def waiting(name: str, slots: int, submitted_s: float, estimate_s: float | None = None, **fields: object) -> Job:
    estimate = None if estimate_s is None else Estimate(0.9 * estimate_s, estimate_s, 1.1 * estimate_s)
    job = Job(name, slots, submitted_s, int(submitted_s), counted_s=submitted_s, estimate=estimate)
    return replace(job, **fields)  # type: ignore[arg-type]


def running(job: Job, since_s: float, nodes: tuple[str, ...], hold_s: float = 0.0) -> Job:
    return started(job, since_s, nodes, 0, hold_s)


def situation(*jobs: Job, observed: Observed = NOTHING_OBSERVED) -> Situation:
    return Situation(jobs, NODES, observed, NOW_S, 60.0)


def said(name: str, known: Situation, policy: Policy) -> Explanation:
    decision = decide(known.jobs, known.nodes, policy, known.now_s)
    return Explainer(known, decision, forecast(known, policy), policy).explain(name)


def test_a_job_behind_another_is_told_whose_and_until_when() -> None:
    first = running(waiting("first", 8, 0, 3_000), NOW_S - 1_000, ("n1",) * 4 + ("n2",) * 4)
    second = waiting("second", 2, 100, 50_000)
    told = said("second", situation(first, second), LargestIndex())

    assert "needs 2 slots, and 0 are left behind those before it" in told.why
    assert "index" in told.why
    assert "first's" in told.why
    assert told.ahead == ("first",)
    assert told.expected is not None
    assert told.expected.start_s == pytest.approx(NOW_S + 2_000, rel=0.02)
    assert told.expected.end_s == pytest.approx(NOW_S + 52_000, rel=0.02)


def test_what_will_never_start_is_told_so() -> None:
    told = said("large", situation(waiting("large", 16, 0)), LargestIndex())
    pieces = said("wide", situation(waiting("wide", 8, 0, slots_per_worker=8)), LargestIndex())

    assert "needs 16 slots, and the cluster has 8: it will never start" in told.why
    assert "needs 8 slots in pieces of 8" in pieces.why
    assert told.expected is not None
    assert math.isinf(told.expected.start_s)


def test_what_has_a_place_on_drained_nodes_only_waits_for_these() -> None:
    nodes = (*NODES, Node("large", 8, available=False))
    wide = waiting("wide", 8, 0, slots_per_worker=8)
    told = said("wide", replace(situation(wide), nodes=nodes), LargestIndex())

    assert told.why.startswith(
        "needs 8 slots in pieces of 8, and the nodes that can be used now have 8: "
        "it waits for large, where nothing can be started"
    )


def test_a_job_without_room_beside_those_that_stay_is_told_that_none_is_preempted_for_it() -> None:
    """Of four slots on each node, two are kept by a job that may not be preempted."""
    kept = running(waiting("kept", 4, 0, preemptible=False), 100.0, ("n1", "n1", "n2", "n2"))
    long = running(waiting("long", 4, 1, 1e6), 100.0, ("n1", "n1", "n2", "n2"))
    told = said("wide", situation(kept, long, waiting("wide", 3, 2, 60, slots_per_worker=3)), LargestIndex())

    assert "4 slots are left for it, but not 3 on one node for each worker: no job is preempted for it" in told.why


def test_a_job_that_may_not_pass_another_is_told_which_although_slots_are_left() -> None:
    first = running(waiting("first", 4, 0), 100.0, ("n1",) * 4)
    jobs = (first, waiting("large", 8, 1), waiting("small", 1, 2), waiting("huge", 16, 3))

    why = said("small", situation(*jobs), ArrivalOrder()).why
    assert why.startswith("waits behind large, which has no room: no job passes another here")
    assert said("large", situation(*jobs), ArrivalOrder()).why.startswith("needs 8 slots, and 4 are left")
    assert "it will never start" in said("huge", situation(*jobs), ArrivalOrder()).why
    assert said("small", situation(*jobs), ArrivalOrder(backfills=True)).why.startswith("starts now")


def test_a_job_that_is_held_is_told_for_how_long() -> None:
    long = running(waiting("long", 8, 0, 1e6), NOW_S - 300, ("n1",) * 4 + ("n2",) * 4, hold_s=600)
    told = said("long", situation(long, waiting("short", 1, 1, 60)), LargestIndex())

    assert told.why.startswith("held for 5 min: ")


def test_a_preempted_job_is_told_so_before_and_while_it_stops() -> None:
    long = running(waiting("long", 8, 0, 1e6), 0, ("n1",) * 4 + ("n2",) * 4)
    short = waiting("short", 1, 1, 60)
    now = situation(long, short)
    stopping = situation(replace(long, phase=Phase.STOPPING), short)

    assert said("long", now, LargestIndex()).why.startswith("preempted now: 7 slots are left for it, and it holds 8")
    assert said("short", now, LargestIndex()).why.startswith("starts as soon as long have stopped")
    assert said("long", stopping, LargestIndex()).why.startswith("preempted: it saves its state, and still holds 8")


def test_without_an_estimate_the_jobs_that_ended_speak() -> None:
    observed = Observed(services=tuple(float(1_000 * n) for n in range(1, 11)))
    job = running(waiting("job", 1, 0), NOW_S - 4_500, ("n1",))
    known = left(job, observed, NOW_S)

    assert known is not None
    assert known.samples == 6
    assert known.median_s == pytest.approx(3_000)
    assert (
        "no estimate: 6 jobs that ran for 1.2 h had 50 min"
        in said("job", situation(job, observed=observed), ArrivalOrder()).why
    )


def test_of_a_job_that_has_not_run_the_whole_time_is_told() -> None:
    observed = Observed(services=(10.0, 20.0, 30.0))

    assert (
        "no estimate: 3 jobs that have ended took 20 s"
        in said("job", situation(waiting("job", 1, 0), observed=observed), ArrivalOrder()).why
    )


def test_where_nothing_is_known_that_is_said_and_no_end_is_expected() -> None:
    job = running(waiting("job", 8, 0), NOW_S - 4_500, ("n1",) * 8)
    known = situation(job)

    assert left(job, NOTHING_OBSERVED, NOW_S) is None
    assert "nothing is known of jobs that have run for 1.2 h" in said("job", known, ArrivalOrder()).why
    assert forecast(known, ArrivalOrder())["job"].end_s == math.inf


@pytest.mark.parametrize("policy", [ArrivalOrder(), ArrivalOrder(backfills=True), LargestIndex()])
def test_behind_a_job_that_may_not_be_preempted_a_start_is_known_as_far_as_its_end_is(policy: Policy) -> None:
    """By their indices the short ones would go first. 3,000 s are estimated, and 1,000 are over."""
    kept = running(waiting("kept", 8, 0, preemptible=False), NOW_S - 1_000, ("n1",) * 4 + ("n2",) * 4)
    estimated = replace(kept, estimate=Estimate(2_990, 3_000, 3_010))
    short, behind = waiting("short", 8, 1, 10), waiting("behind", 8, 2, 20)
    known, unknown = said("short", situation(estimated, short), policy), said("short", situation(kept, short), policy)

    assert known.expected is not None
    assert known.expected.start_s == pytest.approx(NOW_S + 2_000, rel=0.01)
    assert "not known" not in known.why
    assert unknown.expected is not None
    assert (unknown.expected.start_s, unknown.expected.end_s) == (math.inf, math.inf)
    told = "when it starts is not known: nothing tells when kept will end, and kept may not be preempted"
    assert unknown.why.endswith(told)
    assert said("behind", situation(kept, short, behind), policy).why.endswith(told)


def test_behind_a_job_of_which_nothing_is_known_a_start_is_known_where_the_order_preempts_it() -> None:
    """Once it is held no more, at the next look at the order, a minute later at most."""
    job = running(waiting("job", 8, 0), NOW_S - 500, ("n1",) * 4 + ("n2",) * 4, hold_s=600)
    told = said("short", situation(job, waiting("short", 8, 1, 60)), LargestIndex())

    assert told.expected is not None
    assert NOW_S + 100 <= told.expected.start_s <= NOW_S + 160
    assert "not known" not in told.why


def test_what_waits_for_a_job_that_waits_itself_is_told_whose_end_is_not_known() -> None:
    first, second = waiting("first", 8, 0), waiting("second", 8, 1, 60)
    told = said("second", situation(first, second), ArrivalOrder())

    assert told.why.endswith("when it starts is not known: nothing tells when first will end")


def test_an_estimate_that_has_been_outrun_counts_no_more() -> None:
    job = running(waiting("job", 1, 0, 1_000), NOW_S - 5_000, ("n1",))
    observed = Observed(services=(6_000.0,))

    assert left(job, NOTHING_OBSERVED, NOW_S) is None
    known = left(job, observed, NOW_S)
    assert known is not None
    assert (known.samples, known.median_s) == (1, 1_000)


def test_a_forecast_agrees_with_what_then_happens() -> None:
    """Where estimates are right: it is the same simulation."""
    jobs = [waiting(f"j{n}", 1 + n % 4, n, 600.0 + 100 * n, phase=Phase.WAITING) for n in range(12)]
    exact = [replace(job, estimate=Estimate(*[job.estimate.median_s] * 3)) for job in jobs if job.estimate]
    told = forecast(situation(*exact), LargestIndex())
    later = forecast(replace(situation(*exact), now_s=NOW_S + 100), LargestIndex())

    assert {name: each.end_s + 100 for name, each in told.items()} == pytest.approx(
        {name: each.end_s for name, each in later.items()}
    )
    assert max(each.end_s for each in told.values()) < NOW_S + sum(600 + 100 * n for n in range(12))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (90, "2 min"),
        (5_400, "1.5 h"),
        (40_000, "11 h"),
        (260_000, "3.0 d"),
        (math.inf, "never"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""Simulated runs: what holds of every one, and how ours compares."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.comparison import POLICIES, figures, with_estimates
from services.scheduler.core.jobs import Estimate, Job, Node
from services.scheduler.core.policies import HOLD_COSTS, LargestIndex, Policy
from services.scheduler.core.simulation import Run, simulate
from tests.support.examples import examples
from tests.support.tiresias import read


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    rows = draw(
        st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 6), st.integers(1, 20_000)), min_size=1, max_size=15)
    )
    return [Job(f"j{n}", slots, at_s, duration_s=length) for n, (at_s, slots, length) in enumerate(rows)]


def run(name: str, jobs: list[Job], nodes: list[Node], cost_s: float) -> Run:
    return simulate(jobs, nodes, POLICIES[name][1](jobs), cost_s)


@pytest.mark.parametrize("name", POLICIES)
@given(traces(), st.sampled_from([0, 60]))
@settings(max_examples=examples(150))
def test_every_job_gets_what_it_needs_and_no_slot_is_used_twice(name: str, jobs: list[Job], cost_s: float) -> None:
    nodes = [Node("a", 3), Node("b", 2)]
    found = run(name, jobs, nodes, cost_s)

    assert {each.job.name for each in found.ended} | {each.name for each in found.too_large} == {j.name for j in jobs}
    assert all(each.slots > 5 for each in found.too_large)
    for each in found.ended:
        assert each.job.executed_s == pytest.approx(each.job.duration_s or 0)
        assert each.job.executed_s + each.job.restoring_s + each.job.waited_s == pytest.approx(each.completion_s)
        assert each.job.restoring_s <= cost_s * each.job.preemptions
        assert each.job.starts == each.job.preemptions + 1
    changes = [
        (at_s, sign, name)
        for span in found.spans
        for name in span.nodes
        for at_s, sign in ((span.begin_s, 1), (span.end_s, -1))
    ]
    used = Counter[str]()
    for _, sign, node in sorted(changes, key=lambda change: (change[0], change[1])):
        used[node] += sign
        assert used[node] <= {"a": 3, "b": 2}[node]


@given(traces())
@settings(max_examples=examples(150))
def test_no_job_is_preempted_before_ten_times_the_cost_of_it(jobs: list[Job]) -> None:
    found = simulate(jobs, [Node("a", 5)], LargestIndex(), 60)
    ends = {each.job.name: each.ended_s for each in found.ended}
    for span in found.spans:
        assert span.end_s - span.begin_s >= HOLD_COSTS * 60 or span.end_s == ends[span.job]


@given(traces())
@settings(max_examples=examples(150))
def test_the_same_trace_gives_the_same_run(jobs: list[Job]) -> None:
    nodes = [Node("a", 5)]
    assert simulate(jobs, nodes, LargestIndex(), 60) == simulate(jobs, nodes, LargestIndex(), 60)


def test_a_job_without_a_duration_cannot_be_simulated() -> None:
    with pytest.raises(ValueError, match="its duration is not known"):
        simulate([Job("j", 1, 0.0)], [Node("a", 1)], LargestIndex())


def test_an_estimate_that_was_far_too_short_is_given_up() -> None:
    """The job is treated as one of which nothing is known; it neither blocks the others nor waits for ever."""
    wrong = Job("wrong", 4, 0, duration_s=100_000, estimate=Estimate(50, 60, 70))
    others = [Job(f"j{n}", 4, 1_000 * n, duration_s=900) for n in range(1, 20)]
    found = simulate([wrong, *others], [Node("a", 4)], LargestIndex(), 10)

    assert {each.job.name for each in found.ended} == {job.name for job in (wrong, *others)}
    assert fmean(each.completion_s for each in found.ended if each.job.name != "wrong") < 20_000


def jobs_of_480() -> list[Job]:
    return [
        Job(each["job_id"], int(each["num_gpu"]), int(each["submit_time"]), duration_s=int(each["duration"]))
        for each in read("480_job.csv")
    ]


def mean_jct_s(policy: str, jobs: list[Job], cost_s: float) -> float:
    return figures(policy, run(policy, jobs, [Node("all", 60)], cost_s)).mean_jct_s


def test_with_estimates_ours_is_near_the_oracle_and_without_near_what_knows_all_durations() -> None:
    """Table 4.3 of the specification: 480 jobs, 60 slots, 60 s a preemption."""
    jobs = jobs_of_480()
    srsf, gittins, las = (mean_jct_s(name, jobs, 60) for name in ("srsf", "gittins", "las"))
    advised = mean_jct_s("index-estimated", with_estimates(jobs, 0.25, 1.0, seed=5), 60)
    observed = mean_jct_s("index", jobs, 60)

    assert advised <= 1.10 * srsf
    assert observed <= 1.05 * gittins
    assert observed < 0.95 * las


def test_with_exact_estimates_and_free_preemption_ours_orders_as_the_oracle_does() -> None:
    jobs = jobs_of_480()
    exact = [replace(job, estimate=Estimate(*[float(job.duration_s or 0)] * 3)) for job in jobs]
    policy: Policy = LargestIndex(quantum_s=600)
    ours = figures("index", simulate(exact, [Node("all", 60)], policy)).mean_jct_s

    assert ours == pytest.approx(mean_jct_s("srsf", jobs, 0), rel=0.02)

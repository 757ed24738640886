"""Shifts on one link and on many, beside brute force and the paper's affinity graph."""

from __future__ import annotations

import random
from itertools import product
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.interleaving.all_links import Shared, joint_shifts
from services.scheduler.core.interleaving.circle import Circle, Iteration, Sending, scores_beside
from services.scheduler.core.interleaving.one_link import best_shifts
from tests.support.affinity_graph import LoopError, affinity_shifts
from tests.support.examples import examples

EQUAL = 1e-8
CAPACITY = 10.0


def one_phase(period: int, begin: int, length: int, rate: float) -> Iteration:
    return Iteration(period, (Sending(begin, length, rate),))


def scored(iterations: dict[str, Iteration], shifts: dict[str, int], capacity: float = CAPACITY) -> float:
    return Circle(iterations, capacity, shifts).score()


iteration = st.builds(
    lambda period, begin, share, rate: one_phase(period, begin % period, max(1, int(share * period)), rate),
    st.sampled_from([4, 5, 6, 8, 10, 12]),
    st.integers(0, 11),
    st.floats(0.0, 1.0),
    st.sampled_from([5.0, 8.0, 10.0]),
)
two_phases = st.builds(
    lambda first, gap, second: Iteration(
        first + gap + second + 1, (Sending(0, first, 10.0), Sending(first + gap, second, 4.0))
    ),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
)


@given(st.lists(iteration | two_phases, min_size=2, max_size=3))
@settings(max_examples=examples(300), deadline=None)
def test_shifts_on_one_link_are_as_good_as_any(iterations: list[Iteration]) -> None:
    jobs = {f"j{number}": each for number, each in enumerate(iterations)}
    others = [range(each.period) for each in iterations[1:]]
    best = max(scored(jobs, dict(zip(jobs, (0, *shifts), strict=True))) for shifts in product(*others))
    found = best_shifts(jobs, CAPACITY)
    assert found.score == pytest.approx(best, abs=EQUAL)
    assert scored(jobs, dict(found.shifts)) == pytest.approx(best, abs=EQUAL)


@given(st.lists(iteration | two_phases, min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_scores_of_all_shifts_at_once_are_those_of_each(iterations: list[Iteration], data: st.DataObject) -> None:
    jobs = {f"j{number}": each for number, each in enumerate(iterations)}
    shifts = {job: data.draw(st.integers(0, each.period - 1)) for job, each in jobs.items()}
    job = data.draw(st.sampled_from(sorted(jobs)))
    expected = [scored(jobs, shifts | {job: shift}) for shift in range(jobs[job].period)]
    steps = lcm(*(each.period for each in iterations))
    others = sum((each.turned(steps)[shifts[name]] for name, each in jobs.items() if name != job), np.zeros(steps))
    found = scores_beside(np.stack([others, others]), jobs[job], np.array([[CAPACITY], [2 * CAPACITY]]))
    assert found[0] == pytest.approx(expected, abs=EQUAL)
    assert found[1] == pytest.approx(
        [scored(jobs, shifts | {job: shift}, 2 * CAPACITY) for shift in range(jobs[job].period)], abs=EQUAL
    )


def test_two_vgg19_of_the_paper_fit_side_by_side() -> None:
    jobs = {job: one_phase(255, 0, 114, 50.0) for job in ("a", "b")}
    # All of both at once: 114 of 255 steps have twice the link's rate: 1 - 114 / 255 = 0.553.
    assert scored(jobs, {}, 50.0) == pytest.approx(1 - 114 / 255)
    found = best_shifts(jobs, 50.0)
    assert (found.score, dict(found.shifts)) == (1.0, {"a": 0, "b": 114})


def test_more_than_three_jobs_are_shifted_as_well_as_they_can_be() -> None:
    jobs = {f"j{number}": one_phase(40, 0, 10, CAPACITY) for number in range(4)}
    found = best_shifts(jobs, CAPACITY)
    assert found.score == 1.0
    assert sorted(found.shifts.values()) == [0, 10, 20, 30]


def loop_free(number: int) -> tuple[dict[str, Iteration], dict[str, Shared]]:
    """A tree: each job shares a new link with an earlier one, or joins a link that is there."""
    draw = random.Random(number)
    jobs = {}
    for name in range(draw.randint(3, 8)):
        period = draw.choice([12, 24, 48])
        jobs[f"j{name}"] = one_phase(period, 0, draw.randint(2, period // 2), CAPACITY)
    names = list(jobs)
    members: dict[str, list[str]] = {}
    for place, job in enumerate(names[1:]):
        if members and draw.random() < 0.3:
            members[draw.choice(sorted(members))].append(job)
        else:
            members[f"l{place}"] = [draw.choice(names[: place + 1]), job]
    return jobs, {name: Shared(CAPACITY, tuple(on_it)) for name, on_it in members.items()}


def mean_score(jobs: dict[str, Iteration], links: dict[str, Shared], shifts: dict[str, int]) -> float:
    each = [scored({job: jobs[job] for job in link.jobs}, shifts) for link in links.values()]
    return sum(each) / len(each)


@pytest.mark.parametrize("block", range(10))
def test_joint_shifts_are_never_worse_than_the_paper_s_or_none(block: int) -> None:
    """1,000 graphs without loops, on which the paper's shifts exist."""
    for number in range(100 * block, 100 * block + 100):
        jobs, links = loop_free(number)
        of_links = {
            name: dict(best_shifts({job: jobs[job] for job in link.jobs}, CAPACITY).shifts)
            for name, link in links.items()
        }
        paper = affinity_shifts(of_links, {job: each.period for job, each in jobs.items()})
        found = joint_shifts(jobs, links)
        shifts = dict(found.shifts)
        assert found.score == pytest.approx(mean_score(jobs, links, shifts), abs=EQUAL), number
        assert found.score >= mean_score(jobs, links, paper) - EQUAL, number
        assert found.score >= mean_score(jobs, links, {}) - EQUAL, number
        assert all(0 <= shifts[job] < each.period for job, each in jobs.items()), number
        for name, link in links.items():  # the reference itself: each link keeps its best
            on_it = {job: jobs[job] for job in link.jobs}
            assert scored(on_it, paper) == pytest.approx(scored(on_it, of_links[name]), abs=EQUAL), number


@pytest.mark.parametrize("number", range(50))
def test_joint_shifts_need_no_graph_without_loops(number: int) -> None:
    jobs, links = loop_free(number)
    draw = random.Random(number)
    links["loop"] = Shared(CAPACITY, tuple(draw.sample(sorted(jobs), 2)))
    with pytest.raises(LoopError):
        affinity_shifts(
            {name: dict.fromkeys(link.jobs, 0) for name, link in links.items()},
            {job: each.period for job, each in jobs.items()},
        )
    assert joint_shifts(jobs, links).score >= mean_score(jobs, links, {}) - EQUAL


def test_without_links_nothing_is_shifted() -> None:
    found = joint_shifts({"a": one_phase(4, 0, 2, 1.0)}, {})
    assert (found.score, dict(found.shifts)) == (1.0, {"a": 0})

"""Which jobs are shifted, and why others are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.scheduling import TrafficProfile
from services.scheduler.core.interleaving.all_links import Shared
from services.scheduler.core.interleaving.common_period import MOST_PADDING, common_period, connected
from services.scheduler.core.interleaving.demand import independent_score, slowed
from services.scheduler.core.interleaving.plan import Plan, Sharer, plan
from tests.support.traffic import MBIT, profile

RATE = 100.0 * MBIT


def planned(*profiles: TrafficProfile | None, interleave: bool = True) -> Plan:
    """Of jobs a, b and so on, on one link."""
    jobs = {chr(ord("a") + number): each for number, each in enumerate(profiles)}
    sharers = {job: Sharer(1, each and each.model_copy(update={"job": job}), interleave) for job, each in jobs.items()}
    return plan({"up": Shared(RATE, tuple(jobs))}, sharers)


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(1, 60_000), min_size=1, max_size=6))
def test_periods_on_a_common_one_are_never_shorter_and_hardly_longer(periods_ms: dict[str, int]) -> None:
    found = common_period(periods_ms)
    if found is None:
        return
    assert len(found.counts) >= 2
    for job, count in found.counts.items():
        assert found.length_ms == count * found.period_ms(job)
        assert found.steps == count * found.period_steps(job)
        assert periods_ms[job] <= found.period_ms(job) <= (1 + MOST_PADDING) * periods_ms[job]


@pytest.mark.parametrize(
    ("periods_ms", "length_ms"),
    [
        ((255, 255), 255),
        ((1_000, 500), 1_000),
        ((200, 300), 600),
        ((1_376, 1_380, 1_420), 1_420),  # 1,420 is 3.2 % more than 1,376
        ((1_000, 1_300), 4_008),  # 4 and 3 of them are 4,000 and 3,900: the first whole multiple of 12 ms
    ],
)
def test_the_smallest_common_period_is_taken(periods_ms: tuple[int, ...], length_ms: int) -> None:
    found = common_period({f"j{number}": each for number, each in enumerate(periods_ms)})
    assert found is not None
    assert found.length_ms == length_ms


def test_jobs_without_a_common_period_are_left_out() -> None:
    # 1.415 is more than 5 % from 1, 3/2 and 4/3.
    found = common_period({"a": 141_500, "b": 141_000, "c": 100_000})
    assert found is not None
    assert set(found.counts) == {"a", "b"}
    assert common_period({"a": 141_500, "c": 100_000}) is None


def test_two_jobs_that_fill_a_link_take_turns() -> None:
    found = planned(profile("a", 1_240, 540), profile("b", 1_240, 540))
    first, second = found.shifts
    assert (first.job, first.shift_ms, first.period_ms) == ("a", 0, 1_240)
    assert 540 <= second.shift_ms <= 700
    (score,) = found.scores
    # Together, 540 of 1,240 ms have twice the rate: 1 - 540 / 1,240 = 0.565.
    assert (score.unshifted, score.score, score.why) == (pytest.approx(0.565, abs=0.003), 1.0, "")


def test_periods_are_made_equal_where_that_costs_less_than_it_gains() -> None:
    found = planned(profile("a", 1_240, 540), profile("b", 1_270, 540))
    assert [shift.period_ms for shift in found.shifts] == [1_270, 1_270]
    small = planned(profile("a", 1_240, 70), profile("b", 1_290, 70))
    assert small.shifts == ()
    assert "iterations of equal length cost 4.0%" in small.scores[0].why


@pytest.mark.parametrize(
    ("profiles", "why"),
    [
        ((profile("a", 1_240, 540), None), "b is not known by its traffic yet"),
        (
            (profile("a", 1_240, 540, congestion_control="mltcp"), profile("b", 1_240, 540)),
            "a: mltcp makes its jobs take turns by itself",
        ),
        (
            (profile("a", 1_000, 950), profile("b", 1_240, 540)),
            "a sends for 95% of its iteration, so no phase is quiet",
        ),
        (
            (profile("a", 1_240, 540, 40 * MBIT), profile("b", 1_240, 540, 50 * MBIT)),
            "they fit beside each other as they are",
        ),
        ((profile("a", 141_500, 60_000), profile("b", 100_000, 40_000)), "the periods of a b never come together"),
    ],
)
def test_why_nothing_is_shifted_is_said(profiles: tuple[TrafficProfile | None, ...], why: str) -> None:
    found = planned(*profiles)
    assert found.shifts == ()
    assert [score.why for score in found.scores] == [why]
    assert found.scores[0].score == found.scores[0].unshifted


def test_a_job_that_may_not_be_paused_is_not() -> None:
    found = planned(profile("a", 1_240, 540), profile("b", 1_240, 540), interleave=False)
    assert found.shifts == ()
    assert found.scores[0].why == "a may not be paused; b may not be paused"


def test_jobs_that_begin_at_any_time_meet_as_often_as_they_send() -> None:
    half = profile("a", 1_000, 500)
    # Both send in a quarter of the time, and then the link has twice what it carries: 1 - 0.25.
    assert independent_score([half, half], RATE) == pytest.approx(0.75)


def test_on_a_slower_link_what_a_job_sends_takes_longer() -> None:
    found = slowed(profile("a", 1_240, 540), 50.0 * MBIT)
    assert (found.period_ms, found.phases[0].end_ms, found.phases[0].bits_per_s) == (1_780, 1_080, 50 * MBIT)
    assert slowed(found, RATE) == found


def test_links_without_common_jobs_are_planned_apart() -> None:
    sharers = {
        job: Sharer(1, profile(job, period_ms, 400), interleave=True)
        for job, period_ms in {"a": 1_000, "b": 1_000, "c": 1_370, "d": 1_370}.items()
    }
    found = plan({"one": Shared(RATE, ("a", "b")), "two": Shared(RATE, ("c", "d"))}, sharers)
    assert {shift.job: shift.period_ms for shift in found.shifts} == {"a": 1_000, "b": 1_000, "c": 1_370, "d": 1_370}
    assert [score.score for score in found.scores] == [1.0, 1.0]


def test_connected_groups_become_one() -> None:
    groups = [frozenset("ab"), frozenset("cd"), frozenset("bc"), frozenset("xy")]
    assert connected(groups) == [frozenset("abcd"), frozenset("xy")]

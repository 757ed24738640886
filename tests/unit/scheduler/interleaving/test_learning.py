"""Profiles from samples, the turns of shifted jobs, and what is not believed."""

from __future__ import annotations

import pytest

from schemas.scheduling import (
    IterationSample,
    JobShift,
    LinkScore,
    ScheduleDecision,
    ScheduleEvent,
    TrafficProfile,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.entries import decided
from services.scheduler.core.interleaving.learning import KEPT
from services.scheduler.core.interleaving.turns import Turns
from services.scheduler.core.iterations import LEARNED_EVERY_S, PAYLOAD, Iterations, SampleResult
from services.scheduler.core.state import State, fold
from tests.support.traffic import ALONE_MS, COMPUTING_MS, MBIT, SENT_BYTES, profile, sample, two_jobs

NOW_NS = 10**18
PERIOD_MS = COMPUTING_MS + ALONE_MS
BESIDE_OTHERS_MS = COMPUTING_MS + round(ALONE_MS / PAYLOAD)


@pytest.fixture
def state() -> State:
    return fold(State(), two_jobs(NOW_NS))


def learned(iterations: Iterations, state: State, *samples: IterationSample, at_s: float = 0.0) -> list[TrafficProfile]:
    for each in samples:
        assert iterations.add(state, each.node, each, at_s) is SampleResult.TAKEN
    return list(iterations.take_profiles(state))


def test_three_iterations_that_agree_make_a_profile(state: State) -> None:
    iterations = Iterations()
    assert learned(iterations, state, sample("a"), sample("a")) == []
    (found,) = learned(iterations, state, sample("a"))
    assert (found.period_ms, found.phases[0].end_ms, found.sent_bytes) == (PERIOD_MS, ALONE_MS, SENT_BYTES)
    assert found.phases[0].bits_per_s == pytest.approx(100 * MBIT)
    assert learned(iterations, fold(state, [told(found)]), *[sample("a")] * 3, at_s=60.0) == [], "it is known"


def told(*profiles: TrafficProfile) -> ScheduleEvent:
    return ScheduleEvent(leader="s", time_ns=NOW_NS, profiles=profiles)


def test_iterations_of_other_bytes_make_no_profile(state: State) -> None:
    sizes = (SENT_BYTES, 2 * SENT_BYTES, 4 * SENT_BYTES, SENT_BYTES, 8 * SENT_BYTES)
    samples = [sample("a", sent_bytes=size) for size in sizes]
    assert learned(Iterations(), state, *samples) == []


def test_an_iteration_that_was_much_longer_changes_nothing(state: State) -> None:
    """One of three computes twice as long, as a checkpoint is written."""
    (found,) = learned(Iterations(), state, sample("a"), sample("a", period_us=2_000_000 + 540_000), sample("a"))
    assert found.period_ms == PERIOD_MS


def test_a_profile_of_three_iterations_is_refined_once_by_eight(state: State) -> None:
    """Three happen to compute 40 ms longer; of eight, with five as usual, the median is as usual."""
    iterations = Iterations()
    usual = sample("a")
    (first,) = learned(iterations, state, *[sample("a", period_us=usual.period_us + 40_000)] * 3)
    assert first.period_ms == PERIOD_MS + 40
    known = fold(state, [told(first)])
    assert learned(iterations, known, *[usual] * 4, at_s=60.0) == [], "by less than a tenth"
    (refined,) = learned(iterations, known, usual, at_s=61.0)
    assert refined.period_ms == PERIOD_MS
    again = [sample("a", period_us=usual.period_us + 40_000)] * KEPT
    assert learned(iterations, fold(known, [told(refined)]), *again, at_s=120.0) == [], "once in an attempt"


def test_jobs_that_send_together_are_learned_as_they_would_be_alone(state: State) -> None:
    """Both need 1,080 ms instead of 540: it is the link that is slow, not the jobs."""
    iterations = Iterations()
    crowded = {"a": sample("a", sending_ms=1_080), "b": sample("b", "n2", sending_ms=1_080)}
    found = learned(iterations, state, *[crowded[job] for job in "abababab"])
    assert [(each.job, each.period_ms) for each in found] == [("a", BESIDE_OTHERS_MS), ("b", BESIDE_OTHERS_MS)]


def test_one_of_which_little_is_known_may_be_what_slows_the_other(state: State) -> None:
    samples = (sample("b", "n2", sending_ms=1_080), *[sample("a", sending_ms=1_080)] * 3)
    assert [each.period_ms for each in learned(Iterations(), state, *samples)] == [BESIDE_OTHERS_MS]


def test_a_job_whose_neighbour_says_nothing_is_learned_as_it_is_seen(state: State) -> None:
    (found,) = learned(Iterations(), state, *[sample("b", "n2", sending_ms=1_080)] * 3)
    assert (found.job, found.period_ms) == ("b", PERIOD_MS + 540)


def test_a_pause_is_no_part_of_an_iteration(state: State) -> None:
    paused = sample("a", frozen_us=300_000, period_us=1_000 * (PERIOD_MS + 300))
    (found,) = learned(Iterations(), state, sample("a"), paused, sample("a"))
    assert found.period_ms == PERIOD_MS


def test_a_job_that_sends_more_is_learned_anew_but_not_all_the_time(state: State) -> None:
    iterations = Iterations()
    (first,) = learned(iterations, state, *[sample("a")] * 3, at_s=1.0)
    state = fold(state, [told(first)])
    more = sample("a", sending_ms=2 * ALONE_MS, sent_bytes=2 * SENT_BYTES)
    assert learned(iterations, state, *[more] * 5, at_s=2.0) == []
    (second,) = learned(iterations, state, more, at_s=1.0 + LEARNED_EVERY_S)
    assert second.sent_bytes == 2 * SENT_BYTES
    assert second.period_ms == COMPUTING_MS + 2 * ALONE_MS


def shifted(state: State) -> State:
    """Both jobs take turns."""
    found = fold(state, [decided(state, told(*(profile_of(job) for job in ("a", "b"))), "index")[0]])
    assert set(found.traffic.shifts) == {"a", "b"}
    return found


@pytest.mark.parametrize(("sending_ms", "longer_ms"), [(ALONE_MS + 200, 200), (ALONE_MS + 10, None)])
def test_a_job_that_takes_turns_is_learned_as_it_is_seen(state: State, sending_ms: int, longer_ms: int | None) -> None:
    """Whatever its link's rate: only if it differs by a tenth. In one iteration of five it has sent beside others."""
    lengths_ms = (sending_ms, sending_ms, 2 * sending_ms, sending_ms, sending_ms)
    found = learned(Iterations(), shifted(state), *[sample("a", sending_ms=each) for each in lengths_ms])
    assert [each.period_ms for each in found] == ([] if longer_ms is None else [PERIOD_MS + longer_ms])


def test_a_batch_that_changes_midway_is_learned_within_five_iterations(state: State) -> None:
    iterations, state = Iterations(), shifted(state)
    assert learned(iterations, state, *[sample("a")] * 20) == []
    less = sample("a", sending_ms=ALONE_MS // 2, sent_bytes=SENT_BYTES // 2)
    (found,) = learned(iterations, state, *[less] * 5)
    assert (found.period_ms, found.sent_bytes) == (COMPUTING_MS + ALONE_MS // 2, SENT_BYTES // 2)


def profile_of(job: str) -> TrafficProfile:
    state = fold(State(), two_jobs(NOW_NS))
    node = state.live[job].job.nodes[0]
    (found,) = learned(Iterations(), state, *[sample(job, node)] * 3)
    return found


@pytest.mark.parametrize(
    ("result", "by", "changes"),
    [
        (SampleResult.OLD, "n1", {"job": "c"}),
        (SampleResult.OLD, "n1", {"attempt": 2}),
        (SampleResult.FORGED, "n2", {"node": "n2"}),
        (SampleResult.FORGED, "n2", {}),
        (SampleResult.FORGED, "n1", {"rank": 7}),
        (SampleResult.GARBAGE, "n1", {"sending_us": 0}),
        (SampleResult.GARBAGE, "n1", {"sending_us": 10**9}),
        (SampleResult.GARBAGE, "n1", {"sent_bytes": 0}),
        (SampleResult.GARBAGE, "n1", {"frozen_us": 2**62}),
    ],
)
def test_what_cannot_be_is_not_believed(
    state: State, result: SampleResult, by: str, changes: dict[str, object]
) -> None:
    iterations = Iterations()
    for _ in range(4):
        assert iterations.add(state, by, sample("a").model_copy(update=changes), 0.0) is result
    assert iterations.take_profiles(state) == ()


def test_a_profile_of_a_job_that_has_ended_meanwhile_is_not_told(state: State) -> None:
    iterations = Iterations()
    for each in [sample("a")] * 3:
        iterations.add(state, "n1", each, 0.0)
    gone = [
        WorkEvent(job="a", attempt=1, rank=rank, node=node, change=WorkerChange.ENDED, time_ns=1)
        for rank, node in enumerate(("n1", "n3"))
    ]
    assert iterations.take_profiles(fold(state, [told().model_copy(update={"worked": tuple(gone)})])) == ()


# -- turns -------------------------------------------------------------------------------------------------------------


def in_ms(number: int) -> int:
    return 1_000_000 * number


def due(job: str, node: str, ended_ms: int) -> IterationSample:
    """It has sent all, and computes."""
    return sample(job, node, due_ns=in_ms(ended_ms + COMPUTING_MS), ended_ns=in_ms(ended_ms))


def begun(job: str, node: str, time_ms: int) -> IterationSample:
    """The sample that comes as it begins to send."""
    return sample(job, node, time_ms=time_ms - PERIOD_MS)


def turns_ms(iterations: Iterations, state: State) -> dict[str, int]:
    return {job: pace.begin_ns // 1_000_000 for job, pace in iterations.paces(state).items()}


def test_jobs_that_have_met_part_at_once(state: State) -> None:
    """Both have sent all at 10 s, and would begin again at 10.7 s: the second waits until the first one is done."""
    iterations, state = Iterations(), shifted(state)
    learned(iterations, state, due("a", "n1", 10_000), due("b", "n2", 10_000))
    assert turns_ms(iterations, state) == {"a": 10_700, "b": 10_700 + ALONE_MS}


def test_those_in_whose_way_a_late_job_is_wait_and_no_others(state: State) -> None:
    """B begins 0.3 s late, at 10.8 s, and sends until 11.34 s; a is due at 11.0 s, or at 11.4 s."""
    for ended_ms, turn_ms in ((10_300, 10_800 + ALONE_MS), (10_700, 11_400)):
        iterations, shifted_state = Iterations(), shifted(state)
        learned(iterations, shifted_state, due("b", "n2", 9_800), due("a", "n1", ended_ms))
        assert turns_ms(iterations, shifted_state)["a"] == max(ended_ms + COMPUTING_MS, 10_500 + ALONE_MS)
        learned(iterations, shifted_state, begun("b", "n2", 10_800))
        assert iterations.has_new_paces == (turn_ms != ended_ms + COMPUTING_MS)
        assert turns_ms(iterations, shifted_state)["a"] == turn_ms


THIRD_MS = 150
"""For so long each of `three` sends, of 1,240 ms."""


def three() -> Turns:
    """Jobs a, b and c on one link, of which each sends briefly."""
    found = Turns()
    jobs = ("a", "b", "c")
    shifts = {job: JobShift(job=job, attempt=1, period_ms=1_240, shift_ms=0) for job in jobs}
    score = LinkScore(link="up", bits_per_s=100 * MBIT, jobs=jobs, unshifted=0.7, score=1.0)
    found.planned(shifts, [score], {job: profile(job, 1_240, THIRD_MS) for job in jobs}, {})
    return found


def seen_once(job: str, ended_ms: int) -> IterationSample:
    """A brief phase, told with its end; the next one is due 1,090 ms later."""
    return sample(
        job, "n1", ended_ms - THIRD_MS - 1_240, THIRD_MS, ended_ns=in_ms(ended_ms), due_ns=in_ms(ended_ms + 1_090)
    )


@pytest.mark.parametrize("brief", [True, False])
def test_a_job_that_is_told_at_its_end_only_is_taken_to_send_from_its_turn_on(brief: bool) -> None:
    """B is due at 11.09 s, and a at 11.10 s, so it waits until 11.24 s; c ends when nothing was heard of b's begin."""
    turns = three()
    turns.add(seen_once("b", 8_760))
    if not brief:  # its begins are told
        turns.add(begun("b", "n2", 9_850))
    turns.add(seen_once("b", 10_000))
    turns.add(seen_once("a", 10_010))
    assert turns.paces()["a"].begin_ns == in_ms(11_240)

    turns.add(seen_once("c", 11_130))
    assert turns.paces()["a"].begin_ns == in_ms(11_240 if brief else 11_100)


def test_turns_that_hardly_move_are_not_given_anew() -> None:
    """By less than 1 % of 1,240 ms."""
    turns = three()
    turns.add(seen_once("b", 10_000))
    assert turns.add(seen_once("a", 10_010))
    assert not turns.add(begun("b", "n2", 11_095))
    assert turns.paces()["a"].begin_ns == in_ms(11_240)
    assert not three().add(seen_once("c", 10_000)), "who need not wait is told nothing"


def test_an_iteration_that_is_told_with_its_end_is_learned_once(state: State) -> None:
    """And one that is told again, as the next one is due, no more than once."""
    iterations, times_ms = Iterations(), (0, PERIOD_MS, 2 * PERIOD_MS)
    told_twice = [each for time_ms in times_ms[:2] for each in (sample("a", time_ms=time_ms), again("a", time_ms))]
    assert learned(iterations, state, *told_twice) == [], "two"
    (found,) = learned(iterations, state, again("a", times_ms[2]))
    assert (found.period_ms, found.sent_bytes) == (PERIOD_MS, SENT_BYTES)


def again(job: str, time_ms: int) -> IterationSample:
    return sample(job, "n1", time_ms, due_ns=in_ms(time_ms + 3 * PERIOD_MS), ended_ns=in_ms(time_ms + 2 * PERIOD_MS))


def test_the_first_sample_of_a_shifted_job_gives_it_a_turn(state: State) -> None:
    """So that its runner knows that it is paced, and says when it is due."""
    iterations, state = Iterations(), shifted(state)
    learned(iterations, state, begun("a", "n1", 5_000))
    assert turns_ms(iterations, state) == {"a": 5_000}


def test_turns_are_kept_where_shifts_change_and_are_not_for_another_attempt(state: State) -> None:
    state = shifted(state)
    traffic = state.traffic
    found = Turns()
    found.planned(traffic.shifts, traffic.scores, traffic.profiles, {})
    assert not found.add(due("a", "n1", 10_000)), "it need not wait"
    assert found.add(due("b", "n2", 10_000))
    before = found.paces()
    longer = {job: shift.model_copy(update={"period_ms": 1_400}) for job, shift in traffic.shifts.items()}
    found.planned(longer, traffic.scores, traffic.profiles, {})
    assert {job: pace.begin_ns for job, pace in found.paces().items()} == {
        job: pace.begin_ns for job, pace in before.items()
    }
    again = longer | {"b": longer["b"].model_copy(update={"attempt": 2})}
    found.planned(again, traffic.scores, traffic.profiles, {})
    assert set(found.paces()) == {"a"}
    assert not found.add(due("b", "n2", 11_000)), "of an attempt that is over"


def test_shifts_follow_from_the_log_and_are_withdrawn_with_it(state: State) -> None:
    told_both = told(*(profile_of(job) for job in ("a", "b")))
    entry, outcome = decided(state, told_both, "index")
    assert outcome is None, "nobody's turn: the order is not evaluated"
    assert entry.decision is not None
    assert (entry.decision.trigger, entry.decision.starts) == (Trigger.WORK, ())
    shifted = fold(state, [entry])
    assert [each.score for each in shifted.traffic.scores] == [1.0]
    over = [
        WorkEvent(job="b", attempt=1, rank=rank, node=node, change=WorkerChange.ENDED, time_ns=1)
        for rank, node in enumerate(("n2", "n4"))
    ]
    ended, _ = decided(shifted, ScheduleEvent(leader="s", time_ns=NOW_NS, worked=tuple(over)), "index")
    assert isinstance(ended.decision, ScheduleDecision)
    assert (ended.decision.shifts, ended.decision.link_scores) == ((), ())
    after = fold(shifted, [ended])
    assert (dict(after.traffic.shifts), dict(after.traffic.shifted)) == ({}, {"a": 1})
    assert set(after.traffic.profiles) == {"a"}

"""Pauses until a job's turn: how long, when not, and what they have achieved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runner.core.phase import LEAST_PAUSE_NS, PhaseControl

MS = 1_000_000
PERIOD_NS = 1_270 * MS
COMPUTING_NS = 730 * MS
END_NS = 10_000 * MS
DUE_NS = END_NS + COMPUTING_NS
SEEN_NS = END_NS + 160 * MS
"""When a silence has shown that the phase has ended."""
LONGEST_NS = 6_000 * MS


def control(wait_ms: int) -> PhaseControl:
    """Of a job that has sent all, and whose turn is so much later than it is due."""
    found = PhaseControl(DUE_NS + wait_ms * MS, PERIOD_NS, LONGEST_NS)
    assert found.ended(END_NS, COMPUTING_NS) == DUE_NS
    return found


@given(st.integers(-100_000, 100_000))
def test_a_job_waits_for_its_turn_and_at_most_for_a_period(wait_ms: int) -> None:
    pause_ns = control(wait_ms).wait(SEEN_NS, 0).pause_ns
    wanted_ns = max(0, min(PERIOD_NS, wait_ms * MS))
    # 1 % of 1.27 s: a pause of less is not worth its while.
    assert pause_ns == (wanted_ns if wanted_ns >= 12_700_000 else 0)


def test_without_another_turn_there_is_no_other_pause() -> None:
    paced = control(300)
    assert paced.wait(SEEN_NS, 0).pause_ns == 300 * MS
    assert paced.wait(SEEN_NS + 50 * MS, SEEN_NS + 300 * MS).pause_ns == 0
    paced.began(DUE_NS + 300 * MS)
    paced.ended(END_NS + PERIOD_NS, COMPUTING_NS)
    assert paced.wait(SEEN_NS + PERIOD_NS, 0).pause_ns == 0, "its turn has been"


def test_a_later_turn_makes_a_pause_longer_and_an_earlier_one_shorter() -> None:
    paced = control(300)
    assert paced.wait(SEEN_NS, 0).pause_ns == 300 * MS
    paced.move(DUE_NS + 400 * MS, PERIOD_NS)
    assert paced.wait(SEEN_NS + 50 * MS, SEEN_NS + 300 * MS).pause_ns == 100 * MS
    paced.move(DUE_NS + 150 * MS, PERIOD_NS)
    assert paced.wait(SEEN_NS + 60 * MS, SEEN_NS + 400 * MS).pause_ns == -250 * MS
    paced.move(DUE_NS, PERIOD_NS)
    # It has been stopped for 100 ms by then, and 50 are left: those are all that can be taken back.
    assert paced.wait(SEEN_NS + 100 * MS, SEEN_NS + 150 * MS).pause_ns == -50 * MS


def test_a_turn_that_comes_while_the_pause_before_is_over_is_waited_for_in_another_one() -> None:
    paced = control(100)
    assert paced.wait(SEEN_NS, 0).pause_ns == 100 * MS
    paced.move(DUE_NS + 250 * MS, PERIOD_NS)
    assert paced.wait(SEEN_NS + 200 * MS, 0).pause_ns == 150 * MS
    paced.move(DUE_NS, PERIOD_NS)
    assert paced.wait(SEEN_NS + 600 * MS, 0).pause_ns == 0, "what it has waited is not undone"


def test_a_job_is_never_stopped_as_it_is_about_to_send_or_while_it_does() -> None:
    assert control(300).wait(DUE_NS - 15 * MS, 0).pause_ns == 0
    assert control(300).wait(DUE_NS - 25 * MS, 0).pause_ns == 300 * MS
    sends = control(300)
    sends.began(DUE_NS)
    assert sends.wait(DUE_NS + 20 * MS, 0).pause_ns == 0


def test_what_three_pauses_have_not_achieved_is_added_to_the_next() -> None:
    """0.35 s are wanted, and 0.22 s of each pause are absorbed."""
    pauses_ns = []
    paced = PhaseControl(0, PERIOD_NS, LONGEST_NS)
    for number in range(6):
        end_ns = number * 3 * PERIOD_NS
        due_ns = paced.ended(end_ns, COMPUTING_NS)
        paced.move(due_ns + 350 * MS, PERIOD_NS)
        pauses_ns.append(paced.wait(end_ns + 160 * MS, 0).pause_ns)
        error_ns = paced.began(due_ns + pauses_ns[-1] - 220 * MS)
        assert error_ns == (-220 * MS if number < 3 else 0)

    assert pauses_ns == [350 * MS] * 3 + [570 * MS] * 3


def test_a_job_that_has_computed_faster_once_is_not_paused_for_longer() -> None:
    paced = PhaseControl(0, PERIOD_NS, LONGEST_NS)
    for number, early_ms in enumerate((40, 0, 60, 0, 0, 30)):
        end_ns = number * 3 * PERIOD_NS
        due_ns = paced.ended(end_ns, COMPUTING_NS)
        paced.move(due_ns + 200 * MS, PERIOD_NS)
        assert paced.wait(end_ns + 160 * MS, 0).pause_ns == 200 * MS
        assert paced.began(due_ns + (200 - early_ms) * MS) == -early_ms * MS


def test_a_begin_that_was_not_seen_says_nothing_of_a_pause() -> None:
    paced = control(300)
    paced.wait(SEEN_NS, 0)
    paced.missed()
    assert paced.wait(SEEN_NS + 10 * MS, 0).pause_ns == 0


def test_a_pause_that_collective_operations_do_not_survive_is_refused() -> None:
    paced = PhaseControl(20_000 * MS, 10_000 * MS, LONGEST_NS)
    paced.ended(11_000 * MS, 2_000 * MS)
    decision = paced.wait(12_000 * MS, 0)

    assert decision.pause_ns == 0
    assert decision.refused == "a pause of 7 s is longer than 6 s"


@pytest.mark.parametrize("period_ms", [100, 500])
def test_of_short_periods_the_least_pause_is_what_can_be_measured(period_ms: int) -> None:
    paced = PhaseControl(0, period_ms * MS, LONGEST_NS)
    waits_ms = (0, 9, 10, 20)
    pauses_ns = []
    for wait_ms in waits_ms:
        due_ns = paced.ended(END_NS, 90 * MS)
        paced.move(due_ns + wait_ms * MS, period_ms * MS)
        pauses_ns.append(paced.wait(END_NS + 10 * MS, 0).pause_ns)
        paced.missed()
    assert pauses_ns == [0, 0, LEAST_PAUSE_NS, 20 * MS]

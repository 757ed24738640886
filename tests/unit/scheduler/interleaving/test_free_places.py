"""Sending phases one after another: who waits for whom, and how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.interleaving.free_places import Phase, waiting

RATES = {"up": 100.0, "down": 100.0}


def phase(job: str, begin: int, length: int = 50, rate: float = 100.0, *links: str) -> Phase:
    return Phase(job, begin, length, rate, links or ("up",))


def test_first_come_first_served() -> None:
    # b is due at 10, and a sends until 50; c at 20 comes after b, which ends at 100.
    assert waiting([], [phase("c", 20), phase("a", 0), phase("b", 10)], RATES) == {"a": 0, "b": 50, "c": 100}


def test_who_sends_already_is_waited_for() -> None:
    assert waiting([phase("a", 0)], [phase("b", 49), phase("c", 200)], RATES) == {"b": 50, "c": 200}


def test_two_that_send_at_once_take_as_long_as_both() -> None:
    # b has begun 20 after a: all is sent at 100.
    assert waiting([phase("b", 20), phase("a", 0)], [phase("c", 30)], RATES) == {"c": 100}


def test_a_gap_that_is_long_enough_is_taken() -> None:
    present = [phase("a", 0), phase("q", 0, 100, 100.0, "down")]
    due = [phase("p", 10, 50, 100.0, "up", "down"), phase("c", 20, 40), phase("d", 30, 60)]
    # p waits for q until 100; c has sent all by then if it begins at 50, and d has not, even at 90: it comes after p.
    assert waiting(present, due, RATES) == {"p": 100, "c": 50, "d": 150}


def test_jobs_that_leave_room_send_at_once() -> None:
    due = [phase("a", 0, 50, 60.0), phase("b", 10, 50, 40.0), phase("c", 20, 50, 1.0)]
    assert waiting([], due, RATES) == {"a": 0, "b": 10, "c": 50}


def test_each_of_a_jobs_links_has_to_be_free() -> None:
    due = [phase("a", 0, 50, 100.0, "up"), phase("b", 0, 50, 100.0, "down"), phase("c", 0, 10, 100.0, "up", "down")]
    assert waiting([], due, RATES) == {"a": 0, "b": 0, "c": 50}


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60), st.sampled_from([30.0, 60.0, 100.0])), max_size=8))
def test_no_link_ever_carries_more_than_it_can_and_nobody_begins_before_it_is_due(
    rows: list[tuple[int, int, float]],
) -> None:
    due = {f"j{number}": phase(f"j{number}", *row) for number, row in enumerate(rows)}
    found = waiting([], due.values(), RATES)
    assert all(found[job] >= each.begin_ns for job, each in due.items())
    for at in found.values():
        sent = sum(each.bits_per_s for job, each in due.items() if found[job] <= at < found[job] + each.length_ns)
        assert sent <= RATES["up"]

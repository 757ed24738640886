"""The console's hour of history: seconds, means of ten before, and never more memory than it was given."""

from __future__ import annotations

import numpy as np
import pytest

from services.console.history import COARSE_POINTS, FINE_POINTS, POINTS, History

START_S = 1_700_000_000.0


def fill(history: History, seconds: int, *, first: int = 0, who: str = "web") -> None:
    """A second after another; the value is the second's number, and its double."""
    for second in range(first, first + seconds):
        history.advance(START_S + second)
        slots = history.claim([who])
        history.write(slots, np.array([[second], [2 * second]], dtype=np.float32))


def test_the_last_minutes_are_there_second_by_second() -> None:
    history = History(2, 1 << 20)
    fill(history, 30)
    series = history.read("web")
    assert series is not None
    assert series.times_s.tolist() == [START_S + second for second in range(30)]
    assert series.values.tolist() == [[float(second) for second in range(30)], [2.0 * second for second in range(30)]]


def test_before_them_stand_means_of_ten_seconds_up_to_an_hour() -> None:
    history = History(2, 1 << 20)
    seconds = 2 * 3_600
    fill(history, seconds)
    series = history.read("web")
    assert series is not None
    fine = seconds - FINE_POINTS
    assert series.times_s[-FINE_POINTS:].tolist() == [START_S + second for second in range(fine, seconds)]
    # The last coarse point that is older than the first fine one: the mean of ten seconds, at their middle.
    assert series.times_s[-FINE_POINTS - 1] == START_S + fine - 10 + 4.5
    assert series.values[0, -FINE_POINTS - 1] == fine - 10 + 4.5
    assert np.all(np.diff(series.times_s) > 0)
    # 360 coarse points cover the last hour; those of the last ten minutes stand there as seconds.
    assert len(series.times_s) == FINE_POINTS + COARSE_POINTS - FINE_POINTS // 10 + 1
    assert series.times_s[0] >= START_S + seconds - 3_600 - 10


def test_seconds_without_a_value_are_gaps_and_count_in_no_mean() -> None:
    history = History(2, 1 << 20)
    fill(history, 3)
    for second in range(3, 40):  # its container is not reported
        history.advance(START_S + second)
    fill(history, FINE_POINTS, first=40)
    series = history.read("web")
    assert series is not None
    assert series.values[0, 0] == pytest.approx(1.0)  # the mean of 0, 1 and 2
    assert np.isnan(series.values[0, 1:4]).all()


def test_who_was_never_seen_has_none() -> None:
    assert History(2, 1 << 20).read("web") is None


def test_it_begins_with_what_is_known_of_it() -> None:
    history = History(2, 1 << 20)
    fill(history, 5, who="web")
    fill(history, 5, first=5, who="db")
    series = history.read("db")
    assert series is not None
    assert series.times_s.tolist() == [START_S + second for second in range(5, 10)]


def test_it_takes_the_memory_that_it_was_given_and_says_who_has_none() -> None:
    history = History(2, 3 * 2 * POINTS * 4)
    assert history.capacity == 3
    assert history.claim(["a", "b", "c", "d"]).tolist() == [0, 1, 2, -1]
    history.advance(START_S)
    history.write(np.array([0, 1, 2, -1]), np.ones((2, 4), dtype=np.float32))
    assert history.read("d") is None
    assert history._fine.values.nbytes + history._coarse.values.nbytes == 3 * 2 * POINTS * 4


def test_a_slot_of_one_that_has_gone_is_given_on_without_its_past() -> None:
    history = History(2, 2 * 2 * POINTS * 4)
    fill(history, 5, who="old")
    fill(history, 5, first=5, who="older")
    history.release(["old"])
    assert history.read("old") is not None  # until its slot is needed
    fill(history, 1, first=10, who="new")
    assert history.read("old") is None
    series = history.read("new")
    assert series is not None
    assert series.times_s.tolist() == [START_S + 10]
    assert history.claim(["newer"]).tolist() == [-1]


def test_one_that_comes_back_has_its_past() -> None:
    history = History(2, 2 * 2 * POINTS * 4)
    fill(history, 2)
    history.release(["web"])
    fill(history, 1, first=2)
    history.claim(["other"])
    assert history.claim(["third"]).tolist() == [-1]
    series = history.read("web")
    assert series is not None
    assert series.values[0].tolist() == [0.0, 1.0, 2.0]


def test_the_newest_seconds_of_many_at_once() -> None:
    history = History(2, 1 << 20)
    fill(history, 3)
    slots = np.array([0, -1])
    newest = history.newest(slots, (1,), 5)
    assert newest.shape == (1, 5, 2)
    assert newest[0, 2:, 0].tolist() == [0.0, 2.0, 4.0]
    assert np.isnan(newest[0, :2, 0]).all()
    assert np.isnan(newest[0, :, 1]).all()

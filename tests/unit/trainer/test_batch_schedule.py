"""How many samples a step has by the user's schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.core.batch_schedule import parse_schedule


def test_a_schedule_is_what_it_says() -> None:
    schedule = parse_schedule("0:64,10:128")

    assert [schedule.batch(step) for step in (0, 9, 10, 1_000)] == [64, 64, 128, 128]
    assert list(schedule.runs(4, 30)) == [(64, 6), (128, 20)]
    assert list(schedule.runs(0, 7)) == [(64, 7)]
    assert list(schedule.runs(30, 30)) == []
    assert parse_schedule("64") == parse_schedule("0:64")


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 9), max_size=5), st.integers(0, 60), st.integers(0, 60))
def test_runs_are_the_batches_of_each_step(parts: dict[int, int], first: int, end: int) -> None:
    schedule = parse_schedule(",".join(["3", *(f"{step}:{parts[step]}" for step in sorted(parts))]))

    runs = [batch for batch, steps in schedule.runs(first, end) for _ in range(steps)]

    assert runs == [schedule.batch(step) for step in range(first, end)]
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "'' in '' is no STEP:SAMPLES"),
        ("0:0", "is no STEP:SAMPLES"),
        ("0:64,x:8", "'x:8' in '0:64,x:8'"),
        ("5:64", "begin with 0"),
        ("0:64,0:8", "to ascend"),
        ("0:64,9:8,5:7", "to ascend"),
        ("0:99999999", "1 to"),
    ],
)
def test_other_texts_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_schedule(text)

"""Periods as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services._runtime.command.period import format_period, parse_period


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("40m", 2_400), ("1h30m", 5_400), ("7d", 604_800), ("0.5h", 1_800), ("0s", 0), ("1d2h3m4s", 93_784)],
)
def test_a_period_is_read(text: str, seconds: float) -> None:
    assert parse_period(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "40", "m", "40 m", "m40", "1m1h", "-1m", "1e3s", "40min", "nan", "1_0s", "٣s"[:1]]
)
def test_what_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no period: write such as 90s, 40m, 1h30m or 7d"):
        parse_period(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (48, "48s"),
        (59.6, "1m00s"),
        (250, "4m10s"),
        (3_599.7, "1h00m"),
        (3_720, "1h02m"),
        (86_399.6, "1d00h"),
        (273_600, "3d04h"),
    ],
)
def test_a_period_is_shown_by_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_period(seconds) == text


@given(st.floats(0, 10**8))
def test_what_is_shown_is_read_again_within_its_second_unit(seconds: float) -> None:
    unit_s = 1 if seconds < 3_600 else 60 if seconds < 86_400 else 3_600

    assert abs(parse_period(format_period(seconds)) - seconds) <= unit_s

"""Rates of links with units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.rates import parse_rate, rate_text


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [("100Mbit", 10**8), ("25gbit", 25 * 10**9), ("2.5 Gbit", 25 * 10**8), ("64000bit", 64_000), (" 1kbit ", 1000)],
)
def test_units_are_powers_of_1000(text: str, bits_per_s: int) -> None:
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize("text", ["", "100", "100MB", "Mbit", "-1Mbit", "1e9bit", "1 000Mbit", "0Gbit", "0.0001bit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no rate: write .*such as 100Mbit"):
        parse_rate(text)


@given(bits_per_s=st.integers(1, 10**15) | st.integers(1, 999).map(lambda number: number * 10**9))
def test_what_is_written_is_read_again(bits_per_s: int) -> None:
    assert parse_rate(rate_text(bits_per_s)) == bits_per_s


def test_the_largest_unit_is_used() -> None:
    assert [rate_text(rate) for rate in (10**8, 25 * 10**8, 10**12, 1_500)] == [
        "100Mbit",
        "2500Mbit",
        "1Tbit",
        "1500bit",
    ]

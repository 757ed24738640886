"""Sizes as Docker and Kubernetes users write them; what is shown back says the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sizes import parse_size
from services._runtime.command.output import format_size


@pytest.mark.parametrize(
    "text",
    [
        "2g",
        "2G",
        "2gb",
        "2GB",
        "2Gb",
        "2gib",
        "2GiB",
        "2Gi",
        "2 GiB",
        " 2048m ",
        "2097152k",
        "2147483648",
        "2147483648b",
    ],
)
def test_units_are_powers_of_1024(text: str) -> None:
    """As `docker run --memory` takes them; Ki, Mi and Gi as Kubernetes writes them."""
    assert parse_size(text) == 2 << 30


@pytest.mark.parametrize("text", ["", "g", "2x", "2gbit", "-1g", "1e9", "2 g b", "0x10", "nan", "1" * 30, "2,5g"])
def test_what_is_no_size_says_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match="is no size: write bytes, or such as 512MiB, 512m or 2g"):
        parse_size(text)


def test_kubernetes_thousandths_are_not_taken_for_mebibytes() -> None:
    """As the vertical pod autoscaler prints 123 MiB: 135 PB otherwise."""
    with pytest.raises(ValueError, match="more than a PiB: m is MiB here; Kubernetes' m is a thousandth"):
        parse_size("128974848000m")
    with pytest.raises(ValueError, match=r"'2048t' is more than a PiB: write bytes"):
        parse_size("2048t")
    assert parse_size("1024t") == parse_size("1p") == 1 << 50


def test_a_size_beyond_what_can_be_configured_is_shown_all_the_same() -> None:
    """As kernels report "unlimited" as a number of bytes."""
    assert format_size(1 << 60) == f"1048576 TiB ({1 << 60} B)"


@given(st.integers(0, 1 << 50))
def test_what_is_shown_back_is_exact(size_bytes: int) -> None:
    """Rounded for people, with the bytes beside it where rounding has lost some."""
    shown = format_size(size_bytes)
    _, _, exact = shown.partition("(")

    assert parse_size(exact.rstrip(")") if exact else shown) == size_bytes


@given(st.integers(0, 1 << 10), st.sampled_from(["", "k", "m", "g", "t"]), st.sampled_from(["", "b", "ib", "i"]))
def test_case_and_ending_say_nothing(number: int, prefix: str, ending: str) -> None:
    unit = prefix + (ending if prefix else ending.strip("i"))
    factor = 1024 ** ["", "k", "m", "g", "t"].index(prefix)
    assert parse_size(f"{number}{unit}") == parse_size(f"{number} {unit.upper()}") == number * factor

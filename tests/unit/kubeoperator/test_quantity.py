"""Quantities of Kubernetes, read and written."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kubeoperator.core.quantity import QuantityError, format_bytes, format_cores, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", "8"),
        (8, "8"),
        (0.5, "0.5"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("16Gi", str(16 << 30)),
        ("1.5Gi", str(3 << 29)),
        ("1G", "1000000000"),
        ("1k", "1000"),
        ("2Ki", "2048"),
        ("100n", "0.0000001"),
        ("7u", "0.000007"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("12E-1", "1.2"),
        ("1E", "1000000000000000000"),
        ("1Ei", str(1 << 60)),
        ("-1", "-1"),
        ("+2", "2"),
    ],
)
def test_every_form_of_the_api_is_read(text: object, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "8 cores", "Gi", "1KiB", "1.2.3", "0x10", "1 Gi", "1K", "1e", True, None, [], "9" * 40]
)
def test_what_is_none_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(QuantityError, match="such as 8, 500m or 16Gi"):
        parse_quantity(text)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        value = parse_quantity(text)
    except QuantityError:
        return
    assert value.is_finite()


@given(st.integers(min_value=1, max_value=10**8))
def test_cores_come_back_as_they_were_written(millicores: int) -> None:
    assert parse_quantity(format_cores(millicores / 1000)) * 1000 == millicores


@given(st.integers(min_value=0, max_value=1 << 62))
def test_bytes_come_back_as_they_were_written(count: int) -> None:
    assert parse_quantity(format_bytes(count)) == count

"""Reasons and limits as text."""

from __future__ import annotations

import pytest

from schemas.reasons import Reason, quantity, sentence


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (-1, "unlimited"),
        (0, "0.0 MiB"),
        (281 << 20, "281.0 MiB"),
        ((1 << 30) - (1 << 20), "1023.0 MiB"),
        (1 << 30, "1 GiB"),
        (3 << 29, "1.5 GiB"),
        (1023 << 30, "1023 GiB"),
        (10 << 40, "10 TiB"),
    ],
)
def test_memory_is_shown_in_the_unit_of_its_size(size: int, text: str) -> None:
    assert quantity("memory", size) == text


def test_a_sentence_has_both_numbers() -> None:
    # 2 GiB of usage; 64 MiB of headroom
    text = sentence("memory", Reason.MEMORY_GROWTH, 2 << 30, 64 << 20)

    assert text == "usage 2 GiB came within 64.0 MiB of the limit"


def test_cpu_is_shown_in_cores() -> None:
    assert quantity("cpu", 35_000) == "0.35 cores"

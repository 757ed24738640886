"""What `make check` refuses in the ledger of flaky tests."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.support.flaky_ledger import MOST, entries, faults

GOOD: dict[str, Any] = {
    "test": "tests/unit/test_flaky_ledger.py::test_the_ledger_is_in_order",
    "first_seen": dt.date(2026, 11, 28),
    "times": 2,
    "class": "machine",
    "reason": "asserts a tenth of a second, seen at a load of 20",
}


def test_the_ledger_is_in_order() -> None:
    assert list(faults(entries())) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"class": "load"}, "class is none of product, test, machine"),
        ({"class": None}, "class is missing"),
        ({"reason": "busy"}, "the reason says too little"),
        ({"times": "twice"}, "times is missing or is no int"),
        ({"first_seen": "yesterday"}, "first_seen is missing or is no date"),
        ({"test": "tests/unit/test_flaky_ledger.py::test_of_yesterday"}, "there is no such test"),
        ({"test": "tests/unit/test_of_yesterday.py::test_x"}, "there is no such test"),
    ],
)
def test_an_entry_says_what_is_known(change: dict[str, Any], fault: str) -> None:
    assert list(faults([GOOD])) == []
    assert any(fault in each for each in faults([GOOD | change]))


def test_there_are_few_entries() -> None:
    assert list(faults([GOOD] * MOST)) == []
    assert list(faults([GOOD] * (MOST + 1))) == ["13 entries, at most 12 are allowed: mend the causes of some"]

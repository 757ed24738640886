"""The list of tests that may be skipped with ``CI=true``."""

from __future__ import annotations

import pytest

from tests.support.flaky_ledger import functions_of
from tests.support.never_here import FILE, Impossible, is_never_here, main, never_here

LISTED = [test for entry in never_here() for test in entry.tests]


@pytest.mark.parametrize("entry", never_here(), ids=lambda entry: entry.what)
def test_every_entry_has_a_reason(entry: Impossible) -> None:
    assert len(entry.reason.split()) >= 5


@pytest.mark.parametrize("node_id", LISTED)
def test_a_listed_test_exists(node_id: str) -> None:
    file, _, name = node_id.partition("::")
    assert name in functions_of(FILE.parents[1] / file)


def test_every_case_of_a_listed_test_may_be_skipped_and_no_other_test() -> None:
    assert is_never_here(LISTED[0])
    assert is_never_here(f"{LISTED[0]}[a-case]")
    assert not is_never_here(f"{LISTED[0]}_as_well")
    assert not is_never_here(LISTED[0].partition("::")[0])


def test_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    assert all(f"    skips {test}\n" in printed for test in LISTED)
    assert all(printed.count(f"{entry.what}: ") == 1 for entry in never_here())

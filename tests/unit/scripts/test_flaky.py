"""What ``make flaky`` counts."""

from __future__ import annotations

import pytest

from scripts import flaky


@pytest.mark.parametrize(
    ("runs", "code", "printed"),
    [
        ([[], [], []], 0, ["3 runs of tests/x.py: 0 tests failed at least once"]),
        (
            [["b"], ["a", "b"], []],
            1,
            ["failed 2 of 3: b", "failed 1 of 3: a", "3 runs of tests/x.py: 2 tests failed at least once"],
        ),
        ([[], None], 1, []),
    ],
)
def test_every_failure_of_every_run_counts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runs: list[list[str] | None],
    code: int,
    printed: list[str],
) -> None:
    left = iter(runs)
    monkeypatch.setattr("sys.argv", ["flaky", "tests/x.py", "--runs", "3"])
    monkeypatch.setattr(flaky, "run_once", lambda _arguments, _directory: next(left))

    assert flaky.main() == code
    assert capsys.readouterr().out.splitlines() == printed

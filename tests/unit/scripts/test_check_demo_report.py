"""What `.ci/run` asks of the main job's report."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from scripts import check_demo_report
from scripts.check_demo_report import faults

GOOD: dict[str, Any] = {
    "maker": "processes",
    "containers": 5,
    "periods": 97,
    "decisions": 400,
    "quota_writes": 212,
    "memory_writes": 9,
    "no_op_writes": 0,
    "oom_kills": 0,
    "notes": [],
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"maker": "simulated", "notes": ["needs root"]},
            "the host was simulated, so no control group was written: needs root",
        ),
        ({"containers": 4}, "4 containers were seen instead of 5"),
        ({"periods": 0}, "no period was sampled"),
        ({"quota_writes": None}, "no CPU quota was written"),
        ({"no_op_writes": 1}, "1 writes set the value that the kernel held already"),
        ({"no_op_writes": None}, "None writes set the value that the kernel held already"),
    ],
)
def test_what_did_not_happen_is_said(change: dict[str, Any], fault: str) -> None:
    assert list(faults(GOOD)) == []
    assert list(faults(GOOD | change)) == [fault]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (json.dumps(GOOD), 0, "demo (processes): containers 5, periods 97,"),
        (json.dumps(GOOD | {"periods": 0}), 1, "demo: no period was sampled"),
        ("", 1, "demo: its report is no JSON"),
    ],
)
def test_figures_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, code: int, said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))

    assert check_demo_report.main() == code
    assert said in capsys.readouterr().out

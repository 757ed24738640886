"""Workers of an elastic training over gloo: what joins, leaves and is killed changes nothing of the numbers.

All trainings run in one process tree (`tests/support/elastic_cases.py`): importing torch costs each process seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.host, pytest.mark.slow]
"""Eight processes that compute with torch: seven seconds of a processor."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each case has found, by name."""
    command = [sys.executable, "-m", "tests.support.elastic_cases", str(tmp_path_factory.mktemp("elastic"))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return {found["case"]: found for found in map(json.loads, done.stdout.splitlines())}


def case(cases: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """One of them, which has to have run to its end."""
    assert "failed" not in cases[name], f"{cases[name].get('failed')}\n{cases[name].get('logs')}"
    return cases[name]


def test_workers_join_and_leave_between_steps_and_weights_are_those_of_one_process(
    cases: dict[str, dict[str, Any]],
) -> None:
    found = case(cases, "grown and shrunk")

    assert found["codes"] == [0, 0, 0, 0]
    workers, steps, kept = zip(*found["generations"], strict=True)
    assert workers == (1, 2, 4, 2)
    assert list(steps) == sorted(steps), "no step was lost"
    assert kept == (False, True, True, True), "but for the first, none went back to a checkpoint"
    assert found["left"] == [1, 3]
    assert found["distance"] < 1e-9
    assert found["moved"] > 0.1, "a training that changes nothing would agree, too"


def test_where_a_member_is_killed_the_other_goes_on_at_the_last_checkpoint(cases: dict[str, dict[str, Any]]) -> None:
    found = case(cases, "member killed")

    assert found["codes"] == [-9, 0, 0]
    assert found["generation"] == [2, 6, False]
    assert found["distance"] < 1e-9


def test_who_has_just_joined_saves_no_checkpoint_that_the_others_have(cases: dict[str, dict[str, Any]]) -> None:
    found = case(cases, "stopped as it joined")

    assert found["codes"] == [0, 0]
    assert found["result"] == ["result", 5, True]

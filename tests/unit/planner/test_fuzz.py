"""Short runs of both fuzzers of the planner (``make fuzz-plans``, ``make fuzz-plan-files``), and that they notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.planner.core import cephalo
from tests.fuzz import plan_files, random_plans
from tests.fuzz.message_fuzzer import FuzzReport
from tests.support.examples import examples

SEED = 3


def test_every_plan_of_a_random_job_fits() -> None:
    report = random_plans.fuzz(SEED, examples(2_000))

    assert not report.exceeding, report.text
    assert report.plans > report.problems / 10, "nearly all were refused"


def test_a_plan_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is counted a GiB more than it was planned with."""
    held = cephalo.held_gib
    monkeypatch.setattr(
        "services.planner.core.cephalo.held_gib", lambda problem, split: [gib + 1 for gib in held(problem, split)]
    )
    monkeypatch.setattr("services.planner.core.candidates.exceeding", lambda *_: None)
    report = random_plans.fuzz(SEED, 40)

    assert report.exceeding
    assert "GiB" in report.text


def test_spoiled_files_are_read_or_refused_with_their_name() -> None:
    report = plan_files.fuzz(SEED, examples(3_000))

    assert not report.findings, report.text
    assert report.outcomes.keys() >= {
        "cluster.yaml Network",
        "plan.json Plan",
        "cluster.yaml refused",
        "plan.json refused",
    }


def test_another_exception_is_told_with_the_smallest_file(tmp_path: Path) -> None:
    def broken(_file: Path) -> object:
        raise KeyError("oops")

    kind, report = replace(plan_files.kinds()[0], use=broken), FuzzReport(SEED)
    for number in range(20):
        plan_files.try_one(report, kind, number, tmp_path)

    [finding] = report.findings.values()
    assert (finding.count, finding.what.startswith("KeyError at test_fuzz.py")) == (20, True)
    again = FuzzReport(SEED)
    plan_files.try_one(again, kind, finding.number, tmp_path)
    assert [other.data for other in again.findings.values()] == [finding.data]

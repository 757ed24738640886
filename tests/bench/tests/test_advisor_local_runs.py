"""Local runs that are cut against whole ones: what is inside, and what the table and the picture show of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import CpuContention, RunEnd, RunProfile
from tests.bench import advisor, advisor_local_runs
from tests.bench.advisor_local_runs import SCRIPTS, LocalRunOutcome, draw, outcome, record_of, rows, summary, text
from tests.bench.machine import Machine

MACHINE = Machine("a processor", 2, 8.0, "6.1", "cgroup v1", "3.11", (0.0, 0.0, 0.0))


def profile(end: RunEnd, duration_s: float, lost: float = 0.0, **told: float) -> RunProfile:
    contention = CpuContention(cores=2, other_cores=2 * lost, own_cores=2 * (1 - lost), limit_cores=2, wait_share=lost)
    place = Configuration(instance_type="local", workers=1, attributes=dict(told))
    return RunProfile(
        run="r",
        task=TaskFeatures(task="t"),
        configuration=place,
        duration_s=duration_s,
        end=end,
        workers=(),
        contention=contention,
    )


def one(script: str, true_s: float, lost: float = 0.0, **told: float) -> LocalRunOutcome:
    return outcome(script, 0.2, profile(RunEnd.FINISHED, true_s), profile(RunEnd.TIMED_OUT, 10.0, lost, **told))


RATE = {"epoch_s": 5.0, "whole_run_s": 50.0, "startup_s": 0.0, "rate_error": 0.05}


def test_the_interval_is_the_advisors_of_its_nominal_level() -> None:
    found = one("curriculum", 54.0, **RATE)

    assert (found.predicted_s, found.true_s, found.cut_s, found.rate_error) == (50.0, 54.0, 10.0, 0.05)
    # 1.645 standard errors to either side, of the logarithm
    assert found.low_s == pytest.approx(46.05, abs=0.01)
    assert found.high_s == pytest.approx(54.29, abs=0.01)


@pytest.mark.parametrize(("true_s", "inside"), [(54.0, True), (54.5, False), (46.1, True), (46.0, False)])
def test_a_duration_is_inside_or_outside(true_s: float, inside: bool) -> None:
    assert one("curriculum", true_s, **RATE).inside is inside


def test_other_work_widens_the_interval() -> None:
    quiet, busy = one("curriculum", 54.0, **RATE), one("curriculum", 54.0, 0.3, **RATE)

    assert quiet.low_s is not None
    assert busy.low_s is not None
    assert busy.low_s < 0.8 * quiet.low_s
    assert (quiet.lost_share, busy.lost_share) == (0.0, pytest.approx(0.3))


def test_without_a_rate_it_is_not_known_and_neither() -> None:
    found = one("curriculum", 54.0)

    assert found.inside is None
    assert "rate of training is not known" in found.why_unknown
    outcomes = [found, one("long_loading", 54.0, **RATE), one("progress_file", 99.0, **RATE)]
    assert [row[-1] for row in rows(outcomes)] == ["not known", "inside", "outside"]
    assert summary(outcomes) == "inside: 1 of 3, not known: 1; intervals of 90%"
    assert "50 (46.1-54.3)" in text(outcomes, MACHINE.line)


def test_a_whole_run_that_did_not_finish_is_no_truth() -> None:
    cut = profile(RunEnd.TIMED_OUT, 10.0, **RATE)

    with pytest.raises(ValueError, match="the whole run is timed_out"):
        outcome("curriculum", 0.1, cut, cut)


def test_picture_and_record(tmp_path: Path) -> None:
    outcomes = [one("curriculum", 54.0), one("long_loading", 54.0, **RATE), one("progress_file", 99.0, **RATE)]

    drawn = draw(outcomes, "a caption", tmp_path / "one.svg").read_text(encoding="utf-8")
    record = record_of(outcomes, MACHINE)

    assert "long loading" in drawn
    assert "curriculum" not in drawn, "not known"
    assert [run["inside"] for run in record["runs"]] == [None, True, False]
    assert all(
        len(row) == len(record["tables"]["local-runs"]["columns"]) for row in record["tables"]["local-runs"]["rows"]
    )


def test_every_script_is_there() -> None:
    folder = Path(advisor_local_runs.__file__).parent / "local_runs"

    assert {path.stem for path in folder.glob("*.py")} - {"bar_text"} == set(SCRIPTS)


def test_the_advisors_benchmark_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(advisor_local_runs, "main", lambda arguments: given.append(arguments) or 7)
    monkeypatch.setattr("sys.argv", ["advisor", "--local-runs", "--resume"])

    assert advisor.main() == 7
    assert given == [["--resume"]]

"""The data set that comes with the project is what docs/dataset.md says."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from schemas.jobs import JobState
from schemas.runs import RunEnd
from services._jobs.record_files import JobFile, read_job_file
from services.advisor.core.whole_job_duration import whole_job_duration
from services.cli.advise.example import shipped_file
from services.collector.profiler.cutting import cuts_of

ROOT = Path(__file__).parents[3]
DATASHEET = ROOT / "docs/dataset.md"


@pytest.fixture(scope="module")
def shipped() -> JobFile:
    return read_job_file(shipped_file())


def test_it_has_the_size_that_was_asked_for(shipped: JobFile) -> None:
    assert len(shipped.records) >= 400
    assert len({record.task.task for record in shipped.records}) >= 7
    assert len({record.configuration.instance_type for record in shipped.records}) >= 7
    assert len({record.configuration.workers for record in shipped.records}) >= 4
    assert len({record.configuration.batch_size for record in shipped.records}) >= 3


def test_every_task_has_its_local_run_with_a_series(shipped: JobFile) -> None:
    profiles = {profile.run: profile for profile in shipped.profiles}
    for record in shipped.records:
        profile = profiles[record.local_run]
        assert profile.task.task == record.task.task
        assert len(profile.workers) == 3
        assert all(len(worker.column("cpu_cores")) >= 20 for worker in profile.workers)


def test_costs_are_price_times_machines_times_hours(shipped: JobFile) -> None:
    for record in shipped.records:
        if record.state is JobState.SUCCEEDED:
            assert record.duration_s is not None
            assert record.price is not None
            derived = record.price.usd_per_hour * record.configuration.workers * record.duration_s / 3600
            assert record.cost_usd == pytest.approx(derived)


def test_the_datasheet_tells_its_figures(shipped: JobFile) -> None:
    text = DATASHEET.read_text(encoding="utf-8")
    states = Counter(record.state for record in shipped.records)
    contended = sum(record.contended for record in shipped.records)
    told = ", ".join(f"{count} {state.value}" for state, count in states.most_common())
    assert f"{len(shipped.records)} runs of" in text
    assert f"{told}; {contended} contended" in text
    assert shipped_file().name in text


def test_local_runs_that_were_cut_stand_beside_the_whole_ones(shipped: JobFile) -> None:
    """With today's estimators' figures: a change of theirs must be followed by `python -m tests.bench.dataset join`."""
    runs = {profile.run: profile for profile in shipped.profiles}
    whole = [one for one in shipped.profiles if one.end is RunEnd.FINISHED]
    found = [cut for one in whole for cut in cuts_of(one)]
    assert len(found) >= len(whole)
    assert len(runs) == len(whole) + len(found)
    for cut in found:
        assert runs[cut.run].end is RunEnd.TIMED_OUT
        assert runs[cut.run].configuration.attributes == pytest.approx(cut.configuration.attributes)


def test_there_are_jobs_of_about_a_minute(shipped: JobFile) -> None:
    longest: dict[str, float] = {}
    for record in shipped.records:
        longest[record.task.task] = max(longest.get(record.task.task, 0.0), record.duration_s or 0.0)
    assert sum(seconds > 40 for seconds in longest.values()) >= 3


def test_whole_jobs_of_minutes_are_told_from_a_tenth_of_their_local_run(shipped: JobFile) -> None:
    """Within two of the standard errors that it tells."""
    whole = {one.task.task: one for one in shipped.profiles if one.end is RunEnd.FINISHED}
    tenths = [one for one in shipped.profiles if one.run.endswith("-cut-10") and one.task.task.endswith("-x20")]
    assert len(tenths) == 3
    for cut in tenths:
        reference = whole_job_duration(cut.task, cut)
        error = math.log(whole[cut.task.task].duration_s / reference.time_s)
        assert abs(error) < 2 * math.sqrt(reference.log_variance)

"""Figures for the datasheet, computed by hand; and files of several campaigns as one."""

from __future__ import annotations

import pytest

from schemas.jobs import JobRecord, JobState, TaskFeatures
from services._jobs.record_files import read_job_file, write_job_file
from services.collector.emulator.instance_types import CATALOGUE
from tests.bench import dataset
from tests.bench.dataset import markdown, repeat_variations
from tests.bench.outcome import UNAVAILABLE
from tests.support.finished_runs import finished


def record(
    duration_s: float | None, repeat: int = 0, state: JobState = JobState.SUCCEEDED, workers: int = 1
) -> JobRecord:
    return JobRecord(
        job=f"job-{workers}-{repeat}",
        dataset="d",
        task=TaskFeatures(task="text-dnn", parameter_count=1234, epochs=2, samples_per_epoch=100),
        configuration=CATALOGUE[0].configuration(workers, 16),
        state=state,
        duration_s=duration_s,
        repeat=repeat,
        load_average=0.5,
    )


def test_repeats_vary_by_their_standard_deviation():
    records = [
        record(9.0),
        record(10.0, 1),
        record(11.0, 2),
        record(3.0, workers=2),
        record(99.0, 3, JobState.TIMED_OUT),
    ]
    assert repeat_variations(records) == [pytest.approx(0.1)]  # 1 / 10; a single run has none


def test_the_table_counts_every_end():
    records = [
        record(9.0),
        record(11.0, 1),
        record(25.0, 2, JobState.TIMED_OUT, 2),
        record(None, 3, JobState.OUT_OF_MEMORY, 3),
    ]
    text = markdown(records, [])
    assert "4 runs of 3 configurations: 2 succeeded, 1 timed_out, 1 out_of_memory; 0 contended." in text
    assert "| text-dnn | 1,234 | 0.00 | 2 x 100 | 3 | 4 | 1 | 1 | 0 | 9.00 / 10.00 / 11.00 | - |" in text
    assert "median 14.1%" in text  # sqrt 2 / 10


def test_joined_files_hold_each_run_once_with_what_a_cut_would_have_told(tmp_path, capsys):
    """Runs at a load of other work are contended from then on."""
    calm, busy = record(9.0), record(11.0, 1).model_copy(update={"load_average": 9.0})
    one, other, both = (tmp_path / f"{name}.parquet" for name in ("one", "other", "both"))
    write_job_file(one, [calm], [finished(300)])
    write_job_file(other, [calm, busy], [])

    assert dataset.main(["join", str(both), str(one), str(other), "--busy-load", "8"]) == 0

    found = read_job_file(both)
    assert [record.contended for record in found.records] == [False, True]
    assert [run.run for run in found.profiles] == ["whole", "whole-cut-3", "whole-cut-10"]
    assert dataset.main(["figures", str(both)]) == 0
    told = capsys.readouterr().out
    assert "2 runs of 1 configurations: 2 succeeded" in told
    assert "| t | 3.0 | 30.0 | 30 |" in told


def test_a_file_that_is_none_is_told(tmp_path, capsys):
    assert dataset.main(["figures", str(tmp_path / "none.parquet")]) == UNAVAILABLE
    assert "none.parquet" in capsys.readouterr().err

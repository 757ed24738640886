"""The table of runs with and without elastic jobs."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.comparison import Figures
from tests.bench.machine import this_machine
from tests.bench.scheduler_elastic import Pair, jobs_of, page_table

RIGID = Figures(
    "p", 480, 1_000.0, 900.0, 2_000.0, 12.0, 100.0, 9_000.0, 1.5, 0.02, 700, elastic=False, resizes_per_job=0
)


def pair(elastic_jct_s: float) -> Pair:
    elastic = replace(RIGID, elastic=True, mean_jct_s=elastic_jct_s, resizes_per_job=2.25)
    return Pair("480", "p", RIGID, elastic, replace(elastic, mean_jct_s=elastic_jct_s + 100))


def test_a_row_has_the_medians_over_the_drawings() -> None:
    table = page_table([pair(700), pair(900), pair(800)], this_machine())

    (row,) = table["rows"]
    assert len(row) == len(table["columns"])
    assert dict(zip(table["columns"], row, strict=True)) == {
        "trace (slots)": "480 (60)",
        "policy": "p",
        "mean JCT": "1,000 s",
        "mean JCT, elastic": "800 s",
        "ratio": "0.80",
        "ratio if speed-ups were linear": "0.90",
        "p99 stretch": "12.0",
        "p99 stretch, elastic": "12.0",
        "preemptions a job": "1.50",
        "preemptions a job, elastic": "1.50",
        "changes of size a job": "2.25",
        "slot time lost, elastic": "2.0 %",
    }


def test_all_jobs_that_fit_take_part_and_may_have_what_they_ask_for() -> None:
    jobs = jobs_of("philly 103959")

    assert jobs
    assert all(job.slots <= 16 for job in jobs)
    for job in jobs:
        assert job.elastic is not None
        assert job.elastic.least_workers == 1
        assert job.elastic.most_workers == max(4, job.slots)

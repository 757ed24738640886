"""`turnbuckle jobs simulate`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app

TRACE = """job,slots,submitted_s,duration_s,model
long,4,0,10000,vgg16
short,4,100,60,alexnet
small,1,200,60,alexnet
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["jobs", "simulate", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_each_policy_has_its_line(trace: Path) -> None:
    code, output, progress = run(str(trace), "--slots", "4", "--policy", "fifo,srsf,index")

    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == ["policy", "fifo", "srsf", "index"]
    assert "srsf: shortest remaining service first: an oracle" in progress


def test_a_short_job_passes_a_long_one_where_the_policy_preempts(trace: Path) -> None:
    code, output, _ = run(str(trace), "--cluster", "2x2", "--policy", "fifo,srsf", "--preemption-cost", "30", "--json")
    fifo, srsf = json.loads(output)

    assert code == 0
    assert (fifo["preemptions_per_job"], fifo["mean_wait_s"]) == (0, pytest.approx((0 + 9_900 + 9_860) / 3))
    assert srsf["preemptions_per_job"] > 0
    assert srsf["mean_jct_s"] < fifo["mean_jct_s"]
    assert 0 < srsf["lost_share"] < 0.01


def test_a_job_that_is_too_large_is_left_out_and_said_to_be(trace: Path) -> None:
    code, output, progress = run(str(trace), "--slots", "2", "--policy", "backfill")

    assert code == 0
    assert "2 of 3 jobs need more slots than there are" in " ".join(progress.split())
    assert len(output.splitlines()) == 2


def test_a_picture_is_drawn(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "jobs.png"
    code, _, progress = run(str(trace), "--slots", "4", "--plot", str(picture))

    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "drawn: " in progress


def test_the_table_is_there_although_the_picture_cannot_be_drawn(trace: Path, tmp_path: Path) -> None:
    code, table, errors = run(
        str(trace), "--slots", "4", "--policy", "fifo", "--plot", str(tmp_path / "no" / "jobs.png")
    )

    assert code == 78
    assert "fifo" in table
    assert "No such file or directory" in errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column job or job_id or name; there are none"),
        ("job,slots,submitted_s\nj,1,0\n", "no column duration_s or duration"),
        ("job,slots,submitted_s,duration_s\n", "no job in it"),
        ("job,slots,submitted_s,duration_s\nj,1,0,1\nj,one,0,1\n", ":3: slots 'one' is no number"),
        ("job,slots,submitted_s,duration_s\nj,1.5,0,1\n", ":2: slots 1.5 is no whole number"),
        ("job,slots,submitted_s,duration_s\nj,0,0,1\n", ":2: slots 0 is not between 1"),
        ("job,slots,submitted_s,duration_s\nj,1,-1,1\n", ":2: submitted_s -1 is not between 0"),
        ("job,slots,submitted_s,duration_s\nj,1,0,nan\n", ":2: duration_s nan is not between 0"),
        ("job,slots,submitted_s,duration_s\nj,1,0\n", ":2: duration_s None is no number"),
        ("job,slots,submitted_s,duration_s\nj,1,0,1\nj,1,0,1\n", "job 'j' is there 2 times"),
    ],
)
def test_a_file_that_is_no_trace_is_told_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    code, _, errors = run(str(path), "--slots", "4")

    assert code == 78
    assert said in " ".join(errors.split())


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "trace.csv"
    binary.write_bytes(b"\xff\xfe\x00job")
    for path, expected in ((binary, 78), (tmp_path / "nowhere.csv", 66)):
        code, _, errors = run(str(path), "--slots", "4")
        assert code == expected
        assert path.name in errors.replace("\n", "")


def test_without_anything_the_jobs_are_asked_for_first() -> None:
    code, _, errors = run()

    assert code == 2
    assert "either a file or --history" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either --slots or --cluster"),
        (("--slots", "4", "--history", "30d"), "either a file or --history"),
        (("--slots", "4", "--cluster", "2x2"), "either --slots or --cluster"),
        (("--cluster", "2"), "is not NODESxSLOTS"),
        (("--slots", "4", "--policy", "lottery"), "no policy 'lottery'"),
    ],
)
def test_bad_options(trace: Path, arguments: tuple[str, ...], said: str) -> None:
    code, _, errors = run(str(trace), *arguments)

    assert code == 2
    assert said in " ".join(errors.split())


def test_with_elastic_jobs_each_policy_runs_with_and_without(trace: Path) -> None:
    code, table, _ = run(str(trace), "--slots", "4", "--policy", "fifo,index", "--elastic", "1:4")

    assert code == 0
    assert [line.strip().split("  ")[0] for line in table.splitlines()][1:] == [
        "fifo",
        "fifo elastic",
        "index",
        "index elastic",
    ]
    assert "changes of size" in table

    _, output, _ = run(
        str(trace), "--slots", "4", "--policy", "fifo", "--elastic", "1:4", "--resize-pause", "0", "--json"
    )
    rigid, elastic = json.loads(output)
    assert [(each["policy"], each["elastic"]) for each in (rigid, elastic)] == [("fifo", False), ("fifo", True)]
    assert (rigid["mean_wait_s"], elastic["mean_wait_s"]) == (pytest.approx((9_900 + 9_860) / 3), 0)
    assert elastic["mean_jct_s"] < rigid["mean_jct_s"]
    assert (rigid["resizes_per_job"], rigid["lost_share"]) == (0, 0)
    # long: from 4 to 1 for short, to 2 or more after it, and so on: at least down and up again.
    assert elastic["resizes_per_job"] >= 2 / 3


def test_a_trace_may_say_which_jobs_are_elastic(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "job,slots,submitted_s,duration_s,model,min_workers,max_workers\na,1,0,100,resnet50,1,4\nb,1,1000,100,,,\n"
    )
    code, output, _ = run(str(path), "--slots", "4", "--policy", "fifo", "--json")
    _, elastic = json.loads(output)

    assert code == 0
    # a has 4 workers at once, 7.029 / 2.497 as fast as one; b is as it was.
    assert elastic["mean_jct_s"] == pytest.approx((100 * 2.497 / 7.029 + 100) / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("goal", "policy", "took_s"),
    [
        # With 1, 2, 3, 4 workers it takes 1,000, 500, 400, 325 s: 1,000, 1,000, 1,200, 1,300 slot-seconds.
        ("600,", "index-estimated", 500),
        (",0.3", "index-estimated", 500),
        ("600,", "index", 325),
        (",0.3", "index", 1_000),
        (",", "index-estimated", 325),
    ],
)
def test_a_deadline_and_a_budget_decide_the_size(tmp_path: Path, goal: str, policy: str, took_s: float) -> None:
    """By the upper end of the estimate; 0.3 slot-hours are 1,080 slot-seconds. Policy index has no estimates here."""
    path = tmp_path / "trace.csv"
    path.write_text(f"job,slots,submitted_s,duration_s,max_workers,deadline_s,budget_slot_hours\na,1,0,1000,4,{goal}\n")
    code, output, _ = run(str(path), "--slots", "4", "--policy", policy, "--estimate-error", "0.01", "--json")
    _, elastic = json.loads(output)

    assert code == 0
    assert elastic["mean_jct_s"] == pytest.approx(took_s)


def test_jobs_that_are_too_large_as_they_ask_for_are_left_out_of_both(trace: Path) -> None:
    code, output, _ = run(str(trace), "--slots", "2", "--policy", "index-estimated", "--elastic", "1:4", "--json")

    assert code == 0
    assert [(each["jobs"], each["too_large"]) for each in json.loads(output)] == [(1, 2), (1, 2)]


@pytest.mark.parametrize("workers", ["4:1", "1", "0:4", "1:5000", "1:9999"])
def test_bad_numbers_of_workers(trace: Path, workers: str) -> None:
    code, _, errors = run(str(trace), "--slots", "4", "--elastic", workers)

    assert code == 2
    assert "is not LEAST:MOST, such as 1:4" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("j,4,0,9,5,8,,", ":2: slots 4 is not between min_workers 5 and max_workers 8"),
        ("j,4,0,9,1,2,,", ":2: slots 4 is not between min_workers 1 and max_workers 2"),
        ("j,4,0,9,1.5,8,,", ":2: min_workers 1.5 is no whole number"),
        ("j,4,0,9,0,8,,", ":2: min_workers 0 is not between 1"),
        ("j,4,0,9,1,5000,,", ":2: max_workers 5000 is more than 4096"),
        ("j,4,0,9,1,8,60,1", ":2: deadline_s and budget_slot_hours are both there: keep one"),
        ("j,4,0,9,,,60,", ":2: a deadline or budget chooses among numbers of workers: give min_workers or max_workers"),
        ("j,4,0,9,1,8,0,", ":2: deadline_s 0 is not between 1"),
        ("j,4,0,9,1,8,,0", ":2: budget_slot_hours 0 is not between 0.001"),
        ("j,5000,0,9,1,,,", ":2: slots 5000 of an elastic job is more than 4096"),
    ],
)
def test_a_row_whose_workers_cannot_be_is_named(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    columns = "job,slots,submitted_s,duration_s,min_workers,max_workers,deadline_s,budget_slot_hours"
    path.write_text(f"{columns}\n{row}\n")
    code, _, errors = run(str(path), "--slots", "4")

    assert code == 78
    assert said in " ".join(errors.split())


def test_where_no_job_fits_that_is_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job,slots,submitted_s,duration_s\nj,8,0,1\n")
    code, _, errors = run(str(path), "--slots", "4")

    assert code == 1
    assert "fits into 4 slots" in " ".join(errors.split())

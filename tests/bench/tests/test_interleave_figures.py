"""The interleaving benchmark's figures, from lines that are made up, and its plan."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from schemas.scheduling import LinkScore
from tests.bench.interleave import report
from tests.bench.interleave.cluster import LastSeen
from tests.bench.interleave.figures import Iteration, Run, base_name, overlap, parse, ratios
from tests.bench.interleave.plan import (
    ALONE,
    BULK,
    CHANGE,
    CHANGED,
    COLUMNS,
    FULL,
    GOODPUT_BITS_PER_S,
    LOAD,
    Load,
    make_plan,
)
from tests.bench.machine import this_machine


def job(begin_s: float, period_s: float, sending_s: float, count: int = 4) -> list[Iteration]:
    """Iterations in a row, each of which sends at its end."""
    ends = [begin_s + period_s * number for number in range(1, count + 1)]
    return [Iteration(end - period_s, end - sending_s, end, 1_000) for end in ends]


def run(column: str, jobs: list[list[Iteration]], number: int = 1, **changes: object) -> Run:
    return Run("2 jobs", column, number, 1.0, jobs, **changes)  # type: ignore[arg-type]


def test_other_lines_of_a_log_are_passed_over() -> None:
    line = {"iteration": 0, "begin_s": 1.0, "sending_s": 1.5, "end_s": 2.0, "bytes": 7, "congestion_control": "reno"}
    log = f"W torch says something\n{json.dumps(line)}\n5\n{json.dumps({'congestion_control': 'reno'})}\n"

    assert parse(log) == [Iteration(1.0, 1.5, 2.0, 7, "reno")]
    assert parse(json.dumps({"sending_s": 3.0, "end_s": 4.0, "bytes": 9})) == [Iteration(3.0, 3.0, 4.0, 9)]


def test_overlap_is_the_share_of_sending_in_which_two_send() -> None:
    """One sends in [0.5, 1], the other in [0.75, 1.25]: a quarter of a second of 0.75."""
    jobs = [[Iteration(0.0, 0.5, 1.0, 1)], [Iteration(0.25, 0.75, 1.25, 1)]]

    assert overlap(jobs, 0.0, 2.0) == pytest.approx(1 / 3)
    assert overlap(jobs, 0.0, 0.75) == 0.0
    assert overlap(jobs, 0.75, 1.0) == 1.0
    assert overlap(jobs, 3.0, 4.0) == 0.0
    assert overlap([*jobs, [Iteration(0.0, 0.0, 2.0, 1)]], 0.0, 2.0) == pytest.approx(0.75 / 2)


def test_programs_of_several_runners_have_one_name() -> None:
    assert [base_name(name) for name in ("mltcp_12", "mltcp_cubic_3", "mltcp_cubic", "reno", "")] == [
        *("mltcp", "mltcp_cubic", "mltcp_cubic", "reno", "")
    ]


def test_the_last_third_counts() -> None:
    slow_then_fast = [*job(0.0, 2.0, 1.0, 4), *job(8.0, 1.0, 0.5, 2)]
    measured = run("reno", [slow_then_fast])

    assert (measured.iteration_s, measured.sending_s, measured.worst_s) == (1.0, 0.5, 1.0)


def test_ratios_are_to_the_same_round_and_leave_out_what_does_not_count() -> None:
    runs = [
        run(ALONE, [job(0, 1.0, 0.4)]),
        run("reno", [job(0, 1.5, 0.9), job(0, 1.5, 0.9)]),
        run(ALONE, [job(0, 2.0, 0.4)], 2),
        run("reno", [job(0, 2.2, 0.6), job(1, 2.2, 0.6)], 2),
        run("cubic", [job(0, 9.0, 0.9)], problems=["r1-1 is failed"]),
        run("bbr", [job(0, 1.0, 0.5)], 3),  # of a round without alone
    ]

    found = ratios(runs, ALONE)
    assert found.keys() == {("2 jobs", ALONE), ("2 jobs", "reno")}
    assert found["2 jobs", "reno"] == pytest.approx([1.5, 1.1])


def test_a_bulk_flows_rate_is_beside_an_equal_share() -> None:
    """100 bytes in each of four seconds are 800 bit/s; three flows on 1,200 bit/s have 400 each."""
    pieces = [Iteration(at, at, at + 1.0, 100) for at in (0.0, 1.0, 2.0, 3.0, 4.0)]
    measured = run("reno", [job(0, 1.0, 0.5), job(0, 1.0, 0.5)], bulk=pieces)

    assert measured.bulk_share(1_200) == pytest.approx(2.0)
    assert math.isnan(run("reno", [job(0, 1.0, 0.5)]).bulk_share(1_200))


def test_what_was_learned_is_beside_what_a_job_sends_at_last() -> None:
    """The second job is not known to the scheduler."""
    told = {"links": [], "r1-2": {"traffic": None}, "r1-1": {"traffic": {"sent_bytes": 900}}}
    changed = [*job(0, 1.0, 0.5), Iteration(4.0, 4.5, 5.0, 600)]

    assert run("MLTCP", [changed, job(0, 1.0, 0.5)], scheduler=told).learned == [1.5]
    shown = report.table(
        this_machine(), [CHANGE.load], [replace(run("MLTCP", [changed], scheduler=told), load=CHANGE.load.name)], []
    )
    assert "learned 1.50 of the jobs' bytes" in shown


@pytest.mark.parametrize("load", [*(part.load for part in FULL), BULK.load, CHANGE.load], ids=lambda load: load.name)
def test_jobs_would_fill_the_uplink_for_the_same_share_of_the_time(load: Load) -> None:
    period_s = load.compute_s + load.sent_bytes * 8 / GOODPUT_BITS_PER_S

    assert load.jobs * load.sending_s / period_s == pytest.approx(LOAD, abs=0.01)


def test_a_job_that_changes_keeps_its_period() -> None:
    words = CHANGE.load.command(0, 0.0, 48)
    after = dict(pairwise(words))

    sending_s = int(after["--bytes-after"]) * 8 / GOODPUT_BITS_PER_S
    assert sending_s == pytest.approx(CHANGED * CHANGE.load.sending_s, abs=1e-3)
    assert float(after["--compute-after"]) + sending_s == pytest.approx(
        CHANGE.load.compute_s + CHANGE.load.sending_s, abs=0.01
    )
    assert "--change-at" not in CHANGE.load.command(1, 0.0, 48)


def test_rounds_go_over_all_columns_and_alone_is_never_left_out() -> None:
    steps = make_plan(only=["MLTCP"]).steps()

    assert {step.column.name for step in steps} == {ALONE, "MLTCP"}
    assert [(step.column.name, step.round) for step in steps[:4]] == [
        (ALONE, 1),
        ("MLTCP", 1),
        (ALONE, 2),
        ("MLTCP", 2),
    ]
    assert {part.load.jobs for part in FULL} == {2, 3, 4, 6}
    assert make_plan(bulk=True).parts == (BULK,)
    assert [(part.load.name, part.rounds) for part in make_plan(quick=True, change=True, loads=["4 jobs"]).parts] == [
        ("4 jobs", 1),
        (CHANGE.load.name, 1),
    ]
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_quick_has_every_column_of_the_comparison_and_the_job_alone() -> None:
    steps = make_plan(quick=True).steps()
    settings = {(step.column.congestion_control, step.column.interleave, step.column.scaled) for step in steps}

    named = {step.column.name for step in steps if step.load.jobs == 2}
    assert named == {ALONE, "reno", "cubic", "bbr", "Cassini", "MLTCP", "F = 1", "MLTCP on cubic"}
    assert {step.round for step in steps} == {1}
    assert {("reno", True, True), ("mltcp", False, True), ("mltcp", False, False), ("mltcp_cubic", False, True)} < (
        settings
    )


def test_every_column_is_printed_and_a_run_begun_on_a_busy_machine_is_marked() -> None:
    """Marked and counted; what does not count is printed with its reason."""
    columns = [column.name for column in COLUMNS]
    runs = [replace(run(name, [job(0, 1.0, 0.4)]), load_average=4.0 + (name == "bbr")) for name in columns]
    runs.append(replace(run("cubic", [job(0, 1.0, 0.4)], 2, problems=["it failed"]), load_average=9.0))

    shown = report.table(this_machine(), [replace(FULL[0].load, name="2 jobs")], runs, []).splitlines()
    rows = {name: [line for line in shown if line.strip().startswith(name)] for name in columns}
    assert all(rows.values())
    assert [name for name in columns if any("*" in line for line in rows[name])] == ["cubic", "bbr"]
    assert any("5.0*" in line and "1.000" in line for line in rows["bbr"])
    assert any("! it failed" in line for line in rows["cubic"])
    assert any("begun at a load average above 4" in line for line in shown)
    assert [line.split()[0] for line in shown if line.endswith("1 runs, 1 of them *")] == ["bbr"]


def test_a_run_without_shifts_has_the_scheduler_s_reason() -> None:
    link = LinkScore(link="up", bits_per_s=1, jobs=("a", "b"), unshifted=0.6, score=0.6, why="b is not known")

    assert LastSeen({}, (link,)).why_not_shifted == "up: b is not known"
    assert LastSeen().why_not_shifted == "it knew of no link that they share"


def test_every_run_is_shown_those_that_do_not_count_with_the_reason() -> None:
    load = FULL[0].load
    runs = [
        run(ALONE, [job(0, 1.0, 0.4)]),
        run("reno", [job(0, 1.25, 0.5)] * 2),
        run("MLTCP", [[], []], problems=["why"]),
    ]
    runs.append(Run("2 jobs", "cubic", 1, 9.5, [job(0, 1.5, 0.5)] * 2))

    shown = report.table(this_machine(), [load], runs, ["a note"])
    rows = {line.split()[0]: line for line in shown.splitlines() if line.split()[1:2] == ["1"]}

    assert rows["reno"].split()[2:] == ["1.250", "s", "1.250", "0.500", "s", "1.250", "s", "100.0%", "1.0"]
    assert rows["MLTCP"].endswith("! why")
    assert "9.5*" in rows["cubic"]
    assert "reno             iteration 1.250 (1.250-1.250) s, / alone 1.250 (1.250-1.250)" in shown
    assert shown.endswith("a note")
    record = report.as_json(this_machine(), [load], runs, [])
    assert record["tables"]["ratios"]["rows"] == [["2 jobs", "1.25", "1.5"]]

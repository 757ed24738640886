"""The benchmark of elastic trainings: its plans, and what its report says of runs that are made up."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from schemas.layers import LayerClass, LayerProfile
from schemas.plans import Engine
from schemas.trainings import StepBatch, TrainingChange, TrainingEvent
from services.planner.core import hybrid
from services.trainer.worker.plan_file import check_plan
from services.trainer.worker.routes import pipeline_of
from tests.bench.elastic.cases import BATCHES, BOX, FULL, LIMITS, MOST, QUICK, ROUND, Extent
from tests.bench.elastic.hybrid_plans import Measured, best_of_each, carried_out, chosen, fastest, problem_of
from tests.bench.elastic.picture import draw
from tests.bench.elastic.report import ELASTIC, Results, asked, pause_rows, plan_rows, record, run_rows, table
from tests.bench.elastic.trainings import Change, Run, Told, run_of
from tests.bench.machine import this_machine
from tests.bench.unequal.link import Connection

PROFILE = LayerProfile(
    profile="p",
    model="m",
    task="t",
    kind=BOX.kind,
    classes=(
        LayerClass(
            name="block",
            count=4,
            parameters=800_000,
            flat_bytes=3_200_000,
            forward_us=(20_000.0, 40_000.0),
            backward_us=(40_000.0, 80_000.0),
            saved_bytes=(1 << 20, 2 << 20),
            boundary_bytes=131_072,
        ),
    ),
    order=(0, 0, 0, 0),
    measured_ns=1,
)


@pytest.fixture
def problem(tmp_path: Path) -> hybrid.Problem:
    return problem_of(PROFILE, MOST, Connection(1_000_000_000, 0.0, 1.0), tmp_path)


def change(before: int, after: int, pause_us: int) -> Change:
    took_us = {"parted_us": 1_000, "met_us": 2_000, "connected_us": 3_000, "moved_us": 4_000}
    return Change(before, after, pause_us, took_us, 0.5)


def run(name: str, paid_s: int, stepping_s: float, workers: tuple[int, ...]) -> Run:
    return Run(name, 1_000, 50.0, paid_s, stepping_s, workers, 0.5)


CHANGES = [change(1, 2, 100_000), change(2, 4, 300_000), change(4, 2, 200_000), change(1, 2, 500_000)]
RUNS = [run("1 worker", 100, 80.0, (1,)), run("4 workers", 200, 180.0, (4,)), run(ELASTIC, 125, 90.0, (1, 2, 4))]


def measured(stages: int, replicas: int, step_ms: float, *took_us: float) -> Measured:
    return Measured(hybrid.Plan(hybrid.Layout(1, stages, replicas), (4,), step_ms), took_us)


PLANS = [measured(1, 1, 900, 1e6), measured(1, 2, 480, 5e5, 7e5, 6e5), measured(2, 2, 400, 2.4e5)]
RESULTS = Results(FULL, CHANGES, RUNS, PLANS)


def test_pauses_are_summed_up_by_kind_and_over_all() -> None:
    """Nearest rank: of 100, 200, 300 and 500 ms the second is the median, the fourth the 95th percentile."""
    rows = pause_rows(CHANGES)

    assert [row[:5] for row in rows] == [
        ["1 to 2", "2", "100 ms", "500 ms", "500 ms"],
        ["2 to 4", "1", "300 ms", "300 ms", "300 ms"],
        ["4 to 2", "1", "200 ms", "200 ms", "200 ms"],
        ["all", "4", "200 ms", "500 ms", "500 ms"],
    ]
    assert rows[-1][5:] == ["1 ms", "2 ms", "3 ms", "4 ms"]


def test_samples_per_dollar_are_by_the_bill_and_by_steps_alone() -> None:
    """0.001 USD a second: 1,000 samples in 125 s are 8,000 a dollar, in 90 s of steps 11,111; 200 / 125, 180 / 90."""
    rows = run_rows(RUNS)

    assert rows[2][:2] == [ELASTIC, "1 2 4"]
    assert rows[2][4:7] == ["125 s", "8,000", "11,111"]
    assert rows[1][-2:] == ["1.60", "2.00"]
    assert rows[0][-2:] == ["0.80", "0.89"]


def test_what_is_chosen_is_compared_with_the_best_that_was_measured() -> None:
    """Cost: 1 x 1 is predicted best (900, 960, 1,600 ms of devices), 2 x 2 is (4 x 0.24 s). Time: 2 x 2 both."""
    assert (chosen(PLANS).name, fastest(PLANS).name) == ("1 x 1", "2 x 2")
    assert [row[-1] for row in plan_rows(PLANS)] == ["least cost", "", "fastest"]
    assert "4% above it by cost, 0% by time" in asked(RESULTS)[2]


def test_what_is_asked_stands_beside_what_was_found() -> None:
    pauses, dollars, _ = asked(RESULTS)

    assert "0.20 s, 0.50 s of 4" in pauses
    assert "1.3 x those of 4 workers; 1.60 x, 2.00 x of steps" in dollars
    assert asked(Results(QUICK, [], [], [])) == []


def test_table_record_and_picture_take_all_and_parts(tmp_path: Path) -> None:
    machine = this_machine()
    for results in (RESULTS, Results(QUICK, CHANGES, [], []), Results(QUICK, [], [], PLANS)):
        made = record(machine, results)
        assert table(machine, results).startswith(machine.line)
        assert all(made["tables"][name]["rows"] for name in made["tables"])
        assert draw(machine, results, tmp_path / "elastic.png").stat().st_size > 1_000
    assert set(record(machine, RESULTS)["tables"]) == {"pauses", "dollars", "hybrid"}


def test_what_a_run_has_cost_is_what_was_published() -> None:
    """Two ranks made a step of 2 and 3 s; the bill was 0.017 USD at the end."""
    columns = dict.fromkeys(("step", "compute_us", "gather_us", "scatter_us", "samples", "memory_bytes"), (0,))
    common = {"job": "j", "node": "n", "training": "t", "time_ns": 1}
    told = Told()
    for rank, step_us in enumerate((2_000_000, 3_000_000)):
        told.publish(StepBatch(rank=rank, step_us=(step_us,), **columns, **common))
    changes = (TrainingChange.GENERATION, 0.003, 2), (TrainingChange.LEFT, 0.017, 2)
    for sequence, (kind, usd, workers) in enumerate(changes):
        told.publish(TrainingEvent(change=kind, usd=usd, workers=workers, sequence=sequence, **common))

    found = run_of("x", told, 100, 20.0, 0.5)

    assert (found.paid_s, found.stepping_s, found.workers) == (17, 5.0, (2,))


def test_each_number_of_stages_and_replicas_has_its_best_plan(problem: hybrid.Problem) -> None:
    plans = best_of_each(problem)

    # 12 samples: 1 to 4 replicas of one stage, 1 or 2 of two, one of three and of four
    assert [one.layout[1:] for one in plans] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)]
    best = hybrid.plan(problem)
    assert isinstance(best, hybrid.Plan)
    assert min(one.step_ms * one.devices for one in plans) == best.step_ms * best.devices


def test_the_trainer_takes_each_of_these_plans(problem: hybrid.Problem) -> None:
    for one in best_of_each(problem):
        plan = carried_out(one, problem)
        check_plan(plan)
        assert len(plan.devices) == one.devices
        assert {device.microbatch for device in plan.devices} == {one.layout.microbatch}
        assert (plan.engine is Engine.MINISTAGE) == (one.layout.stages > 1)
        if plan.engine is Engine.MINISTAGE:
            pipeline = pipeline_of(plan)
            assert [stage.last_layer + 1 for stage in pipeline.ministages] == list(one.last_layers)
            assert {len(group) for group in pipeline.groups} == {one.layout.replicas}


@pytest.mark.parametrize("extent", [FULL, QUICK])
def test_workers_leave_room_on_two_cores_and_each_change_is_another_number(extent: Extent) -> None:
    assert MOST * LIMITS.cpu_cores <= 1.6
    assert all(before != after for before, after in pairwise((1, *ROUND * extent.rounds)))
    assert [extent.schedule.batch(part * extent.steps) for part in range(4)] == list(BATCHES)
    assert extent.samples == sum(extent.schedule.batch(step) for step in range(extent.all_steps))


def test_in_full_at_least_twenty_changes_are_measured() -> None:
    assert FULL.rounds * len(ROUND) >= 20

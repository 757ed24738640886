"""The benchmark of shared aggregation: its jobs, the simulated trace, and what its report says of made-up turns."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services._jobs.aggregation_frames import RangePlace
from services.aggregator.core.packing import JobLoad
from services.aggregator.hosted_job import JobSpec
from services.aggregator.shard import Shard
from tests.bench.aggregation import cases
from tests.bench.aggregation.cases import DEDICATED, RANKS, SHARED, Shape, Way
from tests.bench.aggregation.job import Order, Training
from tests.bench.aggregation.measuring import Measured
from tests.bench.aggregation.picture import draw
from tests.bench.aggregation.report import Pair, Simulated, ns_per_value, record, table, trace_rows
from tests.bench.aggregation.run import GAVEL, LOSS_LIMITS, TRACE
from tests.bench.aggregation.trace import GAVEL_MODEL, TraceJob, simulate, trace_jobs
from tests.bench.machine import this_machine
from tests.support.aggregation import ADAMW, KEYS
from tests.support.deadline import until
from tests.support.tiresias import read

TWO = (Shape("a", 1.0, 1_000), Shape("b", 2.0, 500))


def measured(
    way: Way, cores: Sequence[tuple[float, int]], ends_s: dict[str, list[float]], cpu_s: float = 0.9
) -> Measured:
    """Jobs that began at 100 s, measured from 110 to 120."""
    return Measured(way.name, TWO, cores, 100.0, (110.0, 120.0), cpu_s, 0.1, ends_s)


def pair() -> Pair:
    dedicated = measured(
        DEDICATED, [(100.0, 2)], {"a": [105.0, 110.0, 112.0, 114.0, 116.0], "b": [111.0, 115.0, 119.0, 121.0]}
    )
    shared = measured(
        SHARED,
        [(100.0, 2), (105.0, 1)],
        {"a": [101.0, 104.5, 109.5, 110.0, 112.0, 114.0, 116.0], "b": [110.0, 115.0, 120.0]},
        cpu_s=0.8,
    )
    return Pair(dedicated, shared)


def test_cores_are_held_from_an_aggregators_start_to_its_end() -> None:
    shared = pair().shared
    assert shared.settled_cores == 1.0
    # Two from 100 to 105, then one until 120: 25 core seconds in 20 s.
    assert shared.held_cores(100.0, 120.0) == 1.25
    # Two from 103 to 105, one until 107: 6 core seconds in 4 s.
    assert shared.held_cores(103.0, 107.0) == 1.5


def test_figures_are_of_the_window_and_ratios_are_shared_by_dedicated() -> None:
    both = pair()
    # Dedicated: a at 110, 112, 114, 116, b at 111, 115, 119: 7 steps; 0.9 s of aggregators and 0.1 s of control.
    assert both.dedicated.steps == 7
    assert both.dedicated.cpu_ms_per_step == pytest.approx(1_000 / 7)
    # Shared: a four, b three; 0.9 s altogether.
    assert both.cpu == pytest.approx(0.9)
    # a takes 2 s both ways, b 4 s and then 5: means of 1 and 1.25.
    assert both.iterations == {"a": 1.0, "b": 1.25}
    assert both.iteration == 1.125
    assert both.held == 0.5
    assert both.held_since_begin == 0.625
    # Before the window a took 5 s once, where it takes 2.
    assert both.shared.longest_while_moving == 2.5
    # Dedicated, each of two ranks: 4 steps of 1,000 values and 3 of 500: 11,000 values in 0.9 s.
    assert ns_per_value([both]) == pytest.approx(0.9e9 / 11_000)


def trace_job(name: str, start_s: int, duration_s: int, busy_us: int) -> TraceJob:
    return TraceJob(name, start_s, duration_s, JobLoad(name, 1_000_000, busy_us))


def test_two_light_jobs_share_an_aggregator_from_the_next_full_minute_on() -> None:
    jobs = [trace_job("a", 0, 1_000, 90_000), trace_job("b", 30, 970, 90_000)]
    held = simulate(jobs, 0.1)
    # Both hold 1,000 and 970 s alone. a is measured at 10 s; b, not measured, takes 1 beside the 0.09 of a, which is
    # within the limit: it joins a at once.
    assert (held.dedicated_core_s, held.shared_core_s, held.busy_s) == (1_970, 1_000, 1_000)
    # With a limit of 0 it does not; both are measured at 40 s, and together at 60: 30 s are held twice.
    strict = simulate(jobs, 0.0)
    assert strict.shared_core_s == 1_030
    assert strict.moves == 1
    assert strict.saving == pytest.approx(1 - 1_030 / 1_970)


def test_jobs_that_keep_an_aggregator_busy_save_nothing() -> None:
    jobs = [trace_job(name, 0, 1_000, 900_000) for name in "abc"]
    held = simulate(jobs, 0.1)
    assert (held.saving, held.slowdown, held.moves) == (0.0, 0.0, 0)


@given(
    drawn=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 5_000), st.integers(1, 1_000_000)), min_size=1),
    loss_limit=st.sampled_from(LOSS_LIMITS),
)
def test_no_more_is_held_than_by_an_aggregator_for_each_job(
    drawn: list[tuple[int, int, int]], loss_limit: float
) -> None:
    jobs = [trace_job(f"job-{number}", *each) for number, each in enumerate(drawn)]
    held = simulate(jobs, loss_limit)
    assert held.busy_s <= held.shared_core_s <= held.dedicated_core_s
    assert held.dedicated_core_s == sum(job.duration_s for job in jobs)
    assert held.slowdown >= 0


def test_the_trace_has_the_jobs_that_sum_gradients_with_gavels_iterations() -> None:
    rows, steps_per_s = read(TRACE), json.loads(GAVEL.read_text(encoding="ascii"))[GAVEL_MODEL]
    jobs = {job.name: job for job in trace_jobs(rows, steps_per_s, 1.0)}
    assert set(jobs) == {row["job_id"] for row in rows if int(row["num_gpu"]) > 1}
    row = next(row for row in rows if row["model_name"] == "resnet50" and row["num_gpu"] == "4")
    # Four workers at 9.452 steps a second altogether: 423,186 us. 25,557,032 values of four at 1 ns: 102,228 us.
    assert jobs[row["job_id"]].load == JobLoad(row["job_id"], round(4e6 / steps_per_s["4"]), 102_228)
    slow = {job.name: job for job in trace_jobs(rows, steps_per_s, 100.0)}
    # At 100 ns the aggregator takes 10.2 s, and sets the pace.
    assert slow[row["job_id"]].load == JobLoad(row["job_id"], 10_222_813, 10_222_813)


async def test_all_ranks_of_a_job_end_with_the_same_step() -> None:
    ADAMW.optimizer(torch.zeros(1))  # as an aggregator's process does at its start: imports more of torch
    shard = Shard(1 << 26)
    await shard.start("127.0.0.1", 0)
    shape, stopping = Shape("job", 0.0, 100), threading.Event()
    shard.host(JobSpec(shape.name, RANKS, ADAMW), KEYS)
    shard.add(shape.name, 0, shape.values, 1, moving=False)
    training = Training(Order(shape, KEYS.worker, (RangePlace(0, shape.values, 1, shard.address),)))
    ranks = [asyncio.create_task(asyncio.to_thread(training.run_rank, rank, stopping)) for rank in range(RANKS)]
    await until(lambda: len(training.step_ends_s) >= 3, what="three steps")
    stopping.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*ranks)
    assert len(training.step_ends_s) == training.last_step
    assert shard.finished_steps()[shape.name] == training.last_step
    await shard.stop()


def test_report_record_and_picture_of_a_turn(tmp_path: Path) -> None:
    held = [simulate([trace_job("a", 0, 100, 10), trace_job("b", 0, 100, 10)], limit) for limit in LOSS_LIMITS]
    simulated = Simulated(0.5, 2, 2.0, held)
    said = table(this_machine(), [pair()], [simulated])
    assert "cores held <= 40% of dedicated ones with 2 jobs; measured 50%" in said
    assert "a step during which a job moves < 2 usual ones; longest 2.50" in said
    assert "trace: 2 jobs, 2.0 at a time" in said
    made = json.loads(json.dumps(record(this_machine(), [pair()], [simulated])))
    assert made["turns"][0]["ways"][1]["cores"] == [[0.0, 2], [5.0, 1]]
    assert len(made["tables"]["trace"]["rows"]) == len(trace_rows([simulated])) == len(LOSS_LIMITS)
    assert draw(this_machine(), [pair()], [simulated], tmp_path / "aggregation.png").stat().st_size > 10_000


def test_the_trace_is_monotone_only_if_no_larger_limit_saves_less() -> None:
    job = [trace_job("a", 0, 100, 10), trace_job("b", 20, 80, 10)]
    one, other = simulate(job, 0.0), simulate(job, 0.1)
    assert one.saving < other.saving
    assert Simulated(1.0, 2, 2.0, [one, other]).is_monotone
    assert not Simulated(1.0, 2, 2.0, [other, one]).is_monotone


def test_dedicated_jobs_are_never_together_and_shared_ones_as_the_service_has_it() -> None:
    assert DEDICATED.settings["loss_limit"] == 0.0
    assert SHARED.settings["loss_limit"] == cases.LOSS_LIMIT
    assert cases.FULL.jobs == cases.QUICK.jobs == (4, 8)
    assert len(cases.SHAPES) == max(cases.FULL.jobs)

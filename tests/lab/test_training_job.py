"""A distributed training job rides over edge faults without noticing; without a second uplink it dies and is restarted.

The programs are those of `make bench-thorn-job`, with a few short faults.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from services.fabric.testbed.topology import LabSettings
from tests.bench.thorn_job_faults import FaultCycle, InjectedFault
from tests.bench.thorn_job_ground import Ground, single_homed, why_not
from tests.bench.thorn_job_lab import dual_tor
from tests.bench.thorn_job_report import JobResult, TimeSpent, noticed_after_s, stalls_ms, time_spent
from tests.bench.thorn_job_supervisor import Attempt, JobOptions, JobRun, LogReader, Supervisor
from tests.support.dual_tor import own_prefix

HOSTS = 3
TIMEOUT_S = 8.0
"""Of a collective: far longer than a re-route, shorter than the faults."""
DOWN_S = 10.0
JOB = JobOptions(
    iterations=70, evaluate_every=20, checkpoint_every=15, timeout_s=TIMEOUT_S, batch=16, width=8, rate=0.02, noise=1.0
)


def run(ground: Ground, directory: Path, options: JobOptions, cycle: FaultCycle | None) -> JobResult:
    """One run of the job."""
    return JobResult.of("test", Supervisor(ground, options, directory, cycle).run())


@pytest.fixture(autouse=True)
def _able(request: pytest.FixtureRequest) -> None:
    reason = why_not() if request.node.get_closest_marker("netns") else None
    if reason:
        pytest.skip(reason)


@pytest.mark.machine
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(540)
def test_with_two_uplinks_faults_cost_neither_a_restart_nor_a_bit_of_the_result(tmp_path: Path) -> None:
    # Paused, the job lasts for two faults on the fastest machine: 70 x 0.35 s > 0.5 + 2 x (10 + 1.5) s.
    slow, cycle = replace(JOB, pause_ms=350), FaultCycle(lead_s=0.5, down_s=DOWN_S, up_s=1.5)
    with dual_tor(LabSettings(prefix=own_prefix("j"), hosts=HOSTS), "blackhole", print) as ground:
        without = run(ground, tmp_path / "without", JOB, None)
        under = run(ground, tmp_path / "under", slow, cycle)
    assert len(under.faults) >= 2
    assert (without.finished, without.restarts) == (under.finished, under.restarts) == (True, 0)
    # The same images in the same order, and gloo adds up in the same order: nothing may differ.
    assert (without.final_loss, without.final_accuracy) == (under.final_loss, under.final_accuracy)
    assert without.final_accuracy > 0.2, "nothing was learnt: ten classes, guessing gives 0.1"


@pytest.mark.machine
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(540)
def test_with_one_uplink_a_fault_ends_the_job_which_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    # Paused, it is not over before the fault where the machine stands still: 70 x 0.1 s.
    slow, cycle = replace(JOB, pause_ms=100), FaultCycle(lead_s=0.5, down_s=DOWN_S, at_most=1)
    with single_homed(HOSTS, "blackhole") as ground:
        result = run(ground, tmp_path / "run", slow, cycle)
    assert (result.finished, result.restarts >= 1) == (True, True)
    assert len(result.checkpoint_ms) >= JOB.iterations // JOB.checkpoint_every
    assert all(seconds >= TIMEOUT_S for seconds in result.noticed_after_s)
    assert result.spent.detection >= TIMEOUT_S
    assert result.spent.lost < result.total_s


def test_time_is_split_by_what_it_was_spent_on() -> None:
    """Two iterations, then a peer is lost; the next attempt comes to nothing, the third does iteration 2 again."""
    job = JobRun(
        attempts=[Attempt(10.0, 20.0, lost=True), Attempt(20.0, 24.0, lost=True), Attempt(24.0, 30.0)],
        faults=[InjectedFault("s1/d1", 15.0, 25.0)],
        events=[
            {"event": "iteration", "t": 13.0, "attempt": 0, "done": 1, "ms": 1000.0},
            {"event": "iteration", "t": 14.5, "attempt": 0, "done": 2, "ms": 1000.0},
            {"event": "imported", "t": 24.5, "attempt": 2},
            {"event": "joined", "t": 26.0, "attempt": 2},
            {"event": "iteration", "t": 27.0, "attempt": 2, "done": 2, "ms": 500.0},
            {"event": "iteration", "t": 29.0, "attempt": 2, "done": 3, "ms": 500.0},
        ],
        finished=True,
    )
    # 10-12 first start; 12-14.5 two iterations; 14.5-20 silence; 20-24 in vain; 24-26.5 start, of which 1.5 for the
    # others; 26.5-27 iteration 2 again; 27-30 iteration 3 and the end.
    expected = TimeSpent(initialisation=2.0, training=5.5, detection=5.5, waiting=5.5, restart=1.0, recomputation=0.5)
    assert time_spent(job) == expected
    assert math.isclose(expected.lost, 12.5)
    assert noticed_after_s(job) == (5.0,)
    assert stalls_ms(job) == (), "the job did not live through it"


def test_a_stall_is_what_iterations_after_a_fault_take_beyond_the_usual() -> None:
    ends = (1.1, 1.2, 1.9, 2.1, 2.2, 9.0)
    starts = (1.0, 1.1, 1.2, 1.9, 2.1, 8.9)
    job = JobRun(
        attempts=[Attempt(0.0, 9.0)],
        faults=[InjectedFault("s1/d1", 1.15, 5.0)],
        events=[
            {"event": "iteration", "t": end, "attempt": 0, "done": done, "ms": (end - start) * 1e3}
            for done, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
        ],
        finished=True,
    )
    # Untouched ones take 100 ms. Those that end after 1.15 and begin before 3.15: 100 + 700 + 200 + 100 - 4 x 100 ms.
    assert stalls_ms(job) == pytest.approx((700.0,))


def test_half_a_line_of_the_log_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    reader = LogReader(path)
    assert reader.read() == []
    path.write_text('{"done": 1}\n{"do', encoding="ascii")
    assert reader.read() == [{"done": 1}]
    path.write_text('{"done": 1}\n{"done": 2}\n', encoding="ascii")
    assert (reader.read(), reader.read()) == ([{"done": 2}], [])

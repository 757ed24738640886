"""A local run on another machine than those of the records: its own cores count; where nothing links it, it is said.

The law of the world is known, so that a local run may be made anywhere: it is the same job everywhere.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration
from schemas.predictions import ModelName, RankReply, RankRequest
from schemas.runs import CpuContention, MachineSpeed, RunEnd, RunProfile, WorkerSeries
from services.advisor.core.answers import ModelContext, rank
from services.advisor.core.catalogue import Listing
from services.advisor.core.local_runs import (
    REPEATED_DEVIATION,
    UNCOMPARED_DEVIATION,
    cores_used,
    missing_local_link,
    placed,
    speed_ratio,
)
from services.advisor.core.questions import MeasuredMachine, MeasuredTasks
from services.advisor.core.whole_job_duration import whole_job_duration
from services.advisor.models.gp.algorithm import GpAlgorithm, GpModel
from tests.support.gp_tables import LOCAL, MACHINES, World

WORLD = World(tasks=7)
ASKED = tuple(
    Configuration(instance_type=name, provider="emulated", workers=workers, batch_size=64, vcpu=vcpu, memory_gb=memory)
    for name, (vcpu, memory, _) in MACHINES.items()
    for workers in (1, 2, 4)
)
STRANGER = WORLD.task(4).model_copy(update={"task": "stranger"})
SPEED = MachineSpeed(matmul_flops_per_cpu_s=4e10, copy_bytes_per_cpu_s=8e9)


@pytest.fixture(scope="module")
def trained() -> GpModel:
    return GpAlgorithm().fit([one for one in WORLD.records() if one.task.task != "epsilon"], WORLD.profiles(), seed=0)


def measured(speed: MachineSpeed | None = None) -> MeasuredTasks:
    runs = {name: one.model_copy(update={"speed": speed}) for name, one in WORLD.profiles().items()}
    machines = {("emulated", one.instance_type): MeasuredMachine(one, {}, ({},)) for one in ASKED if one.workers == 1}
    return MeasuredTasks(runs=runs, reference_runs=frozenset(runs), machines=machines)


def series(cores: float) -> tuple[WorkerSeries, ...]:
    busy, idle = np.full(30, cores).tobytes(), np.zeros(30).tobytes()
    columns: dict[str, Any] = {"network_in_bytes_per_s": idle, "network_out_bytes_per_s": idle}
    return (WorkerSeries(worker="master", cpu_cores=busy, memory_bytes=busy, **columns),)


def run_on(cores: float, *, limit: float | None = None, slower: float = 1.0, **fields: Any) -> RunProfile:
    """A finished local run of one worker that keeps so many cores busy, of a machine with `limit` of them."""
    place = LOCAL.model_copy(update={"instance_type": "local", "vcpu": limit or cores, "memory_gb": 24.0})
    took_s = WORLD.seconds(STRANGER, place.model_copy(update={"vcpu": cores})) * slower
    values: dict[str, Any] = {"duration_s": took_s, "end": RunEnd.FINISHED, "workers": series(cores)} | fields
    return RunProfile(run="my-run", task=STRANGER, configuration=place, **values)


def ask(trained: GpModel, profile: RunProfile, known: MeasuredTasks | None = None) -> RankReply:
    model = ModelName(model="gp", version="1", data_hash="h", records=9, tasks=6, trained_ns=1)
    context = ModelContext(trained, model, Listing({}), known or measured())
    return rank(RankRequest(task=STRANGER, profile=profile, configurations=ASKED, objective="time", top=20), context)


def test_a_local_run_on_a_quarter_or_on_all_of_the_cores_gives_the_same_answers(trained: GpModel) -> None:
    """By the review 57 s on a quarter of a core became 39 s there, and a profile on 64 cores changed nothing."""
    for cores in (0.5, 1.0, 4.0, 8.0):
        reply = ask(trained, run_on(cores))
        assert len(reply.ranked) == len(ASKED)
        true_s = [WORLD.seconds(STRANGER, one.configuration) for one in reply.ranked]
        ratios = [one.time_s.median / here for one, here in zip(reply.ranked, true_s, strict=True)]
        assert 0.67 < np.median(ratios) < 1.5, cores
        inside = [one.time_s.low < here < one.time_s.high for one, here in zip(reply.ranked, true_s, strict=True)]
        assert np.mean(inside) >= 0.9


def test_cores_that_it_did_not_use_do_not_count(trained: GpModel) -> None:
    limited, unlimited = ask(trained, run_on(2.0)), ask(trained, run_on(2.0, limit=64.0))
    for one, other in zip(limited.ranked, unlimited.ranked, strict=True):
        assert one.time_s.median == pytest.approx(other.time_s.median)


def test_more_cores_than_were_ever_measured_are_not_known(trained: GpModel) -> None:
    reply = ask(trained, run_on(64.0))
    assert reply.ranked == ()
    (why,) = [one for one in reply.warnings if one.startswith("not known: ")]
    assert "the local run is far outside of what was measured: vCPU 64 (measured: 1 to 8)" in why
    assert "--cpus" in why


def test_slower_cores_count_once_they_are_compared(trained: GpModel) -> None:
    """A machine with cores of half the speed takes twice as long here, and the rented ones as long as ever."""
    half = MachineSpeed(matmul_flops_per_cpu_s=2e10, copy_bytes_per_cpu_s=4e9)
    plain = ask(trained, run_on(2.0, speed=SPEED), measured(SPEED))
    slow = ask(trained, run_on(2.0, slower=2.0, speed=half), measured(SPEED))
    blind = ask(trained, run_on(2.0))
    for one, other, unsure in zip(plain.ranked, slow.ranked, blind.ranked, strict=True):
        assert other.time_s.median == pytest.approx(one.time_s.median)
        assert unsure.time_s.high / unsure.time_s.low > one.time_s.high / one.time_s.low
    assert any("matrix products 0.5 x, copying 0.5 x" in one for one in slow.warnings)
    assert any("is not known, so intervals are wider" in one for one in blind.warnings)


def test_a_task_with_records_is_answered_from_them(trained: GpModel) -> None:
    """Its own history says more than a local run on another machine."""
    known, task = measured(), WORLD.task(1)
    local = dict(known.local_run) | {task.task: f"local-{task.task}"}
    known = replace(known, local_run=local, batch_sizes={task.task: (64,)})
    model = ModelName(model="gp", version="1", data_hash="h", records=9, tasks=6, trained_ns=1)
    wrong = run_on(2.0, slower=9.0).model_copy(update={"task": task})
    context = ModelContext(trained, model, Listing({}), known)
    reply = rank(RankRequest(task=task, profile=wrong, configurations=ASKED, objective="time", top=20), context)
    for one in reply.ranked:
        assert one.time_s.median == pytest.approx(WORLD.seconds(task, one.configuration), rel=0.25)
    assert any("it is used, and not my-run" in one for one in reply.warnings)


def test_the_coverage_is_that_of_local_runs_elsewhere(trained: GpModel) -> None:
    reply = ask(trained, run_on(2.0))
    assert reply.coverage is not None
    assert 0.7 <= reply.coverage <= 1.0


@pytest.mark.parametrize(
    ("local", "machines", "said"),
    [
        ({}, {"vcpu": 4.0}, ""),
        ({"vcpu": 0.0}, {"vcpu": 4.0}, "the cores of the local run"),
        ({}, {"vcpu": 0.0}, "the cores of the local run"),
        ({}, {"vcpu": 4.0, "accelerator": "T4"}, "no measured training links a run without accelerators"),
        ({"accelerator": "V100"}, {"accelerator": "T4"}, "with V100"),
        ({"accelerator": "NVIDIA_TESLA_T4"}, {"accelerator": "T4", "vcpu": 4.0}, ""),
        ({"instance_type": "n1", "provider": "gcp", "vcpu": 0.0}, {}, ""),
    ],
)
def test_links_of_a_local_run(local: dict[str, Any], machines: dict[str, Any], said: str) -> None:
    known = Configuration(instance_type="n1", provider="gcp", workers=1, **machines)
    reason = missing_local_link(LOCAL.model_copy(update=local), [known])
    assert (said in reason) if said else not reason


@given(st.floats(0.01, 64.0), st.floats(0.01, 64.0))
def test_cores_used_are_at_most_the_limit(cores: float, limit: float) -> None:
    profile = run_on(2.0, limit=limit, workers=series(cores))
    assert cores_used(profile) == pytest.approx(min(cores, limit))
    assert cores_used(profile.model_copy(update={"workers": ()})) == limit


def test_of_a_busy_machine_time_and_cores_are_those_of_a_quiet_one() -> None:
    """Half of the run may have been lost: the time is shorter, and more cores kept busy, by the same ratio."""
    busy = CpuContention(cores=4, other_cores=4.0, own_cores=1.0, limit_cores=4.0, wait_share=0.5)
    profile = run_on(1.0, limit=4.0)
    disturbed = profile.model_copy(update={"contention": busy})
    ratio = math.sqrt(1.0 - busy.lost_share)
    assert 0.6 < ratio < 0.9
    assert cores_used(disturbed) == pytest.approx(cores_used(profile) / ratio)
    quiet_s = whole_job_duration(STRANGER, disturbed).time_s
    assert quiet_s == pytest.approx(whole_job_duration(STRANGER, profile).time_s * ratio)


def test_memory_and_network_beyond_the_measured_ones_are_taken_for_the_largest() -> None:
    known = [
        Configuration(instance_type=f"m{at}", workers=1, vcpu=1.0, memory_gb=4.0 * at, network_gbps=0.1 * at)
        for at in (1, 2)
    ]
    where = placed(run_on(2.0), known)
    assert (where.memory_gb, where.network_gbps) == (8.0, 0.2)
    assert placed(run_on(2.0), []).network_gbps == 0.0


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_speeds_compare_by_both_kinds_of_work(matmul: float, copy: float) -> None:
    here = MachineSpeed(matmul_flops_per_cpu_s=4e10 * matmul, copy_bytes_per_cpu_s=8e9 * copy)
    found = speed_ratio(here, [SPEED])
    low, high = sorted((math.log(matmul), math.log(copy)))
    assert low - 1e-9 <= found.logarithm <= high + 1e-9
    assert found.variance >= REPEATED_DEVIATION**2 - 1e-12
    assert found.logarithm + math.sqrt(found.variance) >= high - 1e-9
    back = speed_ratio(SPEED, [here])
    assert (back.logarithm, back.variance) == (pytest.approx(-found.logarithm), pytest.approx(found.variance))


def test_without_a_calibration_of_both_the_prior_is_used() -> None:
    assert speed_ratio(None, [SPEED]).variance == speed_ratio(SPEED, []).variance == UNCOMPARED_DEVIATION**2

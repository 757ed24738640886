"""A local run that its time limit ended: used with its rate, a lower bound without one, never a matter of seconds."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, Price, TaskFeatures
from schemas.predictions import ModelName, RankReply, RankRequest
from schemas.runs import CpuContention, RunEnd, RunProfile, WorkerSeries
from services.advisor.core.answers import ModelContext, rank
from services.advisor.core.catalogue import Listing, Machine
from services.advisor.core.encoder import configuration_key
from services.advisor.core.table import build
from services.advisor.core.whole_job_duration import whole_job_duration
from services.advisor.models.gp.algorithm import GpAlgorithm, GpModel
from tests.support.gp_tables import LOCAL, MACHINES, World

WORLD = World(tasks=7)
DAY = date(2026, 1, 1)
STARTUP_S = 2.0
"""The law's own: what does not grow with the work."""
LONG = 5_000
"""Epochs of a job of hours, where those that are known last for seconds."""


@pytest.fixture(scope="module")
def trained() -> GpModel:
    records = [one for one in WORLD.records() if one.task.task != "delta"]
    return GpAlgorithm().fit(records, WORLD.profiles(), seed=0)


def advice(trained: GpModel) -> ModelContext:
    listing = Listing(
        {
            ("emulated", name): (
                Machine(name, vcpu, memory, usd),
                Price(usd_per_hour=usd, as_of=DAY, source="test"),
            )
            for name, (vcpu, memory, usd) in MACHINES.items()
        }
    )
    model = ModelName(model="gp", version="1", data_hash="h", records=9, tasks=6, trained_ns=1)
    return ModelContext(trained, model, listing, WORLD.measured())


def delta(epochs: int) -> TaskFeatures:
    return WORLD.task(3).model_copy(update={"epochs": epochs})


def series() -> tuple[WorkerSeries, ...]:
    column = np.ones(30).tobytes()
    return (
        WorkerSeries(
            worker="master",
            cpu_cores=column,
            memory_bytes=column,
            network_in_bytes_per_s=column,
            network_out_bytes_per_s=column,
        ),
    )


def local_run(task: TaskFeatures, end: RunEnd, duration_s: float, **told: float | str) -> RunProfile:
    return RunProfile(
        run="my-run",
        task=task,
        configuration=LOCAL.model_copy(update={"attributes": dict(told)}),
        duration_s=duration_s,
        end=end,
        workers=series(),
    )


def cut_with_its_rate(task: TaskFeatures, duration_s: float = 600.0) -> RunProfile:
    whole_s = WORLD.seconds(task, LOCAL)
    return local_run(
        task,
        RunEnd.TIMED_OUT,
        duration_s,
        startup_s=STARTUP_S,
        whole_run_s=whole_s,
        steps_per_s=1.0,
        steps_per_s_from="network",
        rate_error=0.05,
    )


def ask(trained: GpModel, task: TaskFeatures, profile: RunProfile | None) -> RankReply:
    configurations = tuple(
        Configuration(instance_type=name, provider="emulated", workers=workers, batch_size=64)
        for name in MACHINES
        for workers in (1, 2, 4)
    )
    return rank(RankRequest(task=task, profile=profile, configurations=configurations, top=20), advice(trained))


def test_a_job_of_hours_whose_local_run_was_cut_is_answered_with_hours(trained: GpModel) -> None:
    job = delta(LONG)
    reply = ask(trained, job, cut_with_its_rate(job))
    assert len(reply.ranked) == 12
    for one in reply.ranked:
        true_s = WORLD.seconds(job, one.configuration)
        assert true_s > 300
        assert 0.25 < one.time_s.median / true_s < 4.0


def test_a_cut_run_agrees_with_the_finished_one_and_is_less_sure(trained: GpModel) -> None:
    job = delta(LONG)
    whole = local_run(job, RunEnd.FINISHED, WORLD.seconds(job, LOCAL), startup_s=STARTUP_S)
    finished = {configuration_key(one.configuration): one.time_s for one in ask(trained, job, whole).ranked}
    for one in ask(trained, job, cut_with_its_rate(job)).ranked:
        other = finished[configuration_key(one.configuration)]
        assert one.time_s.low < other.median < one.time_s.high
        assert one.time_s.high / one.time_s.low > other.high / other.low


def test_without_a_rate_it_is_not_known_and_what_to_do_is_said(trained: GpModel) -> None:
    job = delta(LONG)
    reply = ask(trained, job, local_run(job, RunEnd.TIMED_OUT, 600.0))
    assert reply.ranked == ()
    assert reply.rejected == {"not known": 12}
    (why,) = [one for one in reply.warnings if one.startswith("not known: ")]
    assert "my-run was stopped after 600 s" in why
    assert "turnbuckle profile --features" in why


def test_a_rate_that_may_be_of_steps_or_epochs_is_none(trained: GpModel) -> None:
    job = delta(LONG)
    guessed = local_run(
        job, RunEnd.TIMED_OUT, 600.0, startup_s=1.0, steps_per_s=0.5, steps_per_s_from="period", whole_run_s=9_999.0
    )
    assert ask(trained, job, guessed).ranked == ()


def test_a_rate_of_epochs_needs_their_number(trained: GpModel) -> None:
    told = {"startup_s": STARTUP_S, "rate_error": 0.02, "epoch_s": 7.0}
    unknown = delta(LONG).model_copy(update={"epochs": 0})
    reply = ask(trained, unknown, local_run(unknown, RunEnd.TIMED_OUT, 600.0, **told))
    assert reply.ranked == ()
    assert any("epochs" in one and "job.yaml" in one for one in reply.warnings)
    assert len(ask(trained, delta(LONG), local_run(unknown, RunEnd.TIMED_OUT, 600.0, **told)).ranked) == 12


def test_a_stranger_without_any_local_run_is_not_known(trained: GpModel) -> None:
    """How long the known tasks last says nothing of how long this one does."""
    reply = ask(trained, delta(LONG), None)
    assert reply.ranked == ()
    assert any("local run" in one for one in reply.warnings if one.startswith("not known: "))


def test_the_duration_so_far_is_a_lower_bound(trained: GpModel) -> None:
    """Also of what is not known: the guess that JSON shows is no less than what was seen already."""
    job = delta(LONG)
    stopped = local_run(job, RunEnd.TIMED_OUT, 3_600.0)
    here = WORLD.records()[0].model_copy(
        update={"task": job, "local_run": "my-run", "configuration": LOCAL.model_copy(update={"vcpu": 2.0})}
    )
    table = build([here], {"my-run": stopped}, encoder=trained.encoder)[0].without_outcomes()
    assert trained.predict(replace(table, is_reference=np.array([False]))).time_s[0, 1] > 1_800


def whole_job_s(task: TaskFeatures, profile: RunProfile) -> float:
    record = WORLD.records()[0].model_copy(update={"task": task, "local_run": profile.run})
    return float(build([record], {profile.run: profile})[0].reference_time_s[0])


def test_start_up_never_multiplies() -> None:
    """52 s, of them 22 of start-up: fifty times the epochs take 22 + 30 x 50 = 1,522 s, not 2,600."""
    one = local_run(delta(1), RunEnd.FINISHED, 52.0, startup_s=22.0)
    assert whole_job_s(delta(50), one) == pytest.approx(1_522.0)
    # cut: 22 + (322 - 22) x 50
    cut = local_run(
        delta(1), RunEnd.TIMED_OUT, 52.0, startup_s=22.0, whole_run_s=322.0, rate_error=0.1, steps_per_s=1.0
    )
    assert whole_job_s(delta(50), cut) == pytest.approx(15_022.0)


@given(
    startup_s=st.floats(0.0, 100.0),
    training_s=st.floats(10.0, 1e5),
    part=st.floats(0.05, 0.9),
    ratio=st.integers(1, 200),
)
def test_where_a_run_is_cut_moves_the_reference_by_nothing(
    startup_s: float, training_s: float, part: float, ratio: int
) -> None:
    """An exact rate gives what the finished run gives, wherever it was cut; more work never takes less time."""
    whole_s = startup_s + training_s
    finished = local_run(delta(1), RunEnd.FINISHED, whole_s, startup_s=startup_s)
    cut = local_run(
        delta(1),
        RunEnd.TIMED_OUT,
        startup_s + part * training_s,
        startup_s=startup_s,
        whole_run_s=whole_s,
        rate_error=0.01,
        steps_per_s=1.0,
    )
    assert whole_job_s(delta(ratio), cut) == pytest.approx(whole_job_s(delta(ratio), finished))
    assert whole_job_s(delta(ratio + 1), cut) > whole_job_s(delta(ratio), cut) >= whole_s * (1 - 1e-9)


# -- how often intervals hold --------------------------------------------------------------------------------------


def with_cuts(error: float, told_error: float) -> dict[str, RunProfile]:
    """The world's local runs, and of each one that was cut, whose rate was off by a factor."""
    runs = dict(WORLD.profiles())
    for at, one in enumerate(WORLD.profiles().values()):
        estimated_s = STARTUP_S + (one.duration_s - STARTUP_S) * (1.0 + error * (-1) ** at)
        cut = local_run(
            one.task,
            RunEnd.TIMED_OUT,
            one.duration_s / 10,
            startup_s=STARTUP_S,
            whole_run_s=estimated_s,
            steps_per_s=1.0,
            rate_error=told_error,
        )
        runs[f"{one.run}-cut"] = cut.model_copy(update={"run": f"{one.run}-cut"})
    return runs


def test_the_coverage_that_is_told_is_the_measured_one_for_this_kind_of_local_run(trained: GpModel) -> None:
    """With rates that are nine tenths off, and claim one per cent, intervals of cut runs hold less than others."""
    records = [one for one in WORLD.records() if one.task.task != "delta"]
    runs = {name: one for name, one in with_cuts(0.9, 0.01).items() if "delta" not in name}
    careless = GpAlgorithm().fit(records, runs, seed=0)
    job = delta(2)
    whole = local_run(job, RunEnd.FINISHED, WORLD.seconds(job, LOCAL), startup_s=STARTUP_S)
    finished, cut = ask(careless, job, whole), ask(careless, job, cut_with_its_rate(job, 5.0))
    assert finished.coverage is not None
    assert cut.coverage is not None
    assert 0.7 < finished.coverage <= 1.0
    assert cut.coverage < finished.coverage - 0.05
    # nobody has measured it where no local run was ever cut
    assert ask(trained, job, cut_with_its_rate(job, 5.0)).coverage is None


def test_honest_rates_keep_the_coverage() -> None:
    records = [one for one in WORLD.records() if one.task.task != "delta"]
    runs = {name: one for name, one in with_cuts(0.1, 0.1).items() if "delta" not in name}
    reply = ask(GpAlgorithm().fit(records, runs, seed=0), delta(2), cut_with_its_rate(delta(2), 5.0))
    assert reply.coverage is not None
    assert reply.coverage > 0.8


def test_of_a_known_task_left_out_tasks_say_nothing(trained: GpModel) -> None:
    known = WORLD.task(0)
    whole = local_run(known, RunEnd.FINISHED, WORLD.seconds(known, LOCAL), startup_s=STARTUP_S)
    assert ask(trained, known, whole).coverage is None


def test_no_reason_is_empty_or_nan(trained: GpModel) -> None:
    """Of a run that was cut without a rate, and of what known tasks have in common."""
    job = delta(LONG)
    for profile in (cut_with_its_rate(job), local_run(job, RunEnd.TIMED_OUT, 600.0), None):
        reply = ask(trained, job, profile)
        said = [reason for one in (*reply.ranked, *reply.pareto) for reason in one.reasons]
        said += [word for one in reply.neighbours for word in one.alike]
        assert said or not reply.ranked
        assert all("nan" not in one.split() and not one.endswith(": ") for one in said)
        assert all(one.partition(": ")[2] for one in said)


@given(finished=st.booleans(), waited=st.floats(0.0, 0.95))
def test_of_a_busy_machine_the_interval_holds_both_ends_of_what_a_quiet_one_takes(
    finished: bool, waited: float
) -> None:
    """Of the time, a share was waited: it takes between the rest, where all waiting delayed it, and as long."""
    task = delta(1)
    end = RunEnd.FINISHED if finished else RunEnd.TIMED_OUT
    told = {"startup_s": STARTUP_S, "whole_run_s": 100.0, "rate_error": 0.02, "steps_per_s": 1.0}
    quiet = local_run(task, end, 100.0 if finished else 20.0, **told)
    used = 2.0 * (1.0 - waited)
    contention = CpuContention(cores=2, other_cores=2.0 * waited, own_cores=used, limit_cores=2, wait_share=waited)
    plain = whole_job_duration(task, quiet)
    found = whole_job_duration(task, quiet.model_copy(update={"contention": contention}))
    half = 2.0 * math.sqrt(found.log_variance)
    assert found.log_variance >= plain.log_variance
    assert found.time_s * math.exp(-half) <= 100.0 * (1.0 - waited) * (1 + 1e-9)
    assert found.time_s * math.exp(half) >= 100.0 * (1 - 1e-9)
    if waited == 0.0:
        assert (found.time_s, found.log_variance) == (plain.time_s, plain.log_variance)


def test_a_local_run_of_a_busy_machine_is_warned_of(trained: GpModel) -> None:
    job = delta(LONG)
    busy = CpuContention(cores=2, other_cores=1.3, own_cores=0.7, limit_cores=2, wait_share=0.35)
    quiet = CpuContention(cores=2, other_cores=0.1, own_cores=1.0, limit_cores=2, wait_share=0.02)
    for contention, warned in ((busy, True), (quiet, False), (None, False)):
        profile = cut_with_its_rate(job).model_copy(update={"contention": contention})
        said = [one for one in ask(trained, job, profile).warnings if "busy" in one]
        assert bool(said) == warned
    profile = cut_with_its_rate(job).model_copy(update={"contention": busy})
    (said_so,) = [one for one in ask(trained, job, profile).warnings if "busy" in one]
    assert "other work used 1.3 of 2 cores, the workers waited for a core 35 % of the time" in said_so
    assert "profile again on a quiet machine" in said_so

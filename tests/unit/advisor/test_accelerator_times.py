"""Trainings on GPUs: laws against the shipped public measurements, and answers by them and by runs of one's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from schemas.accelerators import ACCELERATORS
from schemas.jobs import Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.predictions import ModelName, Objective, PredictRequest, RankRequest
from schemas.runs import RunEnd, RunProfile
from services._jobs.record_files import read_job_file
from services.advisor.core.accelerator_times import (
    DEVICE_RATIO,
    OWN_RUN,
    ROOFLINE,
    AcceleratorTimes,
    application_of,
    measured_step,
)
from services.advisor.core.answers import NO_ACCELERATOR_RUN, ModelContext, predict, rank
from services.advisor.core.catalogue import Listing, Machine, listing
from services.advisor.core.roofline import peak_flops_per_s, step_parts_s, step_s, steps_of
from services.advisor.model_lineages import ACCELERATOR_DATA
from services.advisor.models.gp.algorithm import GpAlgorithm
from services.advisor.records import Records
from tests.bench.advisor_accelerators import (
    BOTH_ALONE,
    GPU_RUN,
    LARGER,
    MODEL_ALONE,
    MODEL_RUN,
    RATIO,
    Summary,
    evaluated,
    public_records,
    with_kin,
)
from tests.bench.advisor_accelerators import (
    ROOFLINE as BY_ROOFLINE,
)

MODEL = ModelName(model="gp", version="gp-1", data_hash="h", records=9, tasks=3, trained_ns=1)
TASK = TaskFeatures(
    task="mine", parameter_count=1_000_000, steps=5_000, step_flops=2e10, step_bytes=6e8, step_weight_bytes=3e8
)


@pytest.fixture(scope="module")
def public() -> list[JobRecord]:
    return public_records()


@pytest.fixture(scope="module")
def single_precision(public: list[JobRecord]) -> list[JobRecord]:
    """A part, which a model is fitted to in seconds: Gavel's jobs and the smaller of Cephalo's layers."""
    small = ("gavel", "cephalo/bert", "cephalo/gpt_1.3b")
    return [
        one
        for one in public
        if one.task.task.startswith(small) and one.configuration.attributes == {"precision": "fp32"}
    ]


def on(accelerator: str, **fields: Any) -> Configuration:
    """A machine with one accelerator, as a user asks about it."""
    return Configuration(
        **{
            "instance_type": f"vm-{accelerator}", "provider": "gcp", "workers": 1, "batch_size": 32, "vcpu": 8.0,
            "memory_gb": 30.0, "accelerator": accelerator, "accelerators": 1, "attributes": {"precision": "fp32"},
        }
        | fields
    )  # fmt: skip


def ran(where: Configuration, step_s: float, task: TaskFeatures = TASK) -> JobRecord:
    return JobRecord(
        job=f"{task.task} on {where.accelerator} x{where.batch_size}", dataset="own", task=task, configuration=where,
        state=JobState.SUCCEEDED, duration_s=step_s * task.steps,
    )  # fmt: skip


def advisor(records: list[JobRecord]) -> ModelContext:
    kept = Records()
    assert [kept.add(one) for one in records] == [None] * len(records)
    trained = GpAlgorithm().fit(list(kept.jobs.values()), kept.runs, seed=0)
    return ModelContext(trained, MODEL, listing([], (), None, kept.priced), kept.measured())


@pytest.fixture(scope="module")
def public_context(single_precision: list[JobRecord]) -> ModelContext:
    return advisor(single_precision)


@pytest.fixture(scope="module")
def with_own_run(single_precision: list[JobRecord]) -> ModelContext:
    """The public set, and one run of a training that takes three times as long as others of its work would."""
    slow_s = 3.0 * (step_s(TASK, on("V100")) or 0.0) * 3.0
    return advisor([*single_precision, ran(on("V100"), slow_s)])


# -- the laws on left-out models and devices ------------------------------------------------------------------------


def found(summaries: list[Summary], scenario: str, law: str) -> Summary:
    (one,) = [each for each in summaries if (each.scenario, each.law) == (scenario, law)]
    return one


@pytest.fixture(scope="module")
def summaries(public: list[JobRecord]) -> list[Summary]:
    return evaluated(public)


def test_a_left_out_model_is_best_known_by_the_ratio_of_devices(summaries: list[Summary]) -> None:
    """From a run on another GPU. That is why it answers before the roofline does."""
    ratio, roofline = (found(summaries, MODEL_RUN, law) for law in (RATIO, BY_ROOFLINE))
    assert ratio.questions == roofline.questions > 900
    assert ratio.median < 0.15
    assert ratio.p90 < 0.35
    assert ratio.median < 0.8 * roofline.median
    assert ratio.p90 < 0.8 * roofline.p90


def test_a_left_out_size_of_a_known_model_is_known_within_a_tenth(public: list[JobRecord]) -> None:
    some = with_kin(public)[::3]  # all take a quarter of a minute: `make bench-advisor ARGS=--accelerators`
    assert found(evaluated(some), MODEL_RUN, RATIO).median < 0.1


def test_arithmetic_and_memory_traffic_add_up(summaries: list[Summary]) -> None:
    """The sum of both terms is nearer to what was measured than the larger one, which is the bound."""
    assert found(summaries, GPU_RUN, BY_ROOFLINE).median < 0.25
    assert found(summaries, GPU_RUN, BY_ROOFLINE).median < 0.8 * found(summaries, GPU_RUN, LARGER).median


def test_intervals_hold_what_was_left_out(summaries: list[Summary]) -> None:
    for scenario, law in ((MODEL_RUN, RATIO), *((one, BY_ROOFLINE) for one in (MODEL_ALONE, BOTH_ALONE, GPU_RUN))):
        inside = found(summaries, scenario, law).inside
        assert inside is not None
        assert inside > 0.85


def test_the_bound_is_under_nearly_every_measured_step(public: list[JobRecord]) -> None:
    """A step below the larger term would say that operations, bytes or a data sheet are wrong."""
    shares = []
    for one in public:
        step = measured_step(one)
        assert step is not None
        parts = step_parts_s(step.task, step.where)
        assert parts is not None
        shares.append(max(parts) <= step.measured_s)
    assert sum(shares) == len(shares)


# -- the roofline ---------------------------------------------------------------------------------------------------


def test_a_step_is_its_arithmetic_and_its_traffic() -> None:
    where = on("V100", batch_size=10)
    assert step_s(TASK, where) == pytest.approx(10 * 2e10 / 15.7e12 + (10 * 6e8 + 3e8) / 900e9)
    half = on("V100", batch_size=10, attributes={"precision": "fp16"})
    assert step_s(TASK, half) == pytest.approx(10 * 2e10 / 125e12 + 0.5 * (10 * 6e8 + 3e8) / 900e9)


@pytest.mark.parametrize(
    ("task", "where"),
    [
        (TaskFeatures(task="mine"), on("V100")),
        (TASK, on("V100", batch_size=0)),
        (TASK, on("a new one")),
    ],
)
def test_without_work_batch_or_device_there_is_no_roofline(task: TaskFeatures, where: Configuration) -> None:
    assert step_s(task, where) is None


def test_a_mode_that_the_hardware_lacks_runs_in_single_precision() -> None:
    assert peak_flops_per_s(ACCELERATORS["K80"], "fp16") == ACCELERATORS["K80"].fp32_flops_per_s
    assert peak_flops_per_s(ACCELERATORS["A10G"], "bf16") == ACCELERATORS["A10G"].fp16_flops_per_s


def test_steps_are_of_epochs_where_they_are_not_counted() -> None:
    task = TaskFeatures(task="mine", epochs=3, samples_per_epoch=100)
    assert steps_of(task, on("V100", batch_size=32)) == 12
    assert steps_of(TaskFeatures(task="mine", epochs=3), on("V100")) is None


def test_too_few_applications_give_no_law(public: list[JobRecord]) -> None:
    """Of two, none can be left out for the error."""
    few = [one for one in public if application_of(one.task) in ("LM", "ResNet-50")]
    times = AcceleratorTimes.of(few)
    assert times.job(TASK, on("V100"), ()) is None
    assert AcceleratorTimes().job(TASK, on("V100"), ()) is None


# -- answers --------------------------------------------------------------------------------------------------------


def answer(context: ModelContext, where: Configuration, task: TaskFeatures = TASK, **question: Any) -> Any:
    (one,) = predict(PredictRequest(task=task, configurations=(where,), **question), context).predictions
    return one


def test_a_task_without_any_run_on_a_gpu_is_answered_by_the_roofline(public_context: ModelContext) -> None:
    where = on("V100")
    one = answer(public_context, where)
    bound_s = TASK.steps * max(step_parts_s(TASK, where) or (0.0,))
    assert one.known, one.why_unknown
    assert one.reasons == (ROOFLINE,)
    assert bound_s < one.time_s.low < one.time_s.median < one.time_s.high < 20 * bound_s


def test_so_is_one_on_a_gpu_that_was_never_measured(public_context: ModelContext) -> None:
    one = answer(public_context, on("H200"))
    assert one.known, one.why_unknown
    assert one.time_s.median < answer(public_context, on("V100")).time_s.median


def test_a_step_that_is_much_shorter_than_any_that_was_measured_is_not_known(public_context: ModelContext) -> None:
    """A small network on digits was said to make 10,000 steps a second: the starts of its operators take longer."""
    tiny = TASK.model_copy(update={"step_flops": 2e6, "step_bytes": 1.5e5, "step_weight_bytes": 4.6e5})
    one = answer(public_context, on("V100"), tiny)
    assert not one.known
    assert "a step has 0.0099 ms of work on one V100" in one.why_unknown
    assert "larger batch" in one.why_unknown
    assert answer(public_context, on("V100", batch_size=32_768), tiny).known


def test_accelerators_on_machines_of_one_type_are_different_configurations(public_context: ModelContext) -> None:
    """T4 and V100 on one machine type and batch were counted as one."""
    places = tuple(on(name, instance_type="n1-standard-8") for name in ("T4", "V100", "V100"))
    reply = rank(RankRequest(task=TASK, configurations=places, objective="time", top=5), public_context)
    assert reply.considered == 2
    assert [one.configuration.accelerator for one in reply.ranked] == ["V100", "T4"]


def test_the_price_is_that_of_the_machine_with_its_accelerators(public_context: ModelContext) -> None:
    """The machine's own price was taken for that of machine and GPU."""
    day = Price(usd_per_hour=0.4, as_of=date(2026, 11, 1), source="test")
    bare, with_gpu = (
        Machine("n1-standard-8", 8.0, 30.0, 0.4),
        Machine("n1-standard-8+1xV100", 8.0, 30.0, 2.9, accelerator="V100", accelerators=1),
    )
    prices = Listing(
        {
            ("gcp", bare.instance_type): (bare, day),
            ("gcp", with_gpu.instance_type): (with_gpu, day.model_copy(update={"usd_per_hour": 2.9})),
        }
    )
    context = replace(public_context, listing=prices)
    place = on("V100", instance_type="n1-standard-8", vcpu=0.0, memory_gb=0.0)
    one = answer(context, place)
    assert one.cost_usd.median == pytest.approx(one.time_s.median / 3_600.0 * 2.9)
    assert one.configuration.memory_gb == 30.0
    assert answer(context, place.model_copy(update={"accelerator": "T4"})).cost_usd is None
    assert answer(context, place.model_copy(update={"accelerators": 2})).cost_usd is None


@pytest.mark.parametrize("task", [TASK.model_copy(update={"step_flops": 0.0}), TASK.model_copy(update={"steps": 0})])
def test_without_the_work_of_a_step_or_their_number_it_is_not_known(
    public_context: ModelContext, task: TaskFeatures
) -> None:
    assert not answer(public_context, on("V100"), task).known


def test_several_gpus_are_not_answered_by_the_roofline(public_context: ModelContext) -> None:
    """How they scale depends on what connects them, which the public set does not have."""
    assert not answer(public_context, on("V100", accelerators=4)).known
    assert not answer(public_context, on("V100", workers=2)).known


def test_a_run_without_accelerators_says_nothing_of_a_gpu_by_itself(public_context: ModelContext) -> None:
    """No measured task ran on both: the model's ratio between them would be of nothing."""
    bare = TaskFeatures(task="mine", parameter_count=1_000_000, steps=5_000)
    local = local_run(bare)
    one = answer(public_context, on("V100"), bare, profile=local)
    assert one.why_unknown == NO_ACCELERATOR_RUN
    assert answer(public_context, on("V100"), profile=local).reasons == (ROOFLINE,)


def local_run(task: TaskFeatures) -> RunProfile:
    """A finished run on a CPU of an hour."""
    return RunProfile(
        run=f"local-{task.task}", task=task, duration_s=3_600.0, end=RunEnd.FINISHED, workers=(),
        configuration=Configuration(instance_type="local", provider="local", workers=1, batch_size=32, vcpu=8.0),
    )  # fmt: skip


@pytest.mark.parametrize(("linked", "by_model"), [(2, False), (3, True)])
def test_local_runs_without_accelerators_are_the_models_where_tasks_ran_on_both(
    single_precision: list[JobRecord], linked: int, by_model: bool
) -> None:
    tasks = [TASK.model_copy(update={"task": f"own-{number}"}) for number in range(linked)]
    kept = Records()
    for one in [*single_precision, *(ran(on("V100"), 0.5, task) for task in tasks)]:
        name = f"local-{one.task.task}" if one.dataset == "own" else ""
        kept.add(one.model_copy(update={"local_run": name}))
    for task in tasks:
        kept.add_run(local_run(task))
    trained = GpAlgorithm().fit(list(kept.jobs.values()), kept.runs, seed=0)
    context = ModelContext(trained, MODEL, listing([], (), None, ()), kept.measured())
    one = answer(context, on("V100"), profile=local_run(TASK))
    assert (one.reasons != (ROOFLINE,)) == by_model


@pytest.mark.parametrize(("where", "law"), [("P100", DEVICE_RATIO), ("H200", ROOFLINE)])
def test_a_local_run_on_a_gpu_says_what_another_takes(public_context: ModelContext, where: str, law: str) -> None:
    local = RunProfile(
        run="here", task=TASK, duration_s=5_000.0, end=RunEnd.FINISHED, workers=(), configuration=on("V100")
    )
    one = answer(public_context, on(where), profile=local)
    assert one.reasons == (law,)
    assert 0.05 < one.time_s.median / 5_000.0 < 4.0
    assert (one.time_s.median > 5_000.0) == (where == "P100")


@pytest.mark.parametrize(
    ("steps", "fields"), [(5_000, {}), (50_000, {}), (2_500, {}), (5_000, {"instance_type": "other", "vcpu": 16.0})]
)
def test_after_one_run_on_a_device_the_next_answer_for_it_is_within_a_tenth(
    with_own_run: ModelContext, steps: int, fields: dict[str, Any]
) -> None:
    """Of any amount of training and on another machine with it; what others took is a third of that."""
    (own,) = [one for one in with_own_run.measured.on_accelerators.steps if one.task.task == "mine"]
    one = answer(with_own_run, on("V100", **fields), TASK.model_copy(update={"steps": steps}))
    assert one.known, one.why_unknown
    assert one.time_s.median == pytest.approx(steps * own.measured_s, rel=0.1)
    assert one.time_s.low < steps * own.measured_s < one.time_s.high


def test_a_run_of_ones_own_comes_before_what_others_took(
    with_own_run: ModelContext, public_context: ModelContext
) -> None:
    """Also on another device, and with another batch."""
    for where in (on("P100"), on("V100", batch_size=64)):
        assert answer(with_own_run, where).time_s.median > 1.5 * answer(public_context, where).time_s.median


@pytest.mark.parametrize("accelerator", ["K80", "P100", "V100"])
def test_one_run_of_a_left_out_model_is_within_a_tenth_of_its_next(
    single_precision: list[JobRecord], accelerator: str
) -> None:
    """With real steps: the model's other rows are not known."""
    (mine,) = [
        one
        for one in single_precision
        if (one.task.task, one.configuration.batch_size, one.configuration.accelerator) == ("gavel/LM", 20, accelerator)
    ]
    others = [one for one in single_precision if application_of(one.task) != "LM"]
    assert mine.duration_s is not None
    # Of a run of a minute, up to half might be start-up, which is not scaled: this one takes more than ten.
    own = mine.model_copy(
        update={"task": mine.task.model_copy(update={"steps": 40_000}), "duration_s": 40 * mine.duration_s}
    )
    one = answer(advisor([*others, own]), mine.configuration, mine.task.model_copy(update={"steps": 400_000}))
    assert one.time_s.median == pytest.approx(400 * mine.duration_s, rel=0.1)


def test_all_of_the_shipped_set_is_learned(public: list[JobRecord]) -> None:
    """The search for its hyperparameters tries some at which the covariance has no factor in floating point."""
    whole = read_job_file(ACCELERATOR_DATA).records
    assert {one.task.task for one in whole} - {one.task.task for one in public} == {"gavel/A3C", "gavel/CycleGAN"}
    context = advisor(list(whole))
    record = whole[0]
    asked = answer(context, record.configuration, TaskFeatures(task=record.task.task))
    assert asked.time_s.median == pytest.approx(record.duration_s, rel=0.02)


def test_a_ranking_says_by_which_law_its_times_are_known(public_context: ModelContext) -> None:
    reply = rank(
        RankRequest(task=TASK, configurations=(on("V100"), on("P100"), on("K80")), objective=Objective.TIME),
        public_context,
    )
    assert [one.configuration.accelerator for one in reply.ranked] == ["V100", "P100", "K80"]
    assert f"3 of 3 configurations are known {ROOFLINE}" in reply.warnings
    assert reply.coverage is None


def test_law_of_the_same_device_is_named(with_own_run: ModelContext) -> None:
    assert answer(with_own_run, on("V100", instance_type="other", vcpu=16.0)).reasons == (OWN_RUN,)


def test_precision_may_be_the_tasks(public_context: ModelContext) -> None:
    half = TASK.model_copy(update={"attributes": {"precision": "fp16"}})
    plain = on("V100", attributes={})
    assert answer(public_context, plain, half).time_s.median < answer(public_context, plain).time_s.median

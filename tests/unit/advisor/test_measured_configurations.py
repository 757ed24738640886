"""From a file of measurements to an answer: what was measured comes back, and what nothing links to it is not known."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.jobs import Configuration, JobRecord, TaskFeatures
from schemas.predictions import ModelName, Objective, PredictRequest, RankRequest
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.answers import MEASURED_LATER, ModelContext, predict, rank
from services.advisor.core.catalogue import Listing, Machine, listing
from services.advisor.core.whole_job_duration import whole_job_duration
from services.advisor.models.gp.algorithm import GpAlgorithm
from services.advisor.records import Records
from services.collector.transfer.importing import import_table, read_mapping
from tests.support.training_jobs import price

MODEL = ModelName(model="gp", version="gp-1", data_hash="h", records=9, tasks=3, trained_ns=1)
THROUGHPUTS = Path(__file__).parent / "fixtures/gavel_throughputs.json"
"""Steps per second of jobs on one GPU: stanford-futuredata/gavel, commit c4fa400, MIT (LICENSE-gavel beside it)."""
STEPS = 20_000


def measurements() -> list[dict[str, str]]:
    """One row per job, as people keep them: the GPU is a column of its own."""
    rows = []
    for gpu, jobs in json.loads(THROUGHPUTS.read_text(encoding="utf-8")).items():
        for name, per_s in jobs.items():
            model, _, batch = name.partition(" (batch size ")
            fields = {"model": model, "batch": batch.rstrip(")") or "0", "gpu": gpu, "machine": f"vm-{gpu}"}
            rows.append(fields | {"seconds": f"{STEPS / per_s:.3f}"})
    return rows


MAPPING = """
dataset: throughputs
any_instance: true
fields:
  task.task: model
  task.epochs: {constant: 1}
  configuration.instance_type: machine
  configuration.provider: {constant: gcp}
  configuration.workers: {constant: 1}
  configuration.batch_size: batch
  duration_s: {column: seconds, unit: s}
  state: {constant: succeeded}
attributes:
  configuration: {gpu: gpu}
"""


def imported(directory: Path) -> list[JobRecord]:
    rows = measurements()
    table, mapping = directory / "runs.csv", directory / "mapping.yaml"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    mapping.write_text(MAPPING, encoding="utf-8")
    return import_table(table, read_mapping(mapping)).records


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[JobRecord]:
    return imported(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def context(records: list[JobRecord]) -> ModelContext:
    return advisor(records)


def advisor(records: list[JobRecord], prices: Listing | None = None) -> ModelContext:
    """An advisor that has learned from these records."""
    kept = Records()
    assert [kept.add(one) for one in records] == [None] * len(records)
    trained = GpAlgorithm().fit(list(kept.jobs.values()), kept.runs, seed=0)
    return ModelContext(trained, MODEL, prices or listing([], (), None, kept.priced), kept.measured())


def asked(record: JobRecord, **changes: Any) -> PredictRequest:
    """A question about a record's task and configuration in the few words that people use: no attribute, no size."""
    where = record.configuration
    short = Configuration(
        instance_type=where.instance_type, provider=where.provider, workers=where.workers, batch_size=where.batch_size
    )
    task = TaskFeatures(task=record.task.task, **changes)
    return PredictRequest(task=task, configurations=(short,))


def test_every_measured_configuration_comes_back_as_measured(records: list[JobRecord], context: ModelContext) -> None:
    """The columns of the file that are attributes need not be repeated in the question."""
    for record in records:
        (one,) = predict(asked(record), context).predictions
        assert record.duration_s is not None
        assert one.known, one.why_unknown
        assert one.time_s.median == pytest.approx(record.duration_s, rel=0.02)
        assert one.time_s.low < record.duration_s < one.time_s.high
        assert one.configuration.attributes == record.configuration.attributes


def test_a_ranking_of_all_machines_has_the_measured_durations(records: list[JobRecord]) -> None:
    """The list of all machines is made of the price catalogue, which has no attributes."""
    machines = {one.configuration.instance_type for one in records}
    prices = Listing({("gcp", name): (Machine(name, 0.0, 0.0, 1.0), price("small")) for name in machines})
    request = RankRequest(task=TaskFeatures(task="ResNet-50"), workers=(1,), batch_sizes=(32,), providers=("gcp",))

    ranked = rank(request, advisor(records, prices)).ranked

    measured = {
        one.configuration.instance_type: one.duration_s
        for one in records
        if (one.task.task, one.configuration.batch_size) == ("ResNet-50", 32)
    }
    assert {one.configuration.instance_type: one.time_s.median for one in ranked} == pytest.approx(measured, rel=0.02)


def test_records_without_a_provider_are_of_the_provider_that_lists_the_machine(records: list[JobRecord]) -> None:
    """Few tables of measurements have a column for it."""
    unsaid = [
        one.model_copy(update={"configuration": one.configuration.model_copy(update={"provider": ""})})
        for one in records
    ]
    prices = Listing({("gcp", "vm-v100"): (Machine("vm-v100", 0.0, 0.0, 1.0), price("small"))})
    record = next(one for one in records if one.configuration.instance_type == "vm-v100")

    (one,) = predict(asked(record), advisor(unsaid, prices)).predictions

    assert one.known, one.why_unknown
    assert one.time_s.median == pytest.approx(record.duration_s, rel=0.02)
    assert one.configuration.provider == "gcp"
    assert one.cost_usd is not None


def test_an_accelerator_is_known_by_any_of_its_names(records: list[JobRecord]) -> None:
    with_gpu = [
        one.model_copy(
            update={
                "configuration": one.configuration.model_copy(update={"accelerator": "Tesla V100", "accelerators": 1})
            }
        )
        for one in records
        if one.configuration.instance_type == "vm-v100"
    ]
    other = Configuration(
        instance_type="other", provider="gcp", workers=1, batch_size=32, vcpu=8.0, memory_gb=30.0,
        accelerator="NVIDIA_TESLA_V100", accelerators=1,
    )  # fmt: skip

    (one,) = predict(
        PredictRequest(task=TaskFeatures(task="ResNet-50"), configurations=(other,)), advisor(with_gpu)
    ).predictions

    assert one.configuration.accelerator == "V100"
    assert "was measured" not in one.why_unknown


def test_ten_times_the_epochs_of_a_known_task_take_ten_times_as_long(
    records: list[JobRecord], context: ModelContext
) -> None:
    """Also without a local run; what may have been start-up, at most two minutes, is inside of the interval."""
    record = next(one for one in records if one.task.task == "ResNet-50")
    assert record.duration_s is not None

    (one,) = predict(asked(record, epochs=10), context).predictions

    assert one.known, one.why_unknown
    assert one.time_s.median == pytest.approx(10 * record.duration_s, rel=0.1)
    assert one.time_s.low < 10 * record.duration_s < one.time_s.high


def test_epochs_that_the_records_do_not_say_are_named(records: list[JobRecord]) -> None:
    unsaid = [one.model_copy(update={"task": TaskFeatures(task=one.task.task)}) for one in records]

    reply = predict(asked(records[0], epochs=10), advisor(unsaid))

    assert (
        f"the records of {records[0].task.task} do not say how many epochs they trained: each is taken for the whole "
        "job" in reply.warnings
    )


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ({"provider": "aws"}, "no machine of aws was measured: run one job there first"),
        ({"accelerator": "H100"}, "no machine with H100-80GB was measured: run one job on one first"),
        (
            {},
            "big-cpu was not measured, and the sizes of the machines that were are not known: run one job on it first",
        ),
    ],
)
def test_a_machine_that_nothing_links_to_the_measured_ones_is_not_known(
    context: ModelContext, where: dict[str, Any], why: str
) -> None:
    """The records have GPUs without vCPU and memory: of another machine's vCPU they say nothing."""
    fields = {
        "instance_type": "big-cpu",
        "provider": "gcp",
        "workers": 1,
        "batch_size": 32,
        "vcpu": 16.0,
        "memory_gb": 64.0,
    }
    machine = Configuration(**(fields | where))

    request = RankRequest(task=TaskFeatures(task="ResNet-50"), configurations=(machine,), objective=Objective.TIME)

    reply = rank(request, context)

    assert reply.ranked == ()
    assert f"not known: {why}" in reply.warnings
    assert reply.coverage is None
    assert reply.proposals == ()  # no figures of what is not known
    assert [one.instance_type for one in reply.worth_measuring] == ["big-cpu"]


def finished(duration_s: float, **task: int) -> RunProfile:
    return RunProfile(
        run="here",
        task=TaskFeatures(task="silent", **task),
        configuration=Configuration(instance_type="local", provider="local", workers=1),
        duration_s=duration_s,
        end=RunEnd.FINISHED,
        workers=(),
    )


def test_a_start_up_that_nothing_marks_is_inside_of_the_interval() -> None:
    """Ten of fifty epochs took 45.1 s, about 20 s of them start-up: the whole takes some 145 s, not 225 s."""
    whole = whole_job_duration(TaskFeatures(task="silent", epochs=50), finished(45.1, epochs=10))

    ends = [whole.time_s * math.exp(sign * 1.645 * math.sqrt(whole.log_variance)) for sign in (-1, 1)]
    assert ends[0] < 145.0 < ends[1]
    assert whole.time_s < 200.0


def test_steps_scale_a_local_run() -> None:
    """2,000 steps of 20,000 took 1,000 s; a start-up of at most two minutes is taken for one."""
    whole = whole_job_duration(TaskFeatures(task="silent", steps=20_000), finished(1_000.0, steps=2_000))

    assert whole.time_s == pytest.approx(60.0 + 940.0 * 10)


def test_steps_of_a_cut_run_with_a_rate_are_the_whole_job() -> None:
    cut = finished(600.0).model_copy(
        update={
            "end": RunEnd.TIMED_OUT,
            "configuration": Configuration(
                instance_type="local",
                provider="local",
                workers=1,
                attributes={"steps_per_s": 4.0, "rate_error": 0.01, "startup_s": 20.0, "startup_error_s": 1.0},
            ),
        }
    )

    assert whole_job_duration(TaskFeatures(task="silent", steps=20_000), cut).time_s == pytest.approx(5_020.0)


def test_a_training_that_the_memory_cannot_hold_is_left_out(context: ModelContext) -> None:
    """7e9 parameters with Adam on a K80 of 12 GB: asked alone, it was answered with 48 days and "will run"."""
    task = TaskFeatures(task="ResNet-50", parameter_count=7_000_000_000, optimizer="adam")
    machine = Configuration(
        instance_type="vm-k80", provider="gcp", workers=1, batch_size=32, accelerator="K80", accelerators=1
    )

    reply = rank(RankRequest(task=task, configurations=(machine,), objective=Objective.TIME), context)

    assert reply.ranked == ()
    assert reply.rejected == {"will not fit": 1}
    assert any("7e9 parameters need at least 104 GiB" in one and "one K80 has 12 GB" in one for one in reply.warnings)


def test_machines_that_were_measured_after_the_training_are_not_known_yet(records: list[JobRecord]) -> None:
    """The model would have answered from other providers' machines, whatever the new records say."""
    later = [
        one.model_copy(
            update={
                "job": f"later-{number}",
                "configuration": one.configuration.model_copy(update={"provider": "new", "instance_type": "later"}),
            }
        )
        for number, one in enumerate(records[:3])
    ]
    before, kept = advisor(records), Records()
    for one in [*records, *later]:
        kept.add(one)
    where = later[0].configuration.model_copy(update={"attributes": {}})
    question = PredictRequest(task=later[0].task, configurations=(where, records[0].configuration))
    new, old = predict(question, replace(before, measured=kept.measured())).predictions
    assert not new.known
    assert new.why_unknown == MEASURED_LATER
    assert old.known
    (again,) = predict(
        PredictRequest(task=later[0].task, configurations=(where,)), advisor([*records, *later])
    ).predictions
    assert again.known

"""The advisor on a bus in memory, its trainings in this process: when it trains, what it says, what it tells."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.codec import to_plain
from schemas.jobs import Configuration, JobRecord, TaskFeatures
from schemas.message import Message
from schemas.predictions import (
    Objective,
    Prediction,
    PredictReply,
    PredictRequest,
    Question,
    RankReply,
    RankRequest,
    TrainReply,
    TrainRequest,
)
from schemas.runs import SERIES, RunEnd, RunProfile
from schemas.service import Endpoint
from schemas.services.advisor import ADVISOR_PREDICT, ADVISOR_RANK, ADVISOR_TRAIN
from schemas.streams import MODELS, PREDICTION_STREAM
from schemas.subjects import JOB_RECORDS, RUN_PROFILES
from services._jobs.record_files import write_job_file
from services._runtime.bus.api import Delivery, RequestRefusedError
from services._runtime.settings_error import UnusableSettingsError
from services.advisor.core.accelerator_times import ROOFLINE
from services.advisor.ports import TrainingFailedError, TrainingSet
from services.advisor.records import Records
from services.advisor.service import Advisor
from services.advisor.settings import AdvisorSettings
from services.advisor.training import train
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.service_in_process import run_in_process
from tests.support.training_jobs import features, profile, records

TASKS = ("a", "b", "c")


class Tutor:
    """Trains here and now; can be held back, and can fail."""

    def __init__(self) -> None:
        self.training_sets: list[TrainingSet] = []
        self.go = asyncio.Event()
        self.go.set()
        self.failure = ""
        self.cancelled = 0

    async def train(self, training_set: TrainingSet) -> bytes:
        self.training_sets.append(training_set)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure:
            raise TrainingFailedError(self.failure)
        return train(training_set, len(self.training_sets))


class Ground:
    """A broker, and what an advisor needs."""

    def __init__(self, directory: Path) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.tutor = Tutor()
        self.directory = directory

    async def tell(self, *messages: JobRecord | RunProfile) -> None:
        for message in messages:
            if isinstance(message, JobRecord):
                subject, name = JOB_RECORDS.subject(self.bus.root, job=message.job), message.job
            else:
                subject, name = RUN_PROFILES.subject(self.bus.root, run=message.run), message.run
            self.bus.publish_event(subject, message, message_id=name)
        await self.bus.flush(60)

    async def ask(self, endpoint: Endpoint, request: Message) -> Message:
        return await self.bus.request(endpoint.template.subject(self.bus.root), request, timeout_s=60)

    async def rank(self, **changes: Any) -> RankReply:
        reply = await self.ask(ADVISOR_RANK, question(**changes))
        assert isinstance(reply, RankReply)
        return reply

    @asynccontextmanager
    async def advisor(self, **settings: Any) -> AsyncIterator[Advisor]:
        given = {
            "algorithm": "linear",
            "retrain_debounce_s": 0.0,
            "refresh_interval_s": 0.1,
            "prices_directory": str(self.directory),
        }
        made = AdvisorSettings.load({}, **(given | settings))
        tutor = self.tutor

        class Taught(Advisor):
            def __init__(self, runtime: Any) -> None:
                super().__init__(runtime)
                self._trainer = tutor  # type: ignore[assignment]

        async with run_in_process(Taught, made, MemoryBus(self.broker)) as advisor:
            yield advisor


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def question(**changes: Any) -> RankRequest:
    return RankRequest(**({"task": features("z"), "profile": profile("z"), "workers": (1, 2)} | changes))


async def trained(advisor: Advisor, count: int) -> None:
    loop = advisor.retrain_loop
    assert loop is not None
    await until(lambda: loop.model is not None and loop.model.name.records == count)


async def test_enough_records_bring_a_model(ground: Ground) -> None:
    """Too few: the answer says how many are missing and what to do. Enough: trained once, answered, not again."""
    async with ground.advisor(min_records=48) as advisor:
        await ground.tell(*records(("a",)))
        with pytest.raises(RequestRefusedError, match="24 records are known, a model needs 48") as refused:
            await ground.rank()
        await ground.tell(*records(("b",)))
        await trained(advisor, 48)
        reply = await ground.rank()

    assert refused.value.code == 503
    assert len(ground.tutor.training_sets) == 1
    assert reply.model.tasks == 2


async def test_retraining_waits_for_enough_new_records(ground: Ground) -> None:
    """24 new ones are not yet 25; what is told twice is no new record."""
    async with ground.advisor(retrain_after=25) as advisor:
        await ground.tell(*records(TASKS))
        await trained(advisor, 72)
        await ground.tell(*records(("d",)))
        duplicate = records(("a",))[0].model_copy(update={"reason": "told again"})
        ground.bus.publish_event(JOB_RECORDS.subject("tb", job=duplicate.job), duplicate, message_id="another id")
        await ground.bus.flush(60)
        await until(lambda: advisor.records.repeated == 1)
        assert len(advisor.records) == 96
        assert len(ground.tutor.training_sets) == 1
        await ground.tell(records(("e",))[0])
        await trained(advisor, 97)

    assert len(ground.tutor.training_sets) == 2


async def test_train_on_request(ground: Ground) -> None:
    """Answered at once; refused with a reason while one is under way, and where nothing has come since."""
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor:
        await trained(advisor, 72)
        ground.tutor.go.clear()
        unchanged = await ground.ask(ADVISOR_TRAIN, TrainRequest())
        forced = await ground.ask(ADVISOR_TRAIN, TrainRequest(force=True))
        await until(lambda: len(ground.tutor.training_sets) == 2)
        busy = await ground.ask(ADVISOR_TRAIN, TrainRequest(force=True))
        answered = await ground.rank()
        ground.tutor.go.set()
        loop = advisor.retrain_loop
        assert loop is not None
        await until(lambda: loop.trainings == 2)
        other_seed = await ground.ask(ADVISOR_TRAIN, TrainRequest(seed=7))
        await until(lambda: loop.trainings == 3)

    for reply in (unchanged, forced, busy, other_seed):
        assert isinstance(reply, TrainReply)
    assert [unchanged.accepted, forced.accepted, busy.accepted, other_seed.accepted] == [False, True, False, True]  # type: ignore[attr-defined]
    assert "under way" in busy.reason  # type: ignore[attr-defined]
    assert answered.model.records == 72
    assert [training_set.seed for training_set in ground.tutor.training_sets] == [0, 0, 7]


async def test_stop_gives_a_training_up(ground: Ground) -> None:
    """It does not wait for its end."""
    await ground.tell(*records(TASKS))
    ground.tutor.go.clear()
    async with ground.advisor():
        await until(lambda: ground.tutor.training_sets)

    assert ground.tutor.cancelled == 1


async def test_a_failed_training_is_told_and_not_repeated_at_once(ground: Ground) -> None:
    """The answer holds the reason; new records, or a request, make it try again."""
    await ground.tell(*records(TASKS))
    ground.tutor.failure = "the sun shines"
    async with ground.advisor() as advisor:
        loop = advisor.retrain_loop
        assert loop is not None
        await until(lambda: loop.failed_trainings == 1)
        with pytest.raises(RequestRefusedError, match="no model could be trained: the sun shines") as refused:
            await ground.rank()
        assert refused.value.code == 500  # not 503: whoever has patience need not wait
        ground.tutor.failure = ""
        assert len(ground.tutor.training_sets) == 1
        await ground.ask(ADVISOR_TRAIN, TrainRequest())
        await trained(advisor, 72)


async def test_a_restart_takes_the_stored_model(ground: Ground) -> None:
    """And a second replica too: nothing is trained twice."""
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor:
        await trained(advisor, 72)
    async with ground.advisor() as again, ground.advisor() as replica:
        await trained(again, 72)
        await trained(replica, 72)

    assert len(ground.tutor.training_sets) == 1


async def test_a_corrupt_model_is_trained_anew(ground: Ground) -> None:
    """It counts, and its place is taken."""
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor:
        await trained(advisor, 72)
    objects = ground.bus.objects(MODELS)
    (version,) = await objects.names()
    await objects.put(version, b"garbage")

    async with ground.advisor() as advisor:
        await trained(advisor, 72)
        loop = advisor.retrain_loop
        assert loop is not None
        assert loop.unusable_models == 1

    assert len(ground.tutor.training_sets) == 2
    assert (await objects.get(version)).data != b"garbage"  # type: ignore[union-attr]


async def test_predictions_are_told(ground: Ground) -> None:
    """With model, prices' day and the best 20; without a job's name nothing is."""
    told: list[Prediction] = []

    async def take(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Prediction)
        told.append(delivery.message)

    await ground.bus.replay(PREDICTION_STREAM, take)
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor:
        await trained(advisor, 72)
        await ground.rank()
        reply = await ground.ask(ADVISOR_RANK, question(job="my.job", workers=tuple(range(1, 20))))
        await ground.ask(ADVISOR_PREDICT, PredictRequest(task=features("z"), job="other"))
        await until(lambda: len(told) == 2)

    assert isinstance(reply, RankReply)
    assert [one.job for one in told] == ["my.job", "other"]
    assert told[0].model == reply.model
    assert told[0].prices_as_of == reply.prices_as_of
    assert told[0].considered == 4 * 19
    assert len(told[0].predictions) <= 20


async def test_nonsense_in_records_is_left_out(ground: Ground) -> None:
    """Features that are no numbers, and local runs without samples, are rejected; the rest is learned from."""
    good = records(TASKS)
    strange = features("a").model_copy(update={"attributes": {"f": math.nan}})
    empty = profile("a").model_copy(update={"run": "empty", "workers": (), "end": RunEnd.INTERRUPTED})
    async with ground.advisor() as advisor:
        await ground.tell(good[0].model_copy(update={"job": "x", "task": strange}), empty, *good)
        await trained(advisor, 72)

    assert advisor.records.rejected == 2
    assert advisor.records.runs == {}


async def test_a_machine_for_nothing_is_never_ranked_first(ground: Ground) -> None:
    """Records and price files with 0 where there is no price: no configuration is ranked at $0."""
    free = [
        one.model_copy(update={"price": one.price.model_copy(update={"usd_per_hour": 0.0, "spot_usd_per_hour": 0.0})})
        if one.price is not None and one.configuration.instance_type == "large"
        else one
        for one in records(TASKS)
    ]
    machines = [
        {"instance_type": name, "vcpu": 4, "memory_gb": 16, "usd_per_hour": usd}
        for name, usd in (("free", 0.0), ("paid", 0.1))
    ]
    plain = {"format": 1, "source": "s", "provider": "emulated", "region": "r", "as_of": "2026-11-20", "note": ""}
    (ground.directory / "s.json").write_text(json.dumps(plain | {"machines": machines}))
    async with ground.advisor() as advisor:
        await ground.tell(*free)
        await trained(advisor, 72)
        reply = await ground.rank(providers=("emulated",), top=50)

    names = {one.configuration.instance_type for one in reply.ranked}
    assert {"free", "large"}.isdisjoint(names)
    assert names
    assert all(one.cost_usd is not None and one.cost_usd.median > 0 for one in reply.ranked)


async def test_times_and_costs_that_cannot_be_are_rejected_with_a_reason() -> None:
    """From the bus, too: one job of 1e308 s makes every prediction a number of 300 digits."""
    held = Records()
    long, dear, fine = records(("a",))[:3]

    assert (
        held.add(long.model_copy(update={"duration_s": 1e308}))
        == f"job {long.job}: duration_s: 1e+308 s is more than ten years"
    )
    assert (
        held.add(dear.model_copy(update={"cost_usd": 1e300}))
        == f"job {dear.job}: cost_usd: 1e+300 dollars is more than a billion"
    )
    assert "more than ten years" in str(held.add_run(profile("a").model_copy(update={"duration_s": 1e30})))
    assert held.add(fine) is None
    assert (held.rejected, len(held)) == (3, 1)


async def test_answers_name_the_source_of_their_prices(ground: Ground) -> None:
    """Vertex AI's where nothing is said; a question may choose another one, that exists."""
    async with ground.advisor() as advisor:
        await ground.tell(*records(TASKS))
        await trained(advisor, 72)
        reply = await ground.ask(ADVISOR_PREDICT, of_gcp())
        chosen = await ground.ask(ADVISOR_PREDICT, of_gcp(price_sources=("gcp-gce",)))
        with pytest.raises(
            RequestRefusedError, match=r"no prices of 'gcp-gke' are known \(sources: gcp-gce, gcp-vertex\)"
        ):
            await ground.ask(ADVISOR_PREDICT, of_gcp(price_sources=("gcp-gke",)))

    assert isinstance(reply, PredictReply)
    assert isinstance(chosen, PredictReply)
    assert (reply.price_sources, chosen.price_sources) == (("gcp-vertex",), ("gcp-gce",))
    ours, other = reply.predictions[0].cost_usd, chosen.predictions[0].cost_usd
    assert ours is not None
    assert other is not None
    assert ours.median > other.median


def of_gcp(**changes: Any) -> PredictRequest:
    where = Configuration(instance_type="n1-standard-4", provider="gcp", workers=2, batch_size=32)
    return PredictRequest(task=features("z"), configurations=(where,), **changes)


async def test_data_hash_ignores_order_and_not_content() -> None:
    """The same records in any order make the same version; one more, or another number, another one."""

    def hashed(found: Sequence[JobRecord]) -> str:
        held = Records()
        for record in found:
            assert held.add(record) is None
        return held.data_hash()

    found = records(("a",))
    changed = [found[0].model_copy(update={"duration_s": 1.0}), *found[1:]]

    assert hashed(found) == hashed(found[::-1])
    assert len({hashed(found), hashed(found[1:]), hashed(changed)}) == 3


async def test_data_sets_are_known_beside_the_bus(ground: Ground, tmp_path: Path) -> None:
    """From a file, less the tasks that are left out, whose local run stays known."""
    path = tmp_path / "jobs.parquet"
    write_job_file(path, records(TASKS), [profile(task) for task in TASKS])

    async with ground.advisor(datasets=(str(path),), held_out_tasks=("c",)) as advisor:
        await trained(advisor, 48)
        assert set(advisor.records.runs) == {"run-a", "run-b", "run-c"}
        assert {record.task.task for record in advisor.records.jobs.values()} == {"a", "b"}


async def test_the_shipped_data_set_is_learned_where_a_question_asks_for_it(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new user's bus is empty: the flag brings an answer. Without it nothing is learned that is not on the bus."""
    write_job_file(tmp_path / "shipped.parquet", records(TASKS), [profile(task) for task in TASKS])
    monkeypatch.setattr("services.advisor.model_lineages.DATA", tmp_path)
    async with ground.advisor() as advisor:
        with pytest.raises(RequestRefusedError, match="--shipped-data"):
            await ground.rank()
        with pytest.raises(RequestRefusedError, match="first model") as refused:
            await ground.rank(shipped_data=True)
        assert refused.value.code == 503
        lineage = await advisor.lineages.for_question(Question(task=TaskFeatures(task="a"), shipped_data=True))
        await until(lambda: lineage.retrain_loop.model is not None)
        assert (await ground.rank(shipped_data=True)).model.records == len(records(TASKS))
        assert len(advisor.records) == 0
        with pytest.raises(RequestRefusedError, match="0 records are known"):
            await ground.rank()

        await ground.tell(*records(("d", "e")))  # the user's own records are learned beside them
        await until(lambda: len(lineage.records) == len(records((*TASKS, "d", "e"))))
        assert {record.task.task for record in advisor.records.jobs.values()} == {"d", "e"}
        await trained(advisor, len(records(("d", "e"))))
        assert (await ground.rank()).model.records == len(records(("d", "e")))


@pytest.mark.parametrize("name", ["nothing.parquet", "shipped"])
async def test_a_data_set_that_is_not_there(
    ground: Ground, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends the start with a sentence."""
    monkeypatch.setattr("services.advisor.model_lineages.DATA", tmp_path)

    with pytest.raises(UnusableSettingsError, match="TURNBUCKLE_ADVISOR__DATASETS"):
        async with ground.advisor(datasets=(name,)):
            pass


async def test_the_public_gpu_set_has_a_lineage_of_its_own(ground: Ground) -> None:
    """It answers a training that never ran; neither the bus's records nor the emulated ones have its records."""
    task = TaskFeatures(task="mine", steps=100, step_flops=2e10, step_bytes=6e8, step_weight_bytes=3e8)
    where = Configuration(
        instance_type="vm", provider="gcp", workers=1, batch_size=32, vcpu=8.0, memory_gb=30.0, accelerator="T4",
        accelerators=1,
    )  # fmt: skip
    question = Question(task=task, configurations=(where,), accelerator_data=True)
    async with ground.advisor() as advisor:
        lineage = await advisor.lineages.for_question(question)
        assert lineage is await advisor.lineages.for_question(question)
        assert len(lineage.records) > 900
        assert len(advisor.records) == 0
        await until(lambda: lineage.retrain_loop.model is not None)
        asked = {"task": task, "profile": None, "workers": (), "objective": Objective.TIME}
        reply = await ground.rank(**asked, configurations=(where,), accelerator_data=True)
    assert [one.configuration.accelerator for one in reply.ranked] == ["T4"]
    assert f"1 of 1 configurations are known {ROOFLINE}" in reply.warnings


async def test_prices_of_a_day(ground: Ground) -> None:
    """A day before all prices is refused; records' own prices count where nothing lists a machine."""
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor:
        await trained(advisor, 72)
        with pytest.raises(RequestRefusedError, match="no prices are known of 2001-01-01") as refused:
            await ground.ask(ADVISOR_RANK, question(prices_as_of="2001-01-01"))
        reply = await ground.rank()

    assert refused.value.code == 400
    assert str(reply.prices_as_of) == "2026-11-20"
    assert {one.configuration.provider for one in reply.ranked} == {"emulated"}


async def test_a_local_run_that_its_json_made_too_large_keeps_nobody_from_starting(ground: Ground) -> None:
    """As JSON it fits into a message, decoded it does not: it is rejected once, not told again and again."""
    large = to_plain(profile("large", samples=1))
    large["workers"] = [{"worker": "master"} | dict.fromkeys(SERIES, [0] * 40_000)]
    subject = RUN_PROFILES.subject(ground.bus.root, run=large["run"])
    ground.broker.publish_event(subject.text, json.dumps(large).encode(), "large")
    await ground.tell(*records(TASKS))

    async with ground.advisor() as advisor:
        await trained(advisor, 72)

    assert (advisor.records.rejected, advisor.records.runs) == (1, {})


def test_a_failed_local_run_is_nobodys() -> None:
    """It is known by its name; a task's local run is one that ran."""
    held = Records()
    failed = profile("a", run="first").model_copy(update={"end": RunEnd.FAILED})

    assert held.add_run(failed) is None
    assert held.measured().local_run == {}
    assert held.add_run(profile("a", run="second")) is None

    assert held.measured().local_run == {"a": "second"}
    assert set(held.measured().runs) == {"first", "second"}


async def test_a_job_that_no_subject_can_name_is_refused(ground: Ground) -> None:
    """Before the work, with the reason."""
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor:
        await trained(advisor, 72)
        with pytest.raises(RequestRefusedError, match="job: id of 201 escaped characters") as refused:
            await ground.ask(ADVISOR_RANK, question(job="x" * 201))

    assert refused.value.code == 400
    assert advisor.answered == 0


async def test_what_was_trained_before_is_used_again_where_it_is_asked_for(ground: Ground) -> None:
    """By all replicas, and without another training."""
    await ground.tell(*records(TASKS))
    async with ground.advisor() as advisor, ground.advisor() as replica:
        await trained(advisor, 72)
        await trained(replica, 72)
        taught = len(ground.tutor.training_sets)
        await ground.ask(ADVISOR_TRAIN, TrainRequest(seed=7))
        await until(lambda: all(in_use(one).endswith("-s7") for one in (advisor, replica)))
        await ground.ask(ADVISOR_TRAIN, TrainRequest(seed=0))
        await until(lambda: all(in_use(one).endswith("-s0") for one in (advisor, replica)))

    assert len(ground.tutor.training_sets) == taught + 1


def in_use(advisor: Advisor) -> str:
    """The version of its model."""
    assert advisor.retrain_loop is not None
    assert advisor.retrain_loop.model is not None
    return advisor.retrain_loop.model.name.version

"""The advisor on a real bus: learns from what the streams hold, answers, survives what happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schemas.jobs import JobRecord, TaskFeatures
from schemas.message import Message
from schemas.predictions import (
    AdviceExplainReply,
    AdviceExplainRequest,
    PredictReply,
    PredictRequest,
    RankReply,
    RankRequest,
    TrainReply,
    TrainRequest,
)
from schemas.runs import RunEnd, RunProfile
from schemas.service import Endpoint
from schemas.services.advisor import ADVISOR_EXPLAIN, ADVISOR_PREDICT, ADVISOR_RANK, ADVISOR_TRAIN
from schemas.streams import MODELS, PREDICTION_STREAM
from schemas.subjects import JOB_RECORDS, RUN_PROFILES
from services._runtime.bus.api import BusError, Delivery, RequestRefusedError
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support.cluster_lab import poll
from tests.support.deadline import until
from tests.support.training_jobs import configuration, features, profile, records

TASKS = tuple(f"task{number}" for number in range(4))
ASKED = "task9"
pytestmark = pytest.mark.timeout(300)  # some 5 s each; importing scikit-learn takes a minute on a machine at its limit


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    """One real server for the module."""
    made = EmbeddedNats()
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


class Ground:
    """A bus of its own on the server, and advisor processes on it."""

    def __init__(self, server: EmbeddedNats, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.root = f"t{uuid.uuid4().hex[:10]}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.bus: NatsBus

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        """An advisor process."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))},
            "TURNBUCKLE_NATS_URL": self.server.url,
            "TURNBUCKLE_SUBJECT_ROOT": self.root,
            "TURNBUCKLE_ADVISOR__ALGORITHM": "linear",
            "TURNBUCKLE_ADVISOR__REFRESH_INTERVAL_S": "0.2",
            "TURNBUCKLE_ADVISOR__RETRAIN_DEBOUNCE_S": "0.2",
            "TURNBUCKLE_ADVISOR__PRICES_DIRECTORY": str(self.directory / "prices"),
            **{f"TURNBUCKLE_ADVISOR__{name.upper()}": value for name, value in settings.items()},
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "services.advisor"], env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.directory / "advisor.log"

    async def publish(self, *messages: JobRecord | RunProfile) -> None:
        for message in messages:
            if isinstance(message, JobRecord):
                subject, name = JOB_RECORDS.subject(self.root, job=message.job), message.job
            else:
                subject, name = RUN_PROFILES.subject(self.root, run=message.run), message.run
            self.bus.publish_event(subject, message, message_id=name)
        await self.bus.flush(60)

    async def ask(self, endpoint: Endpoint, request: Message) -> Message:
        return await self.bus.request(endpoint.template.subject(self.root), request, timeout_s=60)

    async def ask_when_ready(self, endpoint: Endpoint, request: Message, *, within_s: float = 150.0) -> Message:
        """As `ask`, again and again while nobody is there or no model is."""
        last = "nobody answered"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return await self.ask(endpoint, request)
                    except RequestRefusedError as error:
                        if error.code != 503:
                            raise
                        last = str(error)
                    except BusError as error:
                        last = str(error)
                    await asyncio.sleep(0.3)
        raise AssertionError(f"{last}\n{self.log.read_text(errors='replace')[-3000:]}")

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        await self.bus.close(2.0)


@pytest.fixture
async def ground(server: EmbeddedNats, tmp_path: Path) -> AsyncIterator[Ground]:
    """A ground with the records of four tasks on the bus."""
    made = Ground(server, tmp_path)
    options = BusOptions(servers=(server.url,), root=made.root, connect_deadline_s=60)
    made.bus = await NatsBus.connect(options)
    await made.publish(*(profile(task) for task in TASKS), *records(TASKS))
    yield made
    await made.close()


def question() -> RankRequest:
    return RankRequest(task=features(ASKED), profile=profile(ASKED), workers=(1, 2, 4), batch_sizes=(16, 64))


async def test_from_records_to_answers(ground: Ground) -> None:
    """Records on the bus, a model in the store, and all four questions answered; the prediction is told as a fact."""
    told: list[Delivery] = []

    async def take(delivery: Delivery) -> None:
        told.append(delivery)

    await ground.bus.replay(PREDICTION_STREAM, take)
    ground.start()

    ranked = await ground.ask_when_ready(ADVISOR_RANK, question().model_copy(update={"job": "my-job"}))
    predicted = await ground.ask(ADVISOR_PREDICT, PredictRequest(task=features(ASKED), profile=profile(ASKED)))
    one = configuration("large", 2, 16)
    explained = await ground.ask(
        ADVISOR_EXPLAIN, AdviceExplainRequest(task=features(ASKED), profile=profile(ASKED), configurations=(one,))
    )
    trained = await ground.ask(ADVISOR_TRAIN, TrainRequest())

    assert isinstance(ranked, RankReply)
    assert ranked.considered == 24  # 4 machines x 3 worker counts x 2 batch sizes
    assert ranked.model.records == 96
    costs = [one.cost_usd.median for one in ranked.ranked if one.cost_usd is not None]
    assert costs == sorted(costs)
    assert isinstance(predicted, PredictReply)
    assert predicted.model == ranked.model
    assert isinstance(explained, AdviceExplainReply)
    assert isinstance(trained, TrainReply)
    assert (trained.accepted, trained.reason) == (False, "no record has come since the last training")
    await until(lambda: len(told) == 1)
    assert told[0].message.model == ranked.model  # type: ignore[attr-defined]
    assert set(await ground.bus.objects(MODELS).names()) == {ranked.model.version}


async def test_bad_questions(ground: Ground) -> None:
    """Each is answered with a sentence that says what is wrong and what to do, and the advisor goes on."""
    ground.start()
    await ground.ask_when_ready(ADVISOR_RANK, question())
    good = question()
    unknown = configuration("large", 1, 16).model_copy(update={"instance_type": "larg", "vcpu": 0.0})
    short = profile(ASKED, samples=3).model_copy(update={"end": RunEnd.TIMED_OUT})
    nan = features(ASKED).model_copy(update={"attributes": {"x": float("nan")}})
    cases = {
        "did you mean 'large'": good.model_copy(update={"configurations": (unknown,)}),
        "lasted 3 s": good.model_copy(update={"profile": short}),
        "x is nan": good.model_copy(update={"task": nan}),
        "nothing is known of the task 'mystery'": RankRequest(task=TaskFeatures(task="mystery")),
        "no local run 'run-task' is known; did you mean": good.model_copy(update={"profile": None, "run": "run-task"}),
        "too many": good.model_copy(update={"workers": tuple(range(1, 300))}),
    }

    for words, request in cases.items():
        with pytest.raises(RequestRefusedError, match=words.replace("(", r"\(")) as caught:
            await ground.ask(ADVISOR_RANK, request)
        assert caught.value.code == 400

    assert isinstance(await ground.ask(ADVISOR_RANK, good), RankReply)


@pytest.mark.host  # two advisors or more, each imports scikit-learn
async def test_killed_in_the_middle_of_a_training(ground: Ground) -> None:
    """Kill -9 while it trains: the training dies with it, the next one learns everything again and stores one model."""
    process = ground.start(algorithm="gp")
    await until(lambda: b"training_started" in ground.log.read_bytes(), within_s=100, what="a training")
    worker = await _child(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()

    await until(lambda: not Path(f"/proc/{worker}").exists(), what="the training's end")
    assert await ground.bus.objects(MODELS).names() == {}
    ground.start(algorithm="gp")
    reply = await ground.ask_when_ready(ADVISOR_RANK, question())

    assert isinstance(reply, RankReply)
    assert reply.model.records == 96


async def _child(pid: int) -> int:
    """The training process of an advisor."""
    found: list[int] = []

    def look() -> bool:
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = status.read_text().rpartition(")")[2].split()
                if int(text[1]) == pid and b"services.advisor.training" in status.with_name("cmdline").read_bytes():
                    found.append(int(status.parent.name))
        return bool(found)

    await until(look, within_s=60, what="a training process")
    return found[0]


@pytest.mark.host  # two advisors or more, each imports scikit-learn
async def test_two_replicas_share_a_model(ground: Ground) -> None:
    """The one that comes later takes the stored model over without training; both answer, with the same version."""
    first = ground.start()
    reply = await ground.ask_when_ready(ADVISOR_RANK, question())
    assert isinstance(reply, RankReply)
    second = ground.start()
    await until(lambda: ground.log.read_bytes().count(b"advisor_started") == 2, within_s=100, what="the second one")
    await until(lambda: ground.log.read_bytes().count(b"model_in_use") == 1, within_s=60, what="its model")
    assert ground.log.read_bytes().count(b"training_started") == 1

    versions = set()
    for _ in range(20):
        answer = await ground.ask(ADVISOR_RANK, question())
        assert isinstance(answer, RankReply)
        versions.add(answer.model.version)
    assert versions == {reply.model.version}
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert isinstance(await ground.ask_when_ready(ADVISOR_RANK, question()), RankReply)
    second.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(second.wait, 60) == 0


@pytest.mark.host  # two advisors or more, each imports scikit-learn
async def test_new_records_reach_every_replica(ground: Ground) -> None:
    """Enough new ones, and a new model is trained by itself; before long all replicas answer with it."""
    ground.start(retrain_after="20")
    ground.start(retrain_after="20")
    before = await ground.ask_when_ready(ADVISOR_RANK, question())
    assert isinstance(before, RankReply)
    assert before.model.records == 96

    await ground.publish(*records(("task5",)))

    async def every_answer_knows_them() -> bool:
        for _ in range(12):
            reply = await ground.ask_when_ready(ADVISOR_RANK, question())  # the second may train its first one still
            assert isinstance(reply, RankReply)
            if reply.model.records != 120:
                return False
        return True

    await poll(every_answer_knows_them, within_s=150, what="twelve answers in a row out of the new records")


@pytest.mark.host  # two advisors or more, each imports scikit-learn
async def test_a_corrupt_model_is_trained_anew(ground: Ground) -> None:
    """A stored model that cannot be used is an error in the log, and its place is taken: never a crash.

    What makes one unusable, such as a foreign pickle, is the matter of tests/unit/advisor/test_serve_models.py.
    """
    store = ground.bus.objects(MODELS)
    advisor = ground.start()
    reply = await ground.ask_when_ready(ADVISOR_RANK, question())
    assert isinstance(reply, RankReply)
    advisor.send_signal(signal.SIGTERM)
    await asyncio.to_thread(advisor.wait, 60)
    good = await store.get(reply.model.version)
    assert good is not None
    await store.put(reply.model.version, good.data[:-10] + bytes(10))

    ground.start()
    again = await ground.ask_when_ready(ADVISOR_RANK, question())

    assert isinstance(again, RankReply)
    assert again.model.version == reply.model.version
    assert again.model.trained_ns > reply.model.trained_ns
    assert ground.log.read_bytes().count(b"model_unusable") == 1


async def test_one_request_at_a_time_is_no_limit(ground: Ground) -> None:
    """Many questions at once are all answered, also while a training is asked for."""
    ground.start()
    await ground.ask_when_ready(ADVISOR_RANK, question())

    asked: list[asyncio.Task[Message]] = [asyncio.create_task(ground.ask(ADVISOR_RANK, question())) for _ in range(20)]
    await ground.ask(ADVISOR_TRAIN, TrainRequest(force=True))
    replies = await asyncio.gather(*asked)

    assert all(isinstance(reply, RankReply) for reply in replies)

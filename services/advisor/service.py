"""The advisor's wiring: records in, trainings beside, questions answered, predictions told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import ClassVar, TypeVar

from schemas.jobs import JobRecord
from schemas.message import Message
from schemas.predictions import (
    AdviceExplainRequest,
    Prediction,
    PredictReply,
    PredictRequest,
    Question,
    RankReply,
    RankRequest,
    TrainReply,
    TrainRequest,
)
from schemas.registry import ADVISOR_EXPLAIN, ADVISOR_PREDICT, ADVISOR_RANK, ADVISOR_TRAIN, Endpoint
from schemas.runs import RunProfile
from schemas.streams import JOB_STREAM, RUN_STREAM
from schemas.subjects import PREDICTIONS, Subject, SubjectError
from services._runtime.bus.api import Delivery, RequestRefusedError, Responder, Subscription
from services._runtime.service.app import Runtime, UnusableSettingsError
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.tracing import span, trace_headers
from services.advisor.catalogue_files import Catalogue
from services.advisor.core.answers import Advice, best_first, explain, predict, rank
from services.advisor.core.questions import BadQuestionError
from services.advisor.knowledge import KnowledgeBase
from services.advisor.learning import Learning
from services.advisor.records import Records
from services.advisor.settings import AdvisorSettings
from services.advisor.training_process import TrainingProcess

TOLD = 20
"""Predictions in an `evt.prediction`."""
_THREADS = 2

RequestT = TypeVar("RequestT", bound=Question)
ReplyT = TypeVar("ReplyT", bound=Message)


class Advisor:
    """Predicts time and cost of training jobs, and says where to run them."""

    name: ClassVar[str] = "advisor"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AdvisorSettings

    def __init__(self, runtime: Runtime[AdvisorSettings]) -> None:
        self._runtime = runtime
        self._settings = settings = runtime.settings
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._log = runtime.log
        self.catalogue = Catalogue(settings.prices_directory, settings.price_sources, runtime.log)
        self._trainer = TrainingProcess(settings.training_timeout_s)
        self._knowledge: KnowledgeBase | None = None
        self._subscriptions: list[Subscription] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="answer")
        self.answered = 0
        self.refused = 0

    async def start(self) -> None:
        """Read what is known, begin to learn, answer."""
        bus = self._bus
        self._knowledge = KnowledgeBase(self._runtime, self._trainer)
        self._register_metrics(self.learning)
        await asyncio.to_thread(self.catalogue.read)
        await self._knowledge.read_datasets()
        replays = [await bus.replay(RUN_STREAM, self._take), await bus.replay(JOB_STREAM, self._take)]
        self._subscriptions = [*replays]
        for replay in replays:
            await replay.caught_up()
        self._knowledge.start()
        self._runtime.spawn(self._keep_prices(), name="prices")
        endpoints: dict[Endpoint, Responder] = {
            ADVISOR_PREDICT: self.predict,
            ADVISOR_RANK: self.rank,
            ADVISOR_EXPLAIN: self.explain,
            ADVISOR_TRAIN: self.train,
        }
        self._subscriptions.append(
            await bus.serve_queries(
                self.name, self.version, "predicts time and cost of training jobs, and ranks configurations", endpoints
            )
        )
        self._log.info("advisor_started", records=len(self.records), runs=len(self.records.runs))

    async def stop(self) -> None:
        """Stop answering; a training under way is given up."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in reversed(subscriptions):
            await subscription.stop()
        await self._runtime.cancel_tasks()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def not_ready(self) -> str | None:
        """Nothing keeps it from taking questions; whether it has a model stands in the answers."""
        return None

    # -- what is known -------------------------------------------------------------------------------------------

    @property
    def knowledge(self) -> KnowledgeBase:
        """From the start on."""
        assert self._knowledge is not None, "not started"
        return self._knowledge

    @property
    def records(self) -> Records:
        """Of the bus and of the settings' files."""
        return self.knowledge.own.records

    @property
    def learning(self) -> Learning:
        """From `records`."""
        return self.knowledge.own.learning

    async def _take(self, delivery: Delivery) -> None:
        """A record or a local run from the bus."""
        if isinstance(delivery.message, (JobRecord, RunProfile)):
            self.knowledge.add(delivery.message, trace_headers())

    async def _keep_prices(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + self._settings.refresh_interval_s)
            await asyncio.to_thread(self.catalogue.read)

    # -- questions -----------------------------------------------------------------------------------------------

    async def predict(self, delivery: Delivery) -> Message:
        """Time and cost of each configuration."""
        request = _expect(delivery.message, PredictRequest)
        subject = self._subject(request)
        reply = await self._answer("advisor.predict", request, predict)
        self._tell(subject, request, reply)
        return reply

    async def rank(self, delivery: Delivery) -> Message:
        """The best configurations."""
        request = _expect(delivery.message, RankRequest)
        subject = self._subject(request)
        reply = await self._answer("advisor.rank", request, rank)
        self._tell(subject, request, reply)
        return reply

    async def explain(self, delivery: Delivery) -> Message:
        """Why one configuration is predicted as it is."""
        return await self._answer("advisor.explain", _expect(delivery.message, AdviceExplainRequest), explain)

    async def _answer(self, name: str, request: RequestT, answer: Callable[[RequestT, Advice], ReplyT]) -> ReplyT:
        """Work on it in a thread: the loop goes on."""
        advice = await self._advice(request)
        attributes = {
            "turnbuckle__model": advice.model.version,
            "turnbuckle__configurations": len(request.configurations),
        }
        with span(name, **attributes):
            try:
                reply = await asyncio.get_running_loop().run_in_executor(self._threads, answer, request, advice)
            except BadQuestionError as error:
                raise self._refusal(400, str(error)) from error
        self.answered += 1
        return reply

    async def _advice(self, request: Question) -> Advice:
        try:
            known = await self.knowledge.for_question(shipped_data=request.shipped_data)
        except UnusableSettingsError as error:
            raise self._refusal(500, str(error)) from error
        model = known.learning.model
        if model is None:
            raise self._refusal(500 if known.learning.has_failed else 503, known.learning.why_no_model())
        try:
            listing = self.catalogue.listing(request.prices_as_of, known.records)
        except BadQuestionError as error:
            raise self._refusal(400, str(error)) from error
        return Advice(model.adviser, model.name, listing, known.records.measured(), self._settings.spot_terms())

    def _refusal(self, code: int, reason: str) -> RequestRefusedError:
        self.refused += 1
        return RequestRefusedError(code, reason)

    def _subject(self, request: Question) -> Subject | None:
        """Where the answer is to be told, if anywhere."""
        try:
            return PREDICTIONS.subject(self._bus.root, job=request.job) if request.job else None
        except SubjectError as error:
            raise self._refusal(400, f"job: {error}") from error

    def _tell(self, subject: Subject | None, request: Question, reply: PredictReply | RankReply) -> None:
        if subject is None:
            return
        now_ns = self._clock.time_ns()
        fact = Prediction(
            job=request.job, task=request.task, model=reply.model, prices_as_of=reply.prices_as_of, level=reply.level,
            predictions=best_first(reply, TOLD), time_ns=now_ns,
            considered=reply.considered if isinstance(reply, RankReply) else len(reply.predictions),
        )  # fmt: skip
        self._bus.publish_event(subject, fact, message_id=f"prediction-{request.job}-{now_ns}")

    async def train(self, delivery: Delivery) -> Message:
        """Train anew; answered at once."""
        request = _expect(delivery.message, TrainRequest)
        learning = self.learning
        reason = learning.ask(request)
        return TrainReply(
            accepted=reason is None,
            reason=reason or "",
            model=learning.model.name if learning.model is not None else None,
        )

    def _register_metrics(self, learning: Learning) -> None:
        records = self.records
        for name, read in {
            "records": lambda: len(records),
            "local_runs": lambda: len(records.runs),
            "rejected_records_total": lambda: records.rejected,
            "answered_queries_total": lambda: self.answered,
            "rejected_queries_total": lambda: self.refused,
            "trainings_total": lambda: learning.trainings,
            "failed_trainings_total": lambda: learning.failed_trainings,
            "unusable_models_total": lambda: learning.unusable_models,
        }.items():
            self._runtime.telemetry.observe(f"turnbuckle_advisor_{name}", read)


def _expect(message: Message, model: type[ReplyT]) -> ReplyT:
    if not isinstance(message, model):
        raise RequestRefusedError(400, f"unexpected {message.type_name}")
    return message

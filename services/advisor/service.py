"""The advisor's wiring: records from the bus, retrain loops, queries, published predictions."""

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
from schemas.runs import RunProfile
from schemas.service import Endpoint
from schemas.services.advisor import ADVISOR_EXPLAIN, ADVISOR_PREDICT, ADVISOR_RANK, ADVISOR_TRAIN
from schemas.streams import JOB_STREAM, RUN_STREAM
from schemas.subjects import PREDICTIONS, Subject, SubjectError
from services._runtime.bus.api import Delivery, RequestRefusedError, Responder, Subscription
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import UnusableSettingsError
from services._runtime.telemetry.tracing import span, trace_headers
from services.advisor.core.answers import ModelContext, best_first, explain, predict, rank
from services.advisor.core.catalogue import Listing
from services.advisor.core.questions import BadQuestionError
from services.advisor.model_lineages import ModelLineages
from services.advisor.price_files import Catalogue
from services.advisor.records import Records
from services.advisor.retrain_loop import RetrainLoop
from services.advisor.settings import AdvisorSettings
from services.advisor.training import TrainingProcess

MAX_PUBLISHED = 20
"""Predictions in an `evt.prediction`."""
_THREADS = 2

RequestT = TypeVar("RequestT", bound=Question)
ReplyT = TypeVar("ReplyT", bound=Message)


class Advisor:
    """Predicts time and cost of training jobs, and ranks configurations."""

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
        self._lineages: ModelLineages | None = None
        self._subscriptions: list[Subscription] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="answer")
        self.answered = 0
        self.refused = 0

    async def start(self) -> None:
        """Read record files and replay the bus's records, then start the retrain loop and the queries."""
        bus = self._bus
        self._lineages = ModelLineages(self._runtime, self._trainer)
        self._register_metrics(self.retrain_loop)
        await asyncio.to_thread(self.catalogue.read)
        await self._lineages.read_datasets()
        replays = [await bus.replay(RUN_STREAM, self._on_record), await bus.replay(JOB_STREAM, self._on_record)]
        self._subscriptions = [*replays]
        for replay in replays:
            await replay.caught_up()
        self._lineages.start()
        self._runtime.spawn(self._refresh_prices(), name="prices")
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
        """Stop the queries; a training under way is cancelled."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in reversed(subscriptions):
            await subscription.stop()
        await self._runtime.cancel_tasks()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def not_ready(self) -> str | None:
        """Always ready for queries; those without a model are refused with the reason."""
        return None

    # -- records and models ------------------------------------------------------------------------------------

    @property
    def lineages(self) -> ModelLineages:
        """Available after `start`."""
        assert self._lineages is not None, "not started"
        return self._lineages

    @property
    def records(self) -> Records:
        """Records of the bus and of the settings' files."""
        return self.lineages.own.records

    @property
    def retrain_loop(self) -> RetrainLoop:
        """The loop that trains on `records`."""
        return self.lineages.own.retrain_loop

    async def _on_record(self, delivery: Delivery) -> None:
        """A record or a local run from the bus."""
        if isinstance(delivery.message, (JobRecord, RunProfile)):
            self.lineages.add(delivery.message, trace_headers())

    async def _refresh_prices(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + self._settings.refresh_interval_s)
            await asyncio.to_thread(self.catalogue.read)

    # -- queries -----------------------------------------------------------------------------------------------

    async def predict(self, delivery: Delivery) -> Message:
        """Time and cost of each configuration."""
        request = _expect(delivery.message, PredictRequest)
        subject = self._subject(request)
        reply = await self._answer("advisor.predict", request, predict)
        self._publish_prediction(subject, request, reply)
        return reply

    async def rank(self, delivery: Delivery) -> Message:
        """The best configurations."""
        request = _expect(delivery.message, RankRequest)
        subject = self._subject(request)
        reply = await self._answer("advisor.rank", request, rank)
        self._publish_prediction(subject, request, reply)
        return reply

    async def explain(self, delivery: Delivery) -> Message:
        """Why one configuration is predicted as it is."""
        return await self._answer("advisor.explain", _expect(delivery.message, AdviceExplainRequest), explain)

    async def _answer(self, name: str, request: RequestT, answer: Callable[[RequestT, ModelContext], ReplyT]) -> ReplyT:
        """Answer a query in a thread, so that the event loop is not blocked."""
        context = await self._context(request)
        attributes = {
            "turnbuckle__model": context.model.version,
            "turnbuckle__configurations": len(request.configurations),
        }
        with span(name, **attributes):
            try:
                reply = await asyncio.get_running_loop().run_in_executor(self._threads, answer, request, context)
            except BadQuestionError as error:
                raise self._refusal(400, str(error)) from error
        self.answered += 1
        return _with_price_sources(reply, context.listing)

    async def _context(self, request: Question) -> ModelContext:
        try:
            lineage = await self.lineages.for_question(request)
        except UnusableSettingsError as error:
            raise self._refusal(500, str(error)) from error
        model = lineage.retrain_loop.model
        if model is None:
            raise self._refusal(500 if lineage.retrain_loop.has_failed else 503, lineage.retrain_loop.why_no_model())
        try:
            listing = self.catalogue.listing(request.prices_as_of, lineage.records, request.price_sources)
        except BadQuestionError as error:
            raise self._refusal(400, str(error)) from error
        return ModelContext(model.trained, model.name, listing, lineage.records.measured(), self._settings.spot_terms())

    def _refusal(self, code: int, reason: str) -> RequestRefusedError:
        self.refused += 1
        return RequestRefusedError(code, reason)

    def _subject(self, request: Question) -> Subject | None:
        """Subject on which the prediction is published, or None."""
        try:
            return PREDICTIONS.subject(self._bus.root, job=request.job) if request.job else None
        except SubjectError as error:
            raise self._refusal(400, f"job: {error}") from error

    def _publish_prediction(self, subject: Subject | None, request: Question, reply: PredictReply | RankReply) -> None:
        if subject is None:
            return
        now_ns = self._clock.time_ns()
        prediction = Prediction(
            job=request.job,
            task=request.task,
            model=reply.model,
            prices_as_of=reply.prices_as_of,
            level=reply.level,
            predictions=best_first(reply, MAX_PUBLISHED),
            time_ns=now_ns,
            considered=reply.considered if isinstance(reply, RankReply) else len(reply.predictions),
        )
        self._bus.publish_event(subject, prediction, message_id=f"prediction-{request.job}-{now_ns}")

    async def train(self, delivery: Delivery) -> Message:
        """Request a training; replies at once."""
        request = _expect(delivery.message, TrainRequest)
        loop = self.retrain_loop
        reason = loop.request_training(request)
        return TrainReply(
            accepted=reason is None,
            reason=reason or "",
            model=loop.model.name if loop.model is not None else None,
        )

    def _register_metrics(self, loop: RetrainLoop) -> None:
        records = self.records
        for name, read in {
            "records": lambda: len(records),
            "local_runs": lambda: len(records.runs),
            "rejected_records_total": lambda: records.rejected,
            "answered_queries_total": lambda: self.answered,
            "rejected_queries_total": lambda: self.refused,
            "trainings_total": lambda: loop.trainings,
            "failed_trainings_total": lambda: loop.failed_trainings,
            "unusable_models_total": lambda: loop.unusable_models,
        }.items():
            self._runtime.telemetry.observe(f"turnbuckle_advisor_{name}", read)


def _with_price_sources(reply: ReplyT, listing: Listing) -> ReplyT:
    """Add the catalogues whose prices the shown configurations have."""
    if isinstance(reply, PredictReply):
        shown = reply.predictions
    elif isinstance(reply, RankReply):
        shown = (*reply.ranked, *reply.pareto)
    else:
        return reply
    return reply.model_copy(update={"price_sources": listing.sources(one.configuration for one in shown)})


def _expect(message: Message, model: type[ReplyT]) -> ReplyT:
    if not isinstance(message, model):
        raise RequestRefusedError(400, f"unexpected {message.type_name}")
    return message

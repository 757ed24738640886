"""When to train, and which model is in use: one training at a time, beside everything else."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import suppress
from typing import Final

from schemas.predictions import TrainRequest
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.tracing import NEW_TRACE, Begin, Carrier, span, trace_headers
from services.advisor.model_file import UnusableModelError
from services.advisor.model_store import Model, ModelStore
from services.advisor.ports import Lesson, Trainer, TrainingFailedError
from services.advisor.records import Records
from services.advisor.settings import AdvisorSettings

SHIPPED_TOO: Final = "shipped too"
"""Which models learned the project's own data set beside the records of the bus, because a question asked for it."""
_LEAST_WAIT_S: Final = 0.02
_MOST_CAUSES: Final = 32


class Learning:
    """Follows the records and the store. Run `run` as a task; cancelling it ends a training."""

    def __init__(
        self, runtime: Runtime[AdvisorSettings], records: Records, store: ModelStore, trainer: Trainer
    ) -> None:
        self._settings = runtime.settings
        self._clock = runtime.clock
        self._log = runtime.log
        self._records = records
        self._store = store
        self._trainer = trainer
        self._wake = asyncio.Event()
        self._asked: TrainRequest | None = None
        self._heard_s = self._clock.monotonic()
        self._failed_records: int | None = None
        """Known when a training failed: none is tried again by itself until enough more have come."""
        self._failure = ""
        self._began_s: float | None = None
        self._causes: deque[Carrier] = deque(maxlen=_MOST_CAUSES)
        """What the next training follows from."""
        self._looked_s = -math.inf
        """At the store."""
        self.model: Model | None = None
        self.trainings = 0
        self.failed_trainings = 0

    @property
    def unusable_models(self) -> int:
        """Models in the store that could not be used."""
        return self._store.unusable_count

    def heard(self, cause: Carrier | None = None) -> None:
        """A record has come, by this trace."""
        if cause is not None:
            self._causes.append(cause)
        self._heard_s = self._clock.monotonic()
        self._wake.set()

    def ask(self, request: TrainRequest) -> str | None:
        """Ask for a training; returns why there will be none, or None."""
        if self._began_s is not None or self._asked is not None:
            return "a training is under way already: retry when it has ended"
        if not len(self._records):
            return "no record is known: nothing can be learned"
        version = self._lesson(request.seed).version
        if self.model is not None and self.model.name.version == version and not request.force:
            return "no record has come since the last training"
        self._asked = request
        if (cause := trace_headers()) is not None:
            self._causes.append(cause)
        self._wake.set()
        return None

    @property
    def has_failed(self) -> bool:
        """Whether the last training failed and none is under way: asking again does not help."""
        return self._began_s is None and bool(self._failure)

    def why_no_model(self) -> str:
        """Why no question can be answered yet."""
        known, least = len(self._records), self._settings.min_records
        if self._began_s is not None:
            seconds = self._clock.monotonic() - self._began_s
            return f"the first model is being trained on {known} records ({seconds:.0f} s so far): retry"
        if self.has_failed:
            return f"no model could be trained: {self._failure}"
        if known < least:
            return (
                f"{known} records are known, a model needs {least}: import some (turnbuckle jobs import), "
                "or ask with the shipped data set (turnbuckle advise --shipped-data)"
            )
        return f"the first model will be trained on {known} records: retry"

    async def run(self) -> None:
        """Adopt and train for ever; cancel to stop."""
        while True:
            self._wake.clear()
            if self._until_look_s() <= 0:
                self._looked_s = self._clock.monotonic()
                await self._adopt()
            if (seed := self._due()) is not None:
                await self._train(seed)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._wake.wait()

    def _until_look_s(self) -> float:
        return self._looked_s + self._settings.refresh_interval_s - self._clock.monotonic()

    def _patience_s(self) -> float:
        """Until the next look, or until a training has waited long enough for quiet."""
        quiet_s = self._heard_s + self._settings.retrain_debounce_s - self._clock.monotonic()
        return max(min(self._until_look_s(), quiet_s if self._wants() else math.inf), _LEAST_WAIT_S)

    async def _adopt(self) -> None:
        """Take the store's newest model if it is newer than ours."""
        try:
            model = await self._store.newest(self.model.revision if self.model is not None else 0)
        except BusError as error:
            self._log.warning("models_not_listed", error=str(error))
            return
        if model is not None:
            self._use(model)

    def _use(self, model: Model) -> None:
        self.model = model
        self._log.info("model_in_use", version=model.name.version, records=model.name.records)

    def _wants(self) -> bool:
        """Whether the records alone call for a training."""
        known = len(self._records)
        if known < self._settings.min_records:
            return False
        if self._failed_records is not None and known < self._failed_records + self._settings.retrain_after:
            return False
        return self.model is None or known >= self.model.name.records + self._settings.retrain_after

    def _due(self) -> int | None:
        """The seed of the training that is due now, or None."""
        if self._asked is not None:
            return self._asked.seed
        quiet = self._clock.monotonic() - self._heard_s >= self._settings.retrain_debounce_s
        return self._settings.seed if self._wants() and quiet else None

    def _lesson(self, seed: int) -> Lesson:
        records = self._records
        return Lesson(
            tuple(records.jobs[job] for job in sorted(records.jobs)),
            tuple(records.runs[run] for run in sorted(records.runs)),
            self._settings.algorithm, seed, records.data_hash(),
        )  # fmt: skip

    async def _train(self, seed: int) -> None:
        lesson = self._lesson(seed)
        forced, self._asked = self._asked is not None and self._asked.force, None
        self._began_s = self._clock.monotonic()
        self._log.info("training_started", version=lesson.version, records=len(lesson.records))
        try:
            about = {"turnbuckle__model": lesson.version, "turnbuckle__records": len(lesson.records)}
            with span("advisor.train", self._follow_causes(), **about):
                await self._learn(lesson, forced=forced)
        except (TrainingFailedError, UnusableModelError) as error:
            self.failed_trainings += 1
            self._failed_records, self._failure = len(lesson.records), str(error)
            self._log.error("training_failed", version=lesson.version, error=str(error))
        finally:
            self._began_s = None

    def _follow_causes(self) -> Begin:
        """The newest is the cause; the others have their part in it."""
        *others, newest = self._causes or (NEW_TRACE,)
        self._causes.clear()
        return Begin(newest, tuple(others))

    async def _learn(self, lesson: Lesson, *, forced: bool) -> None:
        if not forced and (model := await self._stored(lesson.version)) is not None:
            self._use(model)  # another replica was faster, or it was trained before the one in use
            return
        data = await self._trainer.train(lesson)
        self.model = await self._store.save(data)
        self.trainings += 1
        self._failed_records, self._failure = None, ""
        seconds = self._clock.monotonic() - (self._began_s or 0.0)
        self._log.info("training_ended", version=lesson.version, bytes=len(data), seconds=round(seconds, 2))

    async def _stored(self, version: str) -> Model | None:
        try:
            return await self._store.take_over(version)
        except BusError:
            return None

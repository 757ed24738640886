"""Retrain loop: when to train, and which model is in use. One training at a time."""

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
from services.advisor.ports import Trainer, TrainingFailedError, TrainingSet
from services.advisor.records import Records
from services.advisor.settings import AdvisorSettings

WITH_SHIPPED: Final = "shipped too"
WITH_ACCELERATORS: Final = "accelerators too"
"""Attributes ``data`` in the store of models trained on a shipped data set besides the records of the bus."""
_MIN_WAIT_S: Final = 0.02
_MAX_CAUSES: Final = 32


class RetrainLoop:
    """Trains on new records, adopts newer models of the store. Run `run` as a task; cancelling it ends a training."""

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
        self._requested: TrainRequest | None = None
        self._last_record_s = self._clock.monotonic()
        self._failed_records: int | None = None
        """Number of records at a failed training: the next automatic one waits for `retrain_after` more."""
        self._failure = ""
        self._started_s: float | None = None
        self._causes: deque[Carrier] = deque(maxlen=_MAX_CAUSES)
        """Traces that caused the next training."""
        self._polled_s = -math.inf
        """Last poll of the store."""
        self.model: Model | None = None
        self.trainings = 0
        self.failed_trainings = 0

    @property
    def unusable_models(self) -> int:
        """Models in the store that could not be used."""
        return self._store.unusable_count

    def notify(self, cause: Carrier | None = None) -> None:
        """Note that a record has been added, by this trace."""
        if cause is not None:
            self._causes.append(cause)
        self._last_record_s = self._clock.monotonic()
        self._wake.set()

    def request_training(self, request: TrainRequest) -> str | None:
        """Request a training; returns why it is rejected, or None."""
        if self._started_s is not None or self._requested is not None:
            return "a training is under way already: retry when it has ended"
        if not len(self._records):
            return "no record is known: nothing can be learned"
        version = self._training_set(request.seed).version
        if self.model is not None and self.model.name.version == version and not request.force:
            return "no record has come since the last training"
        self._requested = request
        if (cause := trace_headers()) is not None:
            self._causes.append(cause)
        self._wake.set()
        return None

    @property
    def has_failed(self) -> bool:
        """Whether the last training failed and none is under way: a retry does not help."""
        return self._started_s is None and bool(self._failure)

    def why_no_model(self) -> str:
        """Why there is no model yet."""
        known, least = len(self._records), self._settings.min_records
        if self._started_s is not None:
            seconds = self._clock.monotonic() - self._started_s
            return f"the first model is being trained on {known} records ({seconds:.0f} s so far): retry"
        if self.has_failed:
            return f"no model could be trained: {self._failure}"
        if known < least:
            return (
                f"{known} records are known, a model needs {least}: import some (turnbuckle jobs import), "
                "or ask with a shipped data set (turnbuckle advise --shipped-data, or --accelerator-data of GPUs)"
            )
        return f"the first model will be trained on {known} records: retry"

    async def run(self) -> None:
        """Poll the store and train until cancelled."""
        while True:
            self._wake.clear()
            if self._until_poll_s() <= 0:
                self._polled_s = self._clock.monotonic()
                await self._adopt()
            if (seed := self._due_seed()) is not None:
                await self._train(seed)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._wake.wait()

    def _until_poll_s(self) -> float:
        return self._polled_s + self._settings.refresh_interval_s - self._clock.monotonic()

    def _wait_s(self) -> float:
        """Until the next poll of the store, or the end of the debounce of a training."""
        debounce_s = self._last_record_s + self._settings.retrain_debounce_s - self._clock.monotonic()
        return max(min(self._until_poll_s(), debounce_s if self._needs_training() else math.inf), _MIN_WAIT_S)

    async def _adopt(self) -> None:
        """Use the store's newest model if it is newer than the one in use."""
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

    def _needs_training(self) -> bool:
        """Whether the number of records requires a training."""
        known = len(self._records)
        if known < self._settings.min_records:
            return False
        if self._failed_records is not None and known < self._failed_records + self._settings.retrain_after:
            return False
        return self.model is None or known >= self.model.name.records + self._settings.retrain_after

    def _due_seed(self) -> int | None:
        """The seed of the training that is due now, or None."""
        if self._requested is not None:
            return self._requested.seed
        debounced = self._clock.monotonic() - self._last_record_s >= self._settings.retrain_debounce_s
        return self._settings.seed if self._needs_training() and debounced else None

    def _training_set(self, seed: int) -> TrainingSet:
        records = self._records
        return TrainingSet(
            tuple(records.jobs[job] for job in sorted(records.jobs)),
            tuple(records.runs[run] for run in sorted(records.runs)),
            self._settings.algorithm,
            seed,
            records.data_hash(),
        )

    async def _train(self, seed: int) -> None:
        training_set = self._training_set(seed)
        forced, self._requested = self._requested is not None and self._requested.force, None
        self._started_s = self._clock.monotonic()
        self._log.info("training_started", version=training_set.version, records=len(training_set.records))
        try:
            attributes = {"turnbuckle__model": training_set.version, "turnbuckle__records": len(training_set.records)}
            with span("advisor.train", self._follow_causes(), **attributes):
                await self._train_or_load(training_set, forced=forced)
        except (TrainingFailedError, UnusableModelError) as error:
            self.failed_trainings += 1
            self._failed_records, self._failure = len(training_set.records), str(error)
            self._log.error("training_failed", version=training_set.version, error=str(error))
        finally:
            self._started_s = None

    def _follow_causes(self) -> Begin:
        """The newest trace is the parent; the others are links."""
        *others, newest = self._causes or (NEW_TRACE,)
        self._causes.clear()
        return Begin(newest, tuple(others))

    async def _train_or_load(self, training_set: TrainingSet, *, forced: bool) -> None:
        if not forced and (model := await self._load(training_set.version)) is not None:
            self._use(model)  # another replica was faster, or it was trained before the one in use
            return
        data = await self._trainer.train(training_set)
        self.model = await self._store.save(data)
        self.trainings += 1
        self._failed_records, self._failure = None, ""
        seconds = self._clock.monotonic() - (self._started_s or 0.0)
        self._log.info("training_ended", version=training_set.version, bytes=len(data), seconds=round(seconds, 2))

    async def _load(self, version: str) -> Model | None:
        try:
            return await self._store.take_over(version)
        except BusError:
            return None

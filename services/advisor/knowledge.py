"""Records and the models that learn from them: those of the bus, and on request those with the shipped data set, too.

Emulated machines are no part of what a team has measured, so the shipped data set is learned from by a model of its
own, made when the first question asks for it (`Question.shipped_data`); it hears of every record as the other one does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from schemas.jobs import JobRecord
from schemas.runs import RunProfile
from schemas.streams import MODELS
from services._runtime.service.app import Runtime
from services._runtime.telemetry.tracing import Carrier
from services.advisor.datasets import read_datasets
from services.advisor.learning import SHIPPED_TOO, Learning
from services.advisor.model_store import ModelStore
from services.advisor.ports import Trainer
from services.advisor.records import Records
from services.advisor.settings import SHIPPED, AdvisorSettings


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known, and what is learned from it."""

    records: Records
    learning: Learning


class KnowledgeBase:
    """All of it. A task and a lineage of models each."""

    def __init__(self, runtime: Runtime[AdvisorSettings], trainer: Trainer) -> None:
        self._runtime = runtime
        self._trainer = trainer
        self._settings = runtime.settings
        self.own = self._made(Records(self._settings.held_out_tasks), "")
        self._shipped: Knowledge | None = None
        self._making = asyncio.Lock()

    def _made(self, records: Records, data: str) -> Knowledge:
        settings, log = self._settings, self._runtime.log
        store = ModelStore(self._runtime.bus.objects(MODELS), settings.algorithm, settings.models_kept, log, data=data)
        return Knowledge(records, Learning(self._runtime, records, store, self._trainer))

    async def read_datasets(self) -> None:
        """Take in the files that the settings name.

        Raises:
            UnusableSettingsError: one cannot be read.
        """
        await self._read(self.own.records, self._settings.datasets)

    async def _read(self, records: Records, names: tuple[str, ...]) -> None:
        found = await asyncio.to_thread(read_datasets, names)
        for profile in found.profiles:
            self._note(records.add_run(profile))
        for record in found.records:
            self._note(records.add(record))
        if names:
            self._runtime.log.info("datasets_read", records=len(records), runs=len(records.runs))

    def add(self, message: JobRecord | RunProfile, cause: Carrier | None) -> None:
        """Take in a record or a local run from the bus."""
        for one in (self.own, self._shipped):
            if one is None:
                continue
            problem = one.records.add(message) if isinstance(message, JobRecord) else one.records.add_run(message)
            self._note(problem)
            one.learning.heard(cause)

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self._runtime.log.warning("record_rejected", reason=problem)

    def start(self) -> None:
        """Begin to learn."""
        self._runtime.spawn(self.own.learning.run(), name="learning")

    async def for_question(self, *, shipped_data: bool) -> Knowledge:
        """Return what a question is answered from; the first one with the shipped data set begins to learn it.

        Raises:
            UnusableSettingsError: nothing is shipped with this installation.
        """
        if not shipped_data or SHIPPED in self._settings.datasets:
            return self.own
        async with self._making:
            if self._shipped is None:
                made = self._made(Records(self._settings.held_out_tasks), SHIPPED_TOO)
                await self._read(made.records, (SHIPPED,))
                for profile in self.own.records.runs.values():
                    made.records.add_run(profile)
                for record in self.own.records.jobs.values():
                    made.records.add(record)
                self._runtime.spawn(made.learning.run(), name="learning-shipped")
                self._shipped = made
            return self._shipped

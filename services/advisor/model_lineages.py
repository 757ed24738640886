"""Model lineages: records with their retrain loop, for the bus's records alone and with each shipped data set.

Neither emulated machines nor public GPUs are part of a team's measurements, so each shipped data set has a model of its
own, created by the first question that requests it (`Question.shipped_data`, `Question.accelerator_data`); all lineages
receive every record of the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.jobs import JobRecord
from schemas.predictions import Question
from schemas.runs import RunProfile
from schemas.streams import MODELS
from services._jobs.record_files import JobFile, JobFileError, read_job_file
from services._runtime.service.app import Runtime
from services._runtime.settings_error import UnusableSettingsError
from services._runtime.telemetry.tracing import Carrier
from services.advisor.model_store import ModelStore
from services.advisor.ports import Trainer
from services.advisor.records import Records
from services.advisor.retrain_loop import WITH_ACCELERATORS, WITH_SHIPPED, RetrainLoop
from services.advisor.settings import ACCELERATORS, SHIPPED, AdvisorSettings


@dataclass(frozen=True, slots=True)
class ModelLineage:
    """Records, and the loop that trains models on them."""

    records: Records
    retrain_loop: RetrainLoop


class ModelLineages:
    """The lineages of an advisor; each has a task and its own models in the store."""

    def __init__(self, runtime: Runtime[AdvisorSettings], trainer: Trainer) -> None:
        self._runtime = runtime
        self._trainer = trainer
        self._settings = runtime.settings
        self.own = self._create(Records(self._settings.held_out_tasks), "")
        self._shipped: dict[str, ModelLineage] = {}
        self._creating = asyncio.Lock()

    def _create(self, records: Records, data: str) -> ModelLineage:
        settings, log = self._settings, self._runtime.log
        store = ModelStore(self._runtime.bus.objects(MODELS), settings.algorithm, settings.models_kept, log, data=data)
        return ModelLineage(records, RetrainLoop(self._runtime, records, store, self._trainer))

    async def read_datasets(self) -> None:
        """Add the records of the files in the settings.

        Raises:
            UnusableSettingsError: one cannot be read.
        """
        await self._read(self.own.records, self._settings.datasets)

    async def _read(self, records: Records, names: tuple[str, ...]) -> None:
        found = await asyncio.to_thread(read_datasets, names)
        for profile in found.profiles:
            self._log_rejected(records.add_run(profile))
        for record in found.records:
            self._log_rejected(records.add(record))
        if names:
            self._runtime.log.info("datasets_read", records=len(records), runs=len(records.runs))

    def add(self, message: JobRecord | RunProfile, cause: Carrier | None) -> None:
        """Add a record or a local run from the bus."""
        for one in (self.own, *self._shipped.values()):
            problem = one.records.add(message) if isinstance(message, JobRecord) else one.records.add_run(message)
            self._log_rejected(problem)
            one.retrain_loop.notify(cause)

    def _log_rejected(self, problem: str | None) -> None:
        if problem is not None:
            self._runtime.log.warning("record_rejected", reason=problem)

    def start(self) -> None:
        """Start the retrain loop."""
        self._runtime.spawn(self.own.retrain_loop.run(), name="retrain-loop")

    async def for_question(self, question: Question) -> ModelLineage:
        """Return the lineage that answers a question; the first one with a shipped data set creates its lineage.

        Raises:
            UnusableSettingsError: this installation has no such data set.
        """
        wanted = ((ACCELERATORS, question.accelerator_data), (SHIPPED, question.shipped_data))
        name = next((one for one, asked in wanted if asked), "")
        if not name or name in self._settings.datasets:
            return self.own
        async with self._creating:
            if name not in self._shipped:
                created = self._create(Records(self._settings.held_out_tasks), _STORED_AS[name])
                await self._read(created.records, (name,))
                for profile in self.own.records.runs.values():
                    created.records.add_run(profile)
                for record in self.own.records.jobs.values():
                    created.records.add(record)
                self._runtime.spawn(created.retrain_loop.run(), name=f"retrain-loop-{name}")
                self._shipped[name] = created
            return self._shipped[name]


_STORED_AS: Final = {SHIPPED: WITH_SHIPPED, ACCELERATORS: WITH_ACCELERATORS}
DATA: Final = Path(__file__).parent / "data"
ACCELERATOR_DATA: Final = DATA / "accelerators" / "public-2026-11-29.parquet"
"""Public measurements of training steps on GPUs; sources and licences stand beside it."""


def read_datasets(names: Sequence[str]) -> JobFile:
    """All records and local runs of the files named.

    Raises:
        UnusableSettingsError: one cannot be read, or there is no shipped data set.
    """
    records: list[JobRecord] = []
    profiles: list[RunProfile] = []
    for path in (one for name in names for one in _paths(name)):
        try:
            found = read_job_file(path)
        except JobFileError as error:
            raise UnusableSettingsError(f"TURNBUCKLE_ADVISOR__DATASETS: {error}") from error
        records += found.records
        profiles += found.profiles
    return JobFile(tuple(records), tuple(profiles))


def _paths(name: str) -> list[Path]:
    if name == ACCELERATORS:
        return [ACCELERATOR_DATA]
    if name != SHIPPED:
        return [Path(name).expanduser()]
    if not (found := sorted(DATA.glob("*.parquet"))):
        raise UnusableSettingsError(
            "TURNBUCKLE_ADVISOR__DATASETS=shipped: this installation ships no dataset: name a file of your own"
        )
    return found

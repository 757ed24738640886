"""Model store: models in the bus's object store under their version, ordered by the store's revisions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.predictions import ModelName
from services._runtime.bus.api import BusError, CorruptObjectError, ObjectInfo, ObjectStore, ObjectStoreFullError
from services._runtime.telemetry.logging import Logger
from services.advisor.core.trained_model import TrainedModel
from services.advisor.model_file import UnusableModelError, read_header, unpack
from services.advisor.settings import RENAMED_ALGORITHMS


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model in use."""

    name: ModelName
    trained: TrainedModel
    revision: int
    """In the store; of a model that could not be stored, that of the newest one there."""


class ModelStore:
    """Stores and loads models. An unusable one is logged once, and deleted when newer ones replace it."""

    def __init__(self, objects: ObjectStore, algorithm: str, kept: int, log: Logger, *, data: str = "") -> None:
        """Share the store: only models of `algorithm`, learned from `data` (see `learning.SHIPPED_TOO`), are seen."""
        self._objects = objects
        self._algorithm = algorithm
        self._data = data
        self._kept = kept
        self._log = log
        self._unusable: set[int] = set()
        """Revisions."""
        self.unusable_count = 0
        self._newest_revision = 0

    async def newest(self, beyond_revision: int = 0) -> Model | None:
        """The newest usable model that is newer than a revision, or None.

        Raises:
            BusError: the store cannot be read.
        """
        for info in await self._list():
            if info.revision <= beyond_revision:
                return None
            if info.revision not in self._unusable and (model := await self._load(info)) is not None:
                return model
        return None

    async def _list(self) -> list[ObjectInfo]:
        """The lineage's objects, newest first; objects without an attribute `algorithm` are included."""
        found = (await self._objects.names()).values()
        matching = [
            one
            for one in found
            if _algorithm_of(one, self._algorithm) == self._algorithm and one.attributes.get("data", "") == self._data
        ]
        self._newest_revision = max((one.revision for one in matching), default=self._newest_revision)
        return sorted(matching, key=lambda one: -one.revision)

    async def _load(self, info: ObjectInfo) -> Model | None:
        try:
            stored = await self._objects.get(info.name)
            if stored is None:
                return None
            header, trained = await asyncio.to_thread(unpack, stored.data)
        except (CorruptObjectError, UnusableModelError) as error:
            self._unusable.add(info.revision)
            self.unusable_count += 1
            self._log.error("model_unusable", version=info.name, error=str(error), remedy="it is trained anew")
            return None
        return Model(header.name(), trained, stored.info.revision)

    async def take_over(self, version: str) -> Model | None:
        """Load the stored model of a version and make it the newest; None: there is no usable one.

        Raises:
            BusError: the store cannot be read.
        """
        found = await self._list()
        info = next((one for one in found if one.name == version and one.revision not in self._unusable), None)
        model = await self._load(info) if info is not None else None
        if model is None or model.revision == found[0].revision:
            return model
        stored = await self._objects.get(version)
        return await self.save(stored.data) if stored is not None else model

    async def save(self, data: bytes) -> Model:
        """Store a model file and return the model, which is used even if it could not be stored.

        Raises:
            UnusableModelError: it is not a model file.
        """
        header = read_header(data)
        attributes = {
            "algorithm": header.algorithm,
            "data_hash": header.data_hash,
            "records": str(header.records),
            "seed": str(header.seed),
            "libraries": ", ".join(f"{name} {found}" for name, found in header.libraries.items()),
        }
        attributes |= {"data": self._data} if self._data else {}
        try:
            revision = (await self._put(header.version, data, attributes)).revision
        except BusError as error:
            revision = self._newest_revision
            self._log.error("model_not_stored", version=header.version, error=str(error))
        _, trained = await asyncio.to_thread(unpack, data)
        return Model(header.name(), trained, revision)

    async def _put(self, version: str, data: bytes, attributes: Mapping[str, str]) -> ObjectInfo:
        """Store a model; first deletes older ones beyond `kept`, and more of them if the store is full."""
        kept = self._kept - 1
        while True:
            found = await self._list()
            for info in found[kept:]:
                await self._objects.delete(info.name)
                self._log.info("model_removed", version=info.name)
            try:
                return await self._objects.put(version, data, attributes)
            except ObjectStoreFullError:
                kept = min(kept, len(found)) - 1
                if kept < 0:
                    raise


def _algorithm_of(info: ObjectInfo, default: str) -> str:
    name = info.attributes.get("algorithm", default)
    return RENAMED_ALGORITHMS.get(name, name)

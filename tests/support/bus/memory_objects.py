"""Object stores of the bus in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.streams import ObjectStoreSpec
from services._runtime.bus.api import BusError, CorruptObjectError, ObjectInfo, ObjectStoreFullError, StoredObject

if TYPE_CHECKING:
    from tests.support.bus.bus_memory import MemoryBus


@dataclass(slots=True, eq=False)
class MemoryObjectStore:
    """One object store of the broker."""

    spec: ObjectStoreSpec
    objects: dict[str, StoredObject] = field(default_factory=dict)
    revision: int = 0


class MemoryObjects:
    """One object store as a bus sees it."""

    def __init__(self, bus: MemoryBus, store: MemoryObjectStore) -> None:
        self._bus = bus
        self._store = store

    async def put(self, name: str, data: bytes, attributes: Mapping[str, str] | None = None) -> ObjectInfo:
        """Store an object."""
        self._bus.require_connection()
        store = self._store
        held = sum(len(one.data) for one in store.objects.values())
        if held + len(data) > store.spec.max_bytes:
            raise ObjectStoreFullError(f"{store.spec.name} is full: {name} of {len(data)} bytes finds no room")
        store.revision += 1
        info = ObjectInfo(
            _check(name), store.revision, len(data), hashlib.sha256(data).hexdigest(), dict(attributes or {})
        )
        store.objects[name] = StoredObject(info, bytes(data))
        return info

    async def get(self, name: str) -> StoredObject | None:
        """The object, or None."""
        self._bus.require_connection()
        found = self._store.objects.get(_check(name))
        if found is not None and hashlib.sha256(found.data).hexdigest() != found.info.sha256:
            raise CorruptObjectError(f"{name} in {self._store.spec.name} is not what was put there: its digest differs")
        return found

    async def names(self) -> dict[str, ObjectInfo]:
        """All objects by name."""
        self._bus.require_connection()
        return {name: one.info for name, one in self._store.objects.items()}

    async def delete(self, name: str) -> None:
        """Remove the object; a missing one is fine."""
        self._bus.require_connection()
        self._store.objects.pop(_check(name), None)


def _check(name: str) -> str:
    if not name:
        raise BusError("an object's name must not be empty")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BusError(f"an object cannot be named {name!r}") from error
    return name

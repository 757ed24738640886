"""KV buckets of the bus in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from schemas.message import Message
from services._runtime.bus.api import BusError, Entry
from tests.support.bus.memory_broker import MemoryBucket

if TYPE_CHECKING:
    from tests.support.bus.bus_memory import MemoryBus


class MemoryKeyValue:
    """One bucket as a bus sees it."""

    def __init__(self, bus: MemoryBus, bucket: MemoryBucket) -> None:
        self._bus = bus
        self._bucket = bucket

    async def get(self, key: str) -> Entry | None:
        """The entry, or None."""
        return (await self.entries()).get(_check_key(key))

    async def put(self, key: str, message: Message) -> int:
        """Store and return the revision."""
        return self._store(key, message, None)

    async def create(self, key: str, message: Message) -> int:
        """Store only if there is none."""
        return self._store(key, message, 0)

    async def update(self, key: str, message: Message, revision: int) -> int:
        """Store only over this revision."""
        return self._store(key, message, revision)

    def _store(self, key: str, message: Message, expected_revision: int | None) -> int:
        self._bus.require_connection()
        return self._bucket.store(_check_key(key), self._bus.dispatch.encode(message), expected_revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Remove the key; a missing one is fine. With a revision: only that."""
        self._bus.require_connection()
        self._bucket.remove(_check_key(key), revision)

    async def entries(self) -> dict[str, Entry]:
        """All live entries by key."""
        self._bus.require_connection()
        return self._decoded()

    def _decoded(self) -> dict[str, Entry]:
        return {
            key: self._bus.dispatch.decode_entry(key, stored.data, stored.revision)
            for key, stored in self._bucket.live().items()
        }

    def watch(self, on_entry: Callable[[str, Entry | None], None]) -> AbstractAsyncContextManager[None]:
        """See `services._runtime.bus.api.KeyValue.watch`."""
        return self._watch(on_entry)

    @asynccontextmanager
    async def _watch(self, on_entry: Callable[[str, Entry | None], None]) -> AsyncIterator[None]:
        known: dict[str, int] = {}
        self._report(known, on_entry)
        task = asyncio.get_running_loop().create_task(self._follow(known, on_entry))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _follow(self, known: dict[str, int], on_entry: Callable[[str, Entry | None], None]) -> None:
        while True:
            changes: list[Coroutine[Any, Any, Any]] = [self._bucket.changed.wait(), self._bus.state_changed.wait()]
            expiry_s = self._bucket.next_expiry_s()
            if expiry_s is not None:
                changes.append(self._bucket.clock.sleep_until(expiry_s))
            self._report(known, on_entry)
            await first_of(*changes)

    def _report(self, known: dict[str, int], on_entry: Callable[[str, Entry | None], None]) -> None:
        if not self._bus.connected:
            return
        live = self._bucket.live()
        for key in [key for key in known if key not in live]:
            del known[key]
            self._call(on_entry, key, None)
        for key, stored in list(live.items()):
            if known.get(key) != stored.revision:
                known[key] = stored.revision
                self._call(on_entry, key, self._bus.dispatch.decode_entry(key, stored.data, stored.revision))

    def _call(self, on_entry: Callable[[str, Entry | None], None], key: str, entry: Entry | None) -> None:
        self._bus.dispatch.call_back(lambda: on_entry(key, entry))


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait for one of them and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _check_key(key: str) -> str:
    if not key:
        raise BusError("an id in a subject must not be empty")
    return key

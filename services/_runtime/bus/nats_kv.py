"""KV buckets of `nats`, and watches of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Final, NamedTuple

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue as RawKeyValue

from schemas.message import Message
from schemas.streams import BucketSpec
from schemas.subjects import SubjectError, token, untoken
from services._runtime.bus.api import BusError, Entry, RawMessage, RevisionConflictError
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_history import FOLLOW_S, NextRead, next_stored
from services._runtime.bus.nats_session import NatsSession
from services._runtime.bus.nats_streams import MissingStreamError
from services._runtime.task_cancellation import cancel_all
from services._runtime.telemetry.logging import log_once

RELIST_S: Final = 10.0
_PARALLEL_GETS: Final = 32
_WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
"""Server errors: the subject's last sequence is not the expected one."""
_REMOVALS: Final = frozenset({"DEL", "PURGE"})


def escape_key(key: str) -> str:
    """Any text as a KV key.

    Raises:
        BusError: it is empty or too long.
    """
    try:
        return token(key)
    except SubjectError as error:
        raise BusError(str(error)) from error


class Listing(NamedTuple):
    """The entries of a bucket at a stream revision."""

    created: datetime | None
    """Creation time of the bucket: a new bucket restarts its revisions."""
    last_revision: int
    entries: dict[str, Entry]


class NatsKeyValue:
    """One bucket. Reads go to the stream's leader, so a compare-and-set loop never reads an old revision."""

    def __init__(self, bus: NatsSession, spec: BucketSpec) -> None:
        self.bus = bus
        self.spec = spec
        self.name = spec.bucket_name(bus.root)
        self.stream = f"KV_{self.name}"
        self.prefix = f"$KV.{self.name}."
        self._raw = RawKeyValue(name=self.name, stream=self.stream, pre=self.prefix, js=bus.jetstream, direct=False)

    async def get(self, key: str) -> Entry | None:
        """The entry, or None."""
        return await self._get(escape_key(key), key)

    async def _get(self, escaped: str, key: str) -> Entry | None:
        with as_bus_errors(f"get {key} from {self.name}"):
            try:
                raw = await self._raw.get(escaped)
            except nats.js.errors.KeyNotFoundError:
                return None
        return self.bus.dispatch.decode_entry(key, raw.value or b"", raw.revision or 0)

    async def put(self, key: str, message: Message) -> int:
        """Store and return the revision."""
        with as_bus_errors(f"put {key} into {self.name}"):
            return int(await self._raw.put(escape_key(key), self.bus.dispatch.encode(message)))

    async def create(self, key: str, message: Message) -> int:
        """Store only if there is none."""
        with as_bus_errors(f"create {key} in {self.name}"):
            try:
                return int(await self._raw.create(escape_key(key), self.bus.dispatch.encode(message)))
            except nats.js.errors.KeyWrongLastSequenceError as error:
                raise RevisionConflictError(f"{key} exists in {self.name}") from error

    async def update(self, key: str, message: Message, revision: int) -> int:
        """Store only over this revision."""
        with as_bus_errors(f"update {key} in {self.name}"):
            try:
                return int(await self._raw.update(escape_key(key), self.bus.dispatch.encode(message), last=revision))
            except nats.js.errors.KeyWrongLastSequenceError as error:
                raise RevisionConflictError(f"{key} in {self.name} is no longer at revision {revision}") from error

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete the key if it exists. With a revision: only that one."""
        with as_bus_errors(f"delete {key} from {self.name}"):
            try:
                await self._raw.delete(escape_key(key), last=revision)
            except nats.js.errors.APIError as error:  # `delete` does not translate it, as `update` does
                if error.err_code not in _WRONG_LAST_SEQUENCE:
                    raise
                raise RevisionConflictError(f"{key} in {self.name} is no longer at revision {revision}") from error

    async def entries(self) -> dict[str, Entry]:
        """All live entries by key."""
        return (await self.listing()).entries

    async def listing(self) -> Listing:
        """All live entries, read one by one."""
        with as_bus_errors(f"list {self.name}"):
            try:
                info = await self.bus.jetstream.stream_info(self.stream, subjects_filter=">")
            except nats.js.errors.NotFoundError as error:
                raise MissingStreamError(self.stream) from error
        keys = [subject.removeprefix(self.prefix) for subject in info.state.subjects or {}]
        found: dict[str, Entry] = {}
        for start in range(0, len(keys), _PARALLEL_GETS):
            chunk = keys[start : start + _PARALLEL_GETS]
            for entry in await asyncio.gather(*(self._get_listed(escaped) for escaped in chunk)):
                if entry is not None:
                    found[entry.key] = entry
        return Listing(info.created, info.state.last_seq, found)

    async def _get_listed(self, escaped: str) -> Entry | None:
        try:
            key = untoken(escaped)
        except SubjectError:
            self.bus.dispatch.counts["undecodable_key"] += 1  # written by another client
            return None
        return await self._get(escaped, key)

    def watch(self, on_entry: Callable[[str, Entry | None], None]) -> AbstractAsyncContextManager[None]:
        """See `services._runtime.bus.api.KeyValue.watch`."""
        return self._watch(on_entry)

    @asynccontextmanager
    async def _watch(self, on_entry: Callable[[str, Entry | None], None]) -> AsyncIterator[None]:
        watch = NatsWatch(self, on_entry)
        self.bus.watches.add(watch)
        try:
            await watch.synchronise()
            task = asyncio.get_running_loop().create_task(watch.run(), name=f"watch {self.name}")
            try:
                yield
            finally:
                await cancel_all({task})
        finally:
            self.bus.watches.discard(watch)
            await watch.close()


class NatsWatch:
    """Lists the bucket at the start and periodically, and reads every quarter of a second what was written since.

    Without a consumer (`nats_history`). Where a write is received it is read at once. The server sends no message for
    an expired entry, so there are at least three listings per time to live.
    """

    def __init__(self, bucket: NatsKeyValue, on_entry: Callable[[str, Entry | None], None]) -> None:
        self._bucket = bucket
        self._on_entry = on_entry
        self._created: datetime | None = None
        self._live: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._next = 0
        """Sequence behind the newest that is known; 0: the bucket has to be listed."""
        self._reconnects = 0
        self._next_read = NextRead(bucket.bus)
        self._subscribed = False
        self._period_s = RELIST_S if bucket.spec.ttl_s is None else min(RELIST_S, bucket.spec.ttl_s / 3)

    def synchronise_soon(self) -> None:
        """List after a reconnect."""
        self._reconnects += 1
        self._next = 0
        self._next_read.at_once()

    async def run(self) -> None:
        """Read periodically and on demand; cancel to stop."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._period_s
        while True:
            await self._next_read.wait(min(FOLLOW_S, self._period_s))
            self._next_read.begin()
            if not await self._follow() or loop.time() >= due_s:
                await self.synchronise()
                due_s = loop.time() + self._period_s

    async def synchronise(self) -> None:
        """Report the differences to the stored entries; where the bus does not answer, `run` tries again."""
        reconnects = self._reconnects
        try:
            await self._subscribe()
            listing = await self._bucket.listing()
        except BusError as error:
            bus = self._bucket.bus
            log_once(bus.dispatch.log.warning, bus.dispatch.limiter, "watch_retried", 10.0, error=str(error))
            return
        if self._created is None:
            self._created = listing.created
        elif listing.created != self._created:
            self._created = listing.created
            self._live = dict.fromkeys(self._live, 0)
            self._removed.clear()
        self._compare(listing)
        self._next = listing.last_revision + 1 if reconnects == self._reconnects else 0

    def _compare(self, listing: Listing) -> None:
        for key, entry in listing.entries.items():
            if self._removed.get(key, 0) <= listing.last_revision:
                self._removed.pop(key, None)  # it exists, so it was not removed, though an earlier listing lacked it
            self._report(key, entry, entry.revision)
        # A key that is newer than the listing was put after it: absence from the listing says nothing about it.
        for key, revision in list(self._live.items()):
            if key not in listing.entries and revision <= listing.last_revision:
                self._report(key, None, max(revision, listing.last_revision))

    def _report(self, key: str, entry: Entry | None, revision: int) -> None:
        if revision <= self._removed.get(key, -1):
            return
        if entry is not None and revision <= self._live.get(key, -1):
            return
        if entry is None:
            self._removed[key] = revision
            if self._live.pop(key, None) is None:
                return
        else:
            self._removed.pop(key, None)
            self._live[key] = revision
        self._bucket.bus.dispatch.call_back(lambda: self._on_entry(key, entry))

    async def _subscribe(self) -> None:
        """To the writes, where those who write are trusted with it: see `BucketSpec.written_by_hosts`."""
        bucket = self._bucket
        if not self._subscribed and not bucket.spec.written_by_hosts:
            with as_bus_errors(f"watch {bucket.name}"):
                await self._next_read.subscribe(f"{bucket.prefix}>")
            self._subscribed = True

    async def _follow(self) -> bool:
        """Report what was written behind the newest that is known. False: the bucket has to be listed."""
        bucket = self._bucket
        try:
            while self._next and (found := await next_stored(bucket.bus, bucket.stream, self._next)) is not None:
                self._next = found.sequence + 1 if self._next else 0
                self._take(found)
        except BusError:
            self._next = 0
        return self._next > 0

    def _take(self, stored: RawMessage) -> None:
        dispatch = self._bucket.bus.dispatch
        try:
            key = untoken(stored.subject.removeprefix(self._bucket.prefix))
        except SubjectError:
            dispatch.counts["undecodable_key"] += 1
            return
        removed = (stored.headers or {}).get("KV-Operation") in _REMOVALS
        entry = None if removed else dispatch.decode_entry(key, stored.data, stored.sequence)
        self._report(key, entry, stored.sequence)

    async def close(self) -> None:
        """Unsubscribe."""
        await self._next_read.close()

"""KV buckets of `nats`, and a watch that lists periodically."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.kv import KeyValue as RawKeyValue

from schemas.message import Message
from schemas.streams import BucketSpec
from schemas.subjects import SubjectError, token, untoken
from services._runtime.bus.api import BusError, Entry, RevisionConflictError
from services._runtime.bus.nats_connection import RefusedError, as_bus_errors
from services._runtime.bus.nats_session import NatsSession
from services._runtime.telemetry.logging import log_once

RELIST_S: Final = 10.0
_PARALLEL_GETS: Final = 32
_CONSUMER_IDLE_S: Final = 30.0
_HEARTBEAT_S: Final = 1.0
_HEARTBEAT_TIMEOUT_S: Final = 3.0
"""A consumer without heartbeats for so long is lost, for example with its server in a cluster."""
_LIST_DELAY_S: Final = 1.0
"""Debounce: a received write may not be stored yet, and many may come at once."""
_PLAIN_SUBSCRIPTION: Final = ""
"""In place of a consumer's name."""
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
        """All live entries, read by direct gets: a consumer could leak."""
        with as_bus_errors(f"list {self.name}"):
            try:
                info = await self.bus.jetstream.stream_info(self.stream, subjects_filter=">")
            except nats.js.errors.NotFoundError as error:
                remedy = "start an allocator, or, as administrator, turnbuckle nats declare"
                raise BusError(f"the server has no bucket {self.name} yet: {remedy}") from error
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
                task.cancel()
                await asyncio.wait({task})
        finally:
            self.bus.watches.discard(watch)
            await watch.close()


class NatsWatch:
    """Lists the bucket at the start and periodically; a push consumer only reduces the latency.

    The consumer is renewed after each reconnect. Changes that it misses are found by the next listing. The server sends
    no message for an expired entry, so there are at least three listings per time to live.
    """

    def __init__(self, bucket: NatsKeyValue, on_entry: Callable[[str, Entry | None], None]) -> None:
        self._bucket = bucket
        self._on_entry = on_entry
        self._created: datetime | None = None
        self._live: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._again = asyncio.Event()
        self._raw: Any = None
        self._consumer: str | None = None
        self._list_timer: asyncio.TimerHandle | None = None
        self._last_message_s = 0.0
        """When the consumer last sent a message or heartbeat."""
        self._period_s = RELIST_S if bucket.spec.ttl_s is None else min(RELIST_S, bucket.spec.ttl_s / 3)

    def synchronise_soon(self) -> None:
        """List after a reconnect."""
        if self._consumer != _PLAIN_SUBSCRIPTION:
            self._consumer = None
        self._again.set()

    async def run(self) -> None:
        """List periodically and on demand, renew a lost consumer; cancel to stop."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._period_s
        while True:
            try:
                async with asyncio.timeout(min(_HEARTBEAT_S, self._period_s)):
                    await self._again.wait()
            except TimeoutError:
                if self._consumer and loop.time() - self._last_message_s > _HEARTBEAT_TIMEOUT_S:
                    self._consumer = None
                elif loop.time() < due_s:
                    continue
            self._again.clear()
            due_s = loop.time() + (self._period_s if await self.synchronise() else _HEARTBEAT_S)

    async def synchronise(self) -> bool:
        """Report the differences to the stored entries. False: the bus did not answer; to be retried."""
        try:
            await self._subscribe()
            listing = await self._bucket.listing()
        except BusError as error:
            bus = self._bucket.bus
            log_once(bus.dispatch.log.warning, bus.dispatch.limiter, "watch_retried", 10.0, error=str(error))
            return False
        if self._created is None:
            self._created = listing.created  # the first listing: the consumer may already have delivered newer entries
        elif listing.created != self._created:
            self._created = listing.created
            self._live = dict.fromkeys(self._live, 0)
            self._removed.clear()
        self._compare(listing)
        return True

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
        if self._consumer is not None:
            return
        bucket = self._bucket
        with as_bus_errors(f"watch {bucket.name}"):
            if self._raw is not None:  # an old consumer is deleted by the server without a subscriber
                old, self._raw = self._raw, None
                await old.unsubscribe()
            self._last_message_s = asyncio.get_running_loop().time()
            inbox = bucket.bus.connection.new_inbox()
            self._raw = await bucket.bus.connection.subscribe(inbox, cb=self._on_message)
            config = ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=DeliverPolicy.NEW,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=_CONSUMER_IDLE_S,
                idle_heartbeat=_HEARTBEAT_S,
                mem_storage=True,
                num_replicas=1,
            )
            try:
                info = await bucket.bus.jetstream.add_consumer(bucket.stream, config)
            except RefusedError:
                await self._subscribe_plainly()
            else:
                self._consumer = info.name

    async def _subscribe_plainly(self) -> None:
        """For observers, who may create no consumer: subscribe to the writes, and list after each."""
        bucket = self._bucket
        subscription = await bucket.bus.connection.subscribe(f"{bucket.prefix}>", cb=self._list_soon)
        await self._raw.unsubscribe()
        self._raw, self._consumer = subscription, _PLAIN_SUBSCRIPTION

    async def _list_soon(self, _message: Msg) -> None:
        if self._list_timer is None:
            self._list_timer = asyncio.get_running_loop().call_later(_LIST_DELAY_S, self._list)

    def _list(self) -> None:
        self._list_timer = None
        self._again.set()

    async def _on_message(self, message: Msg) -> None:
        bucket = self._bucket
        self._last_message_s = asyncio.get_running_loop().time()
        if (message.headers or {}).get("Status"):  # a heartbeat
            return
        try:
            key = untoken(message.subject.removeprefix(bucket.prefix))
            revision = int(message.metadata.sequence.stream)
        except (SubjectError, nats.errors.Error, ValueError):
            bucket.bus.dispatch.counts["undecodable_key"] += 1
            return
        if (message.headers or {}).get("KV-Operation") in _REMOVALS:
            self._report(key, None, revision)
        else:
            self._report(key, bucket.bus.dispatch.decode_entry(key, message.data, revision), revision)

    async def close(self) -> None:
        """Delete the consumer; an unreachable server does so after `_CONSUMER_IDLE_S`."""
        if self._list_timer is not None:
            self._list_timer.cancel()
        if self._raw is None:
            return
        bus = self._bucket.bus
        try:
            if self._consumer not in {None, _PLAIN_SUBSCRIPTION} and bus.connected:
                async with asyncio.timeout(1.0):
                    await bus.jetstream.delete_consumer(self._bucket.stream, self._consumer)
            await self._raw.unsubscribe()
        except (nats.errors.Error, TimeoutError):
            return

"""A bus server in this process: streams, consumers and KV buckets with the semantics that the contract suite demands.

It carries encoded bytes, as the real one does, so that codec faults show in tests that use it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import Subject
from services._runtime.bus.api import RawMessage, RevisionConflictError, Screen
from services._runtime.clock import Clock, SystemClock
from services._runtime.telemetry.tracing import untraced
from tests.support.bus.memory_objects import MemoryObjectStore


@dataclass(slots=True, eq=False)
class MemorySubscription:
    """Interest in a pattern. Messages wait here and are handed over by the event loop, in order."""

    pattern: Subject
    queue: str | None
    receive: Callable[[RawMessage, asyncio.Future[bytes] | None], None]
    is_online: Callable[[], bool]
    limit: int
    on_overflow: Callable[[], None]
    screen: Screen | None = None
    waiting: deque[tuple[RawMessage, asyncio.Future[bytes] | None]] = field(default_factory=deque)

    def push(self, raw: RawMessage, reply: asyncio.Future[bytes] | None) -> None:
        """Queue a message, or drop and count it where too many wait."""
        if self.screen is not None and not self.screen(raw.subject, len(raw.data)):
            return
        if len(self.waiting) >= self.limit:
            self.on_overflow()
            return
        self.waiting.append((raw, reply))
        asyncio.get_running_loop().call_soon(self.hand_over_one, context=untraced())

    def hand_over_one(self) -> None:
        """Hand over the oldest message that waits, if any."""
        if self.waiting:
            self.receive(*self.waiting.popleft())


@dataclass(slots=True)
class MemoryStream:
    """Stored facts."""

    spec: StreamSpec
    subjects: tuple[Subject, ...]
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[Mapping[str, str] | None] = field(default_factory=list)
    """Of each message."""
    seen_ids: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Of each id: when it was seen, and the sequence that it got."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self, raw: RawMessage, message_id: str | None, now_s: float, last_sequence: int | None = None) -> int:
        """Store, unless the id was seen within the window; returns the sequence that it has got, then or now.

        Raises:
            RevisionConflictError: `last_sequence` is given, and it is another one.
        """
        window_start_s = now_s - self.spec.duplicate_window_s
        self.seen_ids = {key: seen for key, seen in self.seen_ids.items() if seen[0] > window_start_s}
        if message_id in self.seen_ids:
            return self.seen_ids[message_id][1]
        if last_sequence not in {None, len(self.messages)}:
            raise RevisionConflictError(f"stream {self.spec.name} is not at sequence {last_sequence}")
        self.messages.append((raw.subject, raw.data))
        self.headers.append(raw.headers)
        if message_id is not None:
            self.seen_ids[message_id] = (now_s, len(self.messages))
        self.wake()
        return len(self.messages)

    def wake(self) -> None:
        """Let consumers look again."""
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(slots=True)
class StoredEntry:
    """A value in a bucket."""

    data: bytes
    revision: int
    expires_s: float | None


@dataclass(slots=True, eq=False)
class MemoryBucket:
    """One KV bucket."""

    spec: BucketSpec
    clock: Clock
    entries: dict[str, StoredEntry] = field(default_factory=dict)
    revision: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def live(self) -> dict[str, StoredEntry]:
        """What has not expired."""
        now_s = self.clock.monotonic()
        self.entries = {
            key: entry for key, entry in self.entries.items() if entry.expires_s is None or entry.expires_s > now_s
        }
        return self.entries

    def next_expiry_s(self) -> float | None:
        """When the next entry expires, on the clock."""
        return min((entry.expires_s for entry in self.live().values() if entry.expires_s is not None), default=None)

    def store(self, key: str, data: bytes, expected_revision: int | None = None) -> int:
        """Store; `expected_revision` 0 means: only if there is none.

        Raises:
            RevisionConflictError: it is another one.
        """
        found = self.live().get(key)
        actual = found.revision if found else 0
        if expected_revision is not None and expected_revision != actual:
            raise RevisionConflictError(f"{key} is at revision {actual}, not {expected_revision}")
        self.revision += 1
        expires_s = None if self.spec.ttl_s is None else self.clock.monotonic() + self.spec.ttl_s
        self.entries[key] = StoredEntry(data, self.revision, expires_s)
        self._wake()
        return self.revision

    def remove(self, key: str, revision: int | None = None) -> None:
        """Remove; a missing one is fine.

        Raises:
            RevisionConflictError: it is not at the revision.
        """
        found = self.live().get(key)
        if revision is not None and (found is None or found.revision != revision):
            raise RevisionConflictError(f"{key} is no longer at revision {revision}")
        if self.entries.pop(key, None) is not None:
            self.revision += 1
            self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryBroker:
    """What all `MemoryBus`es of a test share."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.online = True
        self.services: dict[str, str] = {}
        """Registered micro services and their versions."""
        self._subscriptions: list[MemorySubscription] = []
        self._streams: dict[str, MemoryStream] = {}
        self._buckets: dict[str, MemoryBucket] = {}
        self._object_stores: dict[str, MemoryObjectStore] = {}
        self._watchers: list[Callable[[bool], None]] = []
        self._turn = 0

    def on_online(self, callback: Callable[[bool], None]) -> None:
        """Call back with the new state at `stop` and `start`."""
        self._watchers.append(callback)

    def stop(self) -> None:
        """Go away, as a server that is stopped; streams and buckets are kept."""
        self._set_online(online=False)

    def start(self) -> None:
        """Come back."""
        self._set_online(online=True)

    def _set_online(self, *, online: bool) -> None:
        self.online = online
        for callback in list(self._watchers):
            callback(online)

    def declare_stream(self, name: str, spec: StreamSpec, subjects: tuple[Subject, ...]) -> None:
        """Make a stream, or update its specification."""
        stream = self._streams.setdefault(name, MemoryStream(spec, subjects))
        stream.spec, stream.subjects = spec, subjects

    def declare_bucket(self, name: str, spec: BucketSpec) -> None:
        """Make a bucket, or update its specification."""
        self._buckets.setdefault(name, MemoryBucket(spec, self.clock)).spec = spec

    def declare_object_store(self, name: str, spec: ObjectStoreSpec) -> None:
        """Make an object store, or update its specification."""
        self._object_stores.setdefault(name, MemoryObjectStore(spec)).spec = spec

    def stream(self, name: str) -> MemoryStream | None:
        """A stream by its name on the server."""
        return self._streams.get(name)

    def bucket(self, name: str) -> MemoryBucket | None:
        """A bucket by its name on the server."""
        return self._buckets.get(name)

    def object_store(self, name: str) -> MemoryObjectStore | None:
        """An object store by its name on the server."""
        return self._object_stores.get(name)

    def add(self, subscription: MemorySubscription) -> None:
        """Begin to deliver."""
        self._subscriptions.append(subscription)

    def remove(self, subscription: MemorySubscription) -> None:
        """Deliver no more; what waits there stays there."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def publish(
        self,
        subject: str,
        data: bytes,
        reply: asyncio.Future[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Deliver bytes, any bytes, and return the number of receivers. One member of each queue group gets them."""
        concrete = Subject(subject)
        receivers: list[MemorySubscription] = []
        groups: dict[tuple[str, str], list[MemorySubscription]] = {}
        for subscription in self._subscriptions:
            if not subscription.is_online() or not subscription.pattern.matches(concrete):
                continue
            if subscription.queue is None:
                receivers.append(subscription)
            else:
                groups.setdefault((subscription.pattern.text, subscription.queue), []).append(subscription)
        for members in groups.values():
            self._turn += 1
            receivers.append(members[self._turn % len(members)])
        for subscription in receivers:
            subscription.push(RawMessage(subject, data, headers), reply)
        return len(receivers)

    def publish_event(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Store in the stream that keeps the subject and deliver to subscribers; False: no stream keeps it."""
        concrete = Subject(subject)
        for stream in self._streams.values():
            if any(pattern.matches(concrete) for pattern in stream.subjects):
                self.publish(subject, data, headers=headers)
                stream.store(RawMessage(subject, data, headers), message_id, self.clock.monotonic())
                return True
        return False

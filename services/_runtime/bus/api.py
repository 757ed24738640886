"""The bus as the services see it. `nats` and the bus in memory of the tests implement it under one contract suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from schemas.message import Message
from schemas.registry import Endpoint
from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import Subject


class BusError(Exception):
    """The bus could not do it; the subclass says which way."""


class BusSettingsError(BusError):
    """What we were given to reach the bus is of no use, or does not fit the server: a URL, a file, TLS."""


class BusUnavailableError(BusError):
    """Not connected, or the connection broke while waiting."""


class CredentialsRefusedError(BusUnavailableError):
    """The server does not know the key, or the password is wrong. It may after a reload."""


class NotPermittedError(BusError):
    """The server does not let this user do it; trying again is of no use."""

    def __init__(self, message: str, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject
        """What this user may not publish to; empty: it is something else that he may not."""


class NoResponderError(BusError):
    """Nobody serves this subject right now."""


class RequestTimeoutError(BusError):
    """No reply within the deadline; the request may or may not have been carried out."""


class RevisionConflictError(BusError):
    """A KV compare-and-swap met another revision (or an existing key)."""


class CorruptObjectError(BusError):
    """What is stored under an object's name is not what was put there: pieces are missing, or the digest differs."""


class ObjectStoreFullError(BusError):
    """The object store holds as many bytes as it may: delete something first."""


class RequestRefusedError(BusError):
    """A query answered with a QueryError."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Delivery:
    """One received message. Undecodable ones never reach a handler: they are counted by kind."""

    subject: str
    message: Message
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message as it came, before anything is known of it."""

    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None
    """In which its trace travels."""
    is_history: bool = False
    """Stored before we began to listen: no work for a trace, which ended long ago."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A KV entry; `message` is None where the stored bytes could not be decoded."""

    key: str
    message: Message | None
    revision: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What an object store tells of an object without reading it."""

    name: str
    revision: int
    """Rises with every put of the store: the greatest is the newest object."""
    size_bytes: int
    sha256: str
    """Of the content, in hexadecimal."""
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object, whole: its content has the digest that was noted when it was put."""

    info: ObjectInfo
    data: bytes


Handler = Callable[[Delivery], None]
"""Called on the event loop for each message, in order; must return at once: decode is done, hand over."""
Responder = Callable[[Delivery], Awaitable[Message]]
"""Answers a command. Each request runs in a task of its own, so a slow one delays no other."""
FactHandler = Callable[[Delivery], Awaitable[None]]
"""Handles one stored message; it is acknowledged when this returns, delivered again when this raises."""


class Subscription(Protocol):
    """A running subscription."""

    async def stop(self) -> None:
        """Stop receiving; messages that wait already are still handled."""


class KeyValue(Protocol):
    """One KV bucket. Keys are escaped and unescaped here: any text is a key."""

    async def get(self, key: str) -> Entry | None:
        """The entry, or None."""

    async def put(self, key: str, message: Message) -> int:
        """Store and return the revision."""

    async def create(self, key: str, message: Message) -> int:
        """Store only if there is none; raises `RevisionConflictError`."""

    async def update(self, key: str, message: Message, revision: int) -> int:
        """Store only over this revision; raises `RevisionConflictError`."""

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Remove the key; a missing one is fine. With a revision: only that; raises `RevisionConflictError`."""

    async def entries(self) -> dict[str, Entry]:
        """All live entries by key."""

    def watch(self, on_entry: Callable[[str, Entry | None], None]) -> AbstractAsyncContextManager[None]:
        """Call back for every entry that exists, then for every change (None: deleted or expired).

        Level-triggered: re-listed after a reconnect and every 10 s, because a watch can stay silent for 14-37 s after
        a server restart; unchanged revisions are not reported again.
        """


class ObjectStore(Protocol):
    """A store of named objects of any size. Any text is a name. A put replaces the object whole or not at all."""

    async def put(self, name: str, data: bytes, attributes: Mapping[str, str] | None = None) -> ObjectInfo:
        """Store an object.

        Raises:
            ObjectStoreFullError: there is no room.
        """

    async def get(self, name: str) -> StoredObject | None:
        """The object, or None.

        Raises:
            CorruptObjectError: it is there, but not whole.
        """

    async def names(self) -> dict[str, ObjectInfo]:
        """All objects by name. One whose description cannot be read is left out."""

    async def delete(self, name: str) -> None:
        """Remove the object; a missing or corrupt one is fine."""


class Replay(Subscription, Protocol):
    """A subscription to all that a stream holds and will hold."""

    async def caught_up(self) -> None:
        """Return once everything has been handled that was stored when the replay began."""


class Bus(Protocol):
    """Publish, subscribe, request, serve, store. Methods raise `BusError` only."""

    root: str
    """First token of every subject."""

    @property
    def connected(self) -> bool:
        """Whether the server can be reached right now."""

    @property
    def counters(self) -> dict[str, int]:
        """Plain counts by name.

        published, received, dropped_disconnected, dropped_slow, undecodable_<kind>, handler_errors, reconnects,
        facts_published, facts_dropped, facts_pending.
        """

    def publish(self, subject: Subject, message: Message) -> None:
        """Send a lossy observation. While disconnected it is dropped and counted: stale data is worse than none."""

    def publish_fact(self, subject: Subject, message: Message, *, message_id: str) -> None:
        """Queue a fact for JetStream; sent in order, retried until acknowledged, deduplicated by id.

        The queue is bounded (10,000); when full the oldest is dropped, counted and logged.
        """

    async def subscribe(self, pattern: Subject, handler: Handler, *, queue: str | None = None) -> Subscription:
        """Receive observations; `queue` shares them among its members."""

    async def replay(self, stream: StreamSpec, handler: FactHandler) -> Replay:
        """Receive all facts, from the first stored one, for this process alone; at least once.

        For those who hold what a stream says in memory: each process needs all of it, again after every start, so the
        server remembers nothing of it for longer than a minute after its end.
        """

    async def is_stored(self, stream: StreamSpec, subject: Subject) -> bool:
        """Whether the stream holds a fact on this subject: for senders whose facts are unique for ever.

        The server knows ids for the stream's duplicate window only. Costs one round trip. Not for streams that keep a
        host's facts under one subject.
        """

    async def request(self, subject: Subject, message: Message, *, timeout_s: float) -> Message:
        """Send a command and wait for the reply.

        Raises:
            NoResponderError, RequestTimeoutError, BusUnavailableError, RequestRefusedError.
        """

    async def serve(self, subject: Subject, responder: Responder) -> Subscription:
        """Answer commands on a subject. If the responder raises, a QueryError 500 is sent and the error is logged."""

    async def serve_queries(
        self, service: str, version: str, description: str, endpoints: dict[Endpoint, Responder]
    ) -> Subscription:
        """Register a NATS micro service (``nats service ls``) with one endpoint per query.

        Answers in JSON where the request was JSON or empty, else in msgpack.
        """

    def bucket(self, spec: BucketSpec) -> KeyValue:
        """A KV bucket, declared at connect."""

    def objects(self, spec: ObjectStoreSpec) -> ObjectStore:
        """An object store, declared at connect."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call back each time the connection has come back."""

    async def flush(self, timeout_s: float) -> None:
        """Wait until what was published has reached the server, facts included."""

    async def close(self, timeout_s: float) -> dict[str, int]:
        """Drain and close; returns what could not be delivered, by kind (empty: nothing was lost)."""

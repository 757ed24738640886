"""Interface of the message bus; implemented by `nats` and by the tests' in-memory bus under one contract suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from schemas.message import Message
from schemas.service import Endpoint
from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import Subject


class BusError(Exception):
    """A bus operation failed; the subclass names the failure mode."""


class BusSettingsError(BusError):
    """Invalid connection settings, or settings that do not match the server: URL, credentials file, TLS."""


class BusUnavailableError(BusError):
    """Not connected, or the connection broke while waiting."""


class CredentialsRefusedError(BusUnavailableError):
    """Authentication failed: unknown key or wrong password. May succeed after the server's reload."""


class NotPermittedError(BusError):
    """The server denies this operation to the user; a retry fails the same way."""

    def __init__(self, message: str, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject
        """Subject that this user may not publish to; empty: another operation was denied."""


class NoResponderError(BusError):
    """No service is subscribed to this subject."""


class RequestTimeoutError(BusError):
    """No reply within the timeout; the request may or may not have been carried out."""


class RevisionConflictError(BusError):
    """A compare-and-set of a KV entry, or an append to a stream, found another revision or sequence."""


class CorruptObjectError(BusError):
    """A stored object is damaged: chunks are missing, or its digest differs."""


class ObjectStoreFullError(BusError):
    """The object store has reached its size limit."""


class RequestRefusedError(BusError):
    """The service replied with a QueryError."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Delivery(NamedTuple):
    """One received and decoded message. Undecodable ones never reach a handler: they are counted by kind."""

    subject: str
    message: Message
    size_bytes: int
    sequence: int = 0
    """In the stream that it was replayed from; 0: it comes from none."""


class RawMessage(NamedTuple):
    """One received message before decoding."""

    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None
    """They carry its trace context."""
    is_history: bool = False
    """Stored before it was asked for: its trace has ended long ago, so none is continued."""
    sequence: int = 0
    """In the stream that it was replayed from; 0: it comes from none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A KV entry; `message` is None where the stored bytes could not be decoded."""

    key: str
    message: Message | None
    revision: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's metadata."""

    name: str
    revision: int
    """Increases with every put into the store: the largest belongs to the newest object."""
    size_bytes: int
    sha256: str
    """Of the content, in hexadecimal."""
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A complete object whose content matches its stored digest."""

    info: ObjectInfo
    data: bytes


Handler = Callable[[Delivery], None]
"""Called on the event loop with each decoded message, in order; must not block."""
Responder = Callable[[Delivery], Awaitable[Message]]
"""Answers a command. Each request runs in its own task, so a slow one does not delay others."""
Screen = Callable[[str, int], bool]
"""Called with the subject and the size in bytes of each message as it is read from the connection, before it is queued
or decoded; False: it is dropped, and not counted by the bus. Must be quick, and must not raise."""
EventHandler = Callable[[Delivery], Awaitable[None]]
"""Handles one durable event; acknowledged when it returns, redelivered when it raises."""


class Subscription(Protocol):
    """A running subscription."""

    async def stop(self) -> None:
        """Stop receiving; messages received before are still handled."""


class KeyValue(Protocol):
    """One KV bucket. Any text is a valid key: it is escaped for NATS."""

    async def get(self, key: str) -> Entry | None:
        """The entry, or None."""

    async def put(self, key: str, message: Message) -> int:
        """Store and return the revision."""

    async def create(self, key: str, message: Message) -> int:
        """Store only if there is none; raises `RevisionConflictError`."""

    async def update(self, key: str, message: Message, revision: int) -> int:
        """Store only over this revision; raises `RevisionConflictError`."""

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete the key if it exists. With a revision: only that one; raises `RevisionConflictError`."""

    async def entries(self) -> dict[str, Entry]:
        """All live entries by key."""

    def watch(self, on_entry: Callable[[str, Entry | None], None]) -> AbstractAsyncContextManager[None]:
        """Call back for every entry that exists, then for every change (None: deleted or expired).

        Level-triggered: listed again after a reconnect and every 10 s, because entries expire without a message;
        unchanged revisions are not reported again.
        """


class ObjectStore(Protocol):
    """A store of named objects of any size. Any text is a valid name. A put replaces the object atomically."""

    async def put(self, name: str, data: bytes, attributes: Mapping[str, str] | None = None) -> ObjectInfo:
        """Store an object.

        Raises:
            ObjectStoreFullError: the size limit is reached.
        """

    async def get(self, name: str) -> StoredObject | None:
        """The object, or None.

        Raises:
            CorruptObjectError: it is damaged.
        """

    async def names(self) -> dict[str, ObjectInfo]:
        """Metadata of all objects by name; objects with unreadable metadata are omitted."""

    async def delete(self, name: str) -> None:
        """Delete the object if it exists, damaged or not."""


class Replay(Subscription, Protocol):
    """A subscription to all stored and future events of a stream."""

    async def caught_up(self) -> None:
        """Return once all events that were stored when the replay began have been handled."""


PendingReply = Callable[[], Coroutine[Any, Any, Message]]
"""Waits for the reply to a request; to be called at most once. Raises what `Bus.request` raises."""


class Bus(Protocol):
    """Publish, subscribe, request, serve, store. Methods raise `BusError` only."""

    root: str
    """First token of every subject."""

    @property
    def connected(self) -> bool:
        """Whether the connection to the server is up."""

    @property
    def counters(self) -> dict[str, int]:
        """Message counts by name.

        published, received, dropped_disconnected, dropped_slow, undecodable_<kind>, handler_errors, reconnects,
        events_published, events_dropped, events_pending.
        """

    def publish(self, subject: Subject, message: Message) -> None:
        """Publish a lossy observation. While disconnected it is dropped and counted: stale data is worse than none."""

    def write_now(self) -> None:
        """Hand to the socket what was published, before other work is done; without it that follows the work."""

    def publish_event(self, subject: Subject, message: Message, *, message_id: str) -> None:
        """Queue a durable event in the outbox: sent in order, retried until acknowledged, deduplicated by id.

        The outbox is bounded (10,000); when it is full the oldest event is dropped, counted and logged.
        """

    async def append(
        self, stream: StreamSpec, subject: Subject, message: Message, last_sequence: int, message_id: str | None = None
    ) -> int:
        """Store an event if the stream's last sequence is still this one (0: it is empty); returns the event's own.

        Of several writers that know the same last sequence one succeeds: a log with a single history. With a message id
        an append whose acknowledgement was lost can be repeated as it was: if it had been stored, the sequence of then
        is returned, although others may have appended since.

        Who subscribes to the subject hears refused appends as well: only `replay` tells what is stored.

        Raises:
            RevisionConflictError: the stream has another last sequence; nothing was stored.
            BusUnavailableError: not acknowledged: it may or may not have been stored.
        """

    async def subscribe(
        self, pattern: Subject, handler: Handler, *, queue: str | None = None, screen: Screen | None = None
    ) -> Subscription:
        """Receive observations; members of one `queue` group share them."""

    async def replay(
        self,
        stream: StreamSpec,
        handler: EventHandler,
        on_undecodable: Callable[[int], None] | None = None,
        *,
        after: int = 0,
    ) -> Replay:
        """Receive all events of a stream behind a sequence, by default from the first stored one, at least once.

        `on_undecodable` gets the sequence of what never reaches the handler: who appends has to know it.

        For state that is rebuilt in memory at every start. A stream that is not there yet is waited for.
        """

    async def read_stored(self, stream: StreamSpec, pattern: Subject, handler: Handler) -> None:
        """Call the handler with the stored events on a subject or pattern, oldest first, without a consumer.

        For what hosts write. Undecodable ones, and those that name another node than their sender's, are counted and
        skipped; what the handler raises is counted and logged, as for a subscription, and the next ones are handled.

        Raises:
            BusError: not connected, not permitted, or the server stops answering; some may have been handled.
        """

    async def event_at(self, stream: StreamSpec, sequence: int) -> RawMessage | None:
        """One event of a stream, as it is stored, without headers; None: none has this sequence, or it was removed."""

    async def is_stored(self, stream: StreamSpec, subject: Subject) -> bool:
        """Whether the stream holds an event on this subject: for events that must be stored once ever.

        The server deduplicates ids within the stream's duplicate window only. One round trip. Not for streams that
        store a host's events under one subject.
        """

    def send_request(self, subject: Subject, message: Message, *, timeout_s: float) -> PendingReply:
        """Send a command in this step of the event loop (`write_now`); what is returned waits for the reply.

        Raises:
            BusUnavailableError: not connected.
        """

    async def request(self, subject: Subject, message: Message, *, timeout_s: float) -> Message:
        """Send a command and wait for the reply.

        Raises:
            NoResponderError, RequestTimeoutError, BusUnavailableError, RequestRefusedError.
        """

    async def serve(self, subject: Subject, responder: Responder, *, screen: Screen | None = None) -> Subscription:
        """Answer commands on a subject or pattern. What the responder raises is logged and becomes a QueryError 500."""

    async def serve_queries(
        self, service: str, version: str, description: str, endpoints: dict[Endpoint, Responder]
    ) -> Subscription:
        """Register a NATS micro service (``nats service ls``) with one endpoint per query.

        Replies in JSON if the request was JSON or empty, else in msgpack.
        """

    def bucket(self, spec: BucketSpec) -> KeyValue:
        """A KV bucket, declared at connect."""

    def objects(self, spec: ObjectStoreSpec) -> ObjectStore:
        """An object store, declared at connect."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Register a callback for every reconnect."""

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything published has reached the server, the outbox included."""

    async def close(self, timeout_s: float) -> dict[str, int]:
        """Drain and close; returns counts of undelivered items by kind (empty: nothing was lost)."""

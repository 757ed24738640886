"""A bus in memory that writes down what is done on it, by the subject table's templates: what a service really uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum

from schemas.message import Message
from schemas.registry import CHANNELS, ENDPOINTS
from schemas.service import Endpoint
from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import Subject
from services._runtime.bus.api import Entry, EventHandler, Handler, Responder
from tests.support.bus.bus_memory import MemoryBus


class Use(StrEnum):
    """What can be done with a subject, a stream, a bucket or an object store."""

    PUBLISH = "publish"
    PUBLISH_FACT = "publish_event"
    SUBSCRIBE = "subscribe"
    REQUEST = "request"
    SERVE = "serve"
    REPLAY = "replay"
    LOOK_UP = "look_up"
    READ = "read"
    WATCH = "watch"
    WRITE = "write"
    STORE = "store"


Recorded = defaultdict[Use, set[str]]
"""Templates of subjects, or names of streams, buckets and object stores, by use."""


class RecordingBus(MemoryBus):
    """`MemoryBus`, and what was done on it. A subject that is in no table is an error."""

    @property
    def recorded(self) -> Recorded:
        """So far."""
        return self.__dict__.setdefault("_recorded", defaultdict(set))

    def _note(self, use: Use, subject: Subject) -> None:
        self.recorded[use].add(template_of(subject, self.root))

    def publish(self, subject, message):
        self._note(Use.PUBLISH, subject)
        super().publish(subject, message)

    def publish_event(self, subject, message, *, message_id):
        self._note(Use.PUBLISH_FACT, subject)
        super().publish_event(subject, message, message_id=message_id)

    async def subscribe(self, pattern: Subject, handler: Handler, *, queue: str | None = None, screen=None):
        self._note(Use.SUBSCRIBE, pattern)
        return await super().subscribe(pattern, handler, queue=queue, screen=screen)

    async def replay(self, stream: StreamSpec, handler: EventHandler, on_undecodable=None, *, after: int = 0):
        self.recorded[Use.REPLAY].add(stream.name)
        return await super().replay(stream, handler, on_undecodable, after=after)

    async def read_stored(self, stream: StreamSpec, pattern: Subject, handler: Handler) -> None:
        self.recorded[Use.LOOK_UP].add(stream.name)
        await super().read_stored(stream, pattern, handler)

    async def event_at(self, stream: StreamSpec, sequence: int):
        self.recorded[Use.LOOK_UP].add(stream.name)
        return await super().event_at(stream, sequence)

    async def append(self, stream: StreamSpec, subject, message, last_sequence: int, message_id: str | None = None):
        self._note(Use.PUBLISH_FACT, subject)
        if message_id is not None:
            self.recorded[Use.LOOK_UP].add(stream.name)  # whether it was stored before
        return await super().append(stream, subject, message, last_sequence, message_id)

    async def is_stored(self, stream: StreamSpec, subject: Subject) -> bool:
        self.recorded[Use.LOOK_UP].add(stream.name)
        return await super().is_stored(stream, subject)

    def send_request(self, subject: Subject, message: Message, *, timeout_s: float):
        self._note(Use.REQUEST, subject)
        return super().send_request(subject, message, timeout_s=timeout_s)

    async def serve(self, subject: Subject, responder: Responder, *, screen=None):
        self._note(Use.SERVE, subject)
        return await super().serve(subject, responder, screen=screen)

    async def serve_queries(self, service: str, version: str, description: str, endpoints: dict[Endpoint, Responder]):
        for endpoint in endpoints:
            self._note(Use.SERVE, endpoint.template.subject(self.root))
        return await super().serve_queries(service, version, description, endpoints)

    def bucket(self, spec: BucketSpec):
        return _RecordingKeyValue(super().bucket(spec), spec.name, self.recorded)

    def objects(self, spec: ObjectStoreSpec):
        self.recorded[Use.STORE].add(spec.name)
        return super().objects(spec)


class _RecordingKeyValue:
    """A bucket, and what is done with it."""

    def __init__(self, bucket, name: str, recorded: Recorded) -> None:
        self._bucket, self._name, self._recorded = bucket, name, recorded

    def _used(self, use: Use):
        self._recorded[use].add(self._name)
        return self._bucket

    async def get(self, key: str) -> Entry | None:
        return await self._used(Use.READ).get(key)

    async def entries(self) -> dict[str, Entry]:
        return await self._used(Use.READ).entries()

    async def put(self, key: str, message: Message) -> int:
        return await self._used(Use.WRITE).put(key, message)

    async def create(self, key: str, message: Message) -> int:
        return await self._used(Use.WRITE).create(key, message)

    async def update(self, key: str, message: Message, revision: int) -> int:
        return await self._used(Use.WRITE).update(key, message, revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        await self._used(Use.WRITE).delete(key, revision)

    def watch(self, on_entry: Callable[[str, Entry | None], None]) -> AbstractAsyncContextManager[None]:
        return self._used(Use.WATCH).watch(on_entry)


def template_of(subject: Subject, root: str) -> str:
    """The text of the template that a subject or pattern was made of.

    Raises:
        AssertionError: it is in no table.
    """
    found = {
        template.text
        for template in [channel.template for channel in CHANNELS] + [endpoint.template for endpoint in ENDPOINTS]
        if _made_of(subject.text.split("."), [root, *template.text.split(".")])
    }
    assert len(found) == 1, f"{subject.text} is made of {sorted(found) or 'no template'}"
    return found.pop()


def _made_of(tokens: list[str], template: list[str]) -> bool:
    return len(tokens) == len(template) and all(
        part.startswith("{") or part == token for token, part in zip(tokens, template, strict=True)
    )

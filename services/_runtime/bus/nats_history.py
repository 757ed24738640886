"""Reads what a stream has stored, without a consumer: for commands, `Bus.read_stored`, replays and watches.

Some streams store a host's events under one subject, whatever their application (`StreamSpec.stored_by_host`): there
the application is taken from the event, whose sender chose it anyway, and the node from the subject.

A consumer could deliver stored messages to any subject of its account, in the server's name, and the answer to a direct
get arrives wherever the asker says (`schemas.permissions`). So there are no consumers, and observers, who share an
account, are answered in the server's own JSON, which is no message of ours.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from schemas.streams import StreamSpec
from schemas.subjects import Subject, SubjectError, untoken
from services._runtime.bus.api import BusError, Delivery, Handler, NotPermittedError, RawMessage
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_direct_gets import DirectGets
from services._runtime.bus.nats_session import NatsSession

FOLLOW_S: Final = 0.25
"""So often a replay or a watch asks for what was stored since."""
STORED_WITHIN_S: Final = 0.01
"""What is received is asked for so much later: it may not be stored yet, and more may come."""
_API: Final = "$JS.API.STREAM.MSG.GET."
_NO_MESSAGE: Final = 10037
"""Server error: nothing is stored there."""
_TIMEOUT_S: Final = 5.0


async def read_stored(bus: NatsSession, stream: StreamSpec, pattern: Subject, since_s: float, handler: Handler) -> None:
    """Call the handler with events on a subject or pattern stored after a Unix time, oldest first.

    Undecodable ones are counted and skipped. What the handler raises ends the reading, and is raised here: a command
    tells it. (`Bus.read_stored` counts it: stored for days, one event would else end its service at every start.)

    Raises:
        BusError: not connected, not permitted, or the server stops answering.
    """
    name, mapped = stream.stream_name(bus.root), stream.stored_by_host(bus.root)
    # Mapped subjects, and those of events that were stored before the stream had a mapping.
    stored = f"{mapped[1].rpartition('.')[0]}.>" if mapped else pattern.text
    async for each in _stored(bus, name, stored, datetime.fromtimestamp(since_s, UTC).isoformat()):
        delivery = bus.dispatch.decode(each.subject, each.data)
        if delivery is not None and mapped:
            delivery = _as_published(bus, stream, delivery)
        if delivery is not None and pattern.matches(Subject(delivery.subject)):
            handler(delivery)


async def _stored(bus: NatsSession, stream: str, subjects: str, since: str) -> AsyncIterator[RawMessage]:
    gets = DirectGets(bus, stream, subjects)
    try:
        await gets.open({"start_time": since})
        while batch := await gets.batch():
            for each in batch:
                yield each
    except NotPermittedError:  # an observer
        begin: int | str = since
        while found := await next_stored(bus, stream, begin, subjects):
            yield found
            begin = found.sequence + 1
    finally:
        await gets.close()


async def next_stored(bus: NatsSession, stream: str, begin: int | str, subjects: str = ">") -> RawMessage | None:
    """The first message from a sequence or a time (RFC 3339) on, from the stream's leader, which never lags behind.

    Raises:
        BusError: not connected, not permitted, no such stream, or the server does not answer.
    """
    start = {"seq": begin} if isinstance(begin, int) else {"start_time": begin}
    request = json.dumps({**start, "next_by_subj": subjects}).encode()
    with as_bus_errors(f"read stream {stream}"):
        answer = await bus.connection.request(f"{_API}{stream}", request, timeout=_TIMEOUT_S)
    try:
        described = json.loads(answer.data)
        if "error" in described:
            if described["error"].get("err_code") == _NO_MESSAGE:
                return None
            raise BusError(f"read stream {stream}: {described['error'].get('description')}")
        found = described["message"]
        headers = base64.b64decode(found.get("hdrs", "")).partition(b"\r\n")[2]
        return RawMessage(
            str(found["subject"]),
            base64.b64decode(found.get("data", "")),
            bus.connection._parse_header_lines(headers),  # noqa: SLF001 - no public way to it
            is_history=True,
            sequence=int(found["seq"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BusError(f"read stream {stream}: the server's answer cannot be read: {error}") from error


class NextRead:
    """When a replay or a watch reads again: after a while, soon after a message was received, or at once."""

    def __init__(self, bus: NatsSession) -> None:
        self._bus = bus
        self._due = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None
        self._subscriptions: list[Any] = []

    async def subscribe(self, subject: str) -> None:
        """Read soon after each message on a subject; what it says does not count, as anyone may have sent it.

        Raises:
            Exception: of nats-py's, see `as_bus_errors`.
        """
        self._subscriptions.append(await self._bus.connection.subscribe(subject, cb=self._received))

    async def _received(self, _message: Msg) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(STORED_WITHIN_S, self._stored)

    def _stored(self) -> None:
        self._soon = None
        self._due.set()

    def at_once(self) -> None:
        """End `wait`, or the next one."""
        self._due.set()

    def begin(self) -> None:
        """Before reading: what is published meanwhile may be missed by it, and is read for again."""
        self._due.clear()

    async def wait(self, within_s: float = FOLLOW_S) -> None:
        """Until it is time, which is so long from now at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._due.wait()

    async def close(self) -> None:
        """Unsubscribe."""
        if self._soon is not None:
            self._soon.cancel()
        for each in self._subscriptions:
            with suppress(nats.errors.Error):
                await each.unsubscribe()


def _as_published(bus: NatsSession, stream: StreamSpec, delivery: Delivery) -> Delivery | None:
    """The delivery with its published subject; None, and counted, if it names another node than its sender's."""
    (template,) = stream.templates
    with suppress(SubjectError):
        template.parse(bus.root, delivery.subject)
        return delivery  # stored before the stream had a mapping
    ids = {name: str(getattr(delivery.message, name, "")) for name in template.parameters}
    try:
        subject = template.subject(bus.root, **ids)
        sender = untoken(delivery.subject.rpartition(".")[2])
    except SubjectError:
        sender = ""
    if not sender or sender != ids["node"]:
        bus.dispatch.counts["undecodable_subject_mismatch"] += 1
        return None
    return Delivery(subject.text, delivery.message, delivery.size_bytes)

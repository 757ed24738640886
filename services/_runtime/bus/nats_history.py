"""Reads stored events of a stream since a point in time: for `turnbuckle explain`.

Some streams store a host's events under one subject, whatever their application (`StreamSpec.stored_by_host`): there
the application is taken from the event, whose sender chose it anyway, and the node from the subject.

Services use `Bus.replay`. Here no consumer is created: observers may create none, because a consumer could deliver
stored messages to any subject (`schemas.permissions`). Batched direct gets are used instead (NATS ADR-31).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from nats.aio.msg import Msg

from schemas.streams import StreamSpec
from schemas.subjects import Subject, SubjectError, untoken
from services._runtime.bus.api import BusError, BusUnavailableError, Delivery, Handler, NotPermittedError
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_connection import as_bus_errors

_BATCH: Final = 500
_TIMEOUT_S: Final = 5.0
_API: Final = "$JS.API.DIRECT.GET."


async def read_stored(bus: NatsBus, stream: StreamSpec, pattern: Subject, since_s: float, handler: Handler) -> None:
    """Call the handler with events on a subject or pattern stored after a Unix time, oldest first.

    Undecodable ones are counted and skipped.

    Raises:
        BusError: not connected, not permitted, or the server stops answering.
    """
    name, mapped = stream.stream_name(bus.root), stream.stored_by_host(bus.root)
    # Mapped subjects, and those of events that were stored before the stream had a mapping.
    stored = f"{mapped[1].rpartition('.')[0]}.>" if mapped else pattern.text
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    start: dict[str, Any] = {"start_time": datetime.fromtimestamp(since_s, UTC).isoformat()}
    with as_bus_errors(f"read stream {name}"):
        inbox = bus.connection.new_inbox()
        subscription = await bus.connection.subscribe(inbox, cb=arrived.put)
        try:
            left = 1
            while left > 0:
                request = json.dumps({"batch": _BATCH, "next_by_subj": stored, **start}).encode()
                await bus.connection.publish(_API + name, request, reply=inbox)
                left = 0
                async for message in _one_batch(bus, name, arrived):
                    headers = message.headers or {}
                    start, left = {"seq": int(headers["Nats-Sequence"]) + 1}, int(headers["Nats-Num-Pending"])
                    delivery = bus.dispatch.decode(headers["Nats-Subject"], message.data)
                    if delivery is not None and mapped:
                        delivery = _as_published(bus, stream, delivery)
                    if delivery is not None and pattern.matches(Subject(delivery.subject)):
                        handler(delivery)
        finally:
            await subscription.unsubscribe()


def _as_published(bus: NatsBus, stream: StreamSpec, delivery: Delivery) -> Delivery | None:
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
        bus.dispatch.counts["undecodable_wrong_node"] += 1
        return None
    return Delivery(subject.text, delivery.message, delivery.size_bytes)


async def _one_batch(bus: NatsBus, stream: str, arrived: asyncio.Queue[Msg]) -> AsyncIterator[Msg]:
    """The messages of one batch; a status message ends it."""
    while True:
        try:
            message = await asyncio.wait_for(arrived.get(), _TIMEOUT_S)
        except TimeoutError as error:
            if bus.connection.has_refused(_API + stream):
                raise NotPermittedError(f"this user may not read stream {stream}") from error
            raise BusUnavailableError(f"the server sent nothing for {_TIMEOUT_S:g} s") from error
        status = (message.headers or {}).get("Status")
        if status in {"204", "404"}:  # no more; none at all
            return
        if status is not None:
            raise BusError(f"stream {stream} does not answer: {status}")
        yield message

"""What a stream holds, read from a moment on to its present end: for `turnbuckle explain`.

Services follow facts with `Bus.consume`; nothing here leaves a consumer behind.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from schemas.streams import StreamSpec
from schemas.subjects import Subject
from services._runtime.bus import BusUnavailableError, Handler
from services._runtime.bus_nats import NatsBus
from services._runtime.nats_connection import as_bus_errors

_BATCH: Final = 500
_SILENCE_S: Final = 5.0
_EMPTY_PULLS: Final = 3
"""What was counted has been removed meanwhile: age, or a purge."""
_CONSUMER_IDLE_S: Final = 30.0


async def read_stored(bus: NatsBus, stream: StreamSpec, pattern: Subject, since_s: float, handler: Handler) -> None:
    """Hand over the facts on a subject or pattern that were stored after a Unix time, oldest first.

    Undecodable ones are counted and left out.

    Raises:
        BusError: not connected, or the server stops answering.
    """
    name = stream.stream_name(bus.root)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_TIME,
        opt_start_time=datetime.fromtimestamp(since_s, UTC),
        ack_policy=AckPolicy.NONE,
        filter_subject=pattern.text,
        inactive_threshold=_CONSUMER_IDLE_S,
        mem_storage=True,
        num_replicas=1,
    )
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    with as_bus_errors(f"read stream {name}"):
        info = await bus.jetstream.add_consumer(name, config)
        inbox = bus.connection.new_inbox()
        subscription = await bus.connection.subscribe(inbox, cb=arrived.put)
        try:
            left, empty_pulls = info.num_pending or 0, 0
            while left > 0 and empty_pulls < _EMPTY_PULLS:
                await _request(bus, f"{name}.{info.name}", inbox)
                messages = [message async for message in _one_pull(arrived, min(left, _BATCH))]
                for message in messages:
                    left = message.metadata.num_pending
                    if (delivery := bus.dispatch.decode(message.subject, message.data)) is not None:
                        handler(delivery)
                empty_pulls = 0 if messages else empty_pulls + 1
        finally:
            await _take_away(bus, name, info.name)
            await subscription.unsubscribe()


async def _request(bus: NatsBus, consumer: str, inbox: str) -> None:
    request = json.dumps({"batch": _BATCH, "no_wait": True}).encode()
    await bus.connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", request, reply=inbox)


async def _one_pull(arrived: asyncio.Queue[Msg], expected: int) -> AsyncIterator[Msg]:
    """The messages that one request brings; the server says when there are fewer than were asked for."""
    for _ in range(expected):
        try:
            message = await asyncio.wait_for(arrived.get(), _SILENCE_S)
        except TimeoutError as error:
            raise BusUnavailableError(f"the server sent nothing for {_SILENCE_S:g} s") from error
        if (message.headers or {}).get("Status") and not message.data:
            return
        yield message


async def _take_away(bus: NatsBus, stream: str, consumer: str) -> None:
    """The server forgets an idle consumer by itself, if it cannot be reached now."""
    try:
        await bus.jetstream.delete_consumer(stream, consumer)
    except (nats.errors.Error, TimeoutError):
        return

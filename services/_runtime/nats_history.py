"""What a stream holds, read from a moment on to its present end: for `turnbuckle explain`.

Services follow facts with `Bus.consume`. Here no consumer is made at all: an observer may make none, because one could
deliver what is stored to any subject (`schemas.permissions`). Many messages are asked for at once (NATS ADR-31).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

from nats.aio.msg import Msg

from schemas.streams import StreamSpec
from schemas.subjects import Subject
from services._runtime.bus import BusError, BusUnavailableError, Handler, NotPermittedError
from services._runtime.bus_nats import NatsBus
from services._runtime.nats_connection import as_bus_errors

_BATCH: Final = 500
_SILENCE_S: Final = 5.0
_API: Final = "$JS.API.DIRECT.GET."


async def read_stored(bus: NatsBus, stream: StreamSpec, pattern: Subject, since_s: float, handler: Handler) -> None:
    """Hand over the facts on a subject or pattern that were stored after a Unix time, oldest first.

    Undecodable ones are counted and left out.

    Raises:
        BusError: not connected, not permitted, or the server stops answering.
    """
    name = stream.stream_name(bus.root)
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    start: dict[str, Any] = {"start_time": datetime.fromtimestamp(since_s, UTC).isoformat()}
    with as_bus_errors(f"read stream {name}"):
        inbox = bus.connection.new_inbox()
        subscription = await bus.connection.subscribe(inbox, cb=arrived.put)
        try:
            left = 1
            while left > 0:
                request = json.dumps({"batch": _BATCH, "next_by_subj": pattern.text, **start}).encode()
                await bus.connection.publish(_API + name, request, reply=inbox)
                left = 0
                async for message in _one_batch(bus, name, arrived):
                    headers = message.headers or {}
                    start, left = {"seq": int(headers["Nats-Sequence"]) + 1}, int(headers["Nats-Num-Pending"])
                    delivery = bus.dispatch.decode(headers["Nats-Subject"], message.data)
                    if delivery is not None:
                        handler(delivery)
        finally:
            await subscription.unsubscribe()


async def _one_batch(bus: NatsBus, stream: str, arrived: asyncio.Queue[Msg]) -> AsyncIterator[Msg]:
    """The messages that one request brings; the server says where they end."""
    while True:
        try:
            message = await asyncio.wait_for(arrived.get(), _SILENCE_S)
        except TimeoutError as error:
            if bus.connection.has_refused(_API + stream):
                raise NotPermittedError(f"this user may not read stream {stream}") from error
            raise BusUnavailableError(f"the server sent nothing for {_SILENCE_S:g} s") from error
        status = (message.headers or {}).get("Status")
        if status in {"204", "404"}:  # no more; none at all
            return
        if status is not None:
            raise BusError(f"stream {stream} does not answer: {status}")
        yield message

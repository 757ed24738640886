"""Whether a stream holds a fact already: for senders whose facts are unique beyond the server's duplicate window."""

from __future__ import annotations

import nats.errors
import nats.js.errors

from schemas.streams import StreamSpec
from schemas.subjects import Subject
from services._runtime.bus import Bus, BusUnavailableError
from services._runtime.bus_memory import MemoryBus
from services._runtime.bus_nats import NatsBus
from services._runtime.nats_connection import as_bus_errors


async def is_stored(bus: Bus, stream: StreamSpec, subject: Subject) -> bool:
    """Whether the stream holds a message on this subject. Costs one round trip.

    Raises:
        BusError: not connected, or the server does not answer.
    """
    name = stream.stream_name(bus.root)
    if isinstance(bus, MemoryBus):
        bus.require_connection()
        found = bus.broker.stream(name)
        return found is not None and any(text == subject.text for text, _ in found.messages)
    if not isinstance(bus, NatsBus):
        raise TypeError(f"a {type(bus).__name__} cannot be asked")
    if not bus.connected:
        raise BusUnavailableError(f"not connected to NATS at {bus.options.address}")
    with as_bus_errors(f"look for {subject} in stream {name}"):
        try:
            await bus.jetstream.get_last_msg(name, subject.text)  # from the leader: a replica may lag
        except nats.js.errors.NotFoundError:
            return False
    return True

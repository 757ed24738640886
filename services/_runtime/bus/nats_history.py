"""Reads stored events of a stream since a point in time, without a consumer: for commands, and for `Bus.read_stored`.

Some streams store a host's events under one subject, whatever their application (`StreamSpec.stored_by_host`): there
the application is taken from the event, whose sender chose it anyway, and the node from the subject.

A consumer could deliver stored messages to any subject (`schemas.permissions`): observers may create none, and services
none on what hosts write, unless they may say more than hosts anyway.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from schemas.streams import StreamSpec
from schemas.subjects import Subject, SubjectError, untoken
from services._runtime.bus.api import Delivery, Handler
from services._runtime.bus.nats_direct_gets import DirectGets
from services._runtime.bus.nats_session import NatsSession


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
    gets = DirectGets(bus, name, stored)
    try:
        await gets.open({"start_time": datetime.fromtimestamp(since_s, UTC).isoformat()})
        while batch := await gets.batch():
            for each in batch:
                delivery = bus.dispatch.decode(each.subject, each.data)
                if delivery is not None and mapped:
                    delivery = _as_published(bus, stream, delivery)
                if delivery is not None and pattern.matches(Subject(delivery.subject)):
                    handler(delivery)
    finally:
        await gets.close()


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

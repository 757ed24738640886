"""A trace goes on across the bus: in the headers of commands, queries and facts, and nowhere else."""

from __future__ import annotations

from schemas.message import Message
from schemas.queries import StateReply, StateRequest
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.streams import CONTAINER_STREAM
from schemas.subjects import LIMIT_UPDATES
from services._runtime.bus.api import Delivery
from services._runtime.telemetry.tracing import span, trace_headers, trace_ids
from tests.support.bus_lab import BusLab, container_event, event_subject, node_info
from tests.support.deadline import until
from tests.support.recorded_spans import recorded_spans


async def test_a_command_continues_the_trace(lab: BusLab) -> None:
    client, server = await lab.bus(), await lab.bus()
    subject = LIMIT_UPDATES.subject(lab.root, node="n1")

    async def answer(_delivery: Delivery) -> Message:
        with span("agent.apply_limits"):
            return node_info(1)

    await server.serve(subject, answer)
    await server.flush(2)
    with recorded_spans() as recorded:
        with span("allocator.decide"):
            await client.request(subject, node_info(1), timeout_s=2)
        await until(lambda: "respond cmd.limits.{node}" in recorded.names())
        await client.request(subject, node_info(2), timeout_s=2)  # outside: a trace of its own
        await until(lambda: recorded.names().count("respond cmd.limits.{node}") == 2)
    first, second = [each for each in recorded.ended if each.name == "agent.apply_limits"]

    assert [each.name for each in recorded.lineage(first)] == [
        "allocator.decide",
        "request cmd.limits.{node}",
        "respond cmd.limits.{node}",
        "agent.apply_limits",
    ]
    assert recorded.lineage(second)[0].name == "request cmd.limits.{node}"


async def test_a_query_continues_the_trace(lab: BusLab) -> None:
    client, server = await lab.bus(), await lab.bus()
    seen: list[object] = []

    async def answer(_delivery: Delivery) -> Message:
        seen.append(trace_ids())
        return StateReply(epoch=1, steps=2, superseded=False, apps=())

    await server.serve_queries("allocator", "0.1.0", "limits", {ALLOCATOR_STATE: answer})
    await server.flush(2)
    with recorded_spans() as recorded, span("allocator.decide") as asking:
        await client.request(ALLOCATOR_STATE.template.subject(lab.root), StateRequest(), timeout_s=2)
        await until(lambda: "respond cmd.allocator.state" in recorded.names())

    assert [ids[0] for ids in seen] == [asking.trace_id]
    assert recorded.path("respond cmd.allocator.state") == [
        "allocator.decide",
        "request cmd.allocator.state",
        "respond cmd.allocator.state",
    ]


async def test_a_fact_continues_the_trace_however_late_it_is_stored(lab: BusLab) -> None:
    """What it follows from is noted when it is queued; its span ends when the stream has it."""
    client, reader = await lab.bus(), await lab.bus()
    seen: list[dict[str, str] | None] = []

    async def take(_delivery: Delivery) -> None:
        seen.append(trace_headers())

    await reader.replay(CONTAINER_STREAM, take)
    with recorded_spans() as recorded:
        await lab.stop_server()
        await until(lambda: not client.connected)
        with span("allocator.decide") as deciding:
            client.publish_event(event_subject(lab.root), container_event(1), message_id="1")
        await lab.start_server()
        await until(lambda: seen, within_s=30)
        await until(lambda: "process evt.container.{app}.{node}" in recorded.names())
    (taken,) = seen
    processed = recorded.named("process evt.container.{app}.{node}")
    published = recorded.lineage(processed)[1]

    assert taken is not None
    assert taken["traceparent"].split("-")[1] == deciding.trace_id
    assert [each.name for each in recorded.lineage(processed)] == [
        "allocator.decide",
        "publish evt.container.{app}.{node}",
        "process evt.container.{app}.{node}",
    ]
    assert published.attributes["messaging.message.id"] == "1"
    assert published.start_time <= recorded.named("allocator.decide").end_time


async def test_observations_and_replies_need_no_headers(lab: BusLab) -> None:
    """A sample is neither a span nor a header, whatever is under way where it is sent."""
    client, reader = await lab.bus(), await lab.bus()
    seen: list[object] = []
    await reader.subscribe(event_subject(lab.root), lambda _delivery: seen.append(trace_ids()))
    await reader.flush(2)
    with recorded_spans() as recorded:
        with span("allocator.decide"):
            client.publish(event_subject(lab.root), container_event(1))
        await until(lambda: seen)

    assert seen == [None]
    assert recorded.names() == ["allocator.decide"]

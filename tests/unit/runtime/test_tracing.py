"""Spans: who is whose parent, what stays outside of a trace, and what it all costs while nobody exports."""

from __future__ import annotations

import asyncio
import json
from io import StringIO

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from schemas.registry import CHANNELS, ENDPOINTS
from schemas.streams import CONTAINER_STREAM
from schemas.subjects import LIMIT_UPDATES
from services._runtime.bus.api import RequestRefusedError
from services._runtime.telemetry import tracing
from services._runtime.telemetry.logging import get_logger, setup_logging
from services._runtime.telemetry.tracing import (
    NEW_TRACE,
    Begin,
    message_span,
    span,
    template_of,
    trace_headers,
    trace_ids,
)
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.bus_lab import container_event, event_subject, node_info
from tests.support.deadline import until
from tests.support.recorded_spans import recorded_spans


def test_nothing_is_made_while_nobody_exports() -> None:
    with span("allocator.decide", turnbuckle__limit_updates=1) as current:
        current.set(turnbuckle__changes=2)
        assert trace_headers() is None
        assert trace_ids() is None

    assert current.carrier == NEW_TRACE
    assert tracing.untraced() is None


def test_undeclared_names_are_refused_with_and_without_an_export() -> None:
    def make() -> None:
        with pytest.raises(tracing.UndeclaredTelemetryError, match=r"did you mean allocator\.decide"):
            span("allocator.decided")
        with pytest.raises(tracing.UndeclaredTelemetryError, match="colour"):
            span("allocator.decide", colour="red")
        with pytest.raises(tracing.UndeclaredTelemetryError, match="colour"):
            message_span("bus.request", "tb.cmd.limits.n1", colour="red").__enter__()

    with recorded_spans():
        make()
        with span("allocator.decide") as current, pytest.raises(tracing.UndeclaredTelemetryError, match="colour"):
            current.set(colour="red")
    with pytest.raises(tracing.UndeclaredTelemetryError, match="colour"):
        span("allocator.decide", colour="red")


def test_what_is_under_way_is_the_parent() -> None:
    with recorded_spans() as recorded:
        with span("allocator.decide", turnbuckle__limit_updates=3) as outer, span("allocator.grant_memory") as inner:
            inner.set(turnbuckle__memory__granted_bytes=5)
        with span("agent.handle_oom", Begin(outer.carrier)):
            pass
        with span("agent.apply_limits", Begin(NEW_TRACE, links=(outer.carrier, {"traceparent": "nonsense"}))):
            pass

    assert recorded.path("allocator.grant_memory") == ["allocator.decide", "allocator.grant_memory"]
    assert recorded.path("agent.handle_oom") == ["allocator.decide", "agent.handle_oom"]
    assert recorded.named("allocator.decide").attributes == {"turnbuckle.limit_updates": 3}
    assert recorded.named("allocator.grant_memory").attributes == {"turnbuckle.memory.granted_bytes": 5}
    root = recorded.named("agent.apply_limits")
    assert root.parent is None
    assert [link.context.span_id for link in root.links] == [recorded.named("allocator.decide").context.span_id]


def test_a_span_may_have_begun_before_it_was_known() -> None:
    with recorded_spans() as recorded, span("agent.handle_oom", Begin(begun_ns=1_000)):
        pass

    assert recorded.named("agent.handle_oom").start_time == 1_000


def test_errors_are_named_without_a_stack_trace() -> None:
    with recorded_spans() as recorded:
        with pytest.raises(KeyError), span("allocator.decide"):
            raise KeyError("shop")
        with span("allocator.grant_memory") as current:
            current.fail("503", "changing hands")

    raised, failed = recorded.named("allocator.decide"), recorded.named("allocator.grant_memory")
    assert raised.attributes == {"error.type": "KeyError"}
    assert raised.status.status_code is failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "changing hands"
    assert not raised.events


async def test_a_timer_for_everyone_runs_outside_of_the_trace_that_set_it() -> None:
    """A callback runs in the context in which it was scheduled; an untraced one does not."""
    seen: list[object] = []
    with recorded_spans(), span("allocator.decide"):
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: seen.append(trace_ids()))
        loop.call_soon(lambda: seen.append(trace_ids()), context=tracing.untraced())
        here = trace_ids()
        await until(lambda: len(seen) == 2)

    assert here is not None
    assert seen == [here, None]


def test_subjects_are_named_by_their_templates() -> None:
    assert template_of("tb.evt.oom.shop.host-1") == "evt.oom.{app}.{node}"
    assert template_of("tb.cmd.limits.host/example") == "cmd.limits.{node}"
    assert template_of("tb.cmd.advisor.rank") == "cmd.advisor.rank"
    assert template_of("$JS.API.INFO") == ""
    for template in [channel.template for channel in CHANNELS] + [endpoint.template for endpoint in ENDPOINTS]:
        assert template_of(template.subject("root", **dict.fromkeys(template.parameters, "x")).text) == template.text


@pytest.fixture
def buses() -> tuple[MemoryBus, MemoryBus]:
    broker = MemoryBroker()
    return MemoryBus(broker), MemoryBus(broker)


async def test_a_command_is_told_of_in_the_words_of_the_conventions(buses: tuple[MemoryBus, MemoryBus]) -> None:
    client, server = buses
    subject = LIMIT_UPDATES.subject("tb", node="n1")
    refuse = False

    async def answer(_delivery: object) -> object:
        if refuse:
            raise RequestRefusedError(503, "later")
        return node_info(1)

    await server.serve(subject, answer)
    with recorded_spans() as recorded:
        await client.request(subject, node_info(1), timeout_s=60)
    sent, answered = recorded.named("request cmd.limits.{node}"), recorded.named("respond cmd.limits.{node}")
    refuse = True
    with recorded_spans() as refused, pytest.raises(RequestRefusedError):
        await client.request(subject, node_info(1), timeout_s=60)

    assert (sent.kind, answered.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert recorded.parent_of(answered) is sent
    assert dict(sent.attributes) == {
        "messaging.system": "nats",
        "messaging.operation.name": "request",
        "messaging.operation.type": "send",
        "messaging.destination.name": "tb.cmd.limits.n1",
        "messaging.destination.template": "cmd.limits.{node}",
    }
    assert answered.attributes["messaging.operation.type"] == "process"
    assert [refused.named(f"{what} cmd.limits.{{node}}").status.description for what in ("respond", "request")] == [
        "later",
        "later",
    ]
    await client.close(1)
    await server.close(1)


async def test_what_a_stream_held_before_is_no_part_of_a_trace(buses: tuple[MemoryBus, MemoryBus]) -> None:
    """A replay hands over thousands of old facts: they are history, what comes afterwards is news."""
    client, reader = buses
    subject = event_subject("tb")
    seen: list[dict[str, str] | None] = []

    async def take(_delivery: object) -> None:
        seen.append(trace_headers())

    with recorded_spans() as recorded:
        client.publish_event(subject, container_event(1), message_id="1")
        await client.flush(60)
        replay = await reader.replay(CONTAINER_STREAM, take)
        await replay.caught_up()
        with span("allocator.decide"):
            client.publish_event(subject, container_event(2), message_id="2")
        await until(lambda: len(seen) == 2)
        await until(lambda: "process evt.container.{app}.{node}" in recorded.names())
        await replay.stop()

    assert seen[0] is None
    assert recorded.path("process evt.container.{app}.{node}") == [
        "allocator.decide",
        "publish evt.container.{app}.{node}",
        "process evt.container.{app}.{node}",
    ]
    await client.close(1)
    await reader.close(1)


async def test_observations_carry_no_trace(buses: tuple[MemoryBus, MemoryBus]) -> None:
    client, reader = buses
    seen: list[object] = []
    subject = event_subject("tb")
    await reader.subscribe(subject, lambda _delivery: seen.append(trace_ids()))
    with recorded_spans() as recorded:
        with span("allocator.decide"):
            client.publish(subject, container_event(1))
        await until(lambda: seen)

    assert seen == [None]
    assert recorded.names() == ["allocator.decide"]
    await client.close(1)
    await reader.close(1)


def test_an_unsampled_trace_stays_unsampled() -> None:
    with recorded_spans(ALWAYS_OFF) as recorded, span("allocator.decide") as current:
        headers = trace_headers()

    assert recorded.ended == []
    assert headers is not None
    assert headers["traceparent"].endswith("-00") or headers["traceparent"].endswith("-02")
    assert current.carrier["traceparent"].split("-")[1] == headers["traceparent"].split("-")[1]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_logs_carry_the_ids_of_the_trace(log_format: str) -> None:
    stream = StringIO()
    setup_logging("agent", level="info", log_format=log_format, stream=stream)
    log = get_logger("test")
    try:
        with recorded_spans() as recorded:
            log.info("outside")
            with span("allocator.decide"):
                log.info("inside")
    finally:
        setup_logging("agent", level="info", log_format="auto")
    context = recorded.named("allocator.decide").context
    outside, inside = stream.getvalue().splitlines()

    assert "trace_id" not in outside
    if log_format == "json":
        line = json.loads(inside)
        assert (int(line["trace_id"], 16), int(line["span_id"], 16)) == (context.trace_id, context.span_id)
        assert (len(line["trace_id"]), len(line["span_id"])) == (32, 16)
    else:
        assert f"trace_id={context.trace_id:032x}" in inside

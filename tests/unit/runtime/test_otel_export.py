"""Export to a collector that takes, refuses or hangs: real OTLP over HTTP; the loop never waits for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from io import StringIO

import pytest

from schemas.telemetry import ATTRIBUTES, METRICS
from schemas.telemetry_specs import MetricSpec
from services._runtime.service.health import Health
from services._runtime.telemetry import otel_export
from services._runtime.telemetry.logging import get_logger, setup_logging
from services._runtime.telemetry.otel_export import Export
from services._runtime.telemetry.otel_lifetime import exporting, exporting_spans
from services._runtime.telemetry.otel_settings import Origin, OtelSettings, read_otel_settings
from services._runtime.telemetry.telemetry import Sample, Telemetry
from services._runtime.telemetry.tracing import Begin, drop_span, message_span, span
from tests.support.deadline import until
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver, wait_for

ORIGIN = Origin("agent", "1.2.3")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(otel_export, "FLUSH_S", 60.0)  # a busy machine may take longer than a second and a half
        yield made


def asked_for(receiver: OtlpReceiver, **more: str) -> OtelSettings:
    found = read_otel_settings("agent", receiver.environment | more)
    assert found is not None
    return found


def make_spans(count: int) -> None:
    for _ in range(count):
        with span("allocator.decide", turnbuckle__limit_updates=1):
            pass


def test_spans_arrive_with_their_origin(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,service.version=9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
    with exporting_spans(asked_for(receiver), ORIGIN):
        make_spans(3)

    assert [found.name for found in receiver.spans] == ["allocator.decide"] * 3
    resource = receiver.spans[0].resource
    assert resource["service.name"] == "turnbuckle-agent"
    assert resource["service.version"] == "9", "what the operator says wins"
    assert resource["deployment.environment.name"] == "lab"
    assert resource["service.instance.id"]
    assert receiver.headers[0]["authorization"] == "Bearer s3cret"
    assert receiver.spans[0].attributes == {"turnbuckle.limit_updates": 1}


@pytest.mark.parametrize("asked", ["never", "within", "after"])
def test_a_span_is_one_span_whenever_someone_asks_who_it_is(receiver: OtlpReceiver, asked: str) -> None:
    """One that nobody asks about is made at its end."""
    parent = {"traceparent": f"00-{7:032x}-{8:016x}-01"}
    carrier = {}
    with exporting_spans(asked_for(receiver), ORIGIN):
        with message_span("bus.respond", "tb.cmd.limits.n1", Begin(parent, begun_ns=1_000)) as current:
            if asked == "within":
                carrier = current.carrier
        if asked == "after":
            carrier = current.carrier
        with span("allocator.decide", Begin(current.carrier)) if asked == "after" else span("allocator.decide"):
            pass

    answered, decided = sorted(receiver.spans, key=lambda each: each.begun_ns)
    assert (answered.name, answered.begun_ns) == ("respond cmd.limits.{node}", 1_000)
    assert (answered.trace_id, answered.parent_id) == (f"{7:032x}", f"{8:016x}")
    assert answered.attributes["messaging.destination.name"] == "tb.cmd.limits.n1"
    if asked != "never":
        assert carrier["traceparent"].split("-")[1:3] == [answered.trace_id, answered.span_id]
    assert (decided.parent_id == answered.span_id) is (asked == "after")


def test_what_is_left_out_is_exported_only_where_something_refers_to_it_or_it_failed(receiver: OtlpReceiver) -> None:
    with exporting_spans(asked_for(receiver), ORIGIN):
        for case in ("routine", "asked", "failed"):
            with message_span("bus.respond", f"tb.cmd.limits.{case}", Begin({})) as current:
                if case == "asked":
                    assert current.trace_id
                drop_span()
                if case == "failed":
                    current.fail("503", "later")
        drop_span()

    assert sorted(each.attributes["messaging.destination.name"] for each in receiver.spans) == [
        "tb.cmd.limits.asked",
        "tb.cmd.limits.failed",
    ]


def test_a_trace_that_is_refused_is_logged_outside_of_it(receiver: OtlpReceiver) -> None:
    """What the SDK logs while a span is made asks for the span under way, which is this one."""
    stream = StringIO()
    setup_logging("agent", level="info", log_format="json", stream=stream)
    try:
        with (
            exporting_spans(asked_for(receiver), ORIGIN),
            message_span("bus.respond", "tb.cmd.limits.n1", Begin({"traceparent": "0" * 600})) as current,
        ):
            get_logger("test").info("inside")
    finally:
        setup_logging("agent", level="info", log_format="auto")
    refused, inside = (json.loads(line) for line in stream.getvalue().splitlines() if "telemetry_exp" not in line)

    assert "traceparent header exceeded" in refused["event"]
    assert "trace_id" not in refused
    assert inside["trace_id"] == current.trace_id == receiver.spans[0].trace_id


def test_a_name_of_the_operators(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with exporting_spans(asked_for(receiver), ORIGIN):
        make_spans(1)

    assert [found.service for found in receiver.spans] == ["edge"]


def test_a_sampler_of_the_operators(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    with exporting_spans(asked_for(receiver), ORIGIN):
        make_spans(400)

    # 400 fair draws with 1/4: 100, within five standard deviations of 8.7 each.
    assert 56 < len(receiver.spans) < 144


async def test_metrics_are_read_on_the_event_loop(receiver: OtlpReceiver) -> None:
    """By observable instruments, from the same registry as /metrics."""
    telemetry, loop = Telemetry(), asyncio.get_running_loop()
    ticks = telemetry.counter("turnbuckle_agent_samples_total")
    ticks.value = 7
    telemetry.observe("turnbuckle_agent_reserve_bytes", lambda: 4096)
    on_loop: list[bool] = []

    def dropped() -> float:
        on_loop.append(asyncio.get_running_loop() is loop)
        return 2

    telemetry.observe("turnbuckle_bus_dropped_messages_total", dropped, reason="slow")
    health = Health(list, telemetry)
    beat = asyncio.create_task(health.beat())
    async with exporting(asked_for(receiver), ORIGIN, telemetry, health.samples):
        await until(lambda: any(point.name == "turnbuckle.agent.samples" for point in receiver.points))
    beat.cancel()

    found = {point.name: point for point in receiver.points}
    assert (found["turnbuckle.agent.samples"].value, found["turnbuckle.agent.samples"].is_counter) == (7, True)
    reserve = found["turnbuckle.agent.reserve"]
    assert (reserve.value, reserve.unit, reserve.is_counter) == (4096, "By", False)
    assert found["turnbuckle.bus.dropped_messages"].attributes == {"reason": "slow"}
    assert found["turnbuckle.telemetry.exported_spans"].value == 0
    assert "turnbuckle.allocator.steps" not in found, "what nobody has registered is not told"
    assert on_loop
    assert all(on_loop)
    assert {point.service for point in receiver.points} == {"turnbuckle-agent"}
    assert set().union(*(point.attributes for point in receiver.points)) <= set(ATTRIBUTES)


def prometheus_name(spec: MetricSpec) -> str:
    """What OpenTelemetry's exporters make of a name: dots to underscores, unit and `_total` behind."""
    unit = {"By": "_bytes", "s": "_seconds"}.get(spec.otel_unit, "")  # annotations such as {write} are left out
    return spec.otel_name.replace(".", "_") + unit + ("_total" if spec.kind == "counter" else "")


def test_metrics_have_one_name_on_both_ways() -> None:
    assert {prometheus_name(spec) for spec in METRICS.values()} == set(METRICS)
    assert len({spec.otel_name for spec in METRICS.values()}) == len(METRICS)


def test_units_are_those_of_the_unified_code_for_units_of_measure() -> None:
    """UCUM; what has no unit is annotated with what is counted, in the singular, as semantic conventions do."""
    units = {name: spec.otel_unit for name, spec in METRICS.items()}

    assert units["turnbuckle_agent_quota_writes_total"] == "{write}"
    assert units["turnbuckle_allocator_unacknowledged_limit_updates_total"] == "{update}"
    assert units["turnbuckle_collector_unpublished_records"] == "{record}"
    assert units["turnbuckle_allocator_stale_batches_total"] == "{batch}"
    assert units["turnbuckle_advisor_rejected_queries_total"] == "{query}"
    assert units["turnbuckle_app_cpu_limit_cores"] == "{core}"
    assert units["turnbuckle_app_memory_usage_bytes"] == "By"
    assert units["turnbuckle_app_cpu_usage_seconds_total"] == "s"
    assert units["turnbuckle_app_memory_held_byte_seconds_total"] == "{byte_second}"
    assert units["turnbuckle_bus_connected_info"] == ""
    assert not [name for name, unit in units.items() if unit.endswith("s}") and not name.endswith(("_loss",))]


async def test_histograms_are_exported_with_their_buckets(receiver: OtlpReceiver) -> None:
    telemetry = Telemetry()
    health = Health(list, telemetry)
    beat = asyncio.create_task(health.beat())
    async with exporting(asked_for(receiver), ORIGIN, telemetry, health.samples):
        steps = telemetry.histogram("turnbuckle_allocator_step_seconds")
        for duration_s in (0.0004, 0.003, 0.003, 7.0):
            steps.observe(duration_s)
        await until(lambda: any(point.name == "turnbuckle.allocator.step" for point in receiver.points), within_s=60)
    beat.cancel()

    found = next(point for point in receiver.points if point.name == "turnbuckle.allocator.step")
    assert (found.unit, found.value) == ("s", pytest.approx(7.0064))
    assert found.buckets == (1, 0, 0, 2, *[0] * 8, 1)


def counts_of(export: Export) -> dict[str, float]:
    telemetry = Telemetry()
    export.observe(telemetry)
    return {" ".join((sample.spec.name, *sample.labels.values())): sample.value for sample in telemetry.collect()}


def test_what_a_collector_refuses_is_counted(receiver: OtlpReceiver) -> None:
    receiver.mood = "refuses"
    export = Export(asked_for(receiver), ORIGIN, list[Sample])
    make_spans(5)
    export.close()
    counts = counts_of(export)

    assert counts["turnbuckle_telemetry_lost_spans_total refused"] == 5
    assert counts["turnbuckle_telemetry_exported_spans_total"] == 0
    assert receiver.spans == []


def test_a_collector_that_hangs_costs_its_spans_and_no_time(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,048 spans wait, the oldest give way, nobody who makes one waits, and the end does not either."""
    receiver.mood = "hangs"
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "200")
    export = Export(asked_for(receiver, OTEL_METRICS_EXPORTER="none"), ORIGIN, None)
    make_spans(100)
    wait_for(lambda: receiver.requests == 1, what="a batch that hangs")
    begun_s = time.monotonic()
    make_spans(500)
    made_s = time.monotonic() - begun_s
    begun_s = time.monotonic()
    flushed = export.close(within_s=0.3)
    ended_s = time.monotonic() - begun_s

    assert counts_of(export)["turnbuckle_telemetry_lost_spans_total overflow"] == 300
    assert not flushed
    assert made_s < 25
    assert ended_s < 25


def test_a_dead_collector_stops_nobody(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    export = Export(asked_for(receiver), ORIGIN, list[Sample])
    make_spans(5)
    begun_s = time.monotonic()
    export.close(within_s=0.3)

    assert time.monotonic() - begun_s < 25


async def test_the_loop_turns_while_the_end_is_awaited(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that hangs keeps `exporting` waiting for its deadline, and nobody else."""
    monkeypatch.setattr(otel_export, "FLUSH_S", 1.5)
    receiver.mood = "hangs"
    telemetry = Telemetry()
    health = Health(list, telemetry)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    turning = asyncio.create_task(turn())
    async with exporting(asked_for(receiver), ORIGIN, telemetry, health.samples):
        make_spans(1)
        before = turns
    turning.cancel()

    assert turns - before > 10

"""Export to an OpenTelemetry collector, beside everything else: nothing here may hold up the event loop.

Spans go through a bounded queue to a thread of their own, metrics are read by another; a collector that is dead or
hangs costs telemetry, which is counted, and nothing else. Imported only where ``OTEL_*`` variables ask for an export.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
)

from schemas.telemetry import METRICS
from schemas.telemetry_specs import DURATION_BUCKETS_S, MetricSpec
from services._runtime.telemetry import tracing
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.otel_settings import Origin, OtelSettings, SignalSettings
from services._runtime.telemetry.otel_spans import OtelTracing
from services._runtime.telemetry.telemetry import Sample, Telemetry

SCOPE: Final = "turnbuckle"
FLUSH_S: Final = 1.5
"""For what is left at the end; a collector that hangs keeps no service from stopping."""


@dataclass(slots=True)
class Counts:
    """What became of spans, and of exports of metrics."""

    exported: int = 0
    overflow: int = 0
    """Spans that were thrown away because the queue was full: the oldest ones."""
    refused: int = 0
    """Spans that no collector took."""
    failed_metric_exports: int = 0

    def count_spans(self, spans: Sequence[ReadableSpan], taken: bool) -> None:
        """After an export: one thread at a time (`BatchSpanProcessor`)."""
        self.exported += taken * len(spans)
        self.refused += (not taken) * len(spans)

    def count_metrics(self, _metrics: MetricsData, taken: bool) -> None:
        """After an export."""
        self.failed_metric_exports += not taken


def _resource(origin: Origin) -> Resource:
    """Resource attributes; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME take precedence."""
    known: dict[str, str | bool | int | float] = {
        "service.name": f"turnbuckle-{origin.service}",
        "service.version": origin.version,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    return Resource.create(known).merge(OTELResourceDetector().detect())


class Export:
    """The exporters of one process. They run from the construction until `close`."""

    def __init__(self, settings: OtelSettings, origin: Origin, collect: Callable[[], list[Sample]] | None) -> None:
        """``collect`` reads all metrics, from any thread; None: there are none."""
        self.counts = Counts()
        self._exporters: list[SpanExporter | MetricExporter] = []
        self._providers: list[TracerProvider | MeterProvider] = []
        self._meter: Meter | None = None
        resource = _resource(origin)
        if settings.traces.exporter != "none":
            self._export_spans(settings.traces, resource, origin.version)
        if settings.metrics.exporter != "none" and collect is not None:
            self._export_metrics(settings.metrics, resource, collect)
        log = get_logger("telemetry")
        log.info("telemetry_exported", traces=settings.traces.exporter, metrics=settings.metrics.exporter)
        for sentence in settings.ignored:
            log.warning("telemetry_setting_ignored", reason=sentence)

    def _export_spans(self, settings: SignalSettings, resource: Resource, version: str) -> None:
        exporter = _span_exporter(settings, self.counts)
        self._exporters.append(exporter)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(_Batches(exporter, self.counts))
        self._providers.append(provider)
        tracing.install(OtelTracing(provider.get_tracer(SCOPE, version)))

    def _export_metrics(
        self, settings: SignalSettings, resource: Resource, collect: Callable[[], list[Sample]]
    ) -> None:
        exporter = _metric_exporter(settings, self.counts)
        self._exporters.append(exporter)
        provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource, shutdown_on_exit=False)
        self._providers.append(provider)
        self._meter = provider.get_meter(SCOPE)
        observe_all(self._meter, collect)

    def observe(self, telemetry: Telemetry) -> None:
        """Offer what became of telemetry as metrics, and receive the observations of histograms."""
        if self._meter is not None:
            telemetry.forward_histograms(histogram_recorder(self._meter))
        counts, lost = self.counts, "turnbuckle_telemetry_lost_spans_total"
        telemetry.observe("turnbuckle_telemetry_exported_spans_total", lambda: counts.exported)
        telemetry.observe(lost, lambda: counts.overflow, reason="overflow")
        telemetry.observe(lost, lambda: counts.refused, reason="refused")
        telemetry.observe("turnbuckle_telemetry_failed_metric_exports_total", lambda: counts.failed_metric_exports)

    def close(self, within_s: float | None = None) -> bool:
        """Send what is left, for `FLUSH_S` at most; False: there was no time for it.

        Blocks, and the event loop must turn meanwhile.
        """
        within_s = FLUSH_S if within_s is None else within_s
        tracing.install(None)
        end_s = time.monotonic() + within_s
        endings = [threading.Thread(target=provider.shutdown, daemon=True) for provider in self._providers]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join(max(0.0, end_s - time.monotonic()))
        flushed = not any(ending.is_alive() for ending in endings)
        if not flushed:
            get_logger("telemetry").warning("telemetry_not_flushed", within_s=within_s)
            for exporter in self._exporters:
                exporter.shutdown()  # no more attempts; the threads end with the process
        return flushed


class _Batches(BatchSpanProcessor):
    """The SDK's queue; it throws the oldest span away where it is full, and we count that."""

    def __init__(self, exporter: SpanExporter, counts: Counts) -> None:
        super().__init__(exporter)
        self._counts = counts

    def on_end(self, span: ReadableSpan) -> None:
        queue = self._batch_processor._queue  # noqa: SLF001 - that one gives way is told nowhere else
        if span.context is not None and span.context.trace_flags.sampled:
            self._counts.overflow += len(queue) == queue.maxlen
        super().on_end(span)


def _counted(exporter: Any, count: Callable[[Any, bool], None]) -> Any:
    """An exporter that counts each batch; a subclass, because the reader of metrics asks it for its temporality."""

    class Counted(exporter):  # type: ignore[misc]
        def export(self, batch: Any, *arguments: Any, **keywords: Any) -> Any:
            taken = False
            try:
                result = super().export(batch, *arguments, **keywords)
                taken = result.name == "SUCCESS"
            finally:
                count(batch, taken)
            return result

    return Counted()


def _span_exporter(settings: SignalSettings, counts: Counts) -> SpanExporter:
    console = settings.exporter == "console"
    exporter = ConsoleSpanExporter if console else _otlp_module(settings, "trace").OTLPSpanExporter
    made: SpanExporter = _counted(exporter, counts.count_spans)
    return made


def _metric_exporter(settings: SignalSettings, counts: Counts) -> MetricExporter:
    console = settings.exporter == "console"
    exporter = ConsoleMetricExporter if console else _otlp_module(settings, "metric").OTLPMetricExporter
    made: MetricExporter = _counted(exporter, counts.count_metrics)
    return made


def _otlp_module(settings: SignalSettings, signal: str) -> Any:
    return import_module(
        f"opentelemetry.exporter.otlp.proto.{settings.protocol.removesuffix('/protobuf')}.{signal}_exporter"
    )


_FRESH_S: Final = 0.5
"""The callbacks of one export run one after another and share one reading."""


def observe_all(meter: Meter, collect: Callable[[], list[Sample]]) -> None:
    """Create an observable instrument for each declared counter and gauge; unregistered ones have no observations.

    Args:
        meter: creates them.
        collect: reads all metrics; called from the exporting thread. `TimeoutError`: no observations.
    """
    readings = _Readings(collect)
    for spec in METRICS.values():
        if spec.kind == "histogram":
            continue
        make = meter.create_observable_counter if spec.kind == "counter" else meter.create_observable_gauge
        make(spec.otel_name, callbacks=[readings.of(spec.name)], unit=spec.otel_unit, description=spec.description)


def histogram_recorder(meter: Meter) -> Callable[[MetricSpec], Callable[[float], None]]:
    """What `Telemetry.forward_histograms` takes: an instrument for each histogram."""

    def recorder(spec: MetricSpec) -> Callable[[float], None]:
        return meter.create_histogram(
            spec.otel_name,
            spec.otel_unit,
            spec.description,
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        ).record

    return recorder


class _Readings:
    """The latest reading of all metrics, by name."""

    def __init__(self, collect: Callable[[], list[Sample]]) -> None:
        self._collect = collect
        self._read_s = float("-inf")
        self._by_name: defaultdict[str, list[Sample]] = defaultdict(list)

    def of(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """The callback of one instrument."""

        def read(_options: CallbackOptions) -> Iterable[Observation]:
            self._refresh()
            return [Observation(sample.value, dict(sample.labels)) for sample in self._by_name[name]]

        return read

    def _refresh(self) -> None:
        if time.monotonic() - self._read_s < _FRESH_S:
            return
        found: defaultdict[str, list[Sample]] = defaultdict(list)
        try:
            for sample in self._collect():
                found[sample.spec.name].append(sample)
        except TimeoutError:
            pass  # the event loop is busy or has ended
        self._by_name, self._read_s = found, time.monotonic()

"""Spans made for real and kept in memory, for tests of who begins which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from services._runtime.telemetry import tracing
from services._runtime.telemetry.otel_spans import OtelTracing


class RecordedSpans:
    """All spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def ended(self) -> list[ReadableSpan]:
        """In the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def names(self) -> list[str]:
        """Of all."""
        return [span.name for span in self.ended]

    def named(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (found,) = (span for span in self.ended if span.name == name)
        return found

    def parent_of(self, span: ReadableSpan) -> ReadableSpan | None:
        """Its parent; None: it is a root, or its parent has not ended."""
        return next((it for it in self.ended if span.parent and it.context.span_id == span.parent.span_id), None)

    def lineage(self, span: ReadableSpan) -> list[ReadableSpan]:
        """From the root, as far as it has ended, down to the span."""
        found = [span]
        while (parent := self.parent_of(found[0])) is not None:
            found.insert(0, parent)
        return found

    def path(self, name: str) -> list[str]:
        """Names from the root to the only span of this name."""
        return [span.name for span in self.lineage(self.named(name))]


@contextmanager
def recorded_spans(sampler: Sampler | None = None) -> Iterator[RecordedSpans]:
    """Make spans real for as long as the block runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.install(OtelTracing(provider.get_tracer("test")))
    try:
        yield RecordedSpans(exporter)
    finally:
        tracing.install(None)

"""Spans of `tracing` made by OpenTelemetry. Imported only where something is exported."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from schemas.telemetry import SpanSpec
from services._runtime.tracing import Begin, Carrier, Span, dotted

_KINDS: Final = {kind.name.lower(): kind for kind in SpanKind}


class OtelTracing:
    """`tracing.Tracing` on a tracer."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def begin(self, spec: SpanSpec, title: str, begin: Begin, attributes: dict[str, Any]) -> OtelSpan:
        """A span; entering the block makes it the current one, leaving ends it."""
        made = self._tracer.start_span(
            title,
            context=None if begin.parent is None else _context_of(begin.parent),
            kind=_KINDS[spec.kind],
            attributes=attributes,
            links=[Link(found) for carrier in begin.links if (found := _span_of(carrier)).is_valid],
            start_time=begin.begun_ns,
        )
        return OtelSpan(spec.name, made)

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Write the current trace into headers, as OTEL_PROPAGATORS says."""
        propagate.inject(headers)

    def ids(self) -> tuple[str, str] | None:
        """Trace and span under way, in hexadecimal."""
        found = trace.get_current_span().get_span_context()
        return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None

    @contextmanager
    def resume(self, carrier: Carrier) -> Iterator[None]:
        """Have what is in the block follow from a span that need not be here."""
        token = otel_context.attach(_context_of(carrier))
        try:
            yield
        finally:
            otel_context.detach(token)

    def untraced(self) -> contextvars.Context:
        """The current context without its span."""
        copied = contextvars.copy_context()
        copied.run(otel_context.attach, Context())
        return copied


class OtelSpan(Span):
    """One span. Stack traces stay in the logs, which carry its ids."""

    __slots__ = ("_made", "_name", "_token")

    def __init__(self, name: str, made: trace.Span) -> None:
        self._name = name
        self._made = made
        self._token: Any = None

    def set(self, **attributes: Any) -> None:
        """Add what is only known now."""
        self._made.set_attributes({dotted(self._name, attribute): value for attribute, value in attributes.items()})

    def fail(self, kind: str, description: str = "") -> None:
        """It did not work."""
        self._made.set_attribute("error.type", kind)
        self._made.set_status(Status(StatusCode.ERROR, description or None))

    @property
    def carrier(self) -> Carrier:
        """For `Begin`."""
        headers: dict[str, str] = {}
        propagate.inject(headers, context=trace.set_span_in_context(self._made))
        return headers

    @property
    def trace_id(self) -> str:
        """In hexadecimal."""
        return f"{self._made.get_span_context().trace_id:032x}"

    def __enter__(self) -> Self:
        self._token = otel_context.attach(trace.set_span_in_context(self._made))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        del traceback
        otel_context.detach(self._token)
        if kind is not None:
            self.fail(kind.__name__, str(error))
        self._made.end()


def _context_of(carrier: Carrier) -> Context:
    return propagate.extract(carrier, context=Context())


def _span_of(carrier: Carrier) -> trace.SpanContext:
    return trace.get_current_span(_context_of(carrier)).get_span_context()

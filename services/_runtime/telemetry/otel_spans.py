"""Spans of `tracing` made by OpenTelemetry. Imported only where something is exported.

The SDK makes a span in 20 us in a tight loop, but in 0.2 ms in a process that makes ten a second: its code and data are
out of the processor's caches by then. Most spans of an agent are routine, and dropped. So a span is made at its end, or
where its id is needed: a span within it, a message that leaves, a line of the log. For the same reason what is
under way stands in a variable of our own: nothing here asks OpenTelemetry's context for it.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Self

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from schemas.telemetry_specs import SpanSpec
from services._runtime.telemetry.tracing import Begin, Carrier, Span, described, dotted

_KINDS: Final = {kind.name.lower(): kind for kind in SpanKind}
_UNDER_WAY: Final[ContextVar[OtelSpan | Context | None]] = ContextVar("turnbuckle_span", default=None)
"""A span, or what a carrier was read as; None: nothing."""
_MAKING: Final = threading.Lock()
"""The event loop and one of its threads may want the same span made, or see it end."""


class OtelTracing:
    """`tracing.Tracing` on a tracer."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def begin(self, spec: SpanSpec, subject: str, begin: Begin, attributes: dict[str, Any]) -> OtelSpan:
        """A span; entering the block makes it the current one, leaving ends it."""
        return OtelSpan(self._tracer, (spec, subject), begin, attributes)

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Write the current trace into headers, as OTEL_PROPAGATORS says."""
        propagate.inject(headers, context=_context_under_way())

    def ids(self) -> tuple[str, str] | None:
        """Trace and span under way, in hexadecimal."""
        found = trace.get_current_span(_context_under_way()).get_span_context()
        return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None

    @contextmanager
    def attach(self, carrier: Carrier) -> Iterator[None]:
        """Make a carrier's span the parent of the block's spans."""
        token = _UNDER_WAY.set(_context_of(carrier))
        try:
            yield
        finally:
            _UNDER_WAY.reset(token)

    def untraced(self) -> contextvars.Context:
        """The current context without its span."""
        copied = contextvars.copy_context()
        copied.run(_UNDER_WAY.set, None)
        return copied

    def drop_span(self) -> None:
        """Do not export the current span, unless its id was used already."""
        found = _UNDER_WAY.get()
        if isinstance(found, OtelSpan):
            found.is_dropped = True


class OtelSpan(Span):
    """One span. Stack traces stay in the logs, which carry its ids."""

    __slots__ = (
        "_attributes",
        "_begin",
        "_begun_ns",
        "_made",
        "_outer",
        "_spec",
        "_subject",
        "_token",
        "_tracer",
        "is_dropped",
    )

    def __init__(
        self, tracer: trace.Tracer, about: tuple[SpanSpec, str], begin: Begin, attributes: dict[str, Any]
    ) -> None:
        """It begins now, or when its `Begin` says; ``attributes`` are kept, and may change."""
        self._tracer = tracer
        self._spec, self._subject = about
        self._begin = begin
        self._attributes = attributes
        self._begun_ns = time.time_ns() if begin.begun_ns is None else begin.begun_ns
        self.is_dropped = False
        self._made: trace.Span | None = None
        self._token: Any = None
        self._outer = _context_under_way() if begin.parent is None else None

    @property
    def made(self) -> trace.Span:
        """The span itself, made now unless it is there already."""
        with _MAKING:
            if self._made is None:
                token = _UNDER_WAY.set(None)  # what the SDK logs meanwhile must not ask for this very span
                try:
                    self._made = self._start()
                finally:
                    _UNDER_WAY.reset(token)
            return self._made

    def _start(self) -> trace.Span:
        begin = self._begin
        title, of_message = described(self._spec, self._subject)
        return self._tracer.start_span(
            title,
            context=self._outer if begin.parent is None else _context_of(begin.parent),
            kind=_KINDS[self._spec.kind],
            attributes=of_message | self._attributes,
            links=[Link(found) for carrier in begin.links if (found := _span_of(carrier)).is_valid],
            start_time=self._begun_ns,
        )

    def set(self, **attributes: Any) -> None:
        """Add what is only known now."""
        named = {dotted(self._spec.name, attribute): value for attribute, value in attributes.items()}
        if self._made is None:
            self._attributes.update(named)
        else:
            self._made.set_attributes(named)

    def fail(self, kind: str, description: str = "") -> None:
        """It did not work."""
        self.made.set_attribute("error.type", kind)
        self.made.set_status(Status(StatusCode.ERROR, description or None))

    @property
    def carrier(self) -> Carrier:
        """For `Begin`."""
        headers: dict[str, str] = {}
        propagate.inject(headers, context=trace.set_span_in_context(self.made, Context()))
        return headers

    @property
    def trace_id(self) -> str:
        """In hexadecimal."""
        return f"{self.made.get_span_context().trace_id:032x}"

    def __enter__(self) -> Self:
        self._token = _UNDER_WAY.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        del traceback
        _UNDER_WAY.reset(self._token)
        if kind is not None:
            self.fail(kind.__name__, str(error))
        ended_ns = time.time_ns()
        if self._made is not None or not self.is_dropped:
            self.made.end(ended_ns)


def _context_under_way() -> Context:
    """In OpenTelemetry's words; a span under way is made for it."""
    found = _UNDER_WAY.get()
    if isinstance(found, OtelSpan):
        return trace.set_span_in_context(found.made, Context())
    return Context() if found is None else found


def _context_of(carrier: Carrier) -> Context:
    return propagate.extract(carrier, context=Context())


def _span_of(carrier: Carrier) -> trace.SpanContext:
    return trace.get_current_span(_context_of(carrier)).get_span_context()

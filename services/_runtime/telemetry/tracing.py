"""Spans, and trace propagation in message headers. Before `install` a span costs one comparison.

Code that a ``with span(...)`` block awaits or spawns belongs to its trace. The bus propagates the trace in the headers
of commands and durable events. A callback of the event loop runs in the trace in which it was *scheduled*: schedule
shared timers with ``context=untraced()``.
"""

from __future__ import annotations

import contextvars
import difflib
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, Self

from schemas.registry import CHANNELS, ENDPOINTS
from schemas.telemetry import EVERY_SPAN, SPANS
from schemas.telemetry_specs import SpanSpec

Carrier = Mapping[str, str]
"""Message headers with the trace context (W3C ``traceparent``), or without: no trace."""
NEW_TRACE: Final[Carrier] = {}
SYSTEM: Final = "nats"
MAX_APPS: Final = 20
"""Applications that one span names."""


class UndeclaredTelemetryError(ValueError):
    """A metric, span, label or attribute that `schemas.telemetry` does not declare."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Parent, links and start of a span, if not the current span and time."""

    parent: Carrier | None = None
    """Parent; None: the current span; `NEW_TRACE`: none."""
    links: tuple[Carrier, ...] = ()
    """Further causes."""
    begun_ns: int | None = None
    """Start, ns since the epoch; None: now."""


HERE_AND_NOW: Final = Begin()


class Span:
    """A running operation; this base class is the no-op span."""

    def set(self, **attributes: Any) -> None:
        """Add attributes. Dots in their names are written as two underscores."""

    def fail(self, kind: str, description: str = "") -> None:
        """Set the error status: a short kind, and a sentence."""

    @property
    def carrier(self) -> Carrier:
        """Carrier of this span, for `Begin`."""
        return NEW_TRACE

    @property
    def trace_id(self) -> str:
        """Trace id in hexadecimal; empty: none."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        return


_NO_SPAN: Final = Span()


class Tracing(Protocol):
    """Interface of a tracing backend."""

    def begin(self, spec: SpanSpec, subject: str, begin: Begin, attributes: dict[str, Any]) -> Span:
        """A span of the block; ``subject``: a message's, or empty."""

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Write the current trace into headers."""

    def ids(self) -> tuple[str, str] | None:
        """Ids of the current trace and span, in hexadecimal."""

    def attach(self, carrier: Carrier) -> AbstractContextManager[None]:
        """Make a carrier's span the parent of the block's spans."""

    def untraced(self) -> contextvars.Context:
        """A copy of the current context without a span."""

    def drop_span(self) -> None:
        """See `drop_span`."""


class _Installed:
    tracing: Tracing | None = None


def install(tracing: Tracing | None) -> None:
    """Set the tracing backend; None: spans are no-ops."""
    _Installed.tracing = tracing


def span(name: str, begin: Begin = HERE_AND_NOW, /, **attributes: Any) -> AbstractContextManager[Span]:
    """A span around a decision, a command, or another operation that changes state.

    Raises:
        UndeclaredTelemetryError: the name or an attribute (dots written as ``__``) is not declared.
    """
    spec = SPANS.get(name)
    if spec is None:
        raise UndeclaredTelemetryError(undeclared("span", name, SPANS))
    named = {dotted(name, attribute): value for attribute, value in attributes.items()}
    if _Installed.tracing is None:
        return _NO_SPAN
    return _Installed.tracing.begin(spec, "", begin, named)


def message_span(name: str, subject: str, begin: Begin = HERE_AND_NOW, /, **attributes: Any) -> Span:
    """A span around a message that is sent or handled, by the semantic conventions for messaging.

    It begins at once; its `Span.carrier` can be sent before the block is entered, perhaps in another task.
    """
    tracing = _Installed.tracing
    if tracing is None:
        return _NO_SPAN
    named = {dotted(name, attribute): value for attribute, value in attributes.items()}
    return tracing.begin(SPANS[name], subject, begin, named)


def described(spec: SpanSpec, subject: str) -> tuple[str, dict[str, str]]:
    """A span's exported name, and the attributes of its message (an empty subject: none)."""
    if not subject:
        return spec.name, {}
    template = template_of(subject)
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": spec.operation,
        "messaging.operation.type": "send" if spec.kind in {"client", "producer"} else "process",
        "messaging.destination.name": subject,
    }
    if template:
        attributes["messaging.destination.template"] = template
    return spec.title(template), attributes


def inject(headers: MutableMapping[str, str]) -> None:
    """Write the current trace into the headers of an outgoing message."""
    if _Installed.tracing is not None:
        _Installed.tracing.inject(headers)


def trace_headers() -> dict[str, str] | None:
    """Headers with the current trace; None: none."""
    if _Installed.tracing is None:
        return None
    headers: dict[str, str] = {}
    _Installed.tracing.inject(headers)
    return headers or None


def is_on() -> bool:
    """Whether a tracing backend is installed."""
    return _Installed.tracing is not None


def drop_span() -> None:
    """Do not export the current span (a routine operation that succeeded), unless its id was used already."""
    if _Installed.tracing is not None:
        _Installed.tracing.drop_span()


def trace_ids() -> tuple[str, str] | None:
    """Ids of the current trace and span, for logs; None: none."""
    return None if _Installed.tracing is None else _Installed.tracing.ids()


def attached(carrier: Carrier | None) -> AbstractContextManager[None]:
    """Make a carrier's span the parent of the block's spans; None: the current span stays it."""
    if _Installed.tracing is None or not carrier:
        return nullcontext()
    return _Installed.tracing.attach(carrier)


def untraced() -> contextvars.Context | None:
    """A context without a span, for callbacks; None: the current context has none."""
    return None if _Installed.tracing is None else _Installed.tracing.untraced()


@lru_cache(maxsize=1 << 12)
def dotted(span_name: str, attribute: str) -> str:
    """The attribute's name as it is exported.

    Raises:
        UndeclaredTelemetryError: the span declares no such attribute.
    """
    name = attribute.replace("__", ".")
    if name not in SPANS[span_name].attributes and name not in EVERY_SPAN:
        raise UndeclaredTelemetryError(f"span {span_name} declares no attribute {attribute!r}")
    return name


_TEMPLATES: Final = {
    ".".join(part for part in template.split(".") if not part.startswith("{")): template
    for template in [channel.template.text for channel in CHANNELS] + [endpoint.template.text for endpoint in ENDPOINTS]
}


@lru_cache(maxsize=1 << 12)
def template_of(subject: str) -> str:
    """The subject template of a concrete subject; empty: none."""
    parts = subject.split(".")
    return _TEMPLATES.get(".".join(parts[1:3])) or _TEMPLATES.get(".".join(parts[1:4]), "")


def undeclared(what: str, name: str, known: Mapping[str, object]) -> str:
    """Error text for a name that `schemas.telemetry` does not declare."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{what} {name!r} is not declared in schemas/services or schemas/telemetry.py{hint}"

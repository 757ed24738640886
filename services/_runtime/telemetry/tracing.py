"""Spans, and the trace that travels with messages. Until `install` each costs a comparison and nothing is made.

A trace goes on in whatever the code in a ``with span(...)`` awaits or spawns. Across the bus it travels in the headers
of commands and facts, which the bus alone writes and reads. A callback of the event loop runs in the trace in which it
was *scheduled*: where that means nothing (a timer that serves everyone), schedule it with ``context=untraced()``.
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
from schemas.telemetry import EVERY_SPAN, SPANS, SpanSpec

Carrier = Mapping[str, str]
"""Headers that a trace travels in (W3C ``traceparent``); without one of them: no trace."""
NEW_TRACE: Final[Carrier] = {}
SYSTEM: Final = "nats"


class UndeclaredTelemetryError(ValueError):
    """A metric, span, label or attribute that `schemas.telemetry` does not declare."""


@dataclass(frozen=True, slots=True)
class Begin:
    """How a span begins, where that is not here and now."""

    parent: Carrier | None = None
    """What caused it; None: whatever is under way here; `NEW_TRACE`: nothing."""
    links: tuple[Carrier, ...] = ()
    """What else it follows from."""
    begun_ns: int | None = None
    """When, since the epoch; None: now."""


HERE_AND_NOW: Final = Begin()


class Span:
    """An operation under way; this one is the span that nobody asked for."""

    def set(self, **attributes: Any) -> None:
        """Add what is only known now. Dots in attribute names are written as two underscores."""

    def fail(self, kind: str, description: str = "") -> None:
        """It did not work: in a word, and in a sentence."""

    @property
    def carrier(self) -> Carrier:
        """For `Begin`: what follows from this span."""
        return NEW_TRACE

    @property
    def trace_id(self) -> str:
        """In hexadecimal; empty: there is none."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        return


_NO_SPAN: Final = Span()


class Tracing(Protocol):
    """What makes spans real."""

    def begin(
        self, spec: SpanSpec, subject: str, begin: Begin, attributes: dict[str, Any]
    ) -> AbstractContextManager[Span]:
        """A span that begins now and ends with the block; ``subject`` is that of a message, or empty."""

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Write the current trace into headers."""

    def ids(self) -> tuple[str, str] | None:
        """Trace and span under way, in hexadecimal."""

    def resume(self, carrier: Carrier) -> AbstractContextManager[None]:
        """Have what is in the block follow from a span that need not be here."""

    def untraced(self) -> contextvars.Context:
        """A copy of the current context in which no span is under way."""

    def leave_out(self) -> None:
        """See `leave_out`."""


class _Installed:
    tracing: Tracing | None = None


def install(tracing: Tracing | None) -> None:
    """Make spans real from now on; None: no longer."""
    _Installed.tracing = tracing


def span(name: str, begin: Begin = HERE_AND_NOW, /, **attributes: Any) -> AbstractContextManager[Span]:
    """A span around a decision, a command, or whatever else took time and changed something.

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


def message_span(
    name: str, subject: str, begin: Begin = HERE_AND_NOW, /, **attributes: Any
) -> AbstractContextManager[Span]:
    """A span around a message that is sent or handled, in the words of the semantic conventions."""
    tracing = _Installed.tracing
    if tracing is None:
        return _NO_SPAN
    named = {dotted(name, attribute): value for attribute, value in attributes.items()}
    return tracing.begin(SPANS[name], subject, begin, named)


def described(spec: SpanSpec, subject: str) -> tuple[str, dict[str, str]]:
    """A span's title, and the attributes of the message that it is about (an empty subject: none)."""
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
    """Put the trace that is under way into the headers of a message that leaves."""
    if _Installed.tracing is not None:
        _Installed.tracing.inject(headers)


def trace_headers() -> dict[str, str] | None:
    """Headers with the trace that is under way; None: there is none."""
    if _Installed.tracing is None:
        return None
    headers: dict[str, str] = {}
    _Installed.tracing.inject(headers)
    return headers or None


def is_on() -> bool:
    """Whether spans are made."""
    return _Installed.tracing is not None


def leave_out() -> None:
    """What is under way was routine and went well: its span is not exported, unless something refers to it already."""
    if _Installed.tracing is not None:
        _Installed.tracing.leave_out()


def trace_ids() -> tuple[str, str] | None:
    """Ids of the trace and the span under way, for logs; None: there is none."""
    return None if _Installed.tracing is None else _Installed.tracing.ids()


def resumed(carrier: Carrier | None) -> AbstractContextManager[None]:
    """Have what is in the block follow from what a carrier was taken of; None: from what is under way."""
    if _Installed.tracing is None or not carrier:
        return nullcontext()
    return _Installed.tracing.resume(carrier)


def untraced() -> contextvars.Context | None:
    """A context for callbacks that follow from nothing; None: the current one will do."""
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
    """The line of the subject table that a subject belongs to; empty: none."""
    parts = subject.split(".")
    return _TEMPLATES.get(".".join(parts[1:3])) or _TEMPLATES.get(".".join(parts[1:4]), "")


def undeclared(what: str, name: str, known: Mapping[str, object]) -> str:
    """A sentence about a name that `schemas.telemetry` does not know."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{what} {name!r} is not declared in schemas/telemetry.py{hint}"

"""Groups one shortage's memory events in one trace: near the limit, requested, granted, or killed.

The memory may come with a limit update of another cause: the allocator's own step was faster than its reply.
The step that follows stays in the trace of the shortage then, and is linked to that update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services._runtime.telemetry.tracing import Begin, Carrier, Span, trace_headers, trace_ids

GAP_NS: Final = 1_000_000_000
"""After so long without a step the next one begins another trace."""
LONGEST_NS: Final = 10_000_000_000
"""A container may grow all day: a trace of it must end."""


@dataclass(slots=True)
class _TraceGroup:
    carrier: Carrier
    trace_id: str
    begun_ns: int
    last_ns: int


class TraceGroups:
    """Which trace a step belongs to. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._open: dict[str, _TraceGroup] = {}

    def begin(self, app: str, now_ns: int, begun_ns: int | None) -> Begin:
        """How the span of a step begins; ``begun_ns`` is wall clock, None: now."""
        group, here = self._open.get(app), trace_ids()
        if group is not None and (now_ns - group.last_ns > GAP_NS or now_ns - group.begun_ns > LONGEST_NS):
            del self._open[app]
            group = None
        if group is None or (here is not None and here[0] == group.trace_id):
            return Begin(begun_ns=begun_ns)
        update = trace_headers()
        return Begin(group.carrier, (update,) if update else (), begun_ns)

    def record(self, app: str, step: Span, now_ns: int) -> None:
        """A step has begun."""
        group = self._open.get(app)
        if group is not None:
            group.last_ns = now_ns
        elif step.carrier:
            self._open[app] = _TraceGroup(step.carrier, step.trace_id, now_ns, now_ns)

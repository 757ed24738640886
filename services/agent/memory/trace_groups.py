"""One trace for what happens to an application's memory in quick succession: near, asked, granted, or let go.

What was asked for may come with an order that has another cause: the allocator's own step was faster than its answer.
The step that follows stays in the trace of the shortage then, and is linked to that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services._runtime.telemetry.tracing import Begin, Carrier, Span, trace_headers, trace_ids

QUIET_NS: Final = 1_000_000_000
"""After so long without a step the next one is another story."""
LONGEST_NS: Final = 10_000_000_000
"""A container may grow all day: a trace of it must end."""


@dataclass(slots=True)
class _Episode:
    carrier: Carrier
    trace_id: str
    begun_ns: int
    last_ns: int


class Episodes:
    """Which trace a step belongs to. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Episode] = {}

    def begin(self, app: str, now_ns: int, begun_ns: int | None) -> Begin:
        """How the span of a step begins; ``begun_ns`` is wall clock, None: now."""
        episode, here = self._under_way.get(app), trace_ids()
        if episode is not None and (now_ns - episode.last_ns > QUIET_NS or now_ns - episode.begun_ns > LONGEST_NS):
            del self._under_way[app]
            episode = None
        if episode is None or (here is not None and here[0] == episode.trace_id):
            return Begin(begun_ns=begun_ns)
        order = trace_headers()
        return Begin(episode.carrier, (order,) if order else (), begun_ns)

    def note(self, app: str, step: Span, now_ns: int) -> None:
        """A step has begun."""
        episode = self._under_way.get(app)
        if episode is not None:
            episode.last_ns = now_ns
        elif step.carrier:
            self._under_way[app] = _Episode(step.carrier, step.trace_id, now_ns, now_ns)

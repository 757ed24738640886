"""Hints from other hosts' path events (`evt.route`): suspect VTEPs, and when to trigger a check. Pure.

The kernel and FRR stay authoritative: a hint triggers a check and is shown beside this host's own paths; no rule is
written because of one. A host's key may be compromised: a host can report any VTEP, but only under its own name (the
server enforces that), only VTEPs that this host sends to, `MAX_HINTS_PER_NODE` at a time, and until the hint expires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from schemas.network import RouteEvent, RouteKind

MAX_HINTS_PER_NODE: Final = 64
MAX_NODES: Final = 4_096
MAX_EVENTS_PER_S: Final = 200
"""Of all hosts together; more are a flood."""
MIN_TRIGGER_INTERVAL_S: Final = 0.2
HINT_EXPIRY_S: Final = 60.0
DRAIN_HINT_EXPIRY_S: Final = 1_500.0
"""A drain is published again each ten minutes."""
_TEXT: Final = 120
_MARKS: Final = frozenset({RouteKind.OVERRIDE, RouteKind.DISAGREEMENT, RouteKind.DRAIN})
_CLEARS: Final = frozenset({RouteKind.OVERRIDE_REMOVED, RouteKind.AGREEMENT, RouteKind.UNDRAIN})
_TOPICS: Final = {
    RouteKind.OVERRIDE_REMOVED: RouteKind.OVERRIDE,
    RouteKind.AGREEMENT: RouteKind.DISAGREEMENT,
    RouteKind.UNDRAIN: RouteKind.DRAIN,
}


@dataclass(frozen=True, slots=True)
class Hint:
    """One host's report about one VTEP."""

    text: str
    until_s: float


@dataclass(slots=True)
class RouteHints:
    """Hints of all hosts but this one."""

    node: str
    own_vtep: str = ""
    flooded: bool = False
    """More than `MAX_EVENTS_PER_S` arrived: close the subscription for a while, then `resume`."""
    _hints: dict[str, dict[tuple[str, str], Hint]] = field(default_factory=dict)
    """By reporting node, then by VTEP and topic."""
    _triggered_s: float = float("-inf")
    _second_s: float = float("-inf")
    _in_second: int = 0

    def add(self, node: str, event: RouteEvent, vteps: Collection[str], now_s: float) -> bool:
        """Add an event.

        Args:
            node: the sender, by the subject, which the server checks.
            event: its message.
            vteps: VTEPs that this host sends to.
            now_s: of the monotonic clock.

        Returns:
            whether to trigger a check.
        """
        if node == self.node or self._is_flood(now_s):
            return False
        topic, marks = self._meaning(event)
        if topic is None:
            return False
        concerned = [vtep for vtep in self._concerned(event) if vtep in vteps]
        if marks:
            self._mark(node, topic, concerned, event, now_s)
        else:
            self._clear(node, topic, concerned)
        if not concerned or now_s - self._triggered_s < MIN_TRIGGER_INTERVAL_S:
            return False
        self._triggered_s = now_s
        return True

    def resume(self) -> None:
        """The subscription is open again."""
        self.flooded, self._in_second = False, 0

    def suspects(self, now_s: float) -> dict[str, str]:
        """By VTEP: up to three reports as text. Expired hints are dropped."""
        found: dict[str, list[str]] = {}
        for node, hints in list(self._hints.items()):
            for key in [key for key, hint in hints.items() if hint.until_s <= now_s]:
                del hints[key]
            if not hints:
                del self._hints[node]
            for (vtep, _), hint in hints.items():
                found.setdefault(vtep, []).append(f"{node} says: {hint.text}")
        return {vtep: "; ".join(sorted(texts)[:3]) for vtep, texts in found.items()}

    def _is_flood(self, now_s: float) -> bool:
        if now_s - self._second_s >= 1.0:
            self._second_s, self._in_second = now_s, 0
        self._in_second += 1
        self.flooded = self.flooded or self._in_second > MAX_EVENTS_PER_S
        return self.flooded

    @staticmethod
    def _meaning(event: RouteEvent) -> tuple[str | None, bool]:
        """The topic, and whether it marks or clears a VTEP; None: the event is not about a path."""
        if event.kind is RouteKind.ROUTE:
            return RouteKind.ROUTE, len(event.after) < len(event.before)
        if event.kind in _MARKS or event.kind in _CLEARS:
            topic = _TOPICS.get(event.kind, event.kind)
            return (f"{topic} {event.interface}" if topic is RouteKind.DRAIN else topic), event.kind in _MARKS
        return None, False

    def _concerned(self, event: RouteEvent) -> Iterable[str]:
        """VTEPs concerned: the sender's, if the event is about itself or its path to us; else its destinations."""
        if event.kind in {RouteKind.DRAIN, RouteKind.UNDRAIN}:
            return (event.vtep,)
        named = [destination.partition("/")[0] for destination in (event.destination, *event.also)]
        return [event.vtep if vtep == self.own_vtep else vtep for vtep in named]

    def _mark(self, node: str, topic: str, vteps: Iterable[str], event: RouteEvent, now_s: float) -> None:
        if node not in self._hints and len(self._hints) >= MAX_NODES:
            return
        until_s = now_s + (DRAIN_HINT_EXPIRY_S if event.kind is RouteKind.DRAIN else HINT_EXPIRY_S)
        hints = self._hints.setdefault(node, {})
        for vtep in vteps:
            if (vtep, topic) in hints or len(hints) < MAX_HINTS_PER_NODE:
                hints[vtep, topic] = Hint(_text(event), until_s)
        if not hints:
            del self._hints[node]

    def _clear(self, node: str, topic: str, vteps: Iterable[str]) -> None:
        hints = self._hints.get(node, {})
        for vtep in vteps:
            hints.pop((vtep, topic), None)
        if not hints:
            self._hints.pop(node, None)


def _text(event: RouteEvent) -> str:
    """Printable text of limited length, for a terminal."""
    what = f"{event.kind} {event.interface}".strip()
    if event.kind is RouteKind.ROUTE:
        what = f"its route has {len(event.after)} of {len(event.before)} next hops left"
    text = f"{what}: {event.reason}" if event.reason else what
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:_TEXT]

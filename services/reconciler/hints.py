"""What other hosts tell of paths (`evt.route`), as hints: which VTEPs are suspect, and whether to look now. Pure.

The kernel and FRR stay the truth: a hint makes this host look, and is shown beside its own paths. Nothing is written
because of one. One host's key may be in wrong hands: a host can tell of any VTEP, but only in its own name (the server
sees to that), only of VTEPs that this host sends to, `MOST_OF_A_NODE` at a time, and not for long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from schemas.network import RouteEvent, RouteKind

MOST_OF_A_NODE: Final = 64
MOST_NODES: Final = 4_096
MOST_PER_S: Final = 200
"""Events of all hosts together; more are a flood."""
LOOK_EVERY_S: Final = 0.2
LASTS_S: Final = 60.0
DRAIN_LASTS_S: Final = 1_500.0
"""A drain is told again each ten minutes."""
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
    """One host's word about one VTEP."""

    text: str
    until_s: float


@dataclass(slots=True)
class RouteHints:
    """Hints of all hosts but this one."""

    node: str
    own_vtep: str = ""
    flooded: bool = False
    """More than `MOST_PER_S` came: stop listening for a while, then `rested`."""
    _hints: dict[str, dict[tuple[str, str], Hint]] = field(default_factory=dict)
    """By node that told, then by VTEP and topic."""
    _looked_s: float = float("-inf")
    _second_s: float = float("-inf")
    _in_second: int = 0

    def take(self, node: str, event: RouteEvent, vteps: Collection[str], now_s: float) -> bool:
        """Note an event.

        Args:
            node: who told, by the subject, which the server checks.
            event: what it told.
            vteps: where this host sends to.
            now_s: the clock.

        Returns:
            whether to look now.
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
        if not concerned or now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        return True

    def rested(self) -> None:
        """Listening begins anew."""
        self.flooded, self._in_second = False, 0

    def suspects(self, now_s: float) -> dict[str, str]:
        """By VTEP: who told what, in words. What is too old is forgotten."""
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
        self.flooded = self.flooded or self._in_second > MOST_PER_S
        return self.flooded

    @staticmethod
    def _meaning(event: RouteEvent) -> tuple[str | None, bool]:
        """The topic, and whether it makes a VTEP suspect or takes that back; None: it says nothing of a path."""
        if event.kind is RouteKind.ROUTE:
            return RouteKind.ROUTE, len(event.after) < len(event.before)
        if event.kind in _MARKS or event.kind in _CLEARS:
            topic = _TOPICS.get(event.kind, event.kind)
            return (f"{topic} {event.interface}" if topic is RouteKind.DRAIN else topic), event.kind in _MARKS
        return None, False

    def _concerned(self, event: RouteEvent) -> Iterable[str]:
        """VTEPs: the sender's where it tells of itself or of its way to us, else its destinations."""
        if event.kind in {RouteKind.DRAIN, RouteKind.UNDRAIN}:
            return (event.vtep,)
        named = [destination.partition("/")[0] for destination in (event.destination, *event.also)]
        return [event.vtep if vtep == self.own_vtep else vtep for vtep in named]

    def _mark(self, node: str, topic: str, vteps: Iterable[str], event: RouteEvent, now_s: float) -> None:
        if node not in self._hints and len(self._hints) >= MOST_NODES:
            return
        until_s = now_s + (DRAIN_LASTS_S if event.kind is RouteKind.DRAIN else LASTS_S)
        hints = self._hints.setdefault(node, {})
        for vtep in vteps:
            if (vtep, topic) in hints or len(hints) < MOST_OF_A_NODE:
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
    """For people, on a terminal: printable, and short."""
    what = f"{event.kind} {event.interface}".strip()
    if event.kind is RouteKind.ROUTE:
        what = f"its route has {len(event.after)} of {len(event.before)} next hops left"
    text = f"{what}: {event.reason}" if event.reason else what
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:_TEXT]

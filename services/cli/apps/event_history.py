"""History of an application's memory events and externally modified limits, from the streams. Pure: a fold."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Final, NamedTuple

from schemas.codec import to_plain
from schemas.containers import ContainerChange, ContainerEvent
from schemas.message import Message
from schemas.oom import OomEvent
from services.cli.apps.memory_events import SEVERE_KINDS, MemoryCounters, describe_event, plain_event

_SENTENCES: Final = {
    ContainerChange.DRIFTED: "limits drifted: {}",
    ContainerChange.CPU_REFUSED: "more CPU refused: {}",
    ContainerChange.LIMIT_REFUSED: "limit refused: {}",
    ContainerChange.LIMIT_ACCEPTED: "limit no longer refused: {}",
}


class HistoryEvent(NamedTuple):
    """One event of the history."""

    time_ns: int
    container: str
    sentence: str
    severe: bool
    """A denied grant, an enabled OOM killer, a kill or limit hits."""
    plain: dict[str, Any]

    def line(self) -> str:
        """For people."""
        return f"{self.container}  {self.sentence}"


class EventHistory:
    """Counts all events, and keeps the newest of each container by class: severe, other memory events, drift, CPU.

    Severe events have a buffer of their own, so that a thousand grants after a kill do not evict it.
    """

    def __init__(self, container: str | None, last: int) -> None:
        self.total = MemoryCounters()
        self.tallies: defaultdict[str, MemoryCounters] = defaultdict(MemoryCounters)
        self.drifts = 0
        self._container = container or ""
        self._newest: defaultdict[tuple[str, str], deque[HistoryEvent]] = defaultdict(lambda: deque(maxlen=last))

    def take(self, message: Message) -> None:
        """Add one stored event; ignores all but memory events, drift and refused limits."""
        if isinstance(message, OomEvent) and message.container.startswith(self._container):
            self.total.add(message)
            self.tallies[message.container].add(message)
            severe = message.kind in SEVERE_KINDS
            past = HistoryEvent(
                message.time_ns, message.container, describe_event(message), severe, plain_event(message)
            )
            self._newest[message.container, "trouble" if severe else "memory"].append(past)
        elif (
            isinstance(message, ContainerEvent)
            and message.change in _SENTENCES
            and message.container.startswith(self._container)
        ):
            self.drifts += message.change is ContainerChange.DRIFTED
            sentence = _SENTENCES[message.change].format(message.reason)
            past = HistoryEvent(
                message.time_ns,
                message.container,
                sentence,
                severe=False,
                plain=to_plain(message) | {"sentence": sentence},
            )
            self._newest[message.container, message.change].append(past)

    @property
    def events(self) -> list[HistoryEvent]:
        """What was kept, oldest first."""
        return sorted((event for kept in self._newest.values() for event in kept), key=lambda event: event.time_ns)

    def summary(self, period: str) -> str:
        """One sentence."""
        drifts = f"{self.drifts} limits modified externally" if self.drifts else ""
        found = ", ".join(part for part in (self.total.in_words(), drifts) if part)
        return f"Memory in the last {period}: {found or 'nothing happened near or at a limit'}"

    def plain(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "total": self.total.plain(),
            "containers": {key: tally.plain() for key, tally in sorted(self.tallies.items())},
            "drifts": self.drifts,
            "events": [event.plain for event in self.events],
        }

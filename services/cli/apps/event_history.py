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
    node: str
    """The host that says so: the subject names it. It may name a container that another host runs."""
    sentence: str
    severe: bool
    """A denied grant, an enabled OOM killer, a kill or limit hits."""
    plain: dict[str, Any]

    def line(self) -> str:
        """For people."""
        return f"{self.container} on {self.node}  {self.sentence}"


class EventHistory:
    """Counts all events, and keeps the newest of each container by class: severe, other memory events, drift, CPU.

    Severe events have a buffer of their own, so that a thousand grants after a kill do not evict it.
    """

    def __init__(self, container: str | None, last: int) -> None:
        self.total = MemoryCounters()
        self.tallies: defaultdict[tuple[str, str], MemoryCounters] = defaultdict(MemoryCounters)
        """By container and the host that says so."""
        self.drifts = 0
        self._container = container or ""
        self._newest: defaultdict[tuple[str, str, str], deque[HistoryEvent]] = defaultdict(lambda: deque(maxlen=last))

    def take(self, message: Message) -> None:
        """Add one stored event; ignores all but memory events, drift and refused limits."""
        if isinstance(message, OomEvent) and message.container.startswith(self._container):
            self.total.add(message)
            self.tallies[message.container, message.node].add(message)
            severe = message.kind in SEVERE_KINDS
            past = HistoryEvent(
                message.time_ns, message.container, message.node, describe_event(message), severe, plain_event(message)
            )
            self._newest[message.container, message.node, "trouble" if severe else "memory"].append(past)
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
                message.node,
                sentence,
                severe=False,
                plain=to_plain(message) | {"sentence": sentence},
            )
            self._newest[message.container, message.node, message.change].append(past)

    @property
    def events(self) -> list[HistoryEvent]:
        """What was kept, oldest first."""
        return sorted((event for kept in self._newest.values() for event in kept), key=lambda event: event.time_ns)

    def summary(self, period: str) -> str:
        """One sentence."""
        drifts = f"{self.drifts} limits modified externally" if self.drifts else ""
        found = ", ".join(part for part in (self.total.in_words(), drifts) if part)
        return f"Memory in the last {period}: {found or 'nothing happened near or at a limit'}"

    def _key(self, container: str, node: str) -> str:
        """The container, with the host where several say something of it."""
        is_alone = all(other == node for named, other in self.tallies if named == container)
        return container if is_alone else f"{container} on {node}"

    def plain(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "total": self.total.plain(),
            "containers": {self._key(*of): tally.plain() for of, tally in sorted(self.tallies.items())},
            "drifts": self.drifts,
            "events": [event.plain for event in self.events],
        }

"""From the bus to whoever folds it: `top`'s live state and the recording of `up` are fed alike.

OomEvents and ContainerEvents are facts in a stream, but a plain subscription hears them too, as they happen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from schemas.cfs import CfsBatch
from schemas.containers import ContainerEvent
from schemas.leases import Lease
from schemas.limits import LimitDecisions
from schemas.message import Message
from schemas.oom import OomEvent
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_DECISIONS, OOM_EVENTS
from services._runtime.bus.api import Bus, Delivery, Entry
from services.cli.apps.live_state import LiveState

REMEMBERED_FACTS: Final = 4_096
"""A fact whose acknowledgement was lost is sent again within seconds."""


class Watcher(Protocol):
    """Folds what is told."""

    def observe(self, batch: CfsBatch) -> None:
        """Take in one batch; doubled and overtaken ones may come."""

    def decide(self, decisions: LimitDecisions) -> None:
        """Take in one application's decisions."""

    def note_memory(self, event: OomEvent) -> None:
        """Take in an event; each comes once."""

    def note_container(self, event: ContainerEvent) -> None:
        """Take in an event; each comes once."""


class Seen:
    """Recognises what comes again; remembers the newest `REMEMBERED_FACTS`."""

    def __init__(self) -> None:
        self._keys: dict[Hashable, None] = {}

    def is_new(self, key: Hashable) -> bool:
        """Whether it was not seen before."""
        if key in self._keys:
            return False
        self._keys[key] = None
        if len(self._keys) > REMEMBERED_FACTS:
            del self._keys[next(iter(self._keys))]
        return True


async def follow(bus: Bus, watchers: Callable[[], Sequence[Watcher]], app: str | None = None) -> None:
    """Feed the watchers from the bus, with one application or all; they are asked for at each message."""
    seen = Seen()

    def handle(delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, OomEvent | ContainerEvent) and not seen.is_new(_identity(message)):
            return
        for watcher in watchers():
            _hand_over(message, watcher)

    ids = {"app": app} if app else {}
    for template in (CFS, LIMIT_DECISIONS, OOM_EVENTS, CONTAINER_EVENTS):
        await bus.subscribe(template.pattern(bus.root, **ids), handle)


def hand_owners_to(state: LiveState) -> Callable[[str, Entry | None], None]:
    """A watcher of the `leases` bucket, where ``app.<name>`` says who decides for an application."""

    def changed(key: str, entry: Entry | None) -> None:
        kind, _, name = key.partition(".")
        lease = entry.message if entry is not None else None
        if kind == "app" and (lease is None or isinstance(lease, Lease)):
            state.own(name, lease)

    return changed


def _hand_over(message: Message, watcher: Watcher) -> None:
    """Messages of other types are not for us."""
    match message:
        case CfsBatch():
            watcher.observe(message)
        case LimitDecisions():
            watcher.decide(message)
        case OomEvent():
            watcher.note_memory(message)
        case ContainerEvent():
            watcher.note_container(message)


def _identity(event: OomEvent | ContainerEvent) -> Hashable:
    kind = event.kind if isinstance(event, OomEvent) else event.change
    return event.node, event.incarnation, event.container, kind, event.time_ns

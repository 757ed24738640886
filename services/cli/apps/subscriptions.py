"""Subscriptions that feed event sinks: the view model of `top` and the recording of `up`.

OomEvents and ContainerEvents are stored in streams; a plain subscription receives them as they are published.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.containers import ContainerEvent
from schemas.leases import MEMBERS_KEY, Members
from schemas.limits import LimitDecisions
from schemas.message import Message
from schemas.oom import OomEvent
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_DECISIONS, OOM_EVENTS
from services._runtime.bus.api import Bus, Delivery, Entry
from services.cli.apps.view_model import ViewModel

DEDUPLICATION_WINDOW: Final = 4_096
"""An event whose acknowledgement was lost is sent again within seconds."""


class EventSink(Protocol):
    """Receives each message of an application."""

    def add_batch(self, batch: CfsBatch) -> None:
        """Add one batch; duplicated and out-of-order ones may arrive."""

    def add_decisions(self, decisions: LimitDecisions) -> None:
        """Add one application's decisions."""

    def add_oom_event(self, event: OomEvent) -> None:
        """Take in an event; each comes once."""

    def add_container_event(self, event: ContainerEvent) -> None:
        """Take in an event; each comes once."""


class Deduplicator:
    """Detects duplicates among the newest `DEDUPLICATION_WINDOW` keys."""

    def __init__(self) -> None:
        self._recent: dict[Hashable, None] = {}

    def is_new(self, key: Hashable) -> bool:
        """Whether the key is not in the window; adds it."""
        if key in self._recent:
            return False
        self._recent[key] = None
        if len(self._recent) > DEDUPLICATION_WINDOW:
            del self._recent[next(iter(self._recent))]
        return True


async def subscribe_sinks(bus: Bus, sinks: Callable[[], Sequence[EventSink]], app: str | None = None) -> None:
    """Subscribe to one application's messages or all; ``sinks`` is called for each message."""
    deduplicator = Deduplicator()

    def handle(delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, OomEvent | ContainerEvent) and not deduplicator.is_new(_identity(message)):
            return
        for sink in sinks():
            _dispatch(message, sink)

    ids = {"app": app} if app else {}
    for template in (CFS, LIMIT_DECISIONS, OOM_EVENTS, CONTAINER_EVENTS):
        await bus.subscribe(template.pattern(bus.root, **ids), handle)


def announcement_watcher(state: ViewModel) -> Callable[[str, Entry | None], None]:
    """A watch callback for the `apps` bucket: applications whose limits are withdrawn, as of ended jobs, go."""

    def changed(key: str, entry: Entry | None) -> None:
        if entry is None:
            state.forget(key)
        elif isinstance(entry.message, AppSpec):
            state.announce(entry.message)

    return changed


def members_watcher(state: ViewModel) -> Callable[[str, Entry | None], None]:
    """A watch callback for the `leases` bucket, which holds the allocator's replicas."""

    def changed(key: str, entry: Entry | None) -> None:
        if key == MEMBERS_KEY:
            members = entry.message if entry is not None else None
            state.set_members(members if isinstance(members, Members) else Members())

    return changed


def _dispatch(message: Message, sink: EventSink) -> None:
    """Ignores messages of other types."""
    match message:
        case CfsBatch():
            sink.add_batch(message)
        case LimitDecisions():
            sink.add_decisions(message)
        case OomEvent():
            sink.add_oom_event(message)
        case ContainerEvent():
            sink.add_container_event(message)


def _identity(event: OomEvent | ContainerEvent) -> Hashable:
    kind = event.kind if isinstance(event, OomEvent) else event.change
    return event.node, event.incarnation, event.container, kind, event.time_ns

"""What is known of applications from the bus: state by query, the newest event by subscription."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from schemas.containers import ContainerEvent
from schemas.oom import OomEvent
from schemas.queries import AppState, StateReply, StateRequest
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.subjects import CONTAINER_EVENTS, OOM_EVENTS, REPLICA_STATE
from services._runtime.bus.api import Bus, BusError, Delivery, Subscription
from services.kubeoperator.core.status import LastEvent, Seen

_TIMEOUT_S: Final = 2.0
_LARGEST_EVENT_COUNT: Final = 10_000
"""Applications whose newest event is kept; the oldest is dropped."""


def rfc3339(time_ns: int) -> str:
    """``2026-11-24T03:00:00Z``."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Observations:
    """The newest state and event of each application."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._states: dict[str, AppState] = {}
        self._events: dict[str, LastEvent] = {}

    async def subscribe(self) -> list[Subscription]:
        """Begin to listen to events."""
        return [
            await self._bus.subscribe(template.pattern(self._bus.root), self._take)
            for template in (CONTAINER_EVENTS, OOM_EVENTS)
        ]

    def of(self, app: str) -> Seen:
        """What is known of an application."""
        return Seen(self._states.get(app), self._events.get(app))

    async def refresh(self) -> None:
        """Ask any allocator for all applications, then the owners of those that it does not own.

        Nobody replies: nothing is known of any application.
        """
        try:
            reply = await self._bus.request(
                ALLOCATOR_STATE.template.subject(self._bus.root), StateRequest(), timeout_s=_TIMEOUT_S
            )
        except BusError:
            self._states = {}
            return
        if not isinstance(reply, StateReply):
            return
        states = {state.spec.name: state for state in reply.apps}
        owners = {state.owner for state in reply.apps} - {"", reply.replica} if reply.replica else set()
        for of_owner in await asyncio.gather(*(self._ask(owner) for owner in sorted(owners))):
            states |= {state.spec.name: state for state in of_owner}
        self._states = states

    async def _ask(self, owner: str) -> tuple[AppState, ...]:
        subject = REPLICA_STATE.subject(self._bus.root, replica=owner)
        try:
            reply = await self._bus.request(subject, StateRequest(), timeout_s=_TIMEOUT_S)
        except BusError:
            return ()
        return reply.apps if isinstance(reply, StateReply) else ()

    def _take(self, delivery: Delivery) -> None:
        event = delivery.message
        if isinstance(event, ContainerEvent):
            kind = f"Container{event.change.value.title().replace('_', '')}"
        elif isinstance(event, OomEvent):
            kind = f"Memory{event.kind.value.title().replace('_', '')}"
        else:
            return
        message = f"{event.container} on {event.node}" + (f": {event.reason}" if event.reason else "")
        self._events.pop(event.app, None)
        self._events[event.app] = LastEvent(rfc3339(event.time_ns), kind, message)
        if len(self._events) > _LARGEST_EVENT_COUNT:
            del self._events[next(iter(self._events))]

"""What allocators know: any replica says whose an application is, its owner says the rest.

Replicas do not ask each other: a service that may publish to a subject that it answers could send itself messages.
"""

from __future__ import annotations

import asyncio

from schemas.message import Message
from schemas.queries import AppState, ExplainReply, ExplainRequest, StateReply, StateRequest
from schemas.registry import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.subjects import REPLICA_EXPLAIN, REPLICA_STATE
from services._runtime.bus.api import Bus, BusError, RequestRefusedError
from services._runtime.command.connection import QUERY_TIMEOUT_S, answered

_OWNER_TIMEOUT_S = 1.0


async def allocator_state(bus: Bus, app: str | None = None) -> StateReply:
    """Applications with pools and containers, each as its owner says.

    Raises:
        UnavailableError: nobody answers.
        CommandError: the application is not announced, or nobody decides for it at present.
    """
    return await answered("allocator", whole_state(bus, StateRequest(app=app)), StateReply)


async def allocator_explain(bus: Bus, request: ExplainRequest) -> ExplainReply:
    """Why an application's limits are what they are, as its owner says.

    Raises:
        UnavailableError: nobody answers.
        CommandError: the application is not announced, or nobody decides for it at present.
    """
    return await answered("allocator", _explanation(bus, request), ExplainReply)


async def whole_state(bus: Bus, request: StateRequest) -> Message:
    """As `allocator_state`, with the bus's own errors.

    Raises:
        BusError: as `Bus.request`; `RequestRefusedError` 503 where the one application that was asked for has no owner.
    """
    reply = await bus.request(ALLOCATOR_STATE.template.subject(bus.root), request, timeout_s=QUERY_TIMEOUT_S)
    if not isinstance(reply, StateReply):
        return reply
    elsewhere = {state.owner for state in reply.apps} - {"", reply.replica} if reply.replica else set()
    told: dict[str, AppState] = {}
    for states in await asyncio.gather(*(_of_owner(bus, owner, request) for owner in sorted(elsewhere))):
        told |= {state.spec.name: state for state in states}
    apps = tuple(told.get(state.spec.name) or _unless_silent(state, elsewhere) for state in reply.apps)
    if request.app is not None and not any(state.owner for state in apps):
        raise _changing_hands(request.app)
    return reply.model_copy(update={"apps": apps, "epoch": max((state.epoch for state in apps), default=0)})


async def _of_owner(bus: Bus, owner: str, request: StateRequest) -> tuple[AppState, ...]:
    """Its applications; none where it does not answer."""
    try:
        reply = await bus.request(REPLICA_STATE.subject(bus.root, replica=owner), request, timeout_s=_OWNER_TIMEOUT_S)
    except BusError:
        return ()
    return reply.apps if isinstance(reply, StateReply) else ()


def _unless_silent(state: AppState, asked: set[str]) -> AppState:
    return state.model_copy(update={"owner": ""}) if state.owner in asked and not state.containers else state


async def _explanation(bus: Bus, request: ExplainRequest) -> Message:
    reply = await bus.request(ALLOCATOR_EXPLAIN.template.subject(bus.root), request, timeout_s=QUERY_TIMEOUT_S)
    if not isinstance(reply, ExplainReply) or not reply.owner:
        return reply
    try:
        subject = REPLICA_EXPLAIN.subject(bus.root, replica=reply.owner)
        return await bus.request(subject, request, timeout_s=_OWNER_TIMEOUT_S)
    except RequestRefusedError:
        raise
    except BusError:
        raise _changing_hands(request.app) from None


def _changing_hands(app: str) -> RequestRefusedError:
    return RequestRefusedError(503, f"{app!r} has no owner at present: retry in a few seconds")

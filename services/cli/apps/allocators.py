"""Queries to the allocators: any replica names an application's owner, the owner replies with its state.

Replicas do not query each other: a service that may publish to a subject that it serves could send itself messages.
"""

from __future__ import annotations

import asyncio

from schemas.message import Message
from schemas.queries import AppState, ExplainReply, ExplainRequest, StateReply, StateRequest
from schemas.services.allocator import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.subjects import REPLICA_EXPLAIN, REPLICA_STATE
from services._runtime.bus.api import Bus, BusError, RequestRefusedError
from services._runtime.command.connection import QUERY_TIMEOUT_S, await_reply

_OWNER_TIMEOUT_S = 5.0


async def allocator_state(bus: Bus, app: str | None = None) -> StateReply:
    """Applications with pools and containers, each from its owner.

    Raises:
        UnavailableError: no reply.
        CommandError: the application is not announced, or has no owner at present.
    """
    return await await_reply("allocator", complete_state(bus, StateRequest(app=app)), StateReply)


async def allocator_explain(bus: Bus, request: ExplainRequest) -> ExplainReply:
    """Explanations of an application's limits, from its owner.

    Raises:
        UnavailableError: no reply.
        CommandError: the application is not announced, or has no owner at present.
    """
    return await await_reply("allocator", _explanation(bus, request), ExplainReply)


async def complete_state(bus: Bus, request: StateRequest) -> Message:
    """As `allocator_state`, raising the bus's errors.

    Raises:
        BusError: as `Bus.request`; `RequestRefusedError` 503 where the one requested application has no owner.
    """
    reply = await bus.request(ALLOCATOR_STATE.template.subject(bus.root), request, timeout_s=QUERY_TIMEOUT_S)
    if not isinstance(reply, StateReply):
        return reply
    elsewhere = {state.owner for state in reply.apps} - {"", reply.replica} if reply.replica else set()
    owner_states: dict[str, AppState] = {}
    for states in await asyncio.gather(*(_query_owner(bus, owner, request) for owner in sorted(elsewhere))):
        owner_states |= {state.spec.name: state for state in states}
    apps = tuple(owner_states.get(state.spec.name) or _clear_silent_owner(state, elsewhere) for state in reply.apps)
    if request.app is not None and not any(state.owner for state in apps):
        raise _no_owner_error(request.app)
    return reply.model_copy(update={"apps": apps, "epoch": max((state.epoch for state in apps), default=0)})


async def _query_owner(bus: Bus, owner: str, request: StateRequest) -> tuple[AppState, ...]:
    """An owner's applications; empty where it does not reply."""
    try:
        reply = await bus.request(REPLICA_STATE.subject(bus.root, replica=owner), request, timeout_s=_OWNER_TIMEOUT_S)
    except BusError:
        return ()
    return reply.apps if isinstance(reply, StateReply) else ()


def _clear_silent_owner(state: AppState, queried: set[str]) -> AppState:
    return state.model_copy(update={"owner": ""}) if state.owner in queried and not state.containers else state


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
        raise _no_owner_error(request.app) from None


def _no_owner_error(app: str) -> RequestRefusedError:
    return RequestRefusedError(503, f"{app!r} has no owner at present: retry in a few seconds")

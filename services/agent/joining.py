"""Before an agent takes orders: nobody else may do so under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas.containers import NodeInfo, NodeQuestion
from schemas.subjects import AGENT_STATE, SubjectTemplate
from services._runtime.app import UnusableSettingsError
from services._runtime.bus import (
    Bus,
    BusError,
    NoResponderError,
    RequestRefusedError,
    RequestTimeoutError,
    Responder,
    Subscription,
)
from services._runtime.logging import Logger

QUESTION_TIMEOUT_S: Final = 0.5


async def refuse_second_agent(bus: Bus, node: str, log: Logger) -> None:
    """Ask whether an agent of this name answers.

    Raises:
        UnusableSettingsError: there is one.
        BusUnavailableError: nobody can be asked.
    """
    try:
        reply = await bus.request(
            AGENT_STATE.subject(bus.root, node=node), NodeQuestion(), timeout_s=QUESTION_TIMEOUT_S
        )
    except NoResponderError:
        return
    except (RequestTimeoutError, RequestRefusedError) as error:
        # Half a connection, an agent that is stopped, or one that is in trouble: it cannot be told from here.
        log.warning("node_name_in_doubt", node=node, error=str(error))
        return
    incarnation = reply.incarnation if isinstance(reply, NodeInfo) else "unknown"
    raise UnusableSettingsError(
        f"an agent of the node name {node!r} is at work already (incarnation {incarnation}): "
        "stop it, or set TURNBUCKLE_AGENT__NODE to another name here"
    )


async def serve_node(bus: Bus, node: str, responders: Mapping[SubjectTemplate, Responder]) -> list[Subscription]:
    """Answer what is asked of this node: all of it, or nothing.

    Raises:
        BusError: something cannot be served.
    """
    subscriptions: list[Subscription] = []
    try:
        for template, responder in responders.items():
            subscriptions.append(await bus.serve(template.subject(bus.root, node=node), responder))
    except BusError:
        for subscription in subscriptions:
            await subscription.stop()
        raise
    return subscriptions

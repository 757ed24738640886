"""Before an agent takes orders: nobody else may do so under its name."""

from __future__ import annotations

from typing import Final

from schemas.limits import LimitReply, LimitUpdate
from schemas.subjects import LIMIT_UPDATES
from services._runtime.app import UnusableSettingsError
from services._runtime.bus import Bus, NoResponderError, RequestRefusedError, RequestTimeoutError
from services._runtime.logging import Logger

QUESTION_TIMEOUT_S: Final = 0.5


async def refuse_second_agent(bus: Bus, node: str, log: Logger) -> None:
    """Ask whether an agent of this name answers: an order for no application and no incarnation changes nothing.

    Raises:
        UnusableSettingsError: there is one.
        BusUnavailableError: nobody can be asked.
    """
    question = LimitUpdate.build(
        [], {"quota_us": [], "limit_bytes": []}, node=node, incarnation=0, epoch=0, seq=0, time_ns=0, apps=()
    )
    try:
        reply = await bus.request(LIMIT_UPDATES.subject(bus.root, node=node), question, timeout_s=QUESTION_TIMEOUT_S)
    except NoResponderError:
        return
    except (RequestTimeoutError, RequestRefusedError) as error:
        # Half a connection, an agent that is stopped, or one that is in trouble: it cannot be told from here.
        log.warning("node_name_in_doubt", node=node, error=str(error))
        return
    incarnation = reply.incarnation if isinstance(reply, LimitReply) else "unknown"
    raise UnusableSettingsError(
        f"an agent of the node name {node!r} is at work already (incarnation {incarnation}): "
        "stop it, or set TURNBUCKLE_AGENT__NODE to another name here"
    )

"""Subscription to raw messages, undecodable ones included: for `turnbuckle tap` only.

Other code uses `Bus.subscribe`, which decodes and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nats.aio.msg import Msg

from services._runtime.bus.api import NotPermittedError, Subscription
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_subscriptions import NatsSubscription

_ANSWER_WITHIN_S: Final = 5
RawHandler = Callable[[str, bytes], None]
"""Called on the event loop with subject and payload; must not block."""


class _RawSubscription(NatsSubscription):
    async def start_raw(self, pattern: str, handler: RawHandler) -> None:
        async def on_message(message: Msg) -> None:
            handler(message.subject, message.data)

        await self._open(pattern, on_message)


async def tap(bus: NatsBus, pattern: str, handler: RawHandler) -> Subscription:
    """Receive every message of a subject or pattern.

    Raises:
        BusError: not connected, not permitted, or the pattern is not a subject.
    """
    subscription = _RawSubscription(bus)
    await subscription.start_raw(pattern, handler)
    with as_bus_errors(f"subscribe to {pattern}"):
        await bus.connection.flush(_ANSWER_WITHIN_S)
    if bus.connection.has_refused(pattern):
        raise NotPermittedError(
            f"this user may not subscribe to {pattern}: operators and observers may to obs.> and evt.>,"
            " only services to the commands (cmd) that they answer"
        )
    return subscription

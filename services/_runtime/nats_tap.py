"""Raw messages of any subject, undecodable ones too: for `turnbuckle tap` only.

Everything else goes through `Bus.subscribe`, which decodes and counts.
"""

from __future__ import annotations

from collections.abc import Callable

from nats.aio.msg import Msg

from services._runtime.bus import Subscription
from services._runtime.bus_nats import NatsBus
from services._runtime.nats_subscriptions import NatsSubscription

RawHandler = Callable[[str, bytes], None]
"""Called on the event loop with the subject and the payload; must return at once."""


class _RawSubscription(NatsSubscription):
    async def start_raw(self, pattern: str, handler: RawHandler) -> None:
        async def on_message(message: Msg) -> None:
            handler(message.subject, message.data)

        await self._open(pattern, on_message)


async def tap(bus: NatsBus, pattern: str, handler: RawHandler) -> Subscription:
    """Receive every message of a subject or pattern, as it stands on the server.

    Raises:
        BusError: not connected, or the pattern is not a subject.
    """
    subscription = _RawSubscription(bus)
    await subscription.start_raw(pattern, handler)
    return subscription

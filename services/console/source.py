"""The console's bus client: subscriptions and read-only queries, all within an observer's permissions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from schemas.cfs import CfsBatch
from schemas.codec import CodecError, encode
from schemas.limits import LimitDecisions
from schemas.message import Message
from schemas.network import NetworkStateReply, NetworkStateRequest, RulesReply, RulesRequest
from schemas.streams import (
    APPS,
    CONTAINER_STREAM,
    LEASES,
    OOM_STREAM,
    PREDICTION_STREAM,
    ROUTE_STREAM,
    TC_STREAM,
    BucketSpec,
    StreamSpec,
)
from schemas.subjects import (
    CFS,
    LIMIT_DECISIONS,
    RECONCILER_RULES,
    RECONCILER_STATE,
    ROUTE_EVENTS,
    TC_EVENTS,
    SubjectError,
)
from services._runtime.bus.api import BusError, Delivery, Entry
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.nats_tap import tap
from services._runtime.clock import SystemClock
from services._runtime.command.errors import CommandError
from services.cli.apps.allocators import allocator_state
from services.cli.network.command import query_node
from services.console.hub import Hub, console_message

POLL_INTERVAL_S: Final = 2.0
RULES_POLL_DIVISOR: Final = 5
"""Rules are queried once in so many polls."""
RULES_LISTED: Final = 200
"""Of each node."""
_HOUR_S: Final = 3_600.0
_HISTORY_S: Final[tuple[tuple[StreamSpec, float | None], ...]] = (
    (OOM_STREAM, _HOUR_S),
    (CONTAINER_STREAM, _HOUR_S),
    (ROUTE_STREAM, _HOUR_S),
    (TC_STREAM, None),
    (PREDICTION_STREAM, None),
)
"""Facts that are replayed at first, and their maximum age; None: all. An idle reconciler published its last result long
ago, and its node is known by that."""


class _BusSource:
    def __init__(self, bus: NatsBus, hub: Hub) -> None:
        self.bus = bus
        self.hub = hub
        self.networks: set[str] = set()
        """Nodes with a reconciler."""

    def observation(self, subject: str, data: bytes) -> None:
        """Forward an observation unchanged if it decodes as one: no publisher may forge the console's own messages."""
        if self.hub.pages:
            delivery = self.bus.dispatch.decode(subject, data)
            if delivery is not None and isinstance(delivery.message, CfsBatch | LimitDecisions):
                self.hub.broadcast_observation(data)

    def fact(self, delivery: Delivery) -> None:
        message = delivery.message
        for template in (TC_EVENTS, ROUTE_EVENTS):  # by the subject: the server minds who may use it
            with suppress(SubjectError):
                self.networks.add(template.parse(self.bus.root, delivery.subject)["node"])
        with suppress(CodecError):  # it came in this size: it cannot be too large
            self.hub.broadcast_event(message.type_name, encode(message))

    def entry(self, spec: BucketSpec) -> Callable[[str, Entry | None], None]:
        """A watch callback for a bucket."""

        def changed(key: str, entry: Entry | None) -> None:
            place = f"{spec.name}/{key}"
            if entry is None:
                self.hub.remove(place, console_message("Removed", bucket=spec.name, key=key))
            elif entry.message is not None:
                self.hub.set(place, console_message("Entry", bucket=spec.name, key=key, value=encode(entry.message)))

        return changed

    async def replay_history(self) -> None:
        """Send the stored facts from before the subscriptions."""
        now_s = SystemClock().time_ns() / 1e9
        for stream, age_s in _HISTORY_S:
            since_s = 0.0 if age_s is None else now_s - age_s
            try:
                for pattern in stream.subjects(self.bus.root):
                    await read_stored(self.bus, stream, pattern, since_s, self.fact)
            except BusError as error:
                self.set_error(f"past/{stream.name}", str(error))

    async def poll(self) -> None:
        """While a page is open, query the state that is not published."""
        for turn in itertools.count():
            await self.hub.wait_for_page()
            rules = turn % RULES_POLL_DIVISOR == 0
            await asyncio.gather(self._allocator(), *(self._network(name, rules=rules) for name in self.networks))
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _allocator(self) -> None:
        await self._poll_one("allocator", lambda: allocator_state(self.bus), lossy=True)

    async def _network(self, node: str, *, rules: bool) -> None:
        async def state() -> NetworkStateReply:
            return await query_node(self.bus, RECONCILER_STATE, node, NetworkStateRequest(), NetworkStateReply)

        async def listed() -> RulesReply:
            request = RulesRequest(limit=RULES_LISTED)
            return await query_node(self.bus, RECONCILER_RULES, node, request, RulesReply)

        if await self._poll_one(f"network/{node}", state) and (rules or not self.hub.holds(f"rules/{node}")):
            await self._poll_one(f"rules/{node}", listed)

    async def _poll_one(self, key: str, poll: Callable[[], Awaitable[Message]], *, lossy: bool = False) -> bool:
        """Query once, and send the pages the reply or the error."""
        try:
            data = encode(await poll())
        except (CommandError, BusError, CodecError) as error:
            self.set_error(key, str(error))
            return False
        self.hub.remove(f"trouble/{key}", console_message("Solved", about=key))
        if lossy:
            self.hub.broadcast_observation(data)
        else:
            self.hub.set(key, data)
        return True

    def set_error(self, about: str, text: str) -> None:
        self.hub.forget(about)
        self.hub.set(f"trouble/{about}", console_message("Trouble", about=about, text=text))


@asynccontextmanager
async def follow_bus(bus: NatsBus, hub: Hub) -> AsyncIterator[None]:
    """Feed a hub until left.

    Raises:
        BusError: not connected, or this user may not listen.
    """
    source = _BusSource(bus, hub)
    async with AsyncExitStack() as stack:
        for template in (CFS, LIMIT_DECISIONS):
            pattern = template.pattern(bus.root).text
            stack.push_async_callback((await tap(bus, pattern, source.observation)).stop)
        for stream, _ in _HISTORY_S:
            for subject in stream.subjects(bus.root):
                stack.push_async_callback((await bus.subscribe(subject, source.fact)).stop)
        for spec in (APPS, LEASES):
            await stack.enter_async_context(bus.bucket(spec).watch(source.entry(spec)))
        tasks = [asyncio.create_task(source.replay_history()), asyncio.create_task(source.poll())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

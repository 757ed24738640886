"""What the console takes from the bus: it listens, and asks questions that change nothing. An observer may do all."""

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
from services._runtime.command.failure import CommandError
from services.cli.apps.allocators import allocator_state
from services.cli.network.command import ask_node
from services.console.hub import Hub, note

ASK_EVERY_S: Final = 2.0
RULES_EVERY: Final = 5
"""Rules are asked for once in so many turns."""
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
"""Facts that are looked up at first, and how old they may be; None: all. A reconciler at rest told its last pass long
ago, and that is how its node is known."""


class _Source:
    def __init__(self, bus: NatsBus, hub: Hub) -> None:
        self.bus = bus
        self.hub = hub
        self.networks: set[str] = set()
        """Nodes with a reconciler."""

    def observation(self, subject: str, data: bytes) -> None:
        """Pass it on as it is, if it is one: who may publish there must not speak in the console's own name."""
        if self.hub.pages:
            delivery = self.bus.dispatch.decode(subject, data)
            if delivery is not None and isinstance(delivery.message, CfsBatch | LimitDecisions):
                self.hub.observe(data)

    def fact(self, delivery: Delivery) -> None:
        message = delivery.message
        for template in (TC_EVENTS, ROUTE_EVENTS):  # by the subject: the server minds who may use it
            with suppress(SubjectError):
                self.networks.add(template.parse(self.bus.root, delivery.subject)["node"])
        with suppress(CodecError):  # it came in this size: it cannot be too large
            self.hub.tell(message.type_name, encode(message))

    def entry(self, spec: BucketSpec) -> Callable[[str, Entry | None], None]:
        """A watcher of a bucket."""

        def changed(key: str, entry: Entry | None) -> None:
            place = f"{spec.name}/{key}"
            if entry is None:
                self.hub.remove(place, note("Removed", bucket=spec.name, key=key))
            elif entry.message is not None:
                self.hub.set(place, note("Entry", bucket=spec.name, key=key, value=encode(entry.message)))

        return changed

    async def past(self) -> None:
        """Facts that were told before we began to listen."""
        now_s = SystemClock().time_ns() / 1e9
        for stream, age_s in _HISTORY_S:
            since_s = 0.0 if age_s is None else now_s - age_s
            try:
                for pattern in stream.subjects(self.bus.root):
                    await read_stored(self.bus, stream, pattern, since_s, self.fact)
            except BusError as error:
                self.trouble(f"past/{stream.name}", str(error))

    async def ask(self) -> None:
        """While somebody looks, ask for what nobody tells by itself."""
        for turn in itertools.count():
            await self.hub.watched()
            rules = turn % RULES_EVERY == 0
            await asyncio.gather(self._allocator(), *(self._network(name, rules=rules) for name in self.networks))
            await asyncio.sleep(ASK_EVERY_S)

    async def _allocator(self) -> None:
        await self._answer("allocator", lambda: allocator_state(self.bus), lossy=True)

    async def _network(self, node: str, *, rules: bool) -> None:
        async def state() -> NetworkStateReply:
            return await ask_node(self.bus, RECONCILER_STATE, node, NetworkStateRequest(), NetworkStateReply)

        async def listed() -> RulesReply:
            request = RulesRequest(limit=RULES_LISTED)
            return await ask_node(self.bus, RECONCILER_RULES, node, request, RulesReply)

        if await self._answer(f"network/{node}", state) and (rules or not self.hub.holds(f"rules/{node}")):
            await self._answer(f"rules/{node}", listed)

    async def _answer(self, key: str, ask: Callable[[], Awaitable[Message]], *, lossy: bool = False) -> bool:
        """Ask, and tell the pages the answer or why there is none."""
        try:
            data = encode(await ask())
        except (CommandError, BusError, CodecError) as error:
            self.trouble(key, str(error))
            return False
        self.hub.remove(f"trouble/{key}", note("Solved", about=key))
        if lossy:
            self.hub.observe(data)
        else:
            self.hub.set(key, data)
        return True

    def trouble(self, about: str, text: str) -> None:
        self.hub.forget(about)
        self.hub.set(f"trouble/{about}", note("Trouble", about=about, text=text))


@asynccontextmanager
async def follow_bus(bus: NatsBus, hub: Hub) -> AsyncIterator[None]:
    """Feed a hub until left.

    Raises:
        BusError: not connected, or this user may not listen.
    """
    source = _Source(bus, hub)
    async with AsyncExitStack() as stack:
        for template in (CFS, LIMIT_DECISIONS):
            pattern = template.pattern(bus.root).text
            stack.push_async_callback((await tap(bus, pattern, source.observation)).stop)
        for stream, _ in _HISTORY_S:
            for subject in stream.subjects(bus.root):
                stack.push_async_callback((await bus.subscribe(subject, source.fact)).stop)
        for spec in (APPS, LEASES):
            await stack.enter_async_context(bus.bucket(spec).watch(source.entry(spec)))
        tasks = [asyncio.create_task(source.past()), asyncio.create_task(source.ask())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

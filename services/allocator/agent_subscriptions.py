"""What is received of agents: batches and memory requests of owned applications, by application or by node.

By application (``obs.cfs.{app}.*``) as long as every node keeps within its budget (`flood_guard`). A pattern excludes
no node, so while some are quarantined everything is received by node (``obs.cfs.*.{node}``), of the registered ones
that are not: the server then sends nothing of the others. What other replicas own is dropped by its subject.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final

from schemas.subjects import CFS, MEMORY_REQUESTS, Subject, SubjectError, SubjectTemplate, token, untoken
from services._runtime.bus.api import BusError, Delivery, Handler, Responder, Screen, Subscription
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.allocator.flood_guard import FloodGuard, Kind, Quarantine
from services.allocator.settings import AllocatorSettings

_DROPPED_EVERY_S: Final = 60.0

Which = tuple[str, str]
"""``app`` or ``node``, and its name."""


class AgentSubscriptions:
    """Subscriptions to what agents send, and the budget of each node."""

    def __init__(self, runtime: Runtime[AllocatorSettings], on_batch: Handler, on_request: Responder) -> None:
        self.guard = FloodGuard()
        self._runtime = runtime
        self._bus, self._clock, self._log = runtime.bus, runtime.clock, runtime.log
        self._limiter = LogLimiter(self._clock.monotonic)
        self._on_batch, self._on_request = on_batch, on_request
        self._screens: dict[Kind, Screen] = {
            Kind.BATCH: self._screen(Kind.BATCH),
            Kind.REQUEST: self._screen(Kind.REQUEST),
        }
        self._apps: dict[str, str] = {}
        """Owned applications, by token."""
        self._nodes: dict[str, str] = {}
        """Nodes that are received, by token."""
        self.unregistered = 0
        """Batches of other nodes; dropped."""
        self._open: dict[Which, list[Subscription]] = {}
        self._stopping = False

    @property
    def quarantined(self) -> set[str]:
        """Names of the nodes of which nothing is received."""
        return {_name(node) for node in self.guard.quarantined}

    async def subscribe(self, app: str) -> None:
        """Receive what agents send of an application; one already subscribed does not change.

        Raises:
            BusError: the subscription failed.
        """
        self._apps[token(app)] = app
        if ("app", app) in self._wanted() - self._open.keys():
            try:
                await self._subscribe("app", app)
            except BusError:
                await self.unsubscribe(app)
                raise

    async def try_to_subscribe(self, app: str) -> None:
        """Find out whether an application could be subscribed to; nothing that arrives is answered.

        Raises:
            BusError: it cannot be.
        """
        subscriptions: list[Subscription] = []
        try:
            for template in (CFS, MEMORY_REQUESTS):
                pattern = template.pattern(self._bus.root, app=app)
                subscriptions.append(await self._bus.subscribe(pattern, _ignore, screen=_refuse))
        finally:
            await _stop(subscriptions)

    def unsubscribe(self, app: str) -> Coroutine[None, None, None]:
        """Unsubscribe at once; the coroutine ends when the server has confirmed."""
        self._apps.pop(token(app), None)
        return _stop(self._open.pop(("app", app), []))

    def set_nodes(self, nodes: set[str]) -> None:
        """Set the nodes of which messages are received: the registered ones."""
        if nodes == set(self._nodes.values()):
            return
        self._nodes = {token(node): node for node in nodes}
        if self.guard.quarantined:
            self._settle()

    def refresh(self) -> None:
        """Once a second: end quarantines that are over, and subscribe again where it failed."""
        for node in self.guard.expire(self._clock.monotonic()):
            self._log.info("node_received_again", node=_name(node))
        self._settle()

    async def stop(self) -> None:
        """Unsubscribe from everything."""
        self._stopping = True
        for which in list(self._open):
            await _stop(self._open.pop(which))

    # -- budgets -----------------------------------------------------------------------------------------------

    def _screen(self, kind: Kind) -> Screen:
        guard, monotonic = self.guard, self._clock.monotonic

        def screen(subject: str, size_bytes: int) -> bool:
            _, app, node = subject.rsplit(".", 2)
            if not guard.admit(kind, app, node, size_bytes, monotonic()):
                if guard.newly_quarantined:
                    self._quarantine()
                elif node not in guard.quarantined:
                    self._log_dropped(kind, node)
                return False
            if app not in self._apps:
                return False
            if kind is Kind.BATCH and node not in self._nodes:  # a request of an unknown node is granted nothing
                self.unregistered += 1
                return False
            return True

        return screen

    def _log_dropped(self, kind: Kind, node: str) -> None:
        log_once(
            self._log.warning,
            self._limiter,
            "messages_dropped",
            _DROPPED_EVERY_S,
            node=_name(node),
            what=kind.value,
            reason="it sends more than any agent does",
        )

    def _quarantine(self) -> None:
        """Unsubscribe: the server then sends nothing more of these nodes."""
        new: list[Quarantine] = list(self.guard.newly_quarantined)
        self.guard.newly_quarantined.clear()
        for node, kind, seconds, dropped in new:
            self._log.warning(
                "node_quarantined",
                node=_name(node),
                seconds=seconds,
                what=kind.value,
                dropped=dropped,
                consequence="its containers keep their limits and their share, nothing is decided for them",
                remedy="examine its agent; if it is not yours, take its key away (docs/security.md)",
            )
        self._settle()

    # -- subscriptions -----------------------------------------------------------------------------------------

    def _wanted(self) -> set[Which]:
        if not self.guard.quarantined:
            return {("app", app) for app in self._apps.values()}
        received = self._nodes.keys() - self.guard.quarantined.keys()
        return {("node", self._nodes[node]) for node in received} if self._apps else set()

    def _settle(self) -> None:
        """Open what is missing, and end what is not wanted, without waiting for either."""
        if self._stopping:
            return
        wanted = self._wanted()
        for which in self._open.keys() - wanted:
            self._runtime.spawn(_stop(self._open.pop(which)), name=f"unsubscribe {which}")
        for which in wanted - self._open.keys():
            self._runtime.spawn(self._try(which), name=f"subscribe {which}")

    async def _try(self, which: Which) -> None:
        try:
            await self._subscribe(*which)
        except BusError as error:  # `refresh` tries again
            self._log.debug("not_subscribed", which=which, error=str(error))

    async def _subscribe(self, by: str, name: str) -> None:
        if (by, name) in self._open:
            return
        subscriptions: list[Subscription] = []
        self._open[by, name] = subscriptions
        try:
            subscriptions.append(
                await self._bus.subscribe(
                    self._pattern(CFS, by, name), self._on_batch, screen=self._screens[Kind.BATCH]
                )
            )
            subscriptions.append(
                await self._bus.serve(
                    self._pattern(MEMORY_REQUESTS, by, name), self._on_request, screen=self._screens[Kind.REQUEST]
                )
            )
        except BusError:
            if self._open.get((by, name)) is subscriptions:
                del self._open[by, name]
            await _stop(subscriptions)
            raise
        if self._open.get((by, name)) is not subscriptions:  # unsubscribed meanwhile
            await _stop(subscriptions)

    def _pattern(self, template: SubjectTemplate, by: str, name: str) -> Subject:
        return template.pattern(self._bus.root, **{by: name})


def _name(node: str) -> str:
    """Name of a node, of its token in a subject."""
    try:
        return untoken(node)
    except SubjectError:
        return node


def _ignore(_delivery: Delivery) -> None:
    """Take nothing."""


def _refuse(_subject: str, _size_bytes: int) -> bool:
    return False


async def _stop(subscriptions: list[Subscription]) -> None:
    for subscription in subscriptions:
        await subscription.stop()

"""Follows control files and messages of a cluster, and holds them against `invariant_rules`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions
from schemas.oom import OomEvent, OomKind
from schemas.streams import OOM_STREAM
from schemas.subjects import CFS, LIMIT_DECISIONS
from services._runtime.bus.api import BusError, Delivery
from tests.support.cluster_lab import ClusterLab, poll
from tests.support.invariant_rules import Rules, held_by
from tests.support.limit_observer import Sample

TAKE_EVERY_S: Final = 0.25
SETTLED_S: Final = 60.0


class InvariantChecker:
    """Watches the given applications from `watch` on."""

    def __init__(self, cluster: ClusterLab, specs: list[AppSpec], roots: list[str], deadline_s: float) -> None:
        self.rules = Rules(deadline_s)
        self.rules.specs = {spec.name: spec for spec in specs}
        self.on_sample: Callable[[Sample], None] = lambda _sample: None
        """Called with each sample that was judged."""
        self._cluster = cluster
        self._observer = cluster.observe(*roots)
        self._wall_minus_monotonic_s = time.time() - time.monotonic()

    def events(self, key: str, *kinds: OomKind) -> list[OomEvent]:
        """What was told of a container's memory so far, in order."""
        return [
            event for _, event in self.rules.events if event.container == key and (not kinds or event.kind in kinds)
        ]

    async def told(self, key: str, kind: OomKind, within_s: float = 60.0) -> OomEvent:
        """Wait for the first event of a kind."""

        async def first() -> OomEvent | None:
            return next(iter(self.events(key, kind)), None)

        event: OomEvent = await poll(first, within_s=within_s, what=f"{kind} of {key} told")
        return event

    async def settled(self, within_s: float = SETTLED_S) -> None:
        """Wait until what agents report and what allocators count agree: limits + reserves = limit - free."""
        await poll(self._agrees, within_s=within_s, what="limits + reserves + free = application limit")

    async def _agrees(self) -> bool:
        try:
            states = await self._cluster.states()
        except BusError:
            return False
        for app, spec in self.rules.specs.items():
            state = states.get(app)
            reported = [held_by(batch) for (name, _), batch in self.rules.newest.items() if name == app]
            if state is None or not state.owner or state.memory_committed_bytes != sum(reported):
                return False
            if state.memory_committed_bytes + state.memory_free_bytes != int(spec.memory_limit):
                return False
        return True

    def _take(self, delivery: Delivery) -> None:
        now_s, message = time.monotonic(), delivery.message
        if isinstance(message, CfsBatch):
            self.rules.batch(now_s, message)
        elif isinstance(message, LimitDecisions):
            self.rules.decisions(now_s, message)

    async def _take_fact(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, OomEvent):
            self.rules.oom(delivery.message.time_ns / 1e9 - self._wall_minus_monotonic_s, delivery.message)

    def take_samples(self) -> None:
        """What the observer has seen since the last time."""
        for sample in self._observer.take():
            self.rules.sample(*sample)
            self.on_sample(sample)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(TAKE_EVERY_S)
            self.take_samples()

    async def run(self) -> AsyncIterator[None]:
        """Subscribe and follow; once resumed, end and take in the rest."""
        bus = self._cluster.bus
        subscriptions = [
            await bus.subscribe(CFS.pattern(bus.root), self._take),
            await bus.subscribe(LIMIT_DECISIONS.pattern(bus.root), self._take),
            await bus.replay(OOM_STREAM, self._take_fact),
        ]
        following = asyncio.ensure_future(self._follow())
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            self.take_samples()
            for subscription in subscriptions:
                await subscription.stop()
            self._observer.kill()
            self._cluster.observers.remove(self._observer)


@asynccontextmanager
async def watch(
    cluster: ClusterLab, *specs: AppSpec, roots: tuple[str, ...] = (), deadline_s: float = 2.0
) -> AsyncIterator[InvariantChecker]:
    """Check all the time; at the end nothing may have been wrong."""
    checker = InvariantChecker(cluster, list(specs), list(roots), deadline_s)
    async with asynccontextmanager(checker.run)():
        yield checker
    assert checker.rules.samples, "the observer saw nothing"
    violations = checker.rules.finish()
    assert not violations, "\n".join(violations)

"""The nodes and links: what runners have registered and reconcilers report, beside what the log knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from schemas.network import RouteEvent
from schemas.scheduling import ClusterLink, ClusterNode, RunnerInfo
from schemas.streams import ROUTE_STREAM, RUNNERS
from schemas.subjects import ROUTE_EVENTS
from services._runtime.bus.api import Bus, Delivery, Entry, Subscription
from services.scheduler.core.state import State
from services.scheduler.core.uplinks import Uplinks

FORGOTTEN_AFTER_S: Final = 86_400.0
"""A silent node without jobs is not listed any more."""


class Membership:
    """Follows the registrations, which expire 30 s after a runner's last heartbeat, and the paths of nodes."""

    def __init__(self, bus: Bus, on_change: Callable[[], None]) -> None:
        self._bus = bus
        self.topology: Sequence[ClusterLink] = ()
        """The links that there are, at their full rates."""
        self._on_change = on_change
        self._runners: dict[str, RunnerInfo] = {}
        self._uplinks: dict[str, Uplinks] = {}
        """Of nodes whose reconcilers have told of their paths."""

    async def watch(self, listed: asyncio.Event) -> None:
        """Follow until cancelled; `listed` is set once all are known."""
        async with self._bus.bucket(RUNNERS).watch(self._on_entry):
            listed.set()
            await asyncio.Event().wait()

    async def follow_paths(self) -> Subscription:
        """Follow path events until stopped, from the oldest that the stream still has; returns once those are known."""
        replay = await self._bus.replay(ROUTE_STREAM, self._on_path)
        await replay.caught_up()
        return replay

    def nodes(self, state: State, now_s: float) -> tuple[ClusterNode, ...] | None:
        """All nodes, where they differ from what the log says; None: they do not."""
        found = {name: self._node(runner, state.drained) for name, runner in self._runners.items()}
        used = {node for live in state.live.values() if live.workers for node in live.job.nodes}
        for name, node in state.nodes.items():
            if name in found:
                continue
            silent_s = now_s - state.silent_since_s.get(name, now_s)
            if name in used or silent_s < FORGOTTEN_AFTER_S:
                found[name] = node if node.silent else node.model_copy(update={"silent": True})
        return None if found == state.nodes else tuple(found[name] for name in sorted(found))

    def _on_entry(self, key: str, entry: Entry | None) -> None:
        runner = entry.message if entry is not None else None
        if isinstance(runner, RunnerInfo) and runner.node == key:
            self._runners[key] = runner
        else:
            self._runners.pop(key, None)
        self._on_change()

    def links(self, state: State) -> tuple[ClusterLink, ...] | None:
        """All links, where they differ from what the log says; None: they do not.

        A node with some of its uplinks counts with half the rate of each link that it stands on.
        """
        halved = {name for name, uplinks in self._uplinks.items() if uplinks.halved}
        found = tuple(link if halved.isdisjoint(link.nodes) else _halved(link) for link in self.topology)
        return None if found == state.traffic.links else found

    async def _on_path(self, delivery: Delivery) -> None:
        event = delivery.message
        node = ROUTE_EVENTS.parse(self._bus.root, delivery.subject)["node"]
        if not isinstance(event, RouteEvent):
            return
        uplinks = self._uplinks.setdefault(node, Uplinks())
        before = (uplinks.cut_off, uplinks.halved)
        uplinks.fold(event)
        if (uplinks.cut_off, uplinks.halved) != before:
            self._on_change()

    def _node(self, runner: RunnerInfo, drained: frozenset[str]) -> ClusterNode:
        uplinks = self._uplinks.get(runner.node)
        return ClusterNode(
            node=runner.node,
            slots=runner.slots,
            gpus=runner.gpus,
            cores=runner.cores,
            memory_bytes=runner.memory_bytes,
            rack=runner.rack,
            address=runner.address,
            device_kind=runner.device_kind,
            device_memory_bytes=runner.device_memory_bytes,
            equal_workers=runner.engine == "slurm" and runner.slots == runner.gpus > 0,
            incarnation=runner.incarnation,
            drained=runner.node in drained,
            cut_off=uplinks is not None and uplinks.cut_off,
        )


def _halved(link: ClusterLink) -> ClusterLink:
    return link.model_copy(update={"bits_per_s": (link.bits_per_s + 1) // 2})

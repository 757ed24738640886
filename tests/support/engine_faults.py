"""An agent is killed and started again while an engine that knows its containers answers late, or not at all."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from schemas.containers import NodeInfo
from services._runtime.command.nodes import read_nodes
from tests.support.cluster_lab import ClusterLab, ServiceProcess, poll
from tests.support.deadline import until
from tests.support.docker_lab import CuttableProxy
from tests.support.limit_observer import LimitObserver, Sample

NODE_EXPIRY_S: Final = 300.0
"""Of the allocator: on a busy machine an agent may need longer than the usual 30 s to start again."""
SETTLED_S: Final = 3.0
"""After all sources have answered: what was wrongly believed would be handed out within it."""


class Fault(NamedTuple):
    """What meets the agent that is started again."""

    delay_s: float = 0.0
    """Before the engine answers."""
    down_s: float = 0.0
    """For which the engine's socket is not there."""
    lost_state: bool = False
    """Whether the state directory's notes of containers are lost."""


ENGINE_TIMEOUT_S: Final = 120
"""For which the agent waits for the engine."""


@dataclass
class RestartLab:
    """Containers that are managed by an agent, the engine's proxy, and an observer of their limits."""

    cluster: ClusterLab
    proxy: CuttableProxy
    launch_agent: Callable[[], Awaitable[ServiceProcess]]
    notes: Path
    """Where the agent keeps its notes of containers."""
    containers: int
    """How many are managed."""
    observer: LimitObserver
    samples: list[Sample] = field(default_factory=list)

    async def restart_with(self, fault: Fault) -> ServiceProcess:
        """Kill the agent and start another one; returns it when the fault is over and it waits for no source."""
        [agent], [before] = self.cluster.running("agent"), await read_nodes(self.cluster.bus)
        await agent.signal(signal.SIGKILL)
        self.proxy.delay_s = fault.delay_s
        if fault.down_s:
            await self.proxy.cut()
        if fault.lost_state:
            for note in list(self.notes.iterdir()):
                note.unlink(missing_ok=True)
        agent = await self.launch_agent()
        if fault.down_s:
            await self.observe_for(fault.down_s)
            await self.proxy.open()
        await poll(lambda: self._all_sources_heard(before), what="an agent that waits for no source of containers")
        self.proxy.delay_s = 0.0
        return agent

    async def _all_sources_heard(self, before: NodeInfo) -> bool:
        """By the new agent's registration; its log says nothing where it never had to wait."""
        [now] = await read_nodes(self.cluster.bus)
        return now.incarnation > before.incarnation and not now.sources_pending

    async def observe_for(self, seconds: float) -> None:
        """Take samples of all limits for so long."""
        end_s = time.monotonic() + seconds

        def taken() -> bool:
            self.samples += self.observer.take()
            return bool(self.samples) and self.samples[-1][0] >= end_s

        await until(taken, what=f"samples of {seconds:g} s")

    async def settle(self) -> None:
        """Wait until all containers are managed again, and then for what was believed wrongly."""
        await poll(lambda: all_managed(self.cluster, self.containers), what="all containers managed")
        await self.observe_for(SETTLED_S)
        seen = {sum(len(groups) for groups in apps.values()) for _, apps in self.samples}
        assert seen == {self.containers}, "no sample lacks a container"


async def all_managed(cluster: ClusterLab, count: int) -> bool:
    """Whether the allocator knows so many containers, all of them reported and with more than their floor."""
    states = await cluster.states()
    rows = [row for state in states.values() for row in state.containers]
    return len(rows) == count and all(row.admitted and row.report_age_s < 1 for row in rows)


def waits_for(agent: ServiceProcess) -> list[list[str]]:
    """The sources that an agent has said to wait for, whenever that has changed."""
    return [line["sources"] for line in agent.log() if line["event"] == "container_sources_pending"]


def highest_sums(samples: list[Sample], observed: Collection[str]) -> tuple[float, float]:
    """The largest sums of an application's quotas (us) and memory limits (bytes) in any sample.

    Infinite where a group had no limit. ``observed``: the application, as the observer names its parts.
    """
    groups = [[each for name in observed for each in apps.get(name, {}).values()] for _, apps in samples]
    quota_us = max(sum(_value(each.quota_us) for each in sample) for sample in groups)
    return quota_us, max(sum(_value(each.limit_bytes) for each in sample) for sample in groups)


def _value(limit: int) -> float:
    return math.inf if limit < 0 else limit

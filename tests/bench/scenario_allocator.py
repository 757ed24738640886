"""What the allocator costs, with synthetic agents and the whole protocol over a real server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.apps import AppSpec, Policy
from tests.bench.cluster import Cluster, Window
from tests.bench.scenario_agent import is_of_tick
from tests.bench.synthetic_agents import FIRST_LIMIT_BYTES, Load

SETTLE_S: Final = 2.0
SHARE_S: Final = 4.0
"""After several replicas have started: each has its applications by then."""
CORES_PER_CONTAINER: Final = 0.3
"""The mean demand is 0.12 cores: the pool has room for the headroom of most, not for all peaks at once."""
CHANGE_SHARE: Final[dict[Policy, float]] = {"waterfill": 0.1, "escra": 0.6}
"""Share of new demands per period that makes about 40 % of the limits change."""
PERIOD_NS: Final = 100_000_000


@dataclass(slots=True)
class AllocatorRun:
    """One run. Costs are CPU us per container and period."""

    load: Load
    policy: Policy
    replicas: int = 1
    periods: float = 0.0
    process_us: float = 0.0
    """Of all replicas together."""
    step_us: float = 0.0
    """The synchronous part: take in, decide, encode and publish decisions."""
    early_step_us: float = 0.0
    """Of that, steps whose newest batch came of a poll between two samples."""
    polls_per_period: float = 0.0
    told_by_polls: float = 0.0
    """Containers per period that polls told to be throttled."""
    nats_us: float = 0.0
    wire_bytes: float = 0.0
    """Read and written by the server, per container and period."""
    replica_bytes: list[int] = field(default_factory=list)
    """Resident memory of each replica."""
    replica_us: list[float] = field(default_factory=list)
    """`process_us` by replica."""
    changed_share: float = 0.0
    """Rows ordered per container and period."""
    steps_per_period: float = 0.0
    ticks_per_period: float = 0.0
    """Below 1 where this machine could not keep up with the synthetic agents."""
    orders_per_period: float = 0.0
    last_order_ms: list[float] = field(default_factory=list)
    """From the tick to the last order's arrival at the agents, for each tick."""

    @property
    def nats_ms_per_period(self) -> float:
        """CPU time of the server."""
        return self.nats_us * self.load.containers / 1e3


async def run_allocator(
    cluster: Cluster, load: Load, policy: Policy, seconds: float, *, replicas: int = 1
) -> AllocatorRun:
    """Allocators and synthetic agents as fresh processes.

    Raises:
        RuntimeError: a process ended, or the containers were not given limits.
    """
    share = load.containers / len(load.apps)
    specs = [
        AppSpec(
            name=app,
            cpu_limit=share * CORES_PER_CONTAINER,
            memory_limit=int(2 * share * FIRST_LIMIT_BYTES),
            policy=policy,
        )
        for app in load.apps
    ]
    await cluster.withdraw_all()
    await cluster.announce(*specs)
    async with AsyncExitStack() as stack:
        allocators = [
            await stack.enter_async_context(cluster.run("tests.bench.traced_allocator", name=f"allocator {number}"))
            for number in range(replicas)
        ]
        agents = await stack.enter_async_context(
            cluster.run("tests.bench.synthetic_agents", load.as_environment(), name="agents")
        )
        await cluster.until_ordered(load.containers, *allocators, agents)
        await asyncio.sleep(SETTLE_S if replicas == 1 else SHARE_S)
        window = await cluster.measure(seconds, *allocators, agents)
        traces = [await allocator.stop_traced() for allocator in allocators]
        trace = await agents.stop_traced()
    await cluster.withdraw_all()
    return _summarise(AllocatorRun(load, policy, replicas, window.periods), window, traces, trace)


def _summarise(
    run: AllocatorRun, window: Window, allocators: list[dict[str, Any]], agents: dict[str, Any]
) -> AllocatorRun:
    steps = [step for allocator in allocators for step in allocator["steps"] if window.holds(step[0])]
    orders = [order for order in agents["orders"] if window.holds(order[0])]
    ticks = [due for due, _, _ in agents["ticks"] if window.holds(due)]
    if not ticks:
        raise RuntimeError("the synthetic agents sent nothing")
    per_us = 1 / (len(ticks) * run.load.containers)
    last: defaultdict[int, int] = defaultdict(int)
    for wall_ns, _ in orders:
        last[wall_ns // PERIOD_NS] = max(last[wall_ns // PERIOD_NS], wall_ns)
    names = [f"allocator {number}" for number in range(run.replicas)]
    run.replica_us = [window.cpu_us[name] * per_us for name in names]
    run.replica_bytes = [window.resident_bytes[name] for name in names]
    run.process_us = sum(run.replica_us)
    run.step_us = sum(step[3] for step in steps) / 1e3 * per_us
    run.early_step_us = sum(step[3] for step in steps if not is_of_tick(step[2])) / 1e3 * per_us
    polls = [told for wall_ns, told in agents["polls"] if window.holds(wall_ns)]
    run.polls_per_period, run.told_by_polls = len(polls) / len(ticks), sum(polls) / len(ticks)
    run.nats_us = window.cpu_us["nats-server"] * per_us
    run.wire_bytes = window.server_bytes * per_us
    run.changed_share = sum(rows for _, rows in orders) * per_us
    run.steps_per_period = len(steps) / len(ticks)
    run.ticks_per_period = len(ticks) / window.periods
    run.orders_per_period = len(orders) / len(ticks)
    run.last_order_ms = [(wall_ns - slot * PERIOD_NS) / 1e6 for slot, wall_ns in last.items()]
    return run

"""What the allocator costs, with synthetic agents and the whole protocol over a real server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from schemas.apps import AppSpec, Policy
from tests.bench.cluster import Cluster, Window
from tests.bench.synthetic_agents import FIRST_LIMIT_BYTES, Load

SETTLE_S = 2.0
CORES_PER_CONTAINER = 0.3
"""The mean demand is 0.12 cores: the pool has room for the headroom of most, not for all peaks at once."""
CHANGE_SHARE: dict[Policy, float] = {"waterfill": 0.1, "escra": 0.6}
"""Share of new demands per period that makes about 40 % of the limits change."""


@dataclass(slots=True)
class AllocatorRun:
    """One run. Costs are CPU us per container and period."""

    load: Load
    policy: Policy
    periods: float = 0.0
    process_us: float = 0.0
    step_us: float = 0.0
    """The synchronous part: take in, decide, encode and publish decisions."""
    nats_ms_per_period: float = 0.0
    changed_share: float = 0.0
    """Rows ordered per container and period."""
    steps_per_period: float = 0.0
    ticks_per_period: float = 0.0
    """Below 1 where this machine could not keep up with the synthetic agents."""
    orders_per_period: float = 0.0
    last_order_ms: list[float] = field(default_factory=list)
    """From the tick to the last order's arrival at the agents, for each tick."""


async def run_allocator(cluster: Cluster, load: Load, policy: Policy, seconds: float) -> AllocatorRun:
    """Allocator and synthetic agents as fresh processes."""
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
    async with (
        cluster.run("tests.bench.traced_allocator") as allocator,
        cluster.run("tests.bench.synthetic_agents", load.as_environment()) as agents,
    ):
        await cluster.until_ordered(load.containers, allocator, agents)
        await asyncio.sleep(SETTLE_S)
        window = await cluster.measure(seconds, allocator, agents)
        traces = await allocator.stop(), await agents.stop()
    await cluster.withdraw_all()
    return _summarise(load, policy, window, traces)


def _summarise(
    load: Load, policy: Policy, window: Window, traces: tuple[dict[str, Any], dict[str, Any]]
) -> AllocatorRun:
    allocator, agents = traces
    steps = [step for step in allocator["steps"] if window.holds(step[0])]
    orders = [order for order in agents["orders"] if window.holds(order[0])]
    ticks = [due for due, _, _ in agents["ticks"] if window.holds(due)]
    per_us = 1 / (len(ticks) * load.containers)
    last: defaultdict[int, int] = defaultdict(int)
    period_ns = 100_000_000
    for wall_ns, _ in orders:
        last[wall_ns // period_ns] = max(last[wall_ns // period_ns], wall_ns)
    return AllocatorRun(
        load,
        policy,
        window.periods,
        window.cpu_us["traced_allocator"] * per_us,
        sum(step[3] for step in steps) / 1e3 * per_us,
        window.cpu_us["nats-server"] / 1e3 / len(ticks),
        sum(rows for _, rows in orders) * per_us,
        len(steps) / len(ticks),
        len(ticks) / window.periods,
        len(orders) / len(ticks),
        [(wall_ns - slot * period_ns) / 1e6 for slot, wall_ns in last.items()],
    )

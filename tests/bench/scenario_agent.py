"""The loop on real control groups: what the agent costs, and how long after a tick the last quota is written."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.apps import AppSpec
from tests.bench.cluster import Cluster, Process, Window
from tests.bench.containers import APP, LIMIT_BYTES, MANAGED_ROOT, Containers
from tests.bench.traced_agent import AT_BOUNDARY

Scheduling = Literal["default", "agent FIFO", "all FIFO"]
FIFO_PRIORITY = 20
SETTLE_S = 2.5
"""After the first orders: the idle containers' quotas fall to what they need."""
CORES_PER_CONTAINER = 0.05
_PERIOD_NS = 100_000_000


@dataclass(slots=True)
class AgentRun:
    """One run. Costs are CPU us per container and period; latencies ms."""

    containers: int
    busy: int
    scheduling: Scheduling
    burning: bool
    periods: float = 0.0
    cost_us: dict[str, float] = field(default_factory=dict)
    """By part: read, columns, publish (of the tick), orders, process (everything), process_stat."""
    allocator_us: float = 0.0
    nats_ms_per_period: float = 0.0
    changes_per_period: float = 0.0
    from_due_ms: list[float] = field(default_factory=list)
    """From the multiple of the period at which the tick was due to the last write at once."""
    from_sample_ms: list[float] = field(default_factory=list)
    """From the batch's time_ns: beyond the sampling phase."""
    raises_ms: list[float] = field(default_factory=list)
    """As `from_sample_ms`, only raises."""
    funded_ms: list[float] = field(default_factory=list)
    """From the allocator's decision to the last raise, for raises that waited for a cut's room."""
    boundary_ms: list[float] = field(default_factory=list)
    """Each cut, from its batch's time_ns to its write at the container's own boundary."""
    tick_ms: list[float] = field(default_factory=list)
    """Wall time of the tick: sample and publish."""
    order_transit_ms: list[float] = field(default_factory=list)
    """From the tick's end to the order's arrival handled: both transits and the allocator."""


def spec_for(containers: int) -> AppSpec:
    """An application with room for what `burner` asks for."""
    return AppSpec(
        name=APP, cpu_limit=max(0.5, containers * CORES_PER_CONTAINER), memory_limit=2 * containers * LIMIT_BYTES
    )


async def run_agent(
    cluster: Cluster, containers: Containers, scheduling: Scheduling, seconds: float, *, burning: bool = True
) -> AgentRun:
    """Agent and allocator as fresh processes over existing containers."""
    await cluster.announce(spec_for(containers.count))
    environment = {
        "TURNBUCKLE_AGENT__NODE": "bench-node",
        "TURNBUCKLE_AGENT__MANAGED_ROOT": MANAGED_ROOT,
        "TURNBUCKLE_AGENT__DOCKER": "off",
        "TURNBUCKLE_AGENT__REALTIME_PRIORITY": str(0 if scheduling == "default" else FIFO_PRIORITY),
    }
    containers.set_burning(burning=burning)
    try:
        async with (
            cluster.run("tests.bench.traced_allocator") as allocator,
            cluster.run("tests.bench.traced_agent", environment) as agent,
        ):
            await cluster.until_ordered(containers.count, allocator, agent)
            if scheduling == "all FIFO":
                _make_fifo(allocator.pid, cluster.server.pid)
            await asyncio.sleep(SETTLE_S)
            window = await cluster.measure(seconds, agent, allocator)
            traces = await agent.stop(), await allocator.stop()
    finally:
        containers.set_burning(burning=True)
        if scheduling == "all FIFO":
            _make_default(cluster.server.pid)
    run = AgentRun(containers.count, containers.busy_count if burning else 0, scheduling, burning)
    _fill_costs(run, window, *traces)
    _fill_latencies(run, window, *traces)
    return run


def _threads(pid: int | None) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")] if pid else []  # noqa: PTH208 - numbers, not paths


def _make_fifo(*pids: int | None) -> None:
    for pid in pids:
        for thread in _threads(pid):
            os.sched_setscheduler(thread, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(FIFO_PRIORITY))


def _make_default(pid: int | None) -> None:
    for thread in _threads(pid):
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _fill_costs(run: AgentRun, window: Window, agent: dict[str, Any], allocator: dict[str, Any]) -> None:
    ticks = [tick for tick in agent["ticks"] if window.holds(tick[0])]
    orders = [order for order in agent["orders"] if window.holds(order[1])]
    run.periods = window.periods
    per_us = 1 / (run.periods * run.containers)
    run.cost_us = {
        "read": sum(tick[2] for tick in ticks) / 1e3 * per_us,
        "columns": sum(tick[3] for tick in ticks) / 1e3 * per_us,
        "publish": sum(tick[4] for tick in ticks) / 1e3 * per_us,
        "orders": sum(order[2] for order in orders) / 1e3 * per_us,
        "process": window.cpu_us["traced_agent"] * per_us,
        "process_stat": window.stat_us["traced_agent"] * per_us,
    }
    run.allocator_us = window.cpu_us["traced_allocator"] * per_us
    run.nats_ms_per_period = window.cpu_us["nats-server"] / 1e3 / run.periods
    run.changes_per_period = sum(sent[3] for sent in allocator["orders"] if window.holds(sent[2])) / run.periods


def _fill_latencies(run: AgentRun, window: Window, agent: dict[str, Any], allocator: dict[str, Any]) -> None:
    tick_of = {seq: (tick_ns, sent_ns) for seq, tick_ns, sent_ns, _ in allocator["orders"]}
    last: dict[str, defaultdict[int, int]] = {name: defaultdict(int) for name in ("at once", "raises", "funded")}
    for seq, when, wall_ns, is_raise in agent["writes"]:
        tick_ns, sent_ns = tick_of.get(seq, (0, 0))
        if not window.holds(tick_ns or sent_ns):
            continue
        if not tick_ns:
            if is_raise:
                last["funded"][sent_ns] = max(last["funded"][sent_ns], wall_ns)
        elif when == AT_BOUNDARY:
            run.boundary_ms.append((wall_ns - tick_ns) / 1e6)
        else:
            last["at once"][tick_ns] = max(last["at once"][tick_ns], wall_ns)
            if is_raise:
                last["raises"][tick_ns] = max(last["raises"][tick_ns], wall_ns)
    run.from_due_ms = [(end - tick // _PERIOD_NS * _PERIOD_NS) / 1e6 for tick, end in last["at once"].items()]
    run.from_sample_ms = [(end - tick) / 1e6 for tick, end in last["at once"].items()]
    run.raises_ms = [(end - tick) / 1e6 for tick, end in last["raises"].items()]
    run.funded_ms = [(end - sent) / 1e6 for sent, end in last["funded"].items()]
    ticks = [tick for tick in agent["ticks"] if window.holds(tick[0])]
    run.tick_ms = [(end - begin) / 1e6 for begin, end, *_ in ticks]
    ends = {begin // _PERIOD_NS: end for begin, end, *_ in ticks}
    arrived = [(tick_of[seq][0] // _PERIOD_NS, wall_ns) for seq, wall_ns, _ in agent["orders"] if seq in tick_of]
    run.order_transit_ms = [(wall_ns - ends[slot]) / 1e6 for slot, wall_ns in arrived if slot in ends]


__all__ = ["AgentRun", "Process", "Scheduling", "run_agent", "spec_for"]

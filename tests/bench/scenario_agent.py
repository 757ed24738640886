"""The loop on real control groups: what it costs, and how long after a tick each quota is written."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from schemas.apps import AppSpec
from tests.bench.cluster import Cluster, Window
from tests.bench.containers import APP, LIMIT_BYTES, MANAGED_ROOT, Containers
from tests.bench.traced_agent import AT_BOUNDARY

Scheduling = Literal["default", "agent FIFO", "all FIFO"]
Source = Literal["off", "auto"]
"""``TURNBUCKLE_AGENT__KERNEL_PROGRAMS``: off: files; auto: the kernel's table where it can be loaded."""
FIFO_PRIORITY: Final = 20
SETTLE_S: Final = 2.5
"""After the first orders, or after a change of load: quotas fall to what is needed."""
FIRST_ORDERS_S: Final = 0.04
"""For each container, after half of them have been given their first orders: thresholds of memory are registered then,
and each waits for grace periods of the kernel."""
CORES_PER_CONTAINER: Final = 0.05
NODE: Final = "bench-node"
PERIOD_NS: Final = 100_000_000
MOST_LOOKS: Final = 10
"""Of an agent in a period, the tick included."""
TICK_PARTS: Final = ("read", "recheck", "columns", "publish")
"""All counters; beliefs compared with them; batches made; batches handed to the bus, and limits read back."""

LATENCIES: Final = {
    "raise": "sample start -> raise written, each",
    "last raise": "sample start -> last raise of a tick",
    "raise from due": "tick due -> raise written, each",
    "raise from period end": "its own period's end -> raise written, each",
    "funded raise": "order sent -> raise paid for by a cut, each",
    "idle cut": "sample start -> cut of an idle container, each",
    "cut": "its own period's end -> cut written, each",
    "cut wait": "sample start -> cut written at the period's end",
    "sample": "sample start -> batch handed to the bus",
    "transit": "batch handed to the bus -> order carried out",
}
"""Kinds of `AgentRun.latency_ms`."""


@dataclass(frozen=True, slots=True)
class AgentSetting:
    """How agent and allocator are started, and what is looked at."""

    seconds: float
    """Of each window."""
    scheduling: Scheduling = "default"
    source: Source = "auto"
    phases: tuple[bool, ...] = (True,)
    """Windows one after the other: whether the burners burn."""
    cores_per_container: float = CORES_PER_CONTAINER
    polls: int | None = None
    """``TURNBUCKLE_AGENT__THROTTLE_POLLS_PER_PERIOD``; None: its default."""


@dataclass(slots=True)
class AgentRun:
    """One window. Costs are CPU us per container and period; latencies ms."""

    containers: int
    busy: int
    scheduling: Scheduling
    source: str = ""
    """As the agent announces it: ``bpf``, or the files that it reads; both where it has lost the first meanwhile."""
    periods: float = 0.0
    ticks_per_period: float = 0.0
    """Below 1 where the agent cannot keep up."""
    cost_us: dict[str, float] = field(default_factory=dict)
    """By part: `TICK_PARTS`, orders, process (everything), process_stat."""
    companions_us: float = 0.0
    """The agent's watchdog."""
    allocator_us: float = 0.0
    nats_us: float = 0.0
    wire_bytes: float = 0.0
    """Read and written by the server, per container and period."""
    agent_bytes: int = 0
    """Resident memory."""
    allocator_bytes: int = 0
    changes_per_period: float = 0.0
    throttled_per_period: float = 0.0
    """Containers that were throttled."""
    latency_ms: dict[str, list[float]] = field(default_factory=dict)
    """By kind: `LATENCIES`."""
    polls: int | None = None
    """As set, at most so many between two samples; None: the agent's default."""
    polls_per_period: float = 0.0
    usage_reads: float = 0.0
    """Files that polls read, per container and period; only where nothing but files shows throttling."""
    told_by_polls: float = 0.0
    """Containers per period that polls told to be throttled."""
    poll_us: float = 0.0
    """Of `process_us`, what polls took; to hand their batches to the bus is not in it."""

    @property
    def process_us(self) -> float:
        """Of the whole agent."""
        return self.cost_us["process"]

    @property
    def loop_us(self) -> float:
        """Agent, its watchdog, and allocator."""
        return self.process_us + self.companions_us + self.allocator_us


def spec_for(containers: int, cores_per_container: float = CORES_PER_CONTAINER) -> AppSpec:
    """An application with room for what `burner` asks for."""
    return AppSpec(name=APP, cpu_limit=containers * cores_per_container, memory_limit=2 * containers * LIMIT_BYTES)


async def run_agent(cluster: Cluster, containers: Containers, setting: AgentSetting) -> list[AgentRun]:
    """Agent and allocator as fresh processes over existing containers; one run for each phase.

    Raises:
        RuntimeError: a process ended, or the containers were not given limits.
    """
    await cluster.announce(spec_for(containers.count, setting.cores_per_container))
    windows: list[Window] = []
    containers.set_burning(burning=setting.phases[0])
    async with AsyncExitStack() as stack:
        stack.callback(containers.set_burning, burning=True)
        if setting.scheduling == "all FIFO":
            stack.callback(_make_default, cluster.server.pid)
        allocator = await stack.enter_async_context(cluster.run("tests.bench.traced_allocator"))
        agent = await stack.enter_async_context(cluster.run("tests.bench.traced_agent", _environment(setting)))
        await cluster.until_ordered(containers.count, allocator, agent)
        if setting.scheduling == "all FIFO":
            _make_fifo(allocator.pid, cluster.server.pid)
        await asyncio.sleep(containers.count * FIRST_ORDERS_S)
        for burning in setting.phases:
            containers.set_burning(burning=burning)
            await asyncio.sleep(SETTLE_S)
            windows.append(await cluster.measure(setting.seconds, agent, allocator))
        traces = await agent.stop_traced(), await allocator.stop_traced()
    runs = []
    for burning, window in zip(setting.phases, windows, strict=True):
        run = AgentRun(containers.count, containers.busy_count if burning else 0, setting.scheduling)
        run.polls = setting.polls
        _fill_costs(run, window, *traces)
        run.latency_ms = latencies(window, *traces)
        runs.append(run)
    return runs


def _environment(setting: AgentSetting) -> dict[str, str]:
    values = {
        "NODE": NODE,
        "MANAGED_ROOT": MANAGED_ROOT,
        "DOCKER": "off",
        "KERNEL_PROGRAMS": setting.source,
        "REALTIME_PRIORITY": str(0 if setting.scheduling == "default" else FIFO_PRIORITY),
    }
    if setting.polls is not None:
        values["THROTTLE_POLLS_PER_PERIOD"] = str(setting.polls)
    return {f"TURNBUCKLE_AGENT__{name}": value for name, value in values.items()}


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
    ticks = [tick for tick in agent["ticks"] if window.holds(tick["begin_ns"])]
    orders = [order for order in agent["orders"] if window.holds(order[1])]
    run.periods = window.periods
    run.source = ", then ".join(dict.fromkeys(tick["source"] for tick in ticks))
    run.ticks_per_period = len(ticks) / run.periods
    per_us = 1 / (run.periods * run.containers)
    run.cost_us = {part: sum(tick[part] for tick in ticks) / 1e3 * per_us for part in TICK_PARTS} | {
        "orders": sum(order[2] for order in orders) / 1e3 * per_us,
        "process": window.cpu_us["traced_agent"] * per_us,
        "process_stat": window.stat_us["traced_agent"] * per_us,
    }
    polls = [poll for poll in agent["polls"] if window.holds(poll["begin_ns"])]
    run.polls_per_period = len(polls) / run.periods
    run.usage_reads = sum(poll["reads"] for poll in polls) / (run.periods * run.containers)
    run.told_by_polls = sum(poll["told"] for poll in polls) / run.periods
    run.poll_us = sum(poll["cost"] for poll in polls) / 1e3 * per_us
    run.companions_us = window.companions_us["traced_agent"] * per_us
    run.allocator_us = window.cpu_us["traced_allocator"] * per_us
    run.nats_us = window.cpu_us["nats-server"] * per_us
    run.wire_bytes = window.server_bytes * per_us
    run.agent_bytes = window.resident_bytes["traced_agent"]
    run.allocator_bytes = window.resident_bytes["traced_allocator"]
    run.changes_per_period = sum(sent[3] for sent in allocator["orders"] if window.holds(sent[2])) / run.periods
    run.throttled_per_period = sum(tick["throttled"] for tick in ticks) / run.periods


def latencies(window: Window, agent: dict[str, Any], allocator: dict[str, Any]) -> dict[str, list[float]]:
    """By kind, `LATENCIES`; kinds without a sample are empty.

    An order belongs to the newest batch of the step that decided it; one that was sent outside of a step was paid for
    by a cut, and belongs to no tick.
    """
    tick_of = {seq: (tick_ns, sent_ns) for seq, tick_ns, sent_ns, _ in allocator["orders"]}
    found: defaultdict[str, list[int]] = defaultdict(list)
    last: dict[int, int] = {}
    for seq, when, wall_ns, is_raise, since_end_ns in agent["writes"]:
        tick_ns, sent_ns = tick_of.get(seq, (0, 0))
        if not window.holds(tick_ns or sent_ns):
            continue
        if when == AT_BOUNDARY:
            found["cut"] += [since_end_ns] * (since_end_ns >= 0)
            found["cut wait"] += [wall_ns - tick_ns] * bool(tick_ns)
        elif not tick_ns:
            found["funded raise"] += [wall_ns - sent_ns] * is_raise
        elif not is_raise:
            found["idle cut"].append(wall_ns - tick_ns)
        else:
            found["raise"].append(wall_ns - tick_ns)
            found["raise from due"] += [wall_ns - tick_ns // PERIOD_NS * PERIOD_NS] * is_of_tick(tick_ns)
            found["raise from period end"] += [since_end_ns] * (since_end_ns >= 0)
            last[tick_ns] = max(last.get(tick_ns, 0), wall_ns)
    found["last raise"] = [wall_ns - tick_ns for tick_ns, wall_ns in last.items()]
    ticks = [tick for tick in agent["ticks"] if window.holds(tick["begin_ns"])]
    found["sample"] = [tick["end_ns"] - tick["begin_ns"] for tick in ticks]
    ends = {tick["begin_ns"] // PERIOD_NS: tick["end_ns"] for tick in ticks}
    arrived = [
        (tick_of[seq][0] // PERIOD_NS, wall_ns)
        for seq, wall_ns, _ in agent["orders"]
        if seq in tick_of and is_of_tick(tick_of[seq][0])
    ]
    found["transit"] = [wall_ns - ends[slot] for slot, wall_ns in arrived if slot in ends]
    return {kind: _milliseconds(found[kind]) for kind in LATENCIES}


def is_of_tick(batch_ns: int) -> bool:
    """And not of a look between two ticks."""
    return batch_ns % PERIOD_NS < PERIOD_NS // (2 * MOST_LOOKS)


def _milliseconds(values_ns: Sequence[int]) -> list[float]:
    return [round(value / 1e6, 3) for value in values_ns]


__all__ = [
    "LATENCIES",
    "AgentRun",
    "AgentSetting",
    "Scheduling",
    "Source",
    "is_of_tick",
    "latencies",
    "run_agent",
    "spec_for",
]

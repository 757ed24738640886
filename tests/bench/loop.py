"""The Escra loop on this machine: what it costs and how long it takes. ``make bench-loop ARGS=--quick``.

Real agents, allocators and a real nats-server, each a process of its own, on real control groups (needs root), with
burners in some of them. Nothing is asserted: figures stand beside what the project expects of itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.apps import Policy
from services._runtime.cgroupfs import CgroupUnavailableError, can_manage, detect
from tests.bench import comparison, report
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.containers import Containers
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell
from tests.bench.report import Results
from tests.bench.scenario_agent import Scheduling, run_agent
from tests.bench.scenario_allocator import CHANGE_SHARE, run_allocator
from tests.bench.synthetic_agents import Load

CONTAINERS_PER_NODE = 100
CONTAINERS_PER_APP = 20
FOCUS = 100
"""Containers per host at which the latency is studied."""
POLICIES: tuple[Policy, ...] = ("waterfill", "escra")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    seconds: float
    repetitions: int
    agent_counts: tuple[int, ...]
    allocator_counts: tuple[int, ...]
    schedulings: tuple[Scheduling, ...]
    per_app: tuple[int | None, ...]
    """Containers per application; None: one application for all."""
    policies: tuple[Policy, ...]
    parts: frozenset[str]


def parse(arguments: list[str]) -> tuple[Plan, bool]:
    """The plan, and whether JSON is wanted instead of the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loop", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="at most a minute: 100 containers, one repetition")
    parser.add_argument("--seconds", type=float, help="length of each measurement (default 10; quick: 4)")
    parser.add_argument("--repetitions", type=int, help="interleaved repetitions (default 3; quick: 1)")
    parser.add_argument("--containers", help="containers per host, such as 10,100,250")
    parser.add_argument("--parts", default="agent,allocator,comparison", help="what to run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    quick = given.quick
    counts = tuple(int(part) for part in given.containers.split(",")) if given.containers else None
    plan = Plan(
        given.seconds or (4.0 if quick else 10.0),
        given.repetitions or (1 if quick else 3),
        counts or ((FOCUS,) if quick else (10, FOCUS, 250, 1_000)),
        (1_000,) if quick else (100, 1_000, 10_000),
        ("default", "agent FIFO") if quick else ("default", "agent FIFO", "all FIFO"),
        (None,) if quick else (CONTAINERS_PER_APP, None),
        POLICIES,
        frozenset(given.parts.split(",")),
    )
    return plan, given.json


def why_not() -> str | None:
    """Why control groups cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root: control groups are made and limited"
    try:
        return can_manage(detect())
    except CgroupUnavailableError as error:
        return str(error)


async def measure(plan: Plan) -> Results:
    """Run everything that is planned."""
    results = Results(this_machine())
    async with open_cluster() as cluster:
        if "comparison" in plan.parts:
            await _compare(plan, cluster, results)
        if "agent" in plan.parts:
            for count in plan.agent_counts:
                with Containers(count) as containers:
                    await _run_agents(plan, cluster, containers, results)
        if "allocator" in plan.parts:
            await _run_allocators(plan, cluster, results)
    return results


async def _run_agents(plan: Plan, cluster: Cluster, containers: Containers, results: Results) -> None:
    """Schedulings take turns, so that a change of the machine's load meets all of them."""
    schedulings = plan.schedulings if containers.count == FOCUS else plan.schedulings[:1]
    for turn in range(plan.repetitions):
        for scheduling in schedulings:
            say(f"agent, {containers.count} containers, {scheduling}, {turn + 1} of {plan.repetitions}")
            results.agent.append(await run_agent(cluster, containers, scheduling, plan.seconds))
        say(f"agent, {containers.count} containers, idle, {turn + 1} of {plan.repetitions}")
        results.agent.append(await run_agent(cluster, containers, "default", plan.seconds, burning=False))
    await cluster.withdraw_all()


async def _run_allocators(plan: Plan, cluster: Cluster, results: Results) -> None:
    for turn in range(plan.repetitions):
        for count, per_app, policy in _allocator_cases(plan):
            load = Load(count, CONTAINERS_PER_NODE, per_app, CHANGE_SHARE[policy])
            say(f"allocator, {count} containers, {len(load.apps)} apps, {policy}, {turn + 1} of {plan.repetitions}")
            try:
                run = await run_allocator(cluster, load, policy, plan.seconds)
            except RuntimeError as error:  # too much for this machine: say so, and go on
                results.notes.append(f"allocator, {count} containers, {policy}: not measured: {error}")
                continue
            results.allocator.append(run)


def _allocator_cases(plan: Plan) -> Iterator[tuple[int, int, Policy]]:
    for count in plan.allocator_counts:
        for per_app in plan.per_app:
            for policy in plan.policies:
                yield count, per_app or count, policy


async def _compare(plan: Plan, cluster: Cluster, results: Results) -> None:
    repetitions = 5 if plan.repetitions == 1 else 15
    with Containers(FOCUS) as containers:
        containers.set_burning(burning=False)
        say("comparison: reading, telling, writing")
        results.comparisons.append(comparison.compare_reading(containers, repetitions))
        results.comparisons.append(await comparison.compare_messages(cluster, FOCUS, repetitions))
        written = comparison.compare_writing(containers, min(repetitions, 5))
        if isinstance(written, str):
            results.notes.append(written)
        else:
            results.comparisons.append(written)


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    plan, as_json = parse(sys.argv[1:])
    if reason := why_not():
        print(f"bench-loop: {reason}", file=sys.stderr)
        return UNAVAILABLE
    results = asyncio.run(measure(plan))
    tell(report.table(results), report.as_json(results), report.write(results, OUTPUT), as_json=as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

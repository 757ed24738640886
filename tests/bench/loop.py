"""The Escra loop beside the naive way, and its policies beside each other. ``make bench-loop ARGS=--quick``.

Reading, telling and writing limits as one would at first, on real control groups (needs root); the allocator's cost by
policy and number of applications, with synthetic agents over a real nats-server. What the loop costs and how long it
takes is measured by `tests.bench.scale` and `tests.bench.latency`. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.apps import Policy
from services._host.cgroupfs import CgroupUnavailableError, can_manage, detect
from tests.bench import comparison, report
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.containers import Containers
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell
from tests.bench.report import Results
from tests.bench.scenario_allocator import CHANGE_SHARE, run_allocator
from tests.bench.synthetic_agents import Load

CONTAINERS_PER_NODE = 100
CONTAINERS_PER_APP = 20
COMPARED = 100
"""Containers with which the naive way is compared."""
POLICIES: tuple[Policy, ...] = ("waterfill", "escra")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    seconds: float
    repetitions: int
    counts: tuple[int, ...]
    """Synthetic containers."""
    per_app: tuple[int | None, ...]
    """Containers per application; None: one application for all."""
    policies: tuple[Policy, ...]
    parts: frozenset[str]


def parse(arguments: list[str]) -> tuple[Plan, bool]:
    """The plan, and whether JSON is wanted instead of the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loop", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less than a minute: 1,000 containers, one repetition")
    parser.add_argument("--seconds", type=float, help="length of each measurement (default 4)")
    parser.add_argument("--repetitions", type=int, help="interleaved repetitions (default 3; quick: 1)")
    parser.add_argument("--containers", help="synthetic containers, such as 100,1000")
    parser.add_argument("--parts", default="allocator,comparison", help="what to run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    quick = given.quick
    counts = tuple(int(part) for part in given.containers.split(",")) if given.containers else None
    plan = Plan(
        given.seconds or 4.0,
        given.repetitions or (1 if quick else 3),
        counts or ((1_000,) if quick else (100, 1_000, 10_000)),
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
        if "allocator" in plan.parts:
            await _run_allocators(plan, cluster, results)
    return results


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
    for count in plan.counts:
        for per_app in plan.per_app:
            for policy in plan.policies:
                yield count, per_app or count, policy


async def _compare(plan: Plan, cluster: Cluster, results: Results) -> None:
    repetitions = 5 if plan.repetitions == 1 else 15
    with Containers(COMPARED) as containers:
        containers.set_burning(burning=False)
        say("comparison: reading, telling, writing")
        results.comparisons.append(comparison.compare_reading(containers, repetitions))
        results.comparisons.append(await comparison.compare_messages(cluster, COMPARED, repetitions))
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

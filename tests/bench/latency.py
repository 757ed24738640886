"""How long from a sample to the quota in the kernel. ``make bench-latency``, or ``make bench-latency ARGS=--quick``.

The moment that the agent can know is the beginning of a tick's sample, before anything is read: what happened earlier
in the period shows in no file and no table sooner (ticks are 100 ms apart, at multiples of the period). The end is the
return of the write(2) of the quota. Raises are written at once; cuts wait for the end of the container's own period,
and are measured from there. Agent, allocator and nats-server are processes of their own. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from typing import Final

from tests.bench import latency_figures
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.containers import Containers
from tests.bench.latency_figures import FOCUS, LatencyResults
from tests.bench.loop import why_not
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell
from tests.bench.scenario_agent import AgentSetting, Scheduling, Source, run_agent

MOST_BUSY: Final = 100
"""Burners on two cores; of 1,000 containers the others sleep."""
CORES_PER_CONTAINER: Final = 0.015
"""A burst asks for twice as much: they are throttled, and some raises have to be paid for by cuts."""
QUOTA_US: Final = 1_500
SCHEDULINGS: Final[tuple[Scheduling, ...]] = ("default", "agent FIFO", "all FIFO")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    seconds: float
    repetitions: int
    counts: tuple[int, ...]
    schedulings: tuple[Scheduling, ...]
    with_files: bool
    """Also without the kernel's table, where something is expected."""


def parse(arguments: list[str]) -> tuple[Plan, bool]:
    """The plan, and whether JSON is wanted instead of the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.latency", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="half a minute: 100 containers, agent FIFO and default")
    parser.add_argument("--seconds", type=float, help="length of each measurement (default 10; quick: 4)")
    parser.add_argument("--repetitions", type=int, help=f"with {FOCUS} containers (default 2; quick: 1)")
    parser.add_argument("--containers", help="such as 10,100,1000")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    quick = given.quick
    counts = tuple(int(part) for part in given.containers.split(",")) if given.containers else None
    plan = Plan(
        given.seconds or (4.0 if quick else 10.0),
        given.repetitions or (1 if quick else 2),
        counts or ((FOCUS,) if quick else (10, FOCUS, 1_000)),
        SCHEDULINGS[:2] if quick else SCHEDULINGS,
        not quick,
    )
    return plan, given.json


def settings(plan: Plan, count: int) -> list[AgentSetting]:
    """What is measured with so many containers, in turns."""
    found = []
    for turn in range(plan.repetitions if count == FOCUS else 1):
        sources: tuple[Source, ...] = ("auto", "off") if plan.with_files and count == FOCUS and not turn else ("auto",)
        found += [
            AgentSetting(plan.seconds, scheduling, source, cores_per_container=CORES_PER_CONTAINER)
            for source in sources
            for scheduling in (plan.schedulings if source == "auto" else plan.schedulings[:2])
        ]
    return found


async def measure(plan: Plan) -> LatencyResults:
    """Run everything that is planned; the record grows with every point."""
    results = LatencyResults(this_machine())
    async with open_cluster() as cluster:
        for count in plan.counts:
            with Containers(count, MOST_BUSY, "bursts", QUOTA_US) as containers:
                await _run(plan, cluster, containers, results)
            await cluster.withdraw_all()
    return results


async def _run(plan: Plan, cluster: Cluster, containers: Containers, results: LatencyResults) -> None:
    planned = settings(plan, containers.count)
    for number, setting in enumerate(planned, start=1):
        what = f"{containers.count:,} containers, {setting.scheduling}, kernel programs {setting.source}"
        say(f"{what}, {number} of {len(planned)}")
        try:
            results.runs += await run_agent(cluster, containers, setting)
        except RuntimeError as error:  # too much for this machine: say so, and go on
            results.notes.append(f"{what}: not measured: {error}")
        latency_figures.write_json(results, OUTPUT)


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    plan, as_json = parse(sys.argv[1:])
    if reason := why_not():
        print(f"bench-latency: {reason}", file=sys.stderr)
        return UNAVAILABLE
    results = asyncio.run(measure(plan))
    written = latency_figures.write(results, OUTPUT)
    tell(latency_figures.table(results), results.as_dict(), written, as_json=as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

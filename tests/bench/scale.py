"""How far the Escra loop scales on this machine. ``make bench-scale``, or ``make bench-scale ARGS=--quick``.

First real control groups under one agent, from ten to as many as it can hold, read by files and by the kernel's own
table in turn, with and without load. Then allocators with synthetic agents of many nodes over a real nats-server. Every
program is a process of its own, and its CPU time is the kernel's. Nothing is asserted.

With ``--polls`` it is measured instead what usage readings between two samples cost (`tests.bench.scale_polls`).
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.bench import scale_polls, scale_report
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.containers import MOST_BURNERS, Containers
from tests.bench.loop import why_not
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.scale_figures import CHANGE_SHARES, FleetKey, ScaleResults, kept_up
from tests.bench.scenario_agent import AgentSetting, Source, run_agent
from tests.bench.scenario_allocator import run_allocator
from tests.bench.synthetic_agents import Load

COUNTS: Final = (10, 30, 100, 300, 1_000)
BEYOND: Final = (2_000, 4_000, 10_000)
"""As far as the agent may open files."""
DESCRIPTORS_EACH: Final = 11
"""Open files of an agent for each container (version 1; counted with 500 and with 1,000 containers)."""
DESCRIPTORS_ELSE: Final = 200
CONTAINERS_PER_APP: Final = 1_000
FLEETS: Final = (
    FleetKey(1_000, 100, 1, "quiet"),
    FleetKey(1_000, 100, 1, "busy"),
    FleetKey(10_000, 10, 1, "quiet"),
    FleetKey(10_000, 100, 1, "quiet"),
    FleetKey(10_000, 100, 1, "busy"),
    FleetKey(10_000, 100, 1, "lively"),
    FleetKey(10_000, 100, 2, "busy"),
    FleetKey(10_000, 100, 3, "busy"),
    FleetKey(10_000, 300, 1, "quiet"),
    FleetKey(10_000, 300, 1, "busy"),
    FleetKey(10_000, 1_000, 1, "quiet"),
    FleetKey(10_000, 1_000, 1, "busy"),
    FleetKey(30_000, 1_000, 1, "quiet"),
    FleetKey(30_000, 1_000, 1, "busy"),
    FleetKey(60_000, 1_000, 1, "quiet"),
)
QUICK_FLEETS: Final = (FleetKey(1_000, 100, 1, "busy"), FleetKey(10_000, 1_000, 2, "quiet"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    seconds: float
    repetitions: int
    counts: tuple[int, ...]
    sources: tuple[Source, ...]
    fleets: tuple[FleetKey, ...]
    polls: scale_polls.PollPlan | None = None
    """What usage readings between two samples cost is measured, and nothing else; None: everything else."""


def parse(arguments: list[str]) -> tuple[Plan, bool]:
    """The plan, and whether JSON is wanted instead of the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about a minute: 10 and 100 containers, two fleets")
    parser.add_argument("--seconds", type=float, help="length of each window (default 4; quick: 2)")
    parser.add_argument(
        "--repetitions", type=int, help="of points of up to 1,000 containers a node (default 2; quick: 1)"
    )
    parser.add_argument("--containers", help="containers of the one node, such as 10,100 (0: none)")
    parser.add_argument("--sources", default="off,auto", help="off: files; auto: the kernel's table where it loads")
    parser.add_argument("--no-fleets", action="store_true", help="only real control groups")
    parser.add_argument(
        "--polls",
        type=int,
        nargs="?",
        const=scale_polls.DEFAULT_POLLS,
        default=0,
        choices=range(1, scale_polls.MOST_POLLS + 1),
        help="only what so many usage readings between two samples cost, by files alone (10 minutes; quick: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    quick = given.quick
    if given.polls:
        return _polls_plan(given), given.json
    counts = tuple(int(part) for part in given.containers.split(",")) if given.containers else None
    plan = Plan(
        given.seconds or (2.0 if quick else 4.0),
        given.repetitions or (1 if quick else 2),
        tuple(count for count in counts if count) if counts is not None else (10, 100) if quick else _counts(),
        tuple(given.sources.split(",")),
        () if given.no_fleets else QUICK_FLEETS if quick else FLEETS,
    )
    return plan, given.json


def _polls_plan(given: argparse.Namespace) -> Plan:
    plan = scale_polls.plan_of(given.polls, given.seconds, given.repetitions, quick=given.quick)
    if given.containers:
        plan = replace(plan, counts=tuple(int(part) for part in given.containers.split(",") if int(part)))
    if given.no_fleets:
        plan = replace(plan, fleets=())
    return Plan(plan.seconds, plan.repetitions, plan.counts, ("off",), plan.fleets, plan)


def _counts() -> tuple[int, ...]:
    """Those that an agent may hold, and the most."""
    return COUNTS + fitting(BEYOND, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def fitting(counts: Sequence[int], descriptors: int) -> tuple[int, ...]:
    """Counts as far as the open files suffice; the first that is too large is replaced by the most that fit."""
    most = (
        (descriptors - DESCRIPTORS_ELSE) // DESCRIPTORS_EACH if descriptors != resource.RLIM_INFINITY else max(counts)
    )
    held = [count for count in counts if count <= most]
    if len(held) < len(counts) and most > max(held, default=COUNTS[-1]):
        held.append(most)
    return tuple(held)


async def measure(plan: Plan) -> ScaleResults:
    """Run everything that is planned; the record grows with every point."""
    results = ScaleResults(this_machine())
    results.notes.append(f"busy: 30 % of the containers of a node, at most {MOST_BURNERS}; the others sleep")
    async with open_cluster() as cluster:
        sources = list(plan.sources)
        for count in plan.counts:
            if sources:
                await _run_hosts(replace(plan, sources=tuple(sources)), cluster, count, results)
                scale_report.write_json(results, OUTPUT)
                sources = _still_measured(sources, count, results)
        for key in plan.fleets:
            await _run_fleet(plan, cluster, key, results)
            scale_report.write_json(results, OUTPUT)
    return results


async def _run_hosts(plan: Plan, cluster: Cluster, count: int, results: ScaleResults) -> None:
    """Sources take turns, so that a change of the machine's load meets both."""
    began_s = time.monotonic()
    with Containers(count) as containers:
        say(f"{count:,} control groups made in {time.monotonic() - began_s:.0f} s")
        for turn in range(plan.repetitions if count <= COUNTS[-1] else 1):
            for source in plan.sources:
                setting = AgentSetting(plan.seconds, source=source, phases=(True, False))
                say(f"{count:,} containers, kernel programs {source}, {turn + 1} of {plan.repetitions}")
                try:
                    results.hosts += await run_agent(cluster, containers, setting)
                except RuntimeError as error:
                    results.notes.append(f"{count:,} containers, kernel programs {source}: not measured: {error}")
    await cluster.withdraw_all()


def _still_measured(sources: list[Source], count: int, results: ScaleResults) -> list[Source]:
    """Those that are worth to be tried with more containers."""
    here = [run for run in results.hosts if run.containers == count]
    left = []
    for source in sources:
        runs = [run for run in here if (run.source == "bpf") == (source == "auto")]
        if source == "auto" and not runs:
            results.notes.append(f"{count:,} containers: not read by the kernel's table, or not all the time")
        elif not kept_up(runs):
            results.notes.append(f"{count:,} containers, kernel programs {source}: too many for one agent here")
        else:
            left.append(source)
    return left


async def _run_fleet(plan: Plan, cluster: Cluster, key: FleetKey, results: ScaleResults) -> None:
    per_app = max(CONTAINERS_PER_APP, key.containers_per_node)
    share = CHANGE_SHARES[key.activity]
    load = Load(key.containers, key.containers_per_node, min(per_app, key.containers), share)
    say(f"synthetic agents: {key.text}")
    try:
        run = await run_allocator(cluster, load, "waterfill", plan.seconds, replicas=key.replicas)
    except RuntimeError as error:  # too much for this machine: say so, and go on
        results.notes.append(f"synthetic agents, {key.text}: not measured: {error}")
        return
    results.fleets.append(run)


def planned_points(plan: Plan) -> Iterator[str]:
    """What will be run, for people."""
    yield from (f"{count:,} containers" for count in plan.counts)
    yield from (key.text for key in plan.fleets)


async def _measure_polls(plan: scale_polls.PollPlan) -> scale_polls.PollResults:
    results = scale_polls.PollResults(this_machine(), plan.polls)
    async with open_cluster() as cluster:
        await scale_polls.measure(results, cluster, plan)
    return results


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    plan, as_json = parse(sys.argv[1:])
    if reason := why_not():
        print(f"bench-scale: {reason}", file=sys.stderr)
        return UNAVAILABLE
    say("; ".join(planned_points(plan)))
    if plan.polls:
        polled = asyncio.run(_measure_polls(plan.polls))
        record = polled.as_dict()
        written = [write_record(record, OUTPUT / "scale-polls.json")]
        tell(scale_polls.table(polled), record, written, as_json=as_json)
        return 0
    results = asyncio.run(measure(plan))
    tell(scale_report.table(results), results.as_dict(), scale_report.write(results, OUTPUT), as_json=as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

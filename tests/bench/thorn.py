"""Outages of the dual-ToR lab: ``make bench-thorn ARGS=--quick``. Needs root and FRR.

Traffic both ways between two hosts, a fault where the traffic is, and the longest time that it stood still: with BGP's
timers only, with BFD, and with the fast path. Nothing is asserted: figures stand beside what the project expects of
itself. On a busy machine they mean little: the load is in the record.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from schemas.network import RouteEvent
from schemas.subjects import ROUTE_EVENTS
from services._runtime.bus.api import Delivery
from services._runtime.command.errors import CommandError
from services.fabric.testbed import frr_daemons
from tests.bench import thorn_report as report
from tests.bench.cluster import open_cluster
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell
from tests.bench.thorn_outage import FAULTS, NAMES, SETUPS, FaultCase, Setup, measure_setup
from tests.bench.thorn_report import OutageResults

SECONDS_A_FAULT = {True: 20.0, False: 6.0}
"""By whether only BGP's timers help; measured."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    hits: int
    """Of each direction, by each kind of fault, in each setup."""
    rounds: int
    """Setups take turns, so that a change of the machine's load meets all of them."""
    setups: tuple[Setup, ...]
    cases: tuple[FaultCase, ...]
    join: tuple[Path, ...] = ()
    """Records to show as one, instead of measuring."""

    @property
    def minutes(self) -> float:
        """About how long it takes."""
        faults = sum(1.4 if case.name != "blackhole one way" else 2.0 for case in self.cases) * self.hits
        return sum(SECONDS_A_FAULT[setup.bfd is None] * faults + 10 * self.rounds for setup in self.setups) / 60


def parse(arguments: list[str]) -> tuple[Plan, bool]:
    """The plan, and whether JSON is wanted instead of the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.thorn", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="some 3 minutes: 3 hits, BFD 50x3 with and without")
    parser.add_argument("--faults", type=int, help="hits of each direction and kind (default 20; quick: 3)")
    parser.add_argument("--rounds", type=int, default=2, help="visits to each setup (default %(default)s)")
    parser.add_argument("--setups", help=f"some of {','.join(NAMES)}; default all")
    parser.add_argument("--kinds", help=f"some of {','.join(FAULTS)}; default all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--join", nargs="+", type=Path, metavar="RECORD", help="show records of this machine as one")
    given = parser.parse_args(arguments)
    try:
        setups = (given.setups or ("50x3,50x3-fast" if given.quick else ",".join(NAMES))).split(",")
        kinds = (given.kinds or ",".join(FAULTS)).split(",")
        plan = Plan(
            given.faults or (3 if given.quick else 20),
            1 if given.quick else max(given.rounds, 1),
            tuple(SETUPS[NAMES[name]] for name in setups),
            tuple(FAULTS[name] for name in kinds),
            tuple(given.join or ()),
        )
    except KeyError as error:
        parser.error(f"there is no {error}")
    return plan, given.json


def why_not() -> str | None:
    """Why the lab cannot be built here, or None."""
    if os.geteuid() != 0:
        return "needs root: network namespaces are made"
    return frr_daemons.missing()


async def measure(plan: Plan) -> OutageResults:
    """Run everything that is planned."""
    results = OutageResults(this_machine(), report.frr_version())
    async with open_cluster() as cluster:
        os.environ["TURNBUCKLE_NATS_URL"] = cluster.server.url  # the fast paths of the lab take it from here
        events: list[RouteEvent] = []

        def note(delivery: Delivery) -> None:
            if isinstance(delivery.message, RouteEvent):
                events.append(delivery.message)

        await cluster.bus.subscribe(ROUTE_EVENTS.pattern(cluster.bus.root), note)
        for visit in range(plan.rounds):
            share = plan.hits // plan.rounds + (visit < plan.hits % plan.rounds)
            for setup in plan.setups if share else ():
                say(f"{setup.name}, round {visit + 1} of {plan.rounds}")
                try:
                    found = await asyncio.to_thread(measure_setup, setup, plan.cases, share, events, say)
                except CommandError as error:  # this setup does not work here: say so, and go on
                    results.notes.append(f"{setup.name}: {error}")
                    continue
                results.add(setup, found)
    return results


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    plan, as_json = parse(sys.argv[1:])
    if plan.join:
        results = report.joined(list(plan.join))
        tell(report.table(results), report.as_json(results), report.write(results, OUTPUT), as_json=as_json)
        return 0
    if reason := why_not():
        print(f"bench-thorn: {reason}", file=sys.stderr)
        return UNAVAILABLE
    say(f"about {plan.minutes:.0f} minutes")
    began_s = time.monotonic()
    results = asyncio.run(measure(plan))
    say(f"took {(time.monotonic() - began_s) / 60:.1f} minutes")
    tell(report.table(results), report.as_json(results), report.write(results, OUTPUT), as_json=as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

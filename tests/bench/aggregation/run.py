"""Shared aggregation beside an aggregator for each job. ``make bench-aggregation``.

Four and eight jobs of two ranks each, which compute by sleeping and push gradients of real size, first with an
aggregator for each and then sharing as the service has them share. Counted are the aggregators that run, each of which
holds a core; their processor time with that of the service's control; and the jobs' iterations. What an aggregator
spends on a value is then the cost of values in a simulation of a trace of training jobs, and a quarter of it, as on
faster hosts. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack
from typing import Final

from services._runtime.bus.api import RequestRefusedError
from services._runtime.telemetry.logging import setup_logging
from tests.bench.aggregation.cases import FULL, QUICK, SHAPES, WAYS, Extent
from tests.bench.aggregation.job import JobProcess
from tests.bench.aggregation.measuring import measured
from tests.bench.aggregation.picture import draw
from tests.bench.aggregation.report import Pair, Simulated, ns_per_value, record, table
from tests.bench.aggregation.trace import GAVEL_MODEL, simulate, trace_jobs
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.support.tiresias import DIRECTORY, read

TRACE: Final = "philly_103959.csv"
GAVEL: Final = DIRECTORY.parent / "gavel" / "v100_throughputs.json"
LOSS_LIMITS: Final = (0.0, 0.05, 0.1, 0.2, 0.5)
COSTS: Final = (1.0, 0.25)
"""Of a value, by what was measured."""


def live(extent: Extent) -> list[Pair]:
    """Both ways, with each number of jobs, in each turn."""
    pairs = []
    with ExitStack() as stack:
        # Forked before this process has threads of its own.
        jobs = [stack.enter_context(JobProcess()) for _ in range(max(extent.jobs))]
        for turn in range(extent.turns):
            for count in extent.jobs:
                found = []
                for way in WAYS:
                    say(f"turn {turn + 1} of {extent.turns}, {count} jobs, {way.name}")
                    one = asyncio.run(measured(way, SHAPES[:count], jobs[:count], extent.window_s))
                    say(f"{one.settled_cores:.1f} cores held, {one.cpu_ms_per_step:.1f} ms of CPU a step")
                    found.append(one)
                pairs.append(Pair(*found))
    return pairs


def simulated(cost_ns: float) -> Simulated:
    """The trace, with each loss limit."""
    steps_per_s = json.loads(GAVEL.read_text(encoding="ascii"))[GAVEL_MODEL]
    jobs = trace_jobs(read(TRACE), steps_per_s, cost_ns)
    held = [simulate(jobs, limit) for limit in LOSS_LIMITS]
    return Simulated(cost_ns, len(jobs), held[0].dedicated_core_s / held[0].busy_s, held)


def main() -> None:
    """Measure, print, write record and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one turn, with short windows (4 minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    setup_logging("aggregator", level="warning", log_format="console")
    machine = this_machine()
    try:
        pairs = live(QUICK if options.quick else FULL)
    except RequestRefusedError as error:
        say(str(error))
        sys.exit(UNAVAILABLE)
    cost_ns = ns_per_value(pairs)
    say(f"the trace, with {cost_ns:.2f} ns of a processor for a value")
    traces = [simulated(cost_ns * share) for share in COSTS]
    made = record(machine, pairs, traces)
    written = [
        write_record(made, OUTPUT / "aggregation.json"),
        draw(machine, pairs, traces, OUTPUT / "aggregation.png"),
    ]
    tell(table(machine, pairs, traces), made, written, as_json=options.json)


if __name__ == "__main__":
    main()

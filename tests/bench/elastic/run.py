"""Elastic trainings: pauses of changes, samples per dollar, hybrid plans. ``make bench-elastic``.

Workers are sandboxes with a quota and a memory limit each, as `turnbuckle train --elastic --workers sandbox` makes
them. A series of changes, 1 to 2 to 4 to 2 workers and back, gives the pause of each; who joins is prepared while the
others train. A job whose batch grows in four steps runs with fixed numbers of workers and with one that the policy
`throughput-per-dollar` decides, one after another. All numbers of stages and replicas that fit the sandboxes take
turns, each by its best plan, beside the one that is planned. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services._jobs.sandbox.sandbox import SandboxUnavailableError
from services._runtime.command.errors import UnavailableError
from tests.bench.elastic import hybrid_plans, trainings
from tests.bench.elastic.cases import FULL, MOST, QUICK, Extent
from tests.bench.elastic.picture import draw
from tests.bench.elastic.report import ELASTIC, Results, record, table
from tests.bench.elastic.trainings import Run
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record

PARTS: Final = ("pauses", "dollars", "hybrid")


def runs(extent: Extent, directory: Path) -> list[Run]:
    """The job with each fixed number of workers, and elastic."""
    found = []
    fixed = {f"{count} worker{'s' * (count > 1)}": (count, count) for count in extent.fixed}
    for name, bounds in (fixed | {ELASTIC: (1, MOST)}).items():
        say(f"{name}: {extent.all_steps} steps")
        run = asyncio.run(trainings.run(name, bounds, extent.schedule, extent.all_steps, directory))
        say(f"{name}: {run.wall_s:.0f} s, {run.samples_per_usd:,.0f} samples per dollar")
        found.append(run)
    return found


def measure(extent: Extent, parts: Sequence[str], directory: Path) -> Results:
    """What was asked for."""
    changes = asyncio.run(trainings.pauses(extent.rounds, directory)) if "pauses" in parts else []
    jobs = runs(extent, directory) if "dollars" in parts else []
    plans = hybrid_plans.measure(extent, directory) if "hybrid" in parts else []
    return Results(extent, changes, jobs, plans)


def main() -> None:
    """Measure, print, write record and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one series, one fixed number, two sandboxes")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    machine = this_machine()
    parts = (options.only,) if options.only else PARTS
    with tempfile.TemporaryDirectory(prefix="turnbuckle-elastic-") as directory:
        try:
            results = measure(QUICK if options.quick else FULL, parts, Path(directory))
        except (SandboxUnavailableError, UnavailableError) as error:
            say(str(error))
            sys.exit(UNAVAILABLE)
    made = record(machine, results)
    written = [write_record(made, OUTPUT / "elastic.json"), draw(machine, results, OUTPUT / "elastic.png")]
    tell(table(machine, results), made, written, as_json=options.json)


if __name__ == "__main__":
    main()

"""Unequal sandboxes: the even split, the split by speed, and ours. ``make bench-unequal``.

Profiles of two models are measured on each kind of sandbox, each set is planned, and each plan's ranks are started in
sandboxes with CPU quotas, memory limits and a network rate. The columns of a set then take turns of whole steps, so
that whatever else the machine does meets all of them. Where the planner refuses the even split, it is started all the
same, planned as if memory had no end: that it runs out is measured. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from schemas.plans import Plan
from services._jobs.sandbox.sandbox import Sandboxes, SandboxUnavailableError
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.unequal import link, product
from tests.bench.unequal.cases import COLUMNS, FULL, QUICK, Case, Extent
from tests.bench.unequal.picture import draw
from tests.bench.unequal.ranks import OutOfMemoryError, Ranks
from tests.bench.unequal.report import Result, record, table


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a column runs, and what the planner said of it."""

    plan: Plan
    refused: str
    """Why it does not fit; then it is planned as if memory had no end."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """One set with one batch."""

    case: Case
    batch: int
    turns: int
    steps: int
    profiles: list[Path]
    link: link.Connection
    """Between the sandboxes, as collectives see it."""
    directory: Path

    def measured(self) -> list[Result]:
        """Of each column."""
        planned = {column: self._plan(column) for column in COLUMNS}
        killed: dict[str, str] = {}
        took_us: dict[str, list[float]] = {column: [] for column in COLUMNS}
        with Sandboxes() as where:
            started = {column: self._start(where, column, one.plan) for column, one in planned.items()}
            for turn in range(-1, self.turns + 1):
                for column in [column for column in started if column not in killed]:
                    try:
                        whole_us = self._turn(started[column], is_first=turn < 0)
                    except OutOfMemoryError as error:
                        killed[column], took_us[column] = str(error), []
                        continue
                    if turn > 0:  # the first with a quota warms up
                        took_us[column].append(statistics.median(whole_us))
            peaks = {column: ranks.peak_bytes for column, ranks in started.items()}
        return [
            Result(
                self.case,
                self.batch,
                column,
                one.plan,
                one.refused,
                killed.get(column, ""),
                took_us[column],
                peaks[column],
            )
            for column, one in planned.items()
        ]

    def _turn(self, ranks: Ranks, *, is_first: bool) -> list[float]:
        """Microseconds of whole steps; at first none: until all can be stopped, and have their quota."""
        if not is_first:
            return [step.step_us for step in ranks.turn(self.steps)]
        ranks.begin()
        ranks.limit_cpu()
        ranks.pause()
        return []

    def _plan(self, column: str) -> _Planned:
        devices = product.write_cluster(self.case.boxes, self.link, self.directory / "cluster.yaml")
        found = product.plan(self.profiles, devices, self.batch, column)
        if isinstance(found, Plan):
            return _Planned(found, "")
        place = self.directory / "ample.yaml"
        ample = product.write_cluster(self.case.boxes, self.link, place, is_ample=True)
        without_end = product.plan(self.profiles, ample, self.batch, column)
        if isinstance(without_end, str):
            raise product.CommandFailedError(without_end)
        return _Planned(without_end, found)

    def _start(self, where: Sandboxes, column: str, plan: Plan) -> Ranks:
        place = self.directory / column
        place.mkdir()
        (place / "plan.json").write_text(plan.model_dump_json(), encoding="utf-8")
        return Ranks.start(where, column, self.case.boxes, self.case.model, place)


def measure(extent: Extent, directory: Path) -> list[Result]:
    """All sets and batches, in turn."""
    profiles = {
        model: dict(zip(sizes, product.measure_layers(model, sizes, directory), strict=True))
        for model, sizes in extent.profiles.items()
    }
    results = []
    for number, case in enumerate(extent.cases):
        files = [profiles[case.model][cores] for cores in dict.fromkeys(box.cpu_cores for box in case.boxes)]
        linked = directory / f"{number}-link"
        linked.mkdir()
        found = link.measured(case.boxes, linked)
        say(
            f"{case.name}: {found.bits_per_s / 1e9:.2f} Gbit/s between them, {found.latency_ms:.1f} ms for 10 MB, "
            f"{found.uneven_factor:.2f} times as long where one has everything"
        )
        for batch in case.batches:
            place = directory / f"{number}-{batch}"
            place.mkdir()
            turns = extent.turns if batch == case.batches[0] else extent.turns_of_others
            for one in _Trial(case, batch, turns, extent.steps, files, found, place).measured():
                say(f"{case.name}, batch {batch}, {one.column}: {one.text}, planned {one.predicted_text}")
                results.append(one)
    return results


def main() -> None:
    """Measure, print, write record and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sets with one batch each (4 minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="turnbuckle-unequal-") as directory:
        try:
            results = measure(QUICK if options.quick else FULL, Path(directory))
        except SandboxUnavailableError as error:
            say(str(error))
            sys.exit(UNAVAILABLE)
    made = record(machine, results)
    written = [write_record(made, OUTPUT / "unequal.json"), draw(machine, results, OUTPUT / "unequal.png")]
    tell(table(machine, results), made, written, as_json=options.json)


if __name__ == "__main__":
    main()

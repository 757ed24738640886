"""Outages as a table for people, JSON for programs and a picture."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from services.fabric.testbed.frr_daemons import BINARIES
from tests.bench.figures import Expectation, Spread, expectation_lines
from tests.bench.machine import Machine
from tests.bench.outcome import write_record
from tests.bench.pictures import panels, save
from tests.bench.thorn_outage import FaultRun, Hit, Setup, SetupRuns

COLOURS = ("tab:blue", "tab:orange", "tab:green")


@dataclass(slots=True)
class OutageResults:
    """Everything that was measured."""

    machine: Machine
    frr: str
    runs: list[FaultRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ready_s: dict[str, list[float]] = field(default_factory=dict)
    """Setup -> how long the lab took to build."""
    realtime: bool = True
    """FRR and streams ran under SCHED_RR in every visit."""

    def add(self, setup: Setup, found: SetupRuns) -> None:
        """One visit to a setup."""
        self.runs += found.runs
        self.notes += found.notes
        self.ready_s.setdefault(setup.name, []).append(found.ready_s)
        self.realtime = self.realtime and found.realtime

    def groups(self) -> dict[tuple[str, str], list[FaultRun]]:
        """(setup, kind of fault) -> faults, in the order in which they were first made."""
        found: dict[tuple[str, str], list[FaultRun]] = {}
        for run in self.runs:
            found.setdefault((run.setup, run.case), []).append(run)
        return found

    def expectations(self) -> list[Expectation]:
        """The project's figures (issue 4) beside the measured ones, where they were measured."""
        return list(_expectations(self.groups()))


def frr_version() -> str:
    """Such as 8.4.4."""
    said = subprocess.run([BINARIES / "zebra", "--version"], capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0].rpartition(" ")[2] if said else "unknown"


def _hits(runs: list[FaultRun], direction: str | None = None) -> list[Hit]:
    counted = (run for run in runs if not run.disturbed)
    return [hit for run in counted for hit in run.hits if hit.over and direction in {None, hit.direction}]


def _values(hits: list[Hit], value: Callable[[Hit], float | None]) -> list[float]:
    return [found for hit in hits if (found := value(hit)) is not None]


def _expectations(groups: dict[tuple[str, str], list[FaultRun]]) -> Iterator[Expectation]:
    for (setup, case), runs in groups.items():
        if "fast path" not in setup:
            continue
        hits = _hits(runs)
        what = f"{setup}, {case}"
        if case == "carrier loss":
            yield Expectation(f"{what}: longest outage", 20.0, "ms", _longest([hit.outage_ms for hit in hits]))
        else:
            first = _values(hits, lambda hit: hit.first_ms)
            yield Expectation(f"{what}: longest from trigger to first packet", 5.0, "ms", _longest(first))
            if "50x3" in setup:
                outages = [hit.outage_ms for hit in hits]
                yield Expectation(f"{what}: median outage", 140.0, "ms", Spread.of(outages))
                yield Expectation(f"{what}: longest outage", 165.0, "ms", _longest(outages))
        yield Expectation(
            f"{what}: packets lost when the path came back",
            0.0,
            "",
            _longest([float(run.restore_lost) for run in runs]),
        )


def _longest(values: list[float]) -> Spread:
    return Spread.of([max(values)] if values else [])


def table(results: OutageResults) -> str:
    """Everything as text."""
    scheduling = "SCHED_RR" if results.realtime else "NOT always under SCHED_RR"
    lines = [
        results.machine.line,
        f"FRR {results.frr}, FRR and streams {scheduling}; 6 flows of 500 packets/s each way",
        "",
        "outage: ms between sendings of successive packets that arrived, median (range) [n]; floor: without a fault",
        f"{'setup':<28}{'fault':<21}{'direction':<10}{'outage':>30}{'lost':>22}{'floor':>18}{'not over':>10}",
    ]
    for (setup, case), runs in results.groups().items():
        directions = sorted({hit.direction for run in runs for hit in run.hits})
        lines += [_outage_line(setup, case, direction, runs) for direction in directions]
    lines += _rest(results)
    return "\n".join([*lines, "", *expectation_lines(results.expectations(), 72, 1), *results.notes])


def _outage_line(setup: str, case: str, direction: str, runs: list[FaultRun]) -> str:
    hits = _hits(runs, direction)
    spread = Spread.of([hit.outage_ms for hit in hits])
    lost = Spread.of([float(hit.lost) for hit in hits])
    floor = Spread.of([hit.floor_ms for hit in hits])
    waiting = sum(hit.direction == direction and not hit.over for run in runs for hit in run.hits)
    outage = f"{spread.text()} [{spread.count}]"
    return f"{setup:<28}{case:<21}{direction:<10}{outage:>30}{lost.text(0):>22}{floor.text():>18}{waiting:>10}"


def _rest(results: OutageResults) -> list[str]:
    lines = [
        "",
        "around it: median (range); trigger: last packet through -> noticed; first: noticed -> first packet through",
        "".join(
            f"{head:>{width}}" if width > 0 else f"{head:<{-width}}"
            for head, width in (
                *(
                    ("setup", -28),
                    ("fault", -21),
                    ("triggered", 10),
                    ("trigger ms", 22),
                    ("written ms", 18),
                    ("first ms", 18),
                ),
                *(("restore gap ms", 20), ("lost then", 12), ("whole again s", 18), ("other way ms", 18)),
                *(("alarms", 8), ("disturbed", 11)),
            )
        ),
    ]
    for (setup, case), runs in results.groups().items():
        hits = _hits(runs)
        triggered = f"{len(_values(hits, lambda hit: hit.write_ms))}/{len(hits)}"
        cells = [
            f"{triggered if 'fast path' in setup else '-':>10}",
            _cell(_values(hits, lambda hit: hit.trigger_ms), 22),
            _cell(_values(hits, lambda hit: hit.write_ms), 18, 2),
            _cell(_values(hits, lambda hit: hit.first_ms), 18),
            _cell([run.restore_gap_ms for run in runs], 20),
            f"{sum(run.restore_lost for run in runs):>12}",
            _cell([run.rejoin_s for run in runs], 18),
            _cell([run.bystander_ms for run in runs if run.bystander_ms], 18),
            f"{sum(bool(run.alarms) for run in runs):>8}",
            f"{sum(run.disturbed for run in runs):>11}",
        ]
        lines.append(f"{setup:<28}{case:<21}{''.join(cells)}")
    ready = "; ".join(f"{setup} {Spread.of(values).text()} s" for setup, values in results.ready_s.items())
    return [*lines, "", f"lab ready after: {ready}"]


def _cell(values: list[float], width: int, digits: int = 1) -> str:
    return f"{Spread.of(values).text(digits) if values else '-':>{width}}"


def as_json(results: OutageResults) -> dict[str, Any]:
    """Everything, each fault included."""
    return {
        "machine": results.machine.as_dict(),
        "frr": results.frr,
        "realtime": results.realtime,
        "ready_s": results.ready_s,
        "expectations": [row.as_dict() for row in results.expectations()],
        "runs": [asdict(run) for run in results.runs],
        "notes": results.notes,
    }


def joined(records: list[Path]) -> OutageResults:
    """What was measured in several goes on one machine, as one; machine and load are the first's.

    Raises:
        ValueError: a file is no such record, or another machine's (its load may differ).
    """
    found: OutageResults | None = None
    for path in records:
        plain = json.loads(path.read_text(encoding="utf-8"))
        part = TypeAdapter(OutageResults).validate_python(
            {name: plain.get(name) for name in ("machine", "frr", "runs", "notes", "ready_s", "realtime")}
        )
        if found is None:
            found = part
        elif replace(part.machine, load_at_start=found.machine.load_at_start) != found.machine:
            raise ValueError(f"{path} was measured on another machine: {part.machine.line}")
        else:
            found.runs += part.runs
            found.notes += part.notes
            found.realtime = found.realtime and part.realtime
            for setup, ready_s in part.ready_s.items():
                found.ready_s.setdefault(setup, []).extend(ready_s)
    if found is None:
        raise ValueError("no record given")
    return found


def write(results: OutageResults, directory: Path) -> list[Path]:
    """JSON and picture into a directory; returns what was written."""
    record = write_record(as_json(results), directory / "thorn.json")
    figure, (left, right) = panels(2, (15, 5), width_ratios=(2, 1))
    _draw_outages(left, results)
    _draw_first(right, results)
    return [record, save(figure, f"{results.machine.line}, FRR {results.frr}", directory / "thorn.png")]


def _draw_outages(axes: Any, results: OutageResults) -> None:
    groups = results.groups()
    setups = list(dict.fromkeys(setup for setup, _ in groups))
    cases = list(dict.fromkeys(case for _, case in groups))
    for number, case in enumerate(cases):
        for place, setup in enumerate(setups):
            values = [hit.outage_ms for hit in _hits(groups.get((setup, case), []))]
            at = place + (number - (len(cases) - 1) / 2) * 0.25
            axes.scatter([at] * len(values), values, s=8, alpha=0.5, color=COLOURS[number % len(COLOURS)])
            if values:
                axes.hlines(Spread.of(values).median, at - 0.1, at + 0.1, color="black", linewidth=1.5)
        axes.scatter([], [], s=20, color=COLOURS[number % len(COLOURS)], label=case)
    axes.set_xticks(range(len(setups)), [setup.replace(" (", "\n(").replace(" +", "\n+") for setup in setups])
    axes.set(title="outage of both directions; line: median", ylabel="ms", yscale="log")
    axes.grid(axis="y", which="both", alpha=0.3)
    axes.legend(fontsize=8)


def _draw_first(axes: Any, results: OutageResults) -> None:
    for (setup, case), runs in results.groups().items():
        values = sorted(_values(_hits(runs), lambda hit: hit.first_ms))
        if values:
            ranks = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.step(values, ranks, where="post", label=f"{setup}, {case}")
    axes.axvline(5.0, color="grey", linestyle=":", label="expected at most (blackhole)")
    axes.set(title="fast path", xlabel="ms from trigger to the first packet that got through", ylabel="share")
    axes.legend(fontsize=7)

"""How evenly slabs are placed, what one page costs, and how fast a process swaps there. ``make bench-remote-memory``.

Placement is a simulation, no measurement: 32 hosts, each a daemon and a consumer, that map 512 slabs in all by
`services.memory.core.placing`. What daemons offer is known by reports: fresh ones before every choice, or old ones by
which all consumers choose once. The picture has the loads of one seed beside the spread of all. Swap is measured on a
real kernel, in a machine of User-Mode Linux (`tests.bench.remote_memory_curve`). Nothing is asserted.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from services.memory.core.placing import Choice, Daemon, choose
from tests.bench.figures import Spread
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, say, tell, write_record
from tests.bench.pictures import panels, save
from tests.bench.remote_memory_curve import QUICK_ROUND_S, ROUND_S, curve_table, draw_curve, measure_curve
from tests.bench.remote_memory_pages import measure_pages, page_table
from tests.lab.vm.machine import missing

HOSTS: Final = 32
SLABS_PER_HOST: Final = 16
SLAB_BYTES: Final = 1 << 30
OFFERED_SLABS: Final = 64
SEEDS: Final = 100
PAGES: Final = 20_000
QUICK_SEEDS: Final = 10
QUICK_PAGES: Final = 2_000
CHOICES: Final = {"one choice": 1, "two choices": 2, "all: least loaded": HOSTS}


@dataclass(frozen=True, slots=True)
class Row:
    """One way to place, over all seeds."""

    choices: str
    reports: str
    fullest: Spread
    """Slabs of the fullest daemon, by the mean."""
    hosts_per_consumer: Spread
    """Hosts that have a slab of a consumer: by their number a death is spread."""
    loads: tuple[int, ...]
    """Slabs of each daemon with the first seed, the fullest one first."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where all slabs are with one seed."""

    loads: tuple[int, ...]
    """Slabs of each daemon, the fullest one first."""
    hosts_per_consumer: float

    @property
    def fullest(self) -> float:
        """The fullest daemon by the mean."""
        return self.loads[0] * len(self.loads) / sum(self.loads)


def simulate(seed: int, choices: int, *, fresh: bool) -> Placement:
    """All slabs of all hosts, placed."""
    generator = random.Random(seed)
    loads = [0] * HOSTS
    used: list[set[str]] = [set() for _ in range(HOSTS)]
    for _ in range(SLABS_PER_HOST):
        known = daemons(loads)
        for consumer in generator.sample(range(HOSTS), HOSTS):
            others = [daemon for daemon in (daemons(loads) if fresh else known) if daemon.host != str(consumer)]
            found = choose(others, used[consumer], SLAB_BYTES, [generator.random() for _ in range(choices)])
            assert isinstance(found, Choice)
            loads[int(found.daemon.host)] += 1
            used[consumer].add(found.daemon.host)
    return Placement(tuple(sorted(loads, reverse=True)), sum(map(len, used)) / HOSTS)


def daemons(loads: list[int]) -> list[Daemon]:
    """What every daemon says with these loads."""
    return [
        Daemon(f"10.0.0.{host}:10809", str(host), (OFFERED_SLABS - load) * SLAB_BYTES)
        for host, load in enumerate(loads)
    ]


def measure(seeds: int) -> list[Row]:
    """Every way to place."""
    rows = []
    for name, choices in CHOICES.items():
        for fresh in (True, False):
            say(f"{name}, {'fresh' if fresh else 'old'} reports")
            runs = [simulate(seed, choices, fresh=fresh) for seed in range(seeds)]
            fullest = Spread.of([run.fullest for run in runs])
            hosts = Spread.of([run.hosts_per_consumer for run in runs])
            rows.append(Row(name, "fresh" if fresh else "one for all", fullest, hosts, runs[0].loads))
    return rows


def table(rows: list[Row]) -> str:
    """For people."""
    head = f"{HOSTS} daemons, {HOSTS * SLABS_PER_HOST} slabs of 1 GiB, simulated: median (range) over seeds"
    lines = [head, "", f"{'':<20}{'reports':<14}{'fullest / mean':>20}{'hosts per consumer':>24}"]
    lines += [f"{r.choices:<20}{r.reports:<14}{r.fullest.text(2):>20}{r.hosts_per_consumer.text(1):>24}" for r in rows]
    return "\n".join(lines)


def draw(rows: list[Row], seeds: int, path: Path) -> Path:
    """Spread of the fullest daemon, and the loads of all with one seed; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (spreads, loads) = panels(2, (10, 4))
    for place, name in enumerate(CHOICES):
        for row in (row for row in rows if row.choices == name):
            fresh = row.reports == "fresh"
            spread, color = row.fullest, f"C{place}"
            error = [[spread.median - spread.least], [spread.most - spread.median]]
            marker, x = ("o", place - 0.1) if fresh else ("s", place + 0.1)
            spreads.errorbar([x], [spread.median], yerr=error, fmt=marker, color=color, capsize=3)
            line = "-" if fresh else ":"
            label = f"{name}, {row.reports} reports" if fresh else f"{name}, one report for all"
            loads.step(range(1, len(row.loads) + 1), row.loads, where="mid", color=color, linestyle=line, label=label)
    spreads.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    spreads.set_xticks(range(len(CHOICES)), list(CHOICES))
    spreads.set(title="fullest daemon / mean: median and range", ylim=(0.9, None))
    spreads.set_xlabel("daemons drawn for a slab (circles: fresh reports, squares: one report for all)", fontsize=8)
    loads.set(title="slabs of each daemon, first seed", xlabel="daemons, the fullest one first", ylim=(0, None))
    loads.legend(fontsize=7)
    slabs = HOSTS * SLABS_PER_HOST
    caption = f"Placement of remote memory, simulated: {HOSTS} daemons, {slabs} slabs, {seeds} seeds"
    return save(figure, caption, path)


def main() -> None:
    """Simulate and measure, print, write the record."""
    parser = argparse.ArgumentParser(
        description="how evenly slabs are placed on daemons, what one page costs, how fast a process swaps there",
        epilog="examples: make bench-remote-memory; make bench-remote-memory ARGS=--quick",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and requests, shorter rounds")
    parser.add_argument("--seeds", type=int, help=f"runs per row (default: {SEEDS}, quick: {QUICK_SEEDS})")
    parser.add_argument("--pages", type=int, help=f"requests per repetition (default: {PAGES}, quick: {QUICK_PAGES})")
    options = parser.parse_args()
    machine = this_machine()
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    rows = measure(seeds)
    say("pages")
    costs = measure_pages(options.pages or (QUICK_PAGES if options.quick else PAGES))
    record: dict[str, Any] = {
        "machine": machine.as_dict(),
        "hosts": HOSTS,
        "slabs": HOSTS * SLABS_PER_HOST,
        "seeds": rows[0].fullest.count,
        "placement": [asdict(row) for row in rows],
        "pages": [asdict(cost) for cost in costs],
    }
    text = f"{table(rows)}\n\n{machine.line}\n{page_table(costs)}"
    written = [draw(rows, seeds, OUTPUT / "remote-memory.png")]
    if reason := missing():
        text += f"\n\nswap was not measured: no machine can be built here, it {reason}"
    else:
        record["curve"] = measure_curve(round_s=QUICK_ROUND_S if options.quick else ROUND_S)
        text += f"\n\n{curve_table(record['curve'])}"
        written.append(draw_curve(record["curve"], OUTPUT / "remote-memory-curve.png"))
    tell(text, record, [write_record(record, OUTPUT / "remote-memory.json"), *written], as_json=options.json)


if __name__ == "__main__":
    main()

"""Pauses in the closed loop, in virtual time: many seeds, loads and numbers of jobs; the benchmark has a few runs.

``python -m tests.bench.interleave.simulate``: for each case, over all seeds, the mean iteration over that of the same
jobs alone (with the same jitter and hiccups) from the 20th iteration on, with pauses and without; when the jobs were
apart; how often each got another pace. ``--windows``: also by parts of the run. ``--change-batch``: instead one of the
jobs sends less from its 30th iteration on. ``--mltcp``: instead MLTCP and Reno, round trip by round trip.
`tests.support.shared_uplink` and `tests.support.mltcp_uplink` say what is simulated. A run of 2 jobs and 300 iterations
takes a second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from ctypes import CDLL
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.support.mltcp_iteration import build_library
from tests.support.mltcp_uplink import MLTCP, RENO, Congestion, MltcpUplink, Work, alone_s
from tests.support.shared_uplink import GOODPUT_BYTES_PER_S, Demand, Noise, SharedUplink, slowdown

PERIOD_S: Final = 1.3
CHANGED: Final = 0.7
"""Of its bytes a job sends after the change, and computes for longer by that."""
CHANGE_AT: Final = 30
SETTLED_AGAIN: Final = 50
"""Twenty iterations after the change."""
SETTLED: Final = 20
"""Iterations before those that count."""
APART: Final = 0.1
"""Of the sending time with two jobs or more at once: below it they are apart."""
WINDOWS: Final = ((0, 10), (10, 20), (20, 60), (60, 150), (150, None))
UNEQUAL: Final = ((1.0, 1.03), (1.0, 0.98, 1.02), (1.0, 0.5), (1.0, 1.0, 0.5))
"""Periods of jobs, as shares of `PERIOD_S`."""


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs on a link."""

    name: str
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """One run with pauses, and the same without."""

    paced: float
    unpaced: float
    apart: int | None
    """After so many iterations of the first job."""
    orders: int
    windows: tuple[float, ...]


def demands(load: float, periods: tuple[float, ...], period_s: float = PERIOD_S) -> tuple[Demand, ...]:
    """Jobs of these periods, as shares of one, each with an equal part of the load; they start 60 ms apart."""
    found = []
    for number, share in enumerate(periods):
        sending_s = share * period_s * load / len(periods)
        size = round(sending_s * GOODPUT_BYTES_PER_S)
        found.append(Demand(share * period_s - sending_s, size, 0.06 * number))
    return tuple(found)


def cases(counts: list[int], loads: list[float], periods_s: list[float], *, unequal: bool) -> Iterator[Case]:
    """Every number of jobs with every load and period, then those of unequal periods."""
    for count in counts:
        for load in loads:
            for period_s in periods_s:
                name = f"{count} jobs, load {load:g}, {period_s:g} s"
                yield Case(name, demands(load, (1.0,) * count, period_s))
    for periods in UNEQUAL if unequal else ():
        for load in loads:
            name = ", ".join(f"{share:g}" for share in periods)
            yield Case(f"periods {name}, load {load:g}", demands(load, periods))


def changing(link: SharedUplink) -> Callable[[float], None]:
    """For `SharedUplink.run`: from its `CHANGE_AT`th iteration on the first job sends `CHANGED` of its bytes."""
    first, before = link.jobs[0], link.jobs[0].demand
    less = replace(before, sent_bytes=round(CHANGED * before.sent_bytes))
    after = replace(less, compute_s=before.compute_s + before.alone_s - less.alone_s)

    def change(_now_s: float) -> None:
        if len(first.iterations) >= CHANGE_AT:
            first.demand = after

    return change


def measure_changed(case: Case, seed: int, noise: Noise) -> Found:
    """One seed in which the first job changes: from `SETTLED_AGAIN` on, with pauses and without."""
    links = [SharedUplink(case.demands, seed, noise, interleave=interleave) for interleave in (True, False)]
    for link in links:
        link.run(SETTLED_AGAIN + SETTLED, changing(link))
    paced, unpaced = (slowdown(link, SETTLED_AGAIN) for link in links)
    return Found(paced, unpaced, None, links[0].orders, ())


def measure(case: Case, seed: int, iterations: int, noise: Noise) -> Found:
    """One seed, with pauses and without."""
    paced = SharedUplink(case.demands, seed, noise)
    marks: list[tuple[float, float]] = []

    def mark(_: float) -> None:
        while len(marks) < len(paced.jobs[0].iterations):
            marks.append((paced.overlap_s, paced.busy_s))

    paced.run(iterations, mark)
    unpaced = SharedUplink(case.demands, seed, noise, interleave=False)
    unpaced.run(iterations)
    windows = tuple(slowdown(paced, first, last) for first, last in WINDOWS if first < iterations)
    return Found(slowdown(paced, SETTLED), slowdown(unpaced, SETTLED), _apart(marks), paced.orders, windows)


def _apart(marks: list[tuple[float, float]]) -> int | None:
    """The first iteration from which on, for three, hardly anything was sent at once; None: never."""
    for number in range(len(marks) - 3):
        overlap_s, busy_s = (marks[number + 3][place] - marks[number][place] for place in (0, 1))
        if overlap_s <= APART * busy_s:
            return number
    return None


def line(case: Case, found: list[Found]) -> str:
    """Median, 95th percentile and worst of a case, with and without pauses."""
    paced = sorted(each.paced for each in found)
    unpaced = sorted(each.unpaced for each in found)
    high = paced[min(len(paced) - 1, int(0.95 * len(paced)))]
    apart = sorted(each.apart if each.apart is not None else sys.maxsize for each in found)[len(found) // 2]
    return (
        f"{case.name:<32} {statistics.median(paced):6.3f} {high:6.3f} {paced[-1]:6.3f}   "
        f"{statistics.median(unpaced):6.3f}   {apart if apart < sys.maxsize else 'never':>5} "
        f"{statistics.median(each.orders for each in found):6.0f}"
    )


# -- MLTCP ---------------------------------------------------------------------------------------------------------

TOGETHER, SPREAD = "together", "spread"


def mltcp_jobs(count: int, load: float, period_s: float, starts: str) -> list[Work]:
    """Equal jobs that begin 60 ms apart, or evenly over an iteration."""
    sending_s = period_s * load / count
    apart_s = 0.06 if starts == TOGETHER else period_s / count
    size = round(sending_s * GOODPUT_BYTES_PER_S)
    return [Work(period_s - sending_s, (size,), number * apart_s) for number in range(count)]


def mltcp_line(library: CDLL, name: str, jobs: list[Work], congestion: Congestion, given: Namespace) -> str:
    """Iterations over alone from the 20th on, over all seeds: median, 95th percentile and worst; beside Reno's."""
    ratios: dict[Congestion, list[float]] = {congestion: [], RENO: []}
    for seed in range(given.seeds):
        base_s = alone_s(library, jobs[0], seed)
        for kind, found in ratios.items():
            link = MltcpUplink(library, jobs, seed, kind)
            link.run(SETTLED + given.iterations)
            found.append(link.slowdown(SETTLED, [base_s] * len(jobs)))
    scaled, reno = sorted(ratios[congestion]), sorted(ratios[RENO])
    high = scaled[min(len(scaled) - 1, int(0.95 * len(scaled)))]
    return f"{name:<40} {statistics.median(scaled):6.3f} {high:6.3f} {scaled[-1]:6.3f}   {statistics.median(reno):6.3f}"


def simulate_mltcp(given: Namespace) -> None:
    """Print a line for each number of jobs, load, period and way to begin."""
    congestion = MLTCP if given.factors is None else Congestion(factors=tuple(given.factors))
    print(f"{'MLTCP: iteration / alone':<40} {'median':>6} {'95 %':>6} {'worst':>6}   {'Reno':>6}")
    with TemporaryDirectory() as directory:
        library = build_library(Path(directory))
        for count, load, period_s, starts in product(given.jobs, given.loads, given.periods, (TOGETHER, SPREAD)):
            name = f"{count} jobs, load {load:g}, {period_s:g} s, {starts}"
            jobs = mltcp_jobs(count, load, period_s, starts)
            print(mltcp_line(library, name, jobs, congestion, given), flush=True)


# -- command -------------------------------------------------------------------------------------------------------


def main() -> int:
    """Simulate, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=300, help="with --mltcp: that count")
    parser.add_argument("--jobs", type=int, nargs="*", default=[2, 3, 4, 6])
    parser.add_argument("--loads", type=float, nargs="*", default=[0.6, 0.75, 0.89, 0.95])
    parser.add_argument("--periods", type=float, nargs="*", default=[PERIOD_S], metavar="SECONDS")
    parser.add_argument("--equal", action="store_true", help="no jobs of unequal periods")
    parser.add_argument("--absorbs", type=float, default=0.0, metavar="SECONDS", help="of each pause")
    parser.add_argument("--hiccup-every", type=int, default=20, metavar="ITERATIONS")
    parser.add_argument("--windows", action="store_true", help="also parts of the runs")
    parser.add_argument("--change-batch", action="store_true", help="instead one job changes midway")
    parser.add_argument(
        "--mltcp", action="store_true", help="instead MLTCP and Reno, without pauses; needs a C compiler"
    )
    parser.add_argument(
        "--factors", type=float, nargs=2, metavar=("SLOPE", "INTERCEPT"), help="of MLTCP's F, instead of the loader's"
    )
    given = parser.parse_args()
    if given.mltcp:
        simulate_mltcp(given)
        return 0
    noise = Noise(absorbs_s=given.absorbs, hiccup_every=given.hiccup_every)
    print(
        f"{'iteration / alone':<32} {'median':>6} {'95 %':>6} {'worst':>6} {'no pauses':>10} {'apart':>6} {'paces':>6}"
    )
    for case in cases(given.jobs, given.loads, given.periods, unequal=not given.equal and not given.change_batch):
        if given.change_batch:
            print(line(case, [measure_changed(case, seed, noise) for seed in range(given.seeds)]), flush=True)
            continue
        found = [measure(case, seed, given.iterations, noise) for seed in range(given.seeds)]
        print(line(case, found), flush=True)
        if given.windows:
            medians = [statistics.median(values) for values in zip(*(each.windows for each in found), strict=True)]
            print(
                "    "
                + "  ".join(
                    f"{first}-{last or ''}: {value:.3f}" for (first, last), value in zip(WINDOWS, medians, strict=False)
                )
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

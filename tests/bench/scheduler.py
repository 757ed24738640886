"""The scheduler's policies on three traces and three costs of a preemption, by simulation: ``make bench-scheduler``.

Decisions are the service's own (`services.scheduler.core.decide`). Estimates are drawn as a calibrated advisor would
give them, three times each. ``--scale``: how long a decision takes over ten thousand waiting jobs, and the replay of a
log of a hundred thousand entries (`tests.bench.scheduler_replay`). ``--elastic``: with and without elastic jobs
(`tests.bench.scheduler_elastic`). ``--live``: the service on real processes, beside the simulation of the same jobs
(`tests.bench.scheduler_live`). Nothing is asserted.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from schemas.scheduling import ClusterNode, JobSpec, JobSubmitted, TrafficPhase, TrafficProfile, Trigger
from services.scheduler.comparison import Figures, figures, with_estimates
from services.scheduler.core.attained import started
from services.scheduler.core.attained_service import AttainedService, GittinsTable
from services.scheduler.core.decide import decide
from services.scheduler.core.decision import evaluate
from services.scheduler.core.gittins import OBSERVED_MOST, RENEWED_EVERY, Observed
from services.scheduler.core.interleaving.all_links import Shared
from services.scheduler.core.interleaving.plan import Sharer, plan
from services.scheduler.core.jobs import Estimate, Job, Node
from services.scheduler.core.live import Live
from services.scheduler.core.policies import LargestIndex, Policy, Smallest, remaining_slot_s
from services.scheduler.core.simulation import Run, simulate
from services.scheduler.core.state import State
from tests.bench import scheduler_replay
from tests.bench.figures import Spread
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, say, tell, text_table, write_record
from tests.support.tiresias import read

TRACES: Final = {
    "480": ("480_job.csv", 60),
    "philly 103959": ("philly_103959.csv", 16),
    "philly 7f04ca": ("philly_7f04ca.csv", 60),
}
"""The trace, and the cluster's slots."""
COSTS_S: Final = (0, 60, 600)
SEEDS: Final = (1, 2, 3)
SIMULATED_QUANTUM_S: Final = 3_600.0
"""Loses nothing against a minute, and takes a tenth of the time."""
WAITING, RUNNING = 10_000, 1_000
DECISIONS: Final = 30
LINKS, SHARERS = 60, 100
UPLINK_BITS_PER_S: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """One policy, and what it knows."""

    policy: Callable[[], Policy]
    error: float = 0.0
    """Of estimates, as a logarithm; 0: there are none, and one run is enough."""
    share: float = 0.0
    """Of the jobs that have one."""


def ours() -> Policy:
    """The default."""
    return LargestIndex(quantum_s=SIMULATED_QUANTUM_S)


COLUMNS: Final[Mapping[str, Column]] = {
    "Tiresias' 2D-LAS": Column(AttainedService),
    "Tiresias' 2D-Gittins, its samples": Column(lambda: AttainedService(table=GittinsTable.of(samples()))),
    "ours, ended jobs only": Column(ours),
    "ours, half known to 70 %": Column(ours, 0.7, 0.5),
    "ours, all known to 25 %": Column(ours, 0.25, 1.0),
    "SRSF, an oracle": Column(lambda: Smallest(key=remaining_slot_s)),
}


def samples() -> list[int]:
    """Durations that the released simulator's Gittins policy is given beforehand."""
    return [int(row["duration"]) for row in read("yarn-gput1000.csv")]


def trace(name: str) -> list[Job]:
    """The jobs of a trace."""
    rows = read(TRACES[name][0])
    return [
        Job(r["job_id"], int(r["num_gpu"]), int(r["submit_time"]), duration_s=int(float(r["duration"]))) for r in rows
    ]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    trace: str
    cost_s: int
    column: str
    figures: Figures


def measure(traces: list[str], costs_s: tuple[int, ...], seeds: tuple[int, ...]) -> Iterator[tuple[Cell, Run]]:
    """Every trace, cost and column."""
    for name in traces:
        jobs, nodes = trace(name), [Node("all", TRACES[name][1])]
        for cost_s in costs_s:
            for title, column in COLUMNS.items():
                for seed in seeds if column.error else seeds[:1]:
                    known = with_estimates(jobs, column.error, column.share, seed) if column.error else jobs
                    run = simulate(known, nodes, column.policy(), cost_s)
                    cell = Cell(name, cost_s, title, figures(title, run))
                    say(f"{name}, {cost_s} s, {title}: {cell.figures.mean_jct_s:,.0f} s")
                    yield cell, run


def spreads(cells: list[Cell], value: Callable[[Figures], float]) -> dict[tuple[str, int], dict[str, Spread]]:
    """By trace and cost, of each column."""
    keys = dict.fromkeys((cell.trace, cell.cost_s) for cell in cells)
    return {
        key: {
            title: Spread.of([value(c.figures) for c in cells if (c.trace, c.cost_s, c.column) == (*key, title)])
            for title in COLUMNS
        }
        for key in keys
    }


def page_table(
    cells: list[Cell], value: Callable[[Figures], float], machine: Machine, digits: int = 0
) -> dict[str, Any]:
    """For a page: the median over the drawings of estimates, and their range where there are several."""
    rows = []
    for (name, cost_s), row in spreads(cells, value).items():
        texts = [
            f"{each.median:,.{digits}f}"
            + (f" ({each.least:,.{digits}f}-{each.most:,.{digits}f})" if each.count > 1 else "")
            for each in row.values()
        ]
        rows.append([f"{name} ({TRACES[name][1]})", f"{cost_s} s", *texts])
    return {"machine": machine.line, "columns": ["trace (slots)", "a preemption", *COLUMNS], "rows": rows}


# -- the cost of a decision ------------------------------------------------------------------------------------------


def large_state() -> tuple[list[Job], list[Node]]:
    """Ten thousand waiting jobs, half of them with estimates, and a thousand that run on as many nodes."""
    nodes = [Node(f"n{place:04}", 8, f"rack-{place // 40}") for place in range(RUNNING)]
    running = [
        started(replace(Job(f"r{n}", 8, float(n), n), counted_s=float(n)), 1_000.0 + n, (nodes[n].name,) * 8, 0, 0)
        for n in range(RUNNING)
    ]
    waiting = [
        Job(
            f"w{n}",
            1 + n % 8,
            20_000.0 + n,
            RUNNING + n,
            counted_s=20_000.0 + n,
            estimate=Estimate(300.0 + n, 600.0 + n, 1_200.0 + n) if n % 2 else None,
        )
        for n in range(WAITING)
    ]
    return [*running, *waiting], nodes


def decision_ms() -> dict[str, Spread]:
    """One decision, and one after the observed distribution was renewed: milliseconds of this process."""
    jobs, nodes = large_state()
    observed = Observed()
    for number in range(OBSERVED_MOST):
        observed = observed.ended(60.0 * (1 + number % 500))
    policy: Policy = LargestIndex(observed=observed)
    first = decide(jobs, nodes, policy, 40_000.0)
    settled, same, renewed = list(first.jobs), [], []
    for number in range(DECISIONS):
        begin_s = time.perf_counter()
        settled = list(decide(settled, nodes, policy, 40_001.0 + number).jobs)
        same.append(1e3 * (time.perf_counter() - begin_s))
    for number in range(DECISIONS):
        begin_s = time.perf_counter()
        for _ in range(RENEWED_EVERY):
            policy = policy.ended(replace(jobs[0], executed_s=10.0 + number))
        settled = list(decide(settled, nodes, policy, 50_000.0 + number).jobs)
        renewed.append(1e3 * (time.perf_counter() - begin_s))
    return {"a decision": Spread.of(same), "after the observed jobs were renewed": Spread.of(renewed)}


def live_state() -> State:
    """As the service has it."""
    jobs, places = large_state()
    nodes = {place.name: ClusterNode(node=place.name, slots=place.slots, rack=place.rack) for place in places}
    nodes["free"] = ClusterNode(node="free", slots=1)
    spec = JobSpec(job="any", command=("train",), directory="/")
    live = {job.name: Live(job, JobSubmitted(spec=spec), attempt=job.starts) for job in jobs}
    return State(live=live, nodes=nodes)


def evaluation_ms() -> Spread:
    """A decision of the service with its reasons, where as many jobs stop as one entry may tell: milliseconds."""
    state, taken = live_state(), list[float]()
    outcome = evaluate(state, 40_000.0, "index", Trigger.QUANTUM)
    for number in range(DECISIONS):
        begin_s = time.perf_counter()
        outcome = evaluate(state, 40_001.0 + number, "index", Trigger.QUANTUM, outcome)
        taken.append(1e3 * (time.perf_counter() - begin_s))
        assert outcome.message.starts
    return Spread.of(taken)


def shared_links(seed: int) -> tuple[dict[str, Shared], dict[str, Sharer]]:
    """Jobs of six periods, each of which uses two links: those of two racks that it lies in."""
    draw = random.Random(seed)
    users: dict[str, list[str]] = {f"rack-{number}-up": [] for number in range(LINKS)}
    sharers: dict[str, Sharer] = {}
    for number in range(SHARERS):
        job, period_ms = f"j{number:03}", draw.choice((600, 800, 1_000, 1_200, 1_500, 2_000))
        sending_ms = round(period_ms * draw.uniform(0.15, 0.5))
        phase = TrafficPhase(begin_ms=0, end_ms=sending_ms, bits_per_s=UPLINK_BITS_PER_S)
        sent_bytes = UPLINK_BITS_PER_S * sending_ms // 8_000
        profile = TrafficProfile(job=job, attempt=1, period_ms=period_ms, phases=(phase,), sent_bytes=sent_bytes)
        sharers[job] = Sharer(1, profile, interleave=True)
        for link in draw.sample(sorted(users), 2):
            users[link].append(job)
    links = {name: Shared(UPLINK_BITS_PER_S, tuple(jobs)) for name, jobs in users.items() if len(jobs) > 1}
    return links, sharers


def shifts_ms() -> Spread:
    """All shifts anew, as where a job begins or ends: milliseconds, of one graph after another."""
    taken = list[float]()
    for seed in range(DECISIONS):
        links, sharers = shared_links(seed)
        begin_s = time.perf_counter()
        planned = plan(links, sharers)
        taken.append(1e3 * (time.perf_counter() - begin_s))
        assert planned.shifts
    return Spread.of(taken)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.scheduler", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one trace, one drawing of estimates (half a minute)")
    parser.add_argument("--scale", action="store_true", help="only how long a decision and a replay take")
    parser.add_argument("--elastic", action="store_true", help="only with and without elastic jobs (5 minutes)")
    parser.add_argument(
        "--live", action="store_true", help="the service on real processes, not simulations (20 minutes)"
    )
    parser.add_argument("--torch", action="store_true", help="with --live: only trainings of docs/examples/train.py")
    parser.add_argument("--slurm", action="store_true", help="with --live: in a Slurm of this machine (12 minutes)")
    parser.add_argument("--restart", action="store_true", help="with --slurm: slurmctld is restarted midway")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, write, tell."""
    given = parse(sys.argv[1:])
    if given.live:
        from tests.bench import scheduler_live, scheduler_slurm  # noqa: PLC0415 - they need the services

        if given.slurm:
            return scheduler_slurm.main(
                [argument for argument in sys.argv[1:] if argument not in {"--live", "--slurm"}]
            )
        return scheduler_live.main([argument for argument in sys.argv[1:] if argument != "--live"])
    if given.elastic:
        from tests.bench import scheduler_elastic  # noqa: PLC0415 - it reads this module's columns

        return scheduler_elastic.main(quick=given.quick, as_json=given.json)
    machine = this_machine()
    record: dict[str, Any] = {"machine": machine.as_dict(), "tables": {}}
    lines, written = [machine.line], []
    if not given.scale:
        found = list(measure(["480"] if given.quick else list(TRACES), COSTS_S, SEEDS[:1] if given.quick else SEEDS))
        cells = [cell for cell, _ in found]
        record["cells"] = [asdict(cell) for cell in cells]
        record["tables"] = {
            "jct": page_table(cells, lambda each: each.mean_jct_s, machine),
            "stretch": page_table(cells, lambda each: each.p99_stretch, machine, digits=1),
            "preemptions": page_table(cells, lambda each: each.preemptions_per_job, machine, digits=2),
        }
        lines += [line for title, table in record["tables"].items() for line in text_table(title, table)]
        written.append(picture({cell.column: run for cell, run in found if (cell.trace, cell.cost_s) == ("480", 60)}))
    costs = decision_ms()
    lines += ["", f"a decision over {WAITING:,} waiting and {RUNNING:,} running jobs, ms: median (range)"]
    costs["of the service, with reasons for 100 stops"] = evaluation_ms()
    costs[f"shifts of {SHARERS} jobs on {LINKS} links"] = shifts_ms()
    lines += [f"{name}: {spread.text()}" for name, spread in costs.items()]
    record["decision_ms"] = {name: asdict(spread) for name, spread in costs.items()}
    replays = scheduler_replay.replay_s() | scheduler_replay.snapshot_of(live_state())
    lines += ["", "starts over a log on a nats-server, s (size: MiB): median (range)"]
    lines += [f"{each['what']}: {replays[key].brief()}" for key, each in scheduler_replay.figures(replays).items()]
    kept = {"machine": machine.as_dict(), **scheduler_replay.record(replays)}
    written.append(write_record(kept, OUTPUT / "scheduler-replay.json"))
    written.append(write_record(record, OUTPUT / "scheduler.json"))
    tell("\n".join(lines), record, written, as_json=given.json)
    return 0


def picture(runs: Mapping[str, Run]) -> Path:
    """Completion times and slots in use, 480 jobs, 60 s a preemption."""
    from services.scheduler.pictures import draw  # noqa: PLC0415 - matplotlib

    file = OUTPUT / "scheduler-jct.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    draw(runs, "480 jobs on 60 slots; a preemption costs 60 s", file)
    return file


if __name__ == "__main__":
    sys.exit(main())

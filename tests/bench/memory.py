"""A container that outgrows its memory limit as fast as it can: ``make bench-memory ARGS=--quick``.

Real agent, allocator and nats-server, each a process of its own at its default priority, on real control groups (needs
root). Five ways to grow by 1.5 GiB; the agent under the default scheduler and under SCHED_FIFO. With ``--sigma 0``
nodes have no reserve: every grant is asked for, tasks wait at their limit, and the whole round trip is measured.
Nothing is asserted.

With ``--agent-killed`` the agent is killed just before each growth (`tests.bench.memory_killed`); with ``--idle``
containers idled before they grow (`tests.bench.memory_idle`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from matplotlib.ticker import NullFormatter
from scipy.stats import beta

from tests.bench import memory_idle, memory_killed
from tests.bench.cluster import open_cluster
from tests.bench.figures import Spread, percentiles
from tests.bench.loop import why_not
from tests.bench.machine import Machine, this_machine
from tests.bench.memory_growth import GROW_BYTES, MIB, GrowthRun, KernelPrograms, Kind, Scheduling, open_lab
from tests.bench.outcome import OUTPUT, UNAVAILABLE, tell, write_record
from tests.bench.pictures import panels, save

KINDS: tuple[Kind, ...] = get_args(Kind)
SCHEDULINGS: tuple[Scheduling, ...] = get_args(Scheduling)
PROGRAMS: tuple[KernelPrograms, ...] = get_args(KernelPrograms)


def parse(arguments: list[str]) -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, help="growths of each kind (default 100; quick: 5; --idle: 20, 3)")
    parser.add_argument("--quick", action="store_true", help="about two minutes")
    parser.add_argument("--kinds", help="ways to grow (default: all; --agent-killed, --idle: all but huge)")
    parser.add_argument("--schedulings", help="of the agent (default: all; --idle: default)")
    parser.add_argument("--kernel-programs", choices=PROGRAMS, default="auto", help="of the agent; off: files only")
    parser.add_argument("--sigma", type=float, default=0.2, help="share of the application's memory kept for reserves")
    parser.add_argument("--agent-killed", action="store_true", help="grow while only the agent's watchdog is there")
    parser.add_argument(
        "--idle", type=float, metavar="SECONDS", help="let containers idle for so long before each growth"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="--agent-killed: end after so long at the latest")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    if given.idle is not None and (given.idle <= 0 or given.agent_killed):
        parser.error("--idle takes seconds, more than 0, and goes without --agent-killed")
    kinds = memory_idle.KINDS if given.idle else memory_killed.KINDS if given.agent_killed else KINDS
    given.kinds = given.kinds or ",".join(kinds)
    given.schedulings = given.schedulings or ("default" if given.idle else ",".join(SCHEDULINGS))
    runs, quick_runs = (20, 3) if given.idle else (100, 5)
    given.runs = given.runs or (quick_runs if given.quick else runs)
    for chosen, there in ((given.kinds, KINDS), (given.schedulings, SCHEDULINGS)):
        if unknown := set(chosen.split(",")) - set(there):
            parser.error(f"there is no {min(unknown)!r}: choose of {','.join(there)}")
    return given


async def measure(plan: argparse.Namespace) -> list[GrowthRun]:
    """Run everything that is planned."""
    runs: list[GrowthRun] = []
    async with open_cluster() as cluster:
        for scheduling in plan.schedulings.split(","):
            async with open_lab(cluster, scheduling, plan.sigma, plan.kernel_programs) as lab:
                for kind in plan.kinds.split(","):
                    async for run in lab.run(kind, plan.runs):
                        runs.append(run)
                        done = sum(other.kind == kind and other.scheduling == scheduling for other in runs)
                        trap = ", trapped" if run.trapped else ""
                        print(
                            f"... {scheduling}, {kind}, {done} of {plan.runs}: {run.rate / 1e9:.2f} GB/s{trap}",
                            file=sys.stderr,
                            flush=True,
                        )
    return runs


def grouped(runs: list[GrowthRun]) -> dict[tuple[str, str], list[GrowthRun]]:
    """By scheduling and kind."""
    groups: defaultdict[tuple[str, str], list[GrowthRun]] = defaultdict(list)
    for run in runs:
        groups[run.scheduling, run.kind].append(run)
    return dict(groups)


def summary(runs: list[GrowthRun]) -> dict[str, Any]:
    """One line of the table."""
    latency, paused = ([us for run in runs for us in getattr(run, name)] for name in ("latency_us", "paused_us"))
    return {
        "runs": len(runs),
        "gb_per_s": asdict(Spread.of([run.rate / 1e9 for run in runs])),
        "of_free_rate": asdict(Spread.of([run.rate / run.free_rate for run in runs if run.free_rate])),
        "kills": sum(run.kills for run in runs),
        "failed_calls": sum(len(run.failures) for run in runs),
        "runs_with_a_trap": sum(run.trapped for run in runs),
        "grants_per_run": sum(run.events.get("grant", 0) for run in runs) / len(runs),
        "room_at_start_mib": asdict(Spread.of([run.room_bytes / (1 << 20) for run in runs])),
        "latency_us": percentiles(latency),
        "paused_us": percentiles(paused) if paused else None,
    }


def table(machine: Machine, runs: list[GrowthRun]) -> str:
    """For people."""
    lines = [machine.line, ""]
    lines.append(
        f"{'agent':<9}{'growth':<8}{'runs':>5}{'GB/s':>18}{'of unlimited':>18}{'kills':>7}{'failed':>8}{'trapped':>9}"
        f"{'grants':>8}{'to limit raised, ms p50/p99/max':>34}{'paused, ms p50/p99/max':>26}"
    )
    for (scheduling, kind), group in grouped(runs).items():
        row = summary(group)
        rate, share = (Spread(**row[name]).text(2) for name in ("gb_per_s", "of_free_rate"))
        latency, paused = (_milliseconds(row[name]) for name in ("latency_us", "paused_us"))
        lines.append(
            f"{scheduling:<9}{kind:<8}{row['runs']:>5}{rate:>18}{share:>18}{row['kills']:>7}{row['failed_calls']:>8}"
            f"{row['runs_with_a_trap']:>9}{row['grants_per_run']:>8.1f}{latency:>34}{paused:>26}"
        )
    return "\n".join(lines)


def _milliseconds(values: dict[str, float] | None) -> str:
    return "-" if values is None else " / ".join(f"{values[name] / 1e3:.1f}" for name in ("p50", "p99", "max"))


def write(machine: Machine, runs: list[GrowthRun], directory: Path) -> list[Path]:
    """JSON and picture into a directory; returns what was written."""
    record = write_record(as_json(machine, runs), directory / "memory.json")
    figure, (left, right) = panels(2, (12, 4.5))
    for (scheduling, kind), group in grouped(runs).items():
        style = "-" if scheduling == "default" else "--"
        for axes, values in (
            (left, [us / 1e3 for run in group for us in run.latency_us]),
            (right, [run.rate / 1e9 for run in group]),
        ):
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.plot(sorted(values), shares, style, label=f"{kind}, {scheduling}")
    left.set(
        title="grants", xlabel="ms from what the agent could know to the limit raised", ylabel="share", xscale="log"
    )
    left.xaxis.set_minor_formatter(NullFormatter())
    right.set(title="growth", xlabel="GB/s", ylabel="share")
    right.legend(fontsize=8)
    return [record, save(figure, machine.line, directory / "memory.png")]


def most_likely_share(events: int, runs: int) -> float:
    """Upper end of the one-sided 95 % interval of a share (Clopper and Pearson, 1934)."""
    return float(beta.ppf(0.95, events + 1, runs - events)) if events < runs else 1.0


def figures(runs: list[GrowthRun]) -> dict[str, dict[str, str]]:
    """Rows for pages (`scripts.generate_figures`): all runs with the agent under the default scheduling."""
    chosen = [run for run in runs if run.scheduling == "default"]
    if not chosen:
        return {}
    rates = [run.rate / 1e9 for run in chosen]
    kinds = [percentiles([us / 1e3 for run in group for us in run.latency_us]) for group in grouped(chosen).values()]

    def share(events: int) -> str:
        return f"{events} of {len(chosen)} runs (95 % upper bound {100 * most_likely_share(events, len(chosen)):.2g} %)"

    return {
        "kills": {
            "what": f"containers killed, or refused a system call, that grew by {GROW_BYTES / MIB / 1024:g} GiB "
            f"at {min(rates):.1f} to {max(rates):.1f} GB/s",
            "unit": "",
            "shown": share(sum(bool(run.kills or run.failures) for run in chosen)),
        },
        "waits": {
            "what": "of these, runs that had to wait at the limit",
            "unit": "",
            "shown": share(sum(run.trapped for run in chosen)),
        },
        "granted": {
            "what": "from what the agent could know to the memory limit raised, p50; p99; ranges over kinds of growth",
            "unit": "",
            "shown": "; ".join(
                f"{min(kind[name] for kind in kinds):.2g} to {max(kind[name] for kind in kinds):.2g} ms"
                for name in ("p50", "p99")
            ),
        },
    }


def as_json(machine: Machine, runs: list[GrowthRun]) -> dict[str, Any]:
    """Everything, each run included."""
    return {
        "machine": machine.as_dict(),
        "figures": figures(runs),
        "summary": [
            {"scheduling": scheduling, "kind": kind} | summary(group)
            for (scheduling, kind), group in grouped(runs).items()
        ],
        "runs": [asdict(run) for run in runs],
    }


def main() -> int:
    """Measure and report; 69 where this machine does not allow it."""
    plan = parse(sys.argv[1:])
    if reason := why_not():
        print(f"bench-memory: {reason}", file=sys.stderr)
        return UNAVAILABLE
    machine = this_machine()
    if plan.idle:
        idle_plan = memory_idle.IdlePlan(
            plan.idle,
            tuple(plan.kinds.split(",")),
            plan.runs,
            tuple(plan.schedulings.split(",")),
            plan.kernel_programs,
            plan.sigma,
        )
        idled = asyncio.run(memory_idle.measure(idle_plan))
        record = memory_idle.as_json(machine, idled)
        written = [write_record(record, OUTPUT / "memory-idle.json")]
        tell(memory_idle.table(machine, idled), record, written, as_json=plan.json)
        return 0
    if plan.agent_killed:
        kinds, most_s = plan.kinds.split(","), plan.minutes * 60
        killed = asyncio.run(memory_killed.measure(kinds, plan.runs, most_s, plan.kernel_programs))
        record = memory_killed.as_json(machine, killed)
        written = [write_record(record, OUTPUT / "memory-agent-killed.json")]
        tell(memory_killed.table(machine, killed), record, written, as_json=plan.json)
        return 0
    runs = asyncio.run(measure(plan))
    tell(table(machine, runs), as_json(machine, runs), write(machine, runs, OUTPUT), as_json=plan.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

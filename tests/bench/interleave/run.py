"""Jobs that share an uplink, by the ways to make them take turns: ``make bench-interleave``.

A real `turnbuckle up` of two racks with 100 Mbit/s uplinks; jobs are submitted with a column's settings, each with a
worker in either rack, and begin together. Columns are interleaved, round by round, so that other load on the machine
meets all of them; alone is one job by itself in the same round. Figures come from the lines that the jobs print. A run
that was not what its column says is shown with the reason, and not counted; nothing is asserted. The last third of a
run's iterations counts: a shift takes some fifteen to be learned.

``--quick``: two and three jobs, one round. ``--bulk``: a flow that never pauses beside two jobs. ``--change-batch``:
one job sends less from its 20th iteration on. ``--loads "4 jobs,6 jobs"``: only these; with ``--quick`` each of them in
one round. ``--columns reno,MLTCP``: only these, and alone. ``--kernel-threads``: for ``F = 1`` on a kernel that skips
programs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from schemas.scheduling import JobPhase
from services._runtime.bus.api import RequestRefusedError
from tests.bench.interleave import report
from tests.bench.interleave.cluster import LastSeen, NotOfferedError, RackCluster, Submitted, rack_cluster
from tests.bench.interleave.figures import Run, base_name, parse
from tests.bench.interleave.plan import (
    ALONE,
    ALONE_ITERATIONS,
    COLUMNS,
    EXAMPLES,
    FULL,
    Load,
    Plan,
    Step,
    make_plan,
)
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record

UPLINK: Final = "100Mbit"
LEAD_S: Final = {"traffic.py": 3.0, "ddp.py": 40.0}
"""From the submission of the first job to the first iteration; importing torch takes long on two cores."""
LEAD_PER_JOB_S: Final = {"traffic.py": 1.5, "ddp.py": 8.0}
SLOWEST: Final = 4.0
"""Times of an undisturbed iteration that a run may take before it is given up."""


async def measure(plan: Plan, *, kernel_threads: bool = False) -> tuple[list[Run], list[str]]:
    """All runs in order, and notes on how, and on what could not be run."""
    runs: list[Run] = []
    notes: dict[str, None] = {"nodes take packets in threads of the kernel's": None} if kernel_threads else {}
    steps = plan.steps()
    begin_s = time.monotonic()
    for load, mine in groupby(steps, key=lambda step: step.load):
        async with rack_cluster(load.jobs + load.bulk, UPLINK, kernel_threads=kernel_threads) as cluster:
            for step in mine:
                try:
                    run = await measure_step(cluster, step, f"r{len(runs) + 1}")
                except NotOfferedError as error:
                    notes[f"column {step.column.name} is left out: {error}"] = None
                    continue
                runs.append(run)
                shown = f"{run.iteration_s:.3f} s, overlap {run.overlap:.0%}" if run.counts else "; ".join(run.problems)
                say(f"{time.monotonic() - begin_s:.0f} s: {load.name}, {step.column.name}, round {step.round}: {shown}")
    return runs, list(notes)


async def measure_step(cluster: RackCluster, step: Step, mark: str) -> Run:
    """One run: submit its jobs, wait for their ends, read what they printed.

    Raises:
        NotOfferedError: there is no such congestion control here.
    """
    load, column = step.load, step.column
    alone = column.name == ALONE
    count, iterations = (1, ALONE_ITERATIONS) if alone else (load.jobs, load.iterations)
    used = await cluster.choose(column.congestion_control, scaled=column.scaled)
    average = os.getloadavg()[0]
    begin_at_s = time.time() + LEAD_S[load.program] + count * LEAD_PER_JOB_S[load.program]
    settings = {"congestion_control": used, "interleave": column.interleave}
    jobs = []
    for number in range(count):
        command = load.command(number, begin_at_s, iterations)
        jobs.append(await cluster.submit(f"{mark}-{number + 1}", number, command, **settings))
    bulk = None if alone or not load.bulk else await _start_bulk(cluster, load, mark, begin_at_s, settings)
    late_s = time.time() - begin_at_s
    within_s = 60.0 + max(0.0, begin_at_s - time.time()) + iterations * SLOWEST * (load.compute_s + load.sending_s)
    known = await cluster.until_over(jobs, within_s)
    run = Run(load.name, column.name, step.round, average, jobs=[])
    for job in jobs:
        run.jobs.append(parse(await _log(cluster, job, run)))
    run.scheduler.update(_told(known))
    run.problems.extend(await _problems(cluster, run, jobs, column.congestion_control, iterations))
    if late_s > 0:
        run.problems.append(f"the last job was started {late_s:.1f} s too late")
    if column.interleave and not any(job.shift is not None for job in known.jobs.values()):
        run.problems.append(f"the scheduler decided no shift: {known.why_not_shifted}")
    if bulk is not None:
        await cluster.cancel(bulk)
        run.bulk.extend(parse(await _log(cluster, bulk, run, rank=1)))
    return run


async def _log(cluster: RackCluster, job: Submitted, run: Run, rank: int = 0) -> str:
    """What a worker has written; where there is no such worker, that is a problem of the run."""
    try:
        return await cluster.log(job, rank)
    except RequestRefusedError as error:
        run.problems.append(str(error))
        return ""


async def _start_bulk(
    cluster: RackCluster, load: Load, mark: str, begin_at_s: float, settings: dict[str, Any]
) -> Submitted:
    """A flow that never pauses, with the congestion control of the column."""
    words = [str(EXAMPLES / "traffic.py"), "--stream", "--seconds", "100000", "--begin-at", str(begin_at_s)]
    return await cluster.submit(f"{mark}-bulk", load.jobs, words, **{**settings, "interleave": False})


def _told(known: LastSeen) -> dict[str, Any]:
    links = [link.model_dump(mode="json") for link in known.links]
    return {"links": links} | {
        name: {
            "shift": None if job.shift is None else job.shift.model_dump(mode="json"),
            "traffic": None if job.traffic is None else job.traffic.model_dump(mode="json"),
            "congestion_control": job.congestion_control,
        }
        for name, job in known.jobs.items()
    }


async def _problems(
    cluster: RackCluster, run: Run, jobs: Sequence[Submitted], congestion_control: str, iterations: int
) -> list[str]:
    """Why a run is not what its column says."""
    found = []
    phases = {job.job: job for job in (await cluster.queue()).jobs}
    for job, lines in zip(jobs, run.jobs, strict=True):
        if phases[job.name].phase is not JobPhase.ENDED:
            found.append(f"{job.name} is {phases[job.name].phase}: {phases[job.name].why}")
        if len(lines) != iterations:
            found.append(f"{job.name} has printed {len(lines)} of {iterations} iterations")
        others = {base_name(line.congestion_control) for line in lines} - {congestion_control, ""}
        found += [f"{job.name} used {name}" for name in sorted(others)]
    return found


def _names(parser: argparse.ArgumentParser, option: str, given: str, known: Sequence[str]) -> list[str]:
    names = [name for name in given.split(",") if name]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{option}: {', '.join(unknown)}: there are {', '.join(known)}")
    return names


def main() -> int:
    """Measure, and tell."""
    parser = argparse.ArgumentParser(prog="make bench-interleave", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2 and 3 jobs, one round (about 9 minutes, not 72)")
    parser.add_argument(
        "--bulk", action="store_true", help="instead 2 jobs and a flow that never pauses (about 13 minutes)"
    )
    parser.add_argument(
        "--change-batch", action="store_true", help="instead 2 jobs of which one changes (about 16 minutes)"
    )
    parser.add_argument("--loads", metavar="NAME,NAME", default="", help="only these, such as '4 jobs'")
    parser.add_argument("--columns", metavar="NAME,NAME", default="", help="only these, and alone")
    parser.add_argument(
        "--kernel-threads", action="store_true", help="packets are taken in threads, where no program is skipped"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR", help="where the record and pictures go")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args()
    only = _names(parser, "--columns", given.columns, [column.name for column in COLUMNS])
    loads = _names(parser, "--loads", given.loads, [part.load.name for part in FULL])
    if os.geteuid() != 0:
        say("racks are network namespaces, which needs root: sudo make bench-interleave")
        return UNAVAILABLE
    machine = this_machine()
    plan = make_plan(quick=given.quick, bulk=given.bulk, change=given.change_batch, loads=loads, only=only)
    runs, notes = asyncio.run(measure(plan, kernel_threads=given.kernel_threads))
    measured = [part.load for part in plan.parts]
    record = report.as_json(machine, measured, runs, notes)
    written = [write_record(record, given.output / "interleave.json")]
    for load in measured:
        if any(run.load == load.name and run.counts for run in runs):
            name = load.name.replace(" ", "-").replace(",", "")
            written.append(report.draw(machine, load, runs, given.output / f"interleave-{name}.png"))
    tell(report.table(machine, measured, runs, notes), record, written, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

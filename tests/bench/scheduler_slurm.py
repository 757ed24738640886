"""The scheduler on a real Slurm, beside runners and simulations: ``make bench-scheduler ARGS="--live --slurm"``.

The jobs of ``--live`` with durations of 20 to 160 s, as a start and a stop take two seconds in Slurm. Two clusters
run them at the same time: slurmctld with four slurmds of two CPUs each, orders by way of `services.runner.slurm`; and
four runners. Each has a simulation with the costs that were measured on it. Nothing is asserted; asked are means
within 10 % of both, a rank correlation above 0.95, no slot that is used twice, and a log whose replay decides alike.

``--restart``: once half of the jobs have ended, slurmctld gets SIGTERM and is started again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.bench.cluster import Cluster, Process
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, UNAVAILABLE, say, tell, write_record
from tests.bench.scheduler_live import JOBS, NODES, QUICK_JOBS, TRACE, Outcome, Runners, measure, table
from tests.bench.scheduler_live_figures import scaled
from tests.support.slurm_lab import SlurmLab, missing
from tests.support.tiresias import read

CLIPPED_S: Final = (20.0, 160.0)
POLL_S: Final = 0.5
"""Between two readings of Slurm's queue; 5 s where nothing is set, by which starts and stops are seen later."""
SETTLE_S: Final = 0.5
"""The shared directory is a local one."""


class Slurm:
    """A Slurm of this machine, and its adapter."""

    name = "Slurm"

    def __init__(self, *, restarts: bool) -> None:
        self._restarts = restarts
        self._lab: SlurmLab | None = None
        self.away_s: float | None = None
        """How long slurmctld did not answer."""

    @asynccontextmanager
    async def run(self, cluster: Cluster, directory: Path) -> AsyncIterator[Sequence[Process]]:
        """Started and stopped."""
        self._lab = lab = SlurmLab(directory / "slurm", len(NODES), max(NODES.values()))
        settings = {
            "DIRECTORY": str(directory / "shared"),
            "HOLDER_DIRECTORY": str(directory / "holders"),
            "POLL_INTERVAL_S": str(POLL_S),
            "SETTLE_S": str(SETTLE_S),
        }
        environment = lab.environment | {f"TURNBUCKLE_SLURM__{name}": value for name, value in settings.items()}
        try:
            await lab.start()
            async with cluster.run("services.runner.slurm", environment, "slurm") as adapter:
                yield [adapter]
        finally:
            await asyncio.to_thread(lab.stop)

    async def midway(self) -> None:
        """Restart slurmctld, if that was asked for."""
        if not self._restarts or self._lab is None:
            return
        lab, begin_s = self._lab, time.monotonic()
        await asyncio.to_thread(lab.stop_controller)
        lab.start_controller()
        await lab.until(lambda: "is UP" in lab.call("scontrol", "ping", check=False), "slurmctld")
        self.away_s = time.monotonic() - begin_s
        say(f"slurmctld was away for {self.away_s:.1f} s")


async def measure_both(slurm: Slurm, jobs: int) -> list[Outcome]:
    """The same jobs on both, at the same time."""
    asked = scaled(read(TRACE), jobs, clipped_s=CLIPPED_S)
    runs = [
        measure(nodes.name, nodes, asked, estimated=True, picture=f"scheduler-live-slurm-{name}.png")
        for nodes, name in ((Runners(), "runners"), (slurm, "slurm"))
    ]
    return list(await asyncio.gather(*runs))


def page_table(outcomes: Sequence[Outcome], machine: Machine) -> dict[str, Any]:
    """For a page."""
    rows = []
    for each in outcomes:
        one, costs = each.comparison, each.measured
        rows.append(
            [
                each.title,
                f"{costs.start_s:.2f} s, {costs.stop_s:.2f} s",
                f"{one.live_jct_s:.1f} s",
                f"{one.simulated_jct_s:.1f} s",
                f"{one.ratio:.3f}",
                f"{one.rank_correlation:.3f}",
                f"{one.live_preemptions} ({one.simulated_preemptions})",
                str(one.twice),
                f"{len(each.record['decided_otherwise_on_replay'])} of {each.record['entries']}",
            ]
        )
    columns = ["workers run in", "a start, a stop", "mean JCT live", "simulated", "ratio", "rank correlation"]
    columns += ["preemptions live (simulated)", "slots used twice", "entries decided otherwise on replay"]
    return {"machine": machine.line, "columns": columns, "rows": rows}


def main(arguments: Sequence[str]) -> int:
    """Run both, simulate, compare, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scheduler --live --slurm")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_JOBS} jobs (4 minutes)")
    parser.add_argument("--restart", action="store_true", help="restart slurmctld once half of the jobs have ended")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        say(f"Slurm cannot be started: {reason}")
        return UNAVAILABLE
    machine, load, slurm = this_machine(), os.getloadavg(), Slurm(restarts=given.restart)
    outcomes = asyncio.run(measure_both(slurm, QUICK_JOBS if given.quick else JOBS))
    runners, other = (each.comparison.live_jct_s for each in outcomes)
    record = {
        "machine": machine.as_dict(),
        "load": {"begin": load, "end": os.getloadavg()},
        "nodes": NODES,
        "clipped_s": CLIPPED_S,
        "poll_interval_s": POLL_S,
        "slurmctld_away_s": slurm.away_s,
        "slurm_over_runners": other / runners,
        "runs": [each.record for each in outcomes],
        "tables": {"slurm": page_table(outcomes, machine)},
    }
    lines = [
        machine.line,
        f"load {load[0]:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end",
        f"durations clipped to {CLIPPED_S[0]:g} to {CLIPPED_S[1]:g} s; the queue is read every {POLL_S:g} s",
        *([] if slurm.away_s is None else [f"slurmctld was restarted, and away for {slurm.away_s:.1f} s"]),
        *(
            f"{each.title}: a start {each.measured.start_s:.2f} s, a stop {each.measured.stop_s:.2f} s"
            for each in outcomes
        ),
        f"mean JCT in Slurm over that of the runners: {other / runners:.3f}",
        *table(outcomes),
    ]
    written = [write_record(record, OUTPUT / "scheduler-live-slurm.json"), *(each.picture for each in outcomes)]
    tell("\n".join(lines), record, written, as_json=given.json)
    return 0

"""What it costs a runner to pace eight jobs: ``python -m tests.bench.interleave.pacing_cost``, as root.

Real workers compute and send between two network namespaces, in iterations of about 0.94 s. The runner that measures
and paces them, and a nats-server, are processes of their own; this one is their scheduler. Told is the runner's
processor time, user and system, its connection to the bus included, as a share of a core: without jobs, with jobs of
which none has to wait, and with jobs that each wait in every iteration. Not that of workers, shims, server and this
process.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from schemas.scheduling import IterationSample, OrderAction, Pace, Preemption, WorkEvent, WorkOrder, WorkReply
from schemas.streams import RUNNERS, WORK_STREAM
from schemas.subjects import ITERATIONS, WORK_ORDERS
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from tests.bench.cluster import Cluster, Process, open_cluster
from tests.bench.machine import this_machine
from tests.bench.outcome import OUTPUT, say, write_record
from tests.support.deadline import until
from tests.support.paced_lab import remove_groups
from tests.support.runner_lab import NODE, OVER, end_workers, job_spec, order, run_order
from tests.support.traffic_pair import TrafficPair

JOBS: Final = tuple(f"j{number}" for number in range(8))
COMPUTE_S: Final = 0.9
SENT_BYTES: Final = 200_000
KNOWN_AFTER: Final = 5
"""Iterations."""
SETTLE_S: Final = 5.0
APART_S: Final = 0.13
WAIT_NS: Final = 100_000_000
"""In each iteration, where jobs wait."""
ROOT: Final = "turnbuckle-pacing-cost"
STRETCHES: Final = {
    "idle": "runner's CPU without jobs, of a core",
    "paced": "the same, 8 paced jobs with an iteration a second, none of which has to wait",
    "waiting": "the same, each waits 0.1 s in every iteration",
}


@dataclass
class Stretch:
    """What the runner took in a stretch of time."""

    percent: float
    """Of a core."""
    wakes_per_s: float
    """How often it slept."""
    iterations_per_s: float
    """That it published, of all jobs."""
    pauses_per_s: float


@dataclass
class Measured:
    """All stretches, by what the jobs did."""

    period_s: float = 0.0
    stretches: dict[str, list[Stretch]] = field(default_factory=dict)


class Scheduler:
    """Starts the jobs, and answers where one is due."""

    def __init__(self, bus: NatsBus, work: Path) -> None:
        self._bus, self._work = bus, work
        self.iterations: Counter[str] = Counter()
        self.pauses = 0
        self.period_us: list[int] = []
        self.ended: set[str] = set()
        self.waits = False
        self._orders: set[asyncio.Task[WorkReply]] = set()
        self._latest_ns: dict[str, int] = {}

    async def listen(self) -> None:
        """Hear of iterations and ends from now on."""

        async def note_end(delivery: Delivery) -> None:
            if isinstance(delivery.message, WorkEvent) and delivery.message.change in OVER:
                self.ended.add(delivery.message.job)

        await self._bus.replay(WORK_STREAM, note_end)
        await self._bus.subscribe(ITERATIONS.pattern(self._bus.root), self._take)
        bucket = self._bus.bucket(RUNNERS)
        registered: set[str] = set()
        async with bucket.watch(lambda name, _: registered.add(name)):
            await until(lambda: registered, what="the runner's registration")

    def _take(self, delivery: Delivery) -> None:
        sample = delivery.message
        assert isinstance(sample, IterationSample)
        if self._latest_ns.get(sample.job) != sample.time_ns:  # else it is told again, as another one is due
            self._latest_ns[sample.job] = sample.time_ns
            self.iterations[sample.job] += 1
            self.period_us.append(sample.period_us)
            self.pauses += sample.frozen_us > 0
        if sample.due_ns and self.waits:
            pace = Pace(begin_ns=sample.due_ns + WAIT_NS, period_us=sample.period_us)
            answer = asyncio.get_running_loop().create_task(self.ask(_about(sample.job, OrderAction.PACE, pace)))
            self._orders.add(answer)
            answer.add_done_callback(self._orders.discard)

    async def ask(self, asked: WorkOrder) -> WorkReply:
        """Give an order. RuntimeError: it is refused."""
        reply = await self._bus.request(WORK_ORDERS.subject(self._bus.root, node=NODE), asked, timeout_s=60)
        if not isinstance(reply, WorkReply) or not reply.obeyed:
            raise RuntimeError(f"{asked.action} of {asked.job}: {reply}")
        return reply

    async def run_jobs(self, pair: TrafficPair) -> None:
        """Start all, one after another, and pace each once its iterations are known."""
        for name in JOBS:
            worker = pair.worker(COMPUTE_S, SENT_BYTES)
            spec = job_spec(self._work, worker, job=name, workers=2, preemption=Preemption.RESTART)
            await self.ask(run_order(spec, nodes=(NODE, "n2")))
            await asyncio.sleep(APART_S)
        await until(lambda: all(self.iterations[name] >= KNOWN_AFTER for name in JOBS), what="iterations of all jobs")
        for name in JOBS:
            pace = Pace(begin_ns=1, period_us=int(median(self.period_us)))
            await self.ask(_about(name, OrderAction.PACE, pace))

    async def end_jobs(self) -> None:
        """Kill all, and wait for their ends."""
        for name in JOBS:
            await self.ask(_about(name, OrderAction.KILL, sequence=3))
        await until(lambda: self.ended == set(JOBS), what="the jobs' ends")


def _about(job: str, action: OrderAction, pace: Pace | None = None, sequence: int = 2) -> WorkOrder:
    return order(action, sequence=sequence).model_copy(update={"job": job, "pace": pace})


def environment(state: Path) -> dict[str, str]:
    """The runner's settings."""
    given = {"STATE_DIRECTORY": str(state), "MANAGED_ROOT": ROOT, "SLOTS": str(len(JOBS)), "NODE": NODE}
    given |= {"CORES": "2", "MEMORY_BYTES": "4GiB", "RUN_AS": "root", "MLTCP": "off"}
    return {f"TURNBUCKLE_RUNNER__{name}": value for name, value in given.items()}


async def stretch(cluster: Cluster, runner: Process, scheduler: Scheduler, seconds: float) -> Stretch:
    """Let it work for a while."""
    await asyncio.sleep(SETTLE_S)
    before = _sleeps(runner.pid), scheduler.iterations.total(), scheduler.pauses
    window = await cluster.measure(seconds, runner)
    after = _sleeps(runner.pid), scheduler.iterations.total(), scheduler.pauses
    lasted_s = (window.end_ns - window.begin_ns) / 1e9
    rates = [(last - first) / lasted_s for first, last in zip(before, after, strict=True)]
    return Stretch(window.cpu_us[runner.name] / lasted_s / 1e4, *rates)


def _sleeps(pid: int) -> int:
    """How often a process' first thread has waited (voluntary_ctxt_switches of proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


async def measure(directory: Path, seconds: float, times: int) -> Measured:
    """All stretches."""
    found, pair = Measured(), TrafficPair()
    state = directory / "state"
    try:
        async with open_cluster() as cluster, cluster.run("services.runner", environment(state), "runner") as runner:
            with pair.peer():
                scheduler = Scheduler(cluster.bus, directory)
                await scheduler.listen()
                for name in STRETCHES:
                    if name == "paced":
                        await scheduler.run_jobs(pair)
                    scheduler.waits = name == "waiting"
                    for _ in range(times):
                        taken = await stretch(cluster, runner, scheduler, seconds)
                        found.stretches.setdefault(name, []).append(taken)
                        say(f"{name}: {taken}")
                scheduler.waits = False
                await scheduler.end_jobs()
                found.period_s = median(scheduler.period_us) / 1e6
    finally:
        end_workers(state)
        remove_groups(ROOT)
        pair.close()
    return found


def figures(found: Measured) -> dict[str, dict[str, Any]]:
    """Rows for pages."""
    rows = {}
    for name, what in STRETCHES.items():
        percent = [each.percent for each in found.stretches[name]]
        rows[name] = {
            "what": what,
            "unit": "%",
            "median": median(percent),
            "min": min(percent),
            "max": max(percent),
        }
    return rows


def table(found: Measured) -> str:
    """For people."""
    lines = [f"iterations of {found.period_s:.2f} s"]
    for name, stretches in found.stretches.items():
        lines += [
            f"{name:<8} {each.percent:5.2f} % of a core, {each.wakes_per_s:6.1f} wake-ups,"
            f" {each.iterations_per_s:5.2f} iterations and {each.pauses_per_s:5.2f} pauses a second"
            for each in stretches
        ]
    return "\n".join(lines)


def main() -> int:
    """Measure, write and leave nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of a stretch")
    parser.add_argument("--times", type=int, default=3, help="stretches of each kind")
    parser.add_argument("--output", type=Path, default=OUTPUT / "pacing-cost.json")
    given = parser.parse_args()
    if shutil.which("nsenter") is None:
        parser.error("nsenter is not installed (Debian: util-linux)")
    machine = this_machine()
    print(machine.line)
    with TemporaryDirectory() as directory:
        found = asyncio.run(measure(Path(directory), given.seconds, given.times))
    print(table(found))
    say(f"written: {write_record({'machine': machine.as_dict(), 'figures': figures(found)}, given.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

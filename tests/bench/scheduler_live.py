"""The scheduler on real processes beside the simulation of the same jobs: ``make bench-scheduler ARGS=--live``.

A real nats-server, one scheduler and four runners with two slots each; jobs are the first of Tiresias' 480 that need
four slots at most, a minute of theirs as a second. A job's workers sleep in slices of 10 ms (`scheduler_live_worker`):
no CPU is contended. What a start and a stop take is measured first, and given to the simulation. Nothing is
asserted; asked are means within 10 %, a rank correlation above 0.95, and no slot that is used twice.

``--torch``: instead three trainings of docs/examples/train.py, two of them as DDP, of which one is preempted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from schemas.scheduling import (
    ControlRequest,
    JobAction,
    JobOutcome,
    JobSpec,
    Preemption,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SubmitRequest,
)
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import SCHEDULE_STREAM
from services._runtime.bus.api import BusError, Delivery
from tests.bench.cluster import Cluster, Process, open_cluster
from tests.bench.machine import Machine, this_machine
from tests.bench.outcome import OUTPUT, say, tell, write_record
from tests.bench.scheduler_live_figures import (
    MOVED_S,
    Comparison,
    Costs,
    LiveJob,
    Presence,
    Recording,
    Sensitivity,
    compare,
    completions,
    costs,
    differing,
    overlapping,
    scaled,
    sensitivity,
    simulated,
)
from tests.support.tiresias import read

TRACE: Final = "480_job.csv"
NODES: Final = {f"n{number}": 2 for number in range(1, 5)}
JOBS, QUICK_JOBS = 40, 10
QUICK_PACE: Final = 2.0
GRACE_S: Final = 10.0
CALIBRATION: Final = LiveJob("calibration", 2, 0.0, 20.0)
CALIBRATIONS: Final = 5
START_S: Final = 60.0
"""Until all nodes are there, and for each preemption of the calibration."""
LONGEST_S: Final = 1_500.0
"""Of one run."""
TRAIN: Final = Path(__file__).parents[2] / "docs" / "examples" / "train.py"
TRAININGS: Final = {"digits-1": 1, "digits-2": 2, "digits-3": 2}
"""Workers by name; the last one is preempted."""
EPOCHS: Final = 20
TORCH_START_S: Final = 240.0
"""Importing torch takes up to 25 s, and many times that where several do it on two cores."""
WORKER: Final = Path(__file__).with_name("scheduler_live_worker.py")


@dataclass
class Live:
    """A cluster of processes, and what its scheduler wrote."""

    cluster: Cluster
    directory: Path
    processes: tuple[Process, ...]
    recording: Recording = field(default_factory=Recording)
    entries: list[ScheduleEvent] = field(default_factory=list)
    heard: int = 0
    """Sequence of the last one."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def notes(self) -> Path:
        """Where workers note when they ran."""
        return self.directory / "notes"

    async def take(self, delivery: Delivery) -> None:
        """An entry of the scheduler's stream; those that are delivered again are passed over."""
        if isinstance(delivery.message, ScheduleEvent) and delivery.sequence > self.heard:
            self.heard = delivery.sequence
            self.entries.append(delivery.message)
            self.recording.add(delivery.message, NODES)
            self.changed.set()

    async def ask(self, endpoint: Endpoint, request: Any) -> Any:
        """A query of the scheduler."""
        return await self.cluster.bus.request(endpoint.template.subject(self.cluster.bus.root), request, timeout_s=10)

    async def until(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Wait for an entry after which a condition holds.

        Raises:
            RuntimeError: it did not hold in time, or a process has ended.
        """
        deadline_s = time.monotonic() + within_s
        while not condition():
            for process in self.processes:
                process.check()
            self.changed.clear()
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{what}: not within {within_s:g} s")
            try:
                await asyncio.wait_for(self.changed.wait(), 1.0)
            except TimeoutError:
                continue

    async def until_complete(self) -> None:
        """Wait for the scheduler, and for all nodes."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                reply = await self.ask(SCHEDULER_QUEUE, QueueRequest())
            except BusError as error:
                reply, reason = None, str(error)
            else:
                reason = f"{reply.slots} of {sum(NODES.values())} slots are there"
            if isinstance(reply, QueueReply) and reply.slots == sum(NODES.values()):
                return
            for process in self.processes:
                process.check()
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the cluster is not complete: {reason}")
            await asyncio.sleep(0.2)

    async def submit(self, job: LiveJob, estimate_s: float | None) -> None:
        """Submit a job of the trace."""
        spec = JobSpec(
            job=job.name,
            workers=job.workers,
            command=(sys.executable, "-S", "-E", str(WORKER), str(job.duration_s), str(self.notes)),
            directory=str(self.directory),
            preemption=Preemption.CHECKPOINT,
            grace_s=GRACE_S,
            estimate_s=estimate_s,
        )
        await self.ask(SCHEDULER_SUBMIT, SubmitRequest(spec=spec))

    def presences(self) -> list[Presence]:
        """Of all workers so far; one that was killed has no end, and counts as if it had ended at once."""
        found = []
        for begun in self.notes.glob("*.begin"):
            ended = begun.with_suffix(".end")
            note = json.loads((ended if ended.exists() else begun).read_text())
            del note["pid"]
            found.append(Presence(**({"end_s": note["begin_s"]} | note)))
        return found


class Nodes(Protocol):
    """What runs the workers."""

    name: str

    def run(self, cluster: Cluster, directory: Path) -> AbstractAsyncContextManager[Sequence[Process]]:
        """Processes that answer for all of `NODES`, for as long as the block lasts."""

    async def midway(self) -> None:
        """What is done to it once half of the jobs have ended."""


class Runners:
    """A runner for each node."""

    name = "runners"

    @asynccontextmanager
    async def run(self, cluster: Cluster, directory: Path) -> AsyncIterator[Sequence[Process]]:
        """Started and stopped."""
        async with AsyncExitStack() as stack:
            starts = [("services.runner", _runner(node, slots, directory), node) for node, slots in NODES.items()]
            yield [await stack.enter_async_context(cluster.run(*start)) for start in starts]

    async def midway(self) -> None:
        """Nothing."""


@asynccontextmanager
async def live_cluster(directory: Path, nodes: Nodes) -> AsyncIterator[Live]:
    """A server, a scheduler and what runs the workers."""
    scheduler = {"TURNBUCKLE_SCHEDULER__ANNOUNCE_LIMITS": "false", "TURNBUCKLE_SCHEDULER__ADVISOR_TIMEOUT_S": "0"}
    async with (
        open_cluster() as cluster,
        cluster.run("services.scheduler", scheduler, "scheduler") as process,
        nodes.run(cluster, directory) as processes,
    ):
        live = Live(cluster, directory, (process, *processes))
        subscription = await cluster.bus.replay(SCHEDULE_STREAM, live.take)
        try:
            await live.until_complete()
            yield live
        finally:
            await subscription.stop()


def _readable_by_workers(directory: Path) -> Path:
    (directory / "notes").mkdir()
    directory.chmod(0o777)
    return directory


def _runner(node: str, slots: int, directory: Path) -> dict[str, str]:
    settings = {
        "NODE": node,
        "SLOTS": str(slots),
        "CORES": str(slots * (os.cpu_count() or 1) / sum(NODES.values())),
        "MEMORY_BYTES": "1GiB",
        "ADDRESS": "127.0.0.1",
        "STATE_DIRECTORY": str(directory / node),
        "CONTROL_GROUPS": "off",
        "WORKERS_AT_STOP": "stop",
    }
    if os.geteuid() == 0:
        settings["RUN_AS"] = "root"
    return {f"TURNBUCKLE_RUNNER__{name}": value for name, value in settings.items()}


async def calibrate(live: Live) -> Costs:
    """What starts and stops take: one job, preempted again and again."""
    job, recording = CALIBRATION, live.recording
    await live.submit(job, None)
    for number in range(1, CALIBRATIONS + 1):
        await live.until(lambda n=number: _is_ready(recording, job.name, n), START_S, "the calibration runs")
        await live.ask(SCHEDULER_CONTROL, ControlRequest(job=job.name, action=JobAction.PREEMPT))
    await live.until(lambda: job.name in recording.ended, job.duration_s + START_S, "the calibration ends")
    return costs(recording, job.name)


def _is_ready(recording: Recording, job: str, attempt: int) -> bool:
    found = recording.attempts.get((job, attempt))
    return found is not None and found.start_took_s is not None


async def run_trace(live: Live, nodes: Nodes, jobs: Sequence[LiveJob], *, estimated: bool) -> None:
    """Submit jobs when their time comes, and wait until all have ended."""
    begin_s = time.monotonic()
    for job in jobs:
        await asyncio.sleep(max(0.0, begin_s + job.submit_s - time.monotonic()))
        await live.submit(job, job.duration_s if estimated else None)
    recording = live.recording
    await live.until(lambda: len(recording.ended) > len(jobs) // 2, LONGEST_S, "half of the jobs end")
    await nodes.midway()
    for job in jobs:
        await live.until(lambda name=job.name: name in recording.ended, LONGEST_S, f"{job.name} ends")
    say(f"{nodes.name}: {len(jobs)} jobs in {time.monotonic() - begin_s:.0f} s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    title: str
    comparison: Comparison
    measured: Costs
    sensitivity: Sensitivity
    record: dict[str, Any]
    picture: Path
    problems: tuple[str, ...]


async def measure(title: str, nodes: Nodes, jobs: Sequence[LiveJob], *, estimated: bool, picture: str) -> Outcome:
    """A live run on a cluster of its own, and its simulation; ``picture``: the file's name."""
    load = os.getloadavg()
    with TemporaryDirectory(prefix="turnbuckle-bench-") as name:
        directory = _readable_by_workers(Path(name))
        async with live_cluster(directory, nodes) as live:
            measured = await calibrate(live)
            say(f"{title}: a start takes {measured.start_s:.2f} s, a stop {measured.stop_s:.2f} s")
            await run_trace(live, nodes, jobs, estimated=estimated)
            recording, presences = live.recording, live.presences()
    run = simulated(jobs, recording, NODES, measured)
    again = sensitivity(jobs, recording, NODES, measured, run)
    overlaps = overlapping(presences, recording, NODES)
    comparison = compare(recording, run, overlaps)
    others = differing(live.entries)
    live_run = replace(
        run,
        spans=recording.spans(job.name for job in jobs),
        ended=tuple(replace(one, ended_s=_ended_s(recording, one.job.name, jobs)) for one in run.ended),
    )
    file = OUTPUT / picture
    _draw(file, title, live_run, run)
    record = {
        "title": title,
        "load": load,
        "costs": {"start_s": measured.start_s, "stop_s": measured.stop_s},
        "comparison": comparison.as_dict(),
        "simulations_moved": {"by_at_most_s": MOVED_S, **asdict(again)},
        "completion_s": completions(recording, run),
        "twice": [*recording.twice, *overlaps],
        "entries": len(live.entries),
        "decided_otherwise_on_replay": others,
    }
    failed = [
        f"{name}: {ended.outcome}, {ended.reason}"
        for name, ended in recording.ended.items()
        if ended.outcome is not JobOutcome.ENDED
    ]
    return Outcome(
        title, comparison, measured, again, record, file, (*recording.twice, *overlaps, *failed, *_told(others))
    )


def _told(others: Sequence[int]) -> list[str]:
    return [f"entry {place} is decided otherwise on replay" for place in others]


def _ended_s(recording: Recording, job: str, jobs: Sequence[LiveJob]) -> float:
    """Since the first submission, as simulated times are."""
    first_s = min(recording.submitted_s[one.name] for one in jobs)
    return recording.ended[job].ended_ns / 1e9 - first_s


def _draw(file: Path, title: str, live: Any, simulation: Any) -> None:
    from services.scheduler.pictures import draw_beside  # noqa: PLC0415 - matplotlib

    file.parent.mkdir(parents=True, exist_ok=True)
    draw_beside({"live": live, "simulated": simulation}, title, file)


async def run_torch(live: Live) -> list[dict[str, Any]]:
    """Trainings, the last of which is preempted once; what each did."""
    recording = live.recording
    for name, workers in TRAININGS.items():
        spec = JobSpec(
            job=name,
            workers=workers,
            command=(sys.executable, str(TRAIN), "--epochs", str(EPOCHS)),
            directory=str(live.directory),
            preemption=Preemption.CHECKPOINT,
            grace_s=TORCH_START_S,
        )
        await live.ask(SCHEDULER_SUBMIT, SubmitRequest(spec=spec))
    await live.until(lambda: _is_ready(recording, name, 1), TORCH_START_S, f"{name} trains")
    await live.ask(SCHEDULER_CONTROL, ControlRequest(job=name, action=JobAction.PREEMPT))
    for job in TRAININGS:
        await live.until(lambda job=job: job in recording.ended, LONGEST_S, f"{job} ends")
    rows = []
    for job, workers in TRAININGS.items():
        ended, attempts = recording.ended[job], [one for (of, _), one in recording.attempts.items() if of == job]
        rows.append(
            {
                "job": job,
                "workers": workers,
                "outcome": ended.outcome.value,
                "reason": ended.reason,
                "ran_s": ended.ran_s,
                "lost_s": ended.lost_s,
                "preemptions": ended.preemptions,
                "start_took_s": [one.start_took_s for one in attempts],
                "stop_took_s": [one.stop_took_s for one in attempts if one.stop_took_s is not None],
            }
        )
    return rows


async def measure_torch() -> list[dict[str, Any]]:
    """On a cluster of its own."""
    with TemporaryDirectory(prefix="turnbuckle-bench-") as name:
        directory = _readable_by_workers(Path(name))
        async with live_cluster(directory, Runners()) as live:
            return await run_torch(live)


async def measure_all(jobs: Sequence[LiveJob], runs: Sequence[tuple[str, bool, str]]) -> list[Outcome]:
    """Each on a cluster of its own, at the same time: workers sleep."""
    return await asyncio.gather(
        *(
            measure(title, Runners(), jobs, estimated=estimated, picture=f"scheduler-live-{name}.png")
            for title, estimated, name in runs
        )
    )


def page_table(outcomes: Sequence[Outcome], machine: Machine) -> dict[str, Any]:
    """For a page."""
    columns = ["run", "mean JCT live", "simulated", "ratio", "rank correlation"]
    columns += [f"that of simulations whose jobs take up to {MOVED_S:g} s longer"]
    columns += ["preemptions live (simulated)", "slots used twice"]
    rows = [
        [
            each.title,
            f"{one.live_jct_s:.1f} s",
            f"{one.simulated_jct_s:.1f} s",
            f"{one.ratio:.3f}",
            f"{one.rank_correlation:.3f}",
            each.sensitivity.text,
            f"{one.live_preemptions} ({one.simulated_preemptions})",
            str(one.twice),
        ]
        for each, one in ((each, each.comparison) for each in outcomes)
    ]
    return {"machine": machine.line, "columns": columns, "rows": rows}


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """For people."""
    heads = ["run", "jobs", "failed", "mean JCT live", "simulated", "ratio", "rank corr."]
    heads += [f"of simulations moved by {MOVED_S:g} s", "preemptions", "twice"]
    rows = [heads]
    for each in outcomes:
        one = each.comparison
        preemptions = f"{one.live_preemptions} ({one.simulated_preemptions} simulated)"
        rows.append(
            [
                each.title,
                str(one.jobs),
                str(one.failed),
                f"{one.live_jct_s:.1f} s",
                f"{one.simulated_jct_s:.1f} s",
                f"{one.ratio:.3f}",
                f"{one.rank_correlation:.3f}",
                each.sensitivity.text,
                preemptions,
                str(one.twice),
            ]
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*lines, *(f"{each.title}: {problem}" for each in outcomes for problem in each.problems)]


def main(arguments: Sequence[str]) -> int:
    """Run, simulate, compare, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scheduler --live")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_JOBS} jobs at double pace, with estimates only (2 minutes)"
    )
    parser.add_argument("--torch", action="store_true", help="only trainings of docs/examples/train.py (3 minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    machine = this_machine()
    if given.torch:
        trainings = asyncio.run(measure_torch())
        record: dict[str, Any] = {"machine": machine.as_dict(), "trainings": trainings}
        written = [write_record(record, OUTPUT / "scheduler-live-torch.json")]
        tell("\n".join([machine.line, *map(str, trainings)]), record, written, as_json=given.json)
        return 0
    jobs = scaled(read(TRACE), QUICK_JOBS, QUICK_PACE) if given.quick else scaled(read(TRACE), JOBS)
    runs = [("index, by estimates", True, "estimated")]
    runs += [] if given.quick else [("index, ended jobs only", False, "observed")]
    outcomes = asyncio.run(measure_all(jobs, runs))
    record = {
        "machine": machine.as_dict(),
        "load_at_end": os.getloadavg(),
        "nodes": NODES,
        "runs": [each.record for each in outcomes],
        "tables": {"runs": page_table(outcomes, machine)},
    }
    lines = [machine.line, f"load at the end {os.getloadavg()[0]:.1f}", *table(outcomes)]
    written = [write_record(record, OUTPUT / "scheduler-live.json"), *(each.picture for each in outcomes)]
    tell("\n".join(lines), record, written, as_json=given.json)
    return 0

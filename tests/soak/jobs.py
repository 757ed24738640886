"""Schedulers, runners, an agent, an allocator and the server die at random moments: ``make soak-jobs``.

Two schedulers, three runners of two slots each, gangs of one to four workers that can be preempted, and one that never
gives up its slots. Processes are ended by SIGKILL or frozen, some at the same time, and started again. Each job must
end, having counted to its number; no attempt may start a rank twice, no two processes of one rank may live at the same
time; nothing may be left: no process, no control group, no frozen group, no job in the queue.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from schemas.message import Message
from schemas.scheduling import (
    ControlRequest,
    JobAction,
    JobPhase,
    JobSpec,
    Preemption,
    QueuedJob,
    QueueReply,
    QueueRequest,
    SubmitRequest,
)
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from services._runtime.bus.api import BusError, RequestRefusedError
from tests.soak import counting_worker
from tests.soak.faults import Faults
from tests.soak.soak import command
from tests.support.cluster_lab import MIB, ClusterLab, ServiceProcess

NODES: Final = ("n1", "n2", "n3")
SLOTS: Final = 2
WAITING_AT_MOST: Final = 6
DRAINED_S: Final = 180.0
"""For all jobs to end once nothing dies any more."""
NEXT_DECISION_S: Final = 8.0
"""For a submission to be in the log, once everything runs again."""
USER: Final = "root"
"""The interpreter of a checkout below root's home can be run by no other."""


@dataclass
class JobsReport:
    """What came of it. All but the first block must be empty."""

    seed: int
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    submitted: int = 0
    ended: int = 0
    attempts: int = 0
    preempted_by_hand: int = 0
    next_decision_s: float = 0.0

    not_ended: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    started_twice: list[str] = field(default_factory=list)
    alive_twice: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    ended_by_themselves: list[str] = field(default_factory=list)
    fault_log: list[str] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """Everything that must not be."""
        named = {
            "not ended": self.not_ended,
            "failed": self.failed,
            "an attempt started a rank twice": self.started_twice,
            "two processes of one rank": self.alive_twice,
            "ended without having done its work": self.not_done,
            "left behind": self.left_behind,
            "ended by itself": self.ended_by_themselves,
        }
        late = self.next_decision_s > NEXT_DECISION_S
        return [f"{name}: {what}" for name, found in named.items() for what in found] + (
            [f"the next submission took {self.next_decision_s:.1f} s"] if late else []
        )

    @property
    def text(self) -> str:
        """For people."""
        return "\n".join(
            [
                f"seed {self.seed}, {self.seconds:.0f} s: {sum(self.faults.values())} faults",
                *(f"  {count:>5} {name}" for name, count in sorted(self.faults.items())),
                f"jobs: {self.submitted} submitted, {self.ended} ended in {self.attempts} attempts",
                f"  {self.preempted_by_hand} preempted by hand",
                f"after the last fault the next submission was accepted within {self.next_decision_s:.1f} s",
                *self.troubles,
            ]
        )


class JobsSoak:
    """One run in one cluster."""

    def __init__(self, cluster: ClusterLab, seed: int) -> None:
        self.cluster = cluster
        self.report = JobsReport(seed)
        chance = random.Random(seed)
        kinds = ("scheduler", "scheduler", "runner", "runner", "runner", "agent", "allocator", "server")
        self.faults = Faults(cluster, random.Random(chance.random()), kinds)
        self.chance = random.Random(chance.random())
        self.jobs: dict[str, JobSpec] = {}

    async def run(self, seconds: float) -> JobsReport:
        """Soak, let all jobs end, judge."""
        self.faults.add("agent n1", lambda: self.cluster.launch_agent("n1"))
        self.faults.add("allocator", self.cluster.launch_allocator)
        for number in (1, 2):
            self.faults.add(f"scheduler {number}", lambda number=number: self._launch_scheduler(number))
        for node in NODES:
            self.faults.add(f"runner {node}", lambda node=node: self._launch_runner(node))
        await self.faults.ready()
        await self._trouble(seconds)
        await self._next_decision()
        await self._drain()
        self._judge()
        return self.report

    def _launch_scheduler(self, number: int) -> ServiceProcess:
        return self.cluster.launch("scheduler", SCHEDULER__REPLICA=f"scheduler-{number}")

    def _launch_runner(self, node: str) -> ServiceProcess:
        return self.cluster.launch(
            "runner",
            RUNNER__NODE=node,
            RUNNER__SLOTS=str(SLOTS),
            RUNNER__ADDRESS="127.0.0.1",
            RUNNER__STATE_DIRECTORY=str(self.cluster.directory / "runners"),
            RUNNER__MANAGED_ROOT=self.cluster.root,
            RUNNER__RUN_AS=USER,
        )

    async def _trouble(self, seconds: float) -> None:
        start_s = time.monotonic()
        loads = asyncio.create_task(self._submit_all_the_time())
        faults = asyncio.create_task(self.faults.run())
        await asyncio.wait({loads, faults}, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in (faults, loads):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.faults.heal()
        self.report.seconds = time.monotonic() - start_s

    async def _submit_all_the_time(self) -> None:
        while True:
            with suppress(BusError):
                if await self._waiting() < WAITING_AT_MOST:
                    await self._submit(self._job())
                elif self.chance.random() < 0.3:
                    await self._preempt()
            await asyncio.sleep(self.chance.expovariate(2.0))

    async def _ask(self, endpoint: Endpoint, request: Message) -> Message:
        return await self.cluster.bus.request(endpoint.template.subject(self.cluster.bus.root), request, timeout_s=5.0)

    async def _queue(self) -> dict[str, QueuedJob]:
        reply = await self._ask(SCHEDULER_QUEUE, QueueRequest(ended_within_s=86_400.0))
        assert isinstance(reply, QueueReply)
        return {job.job: job for job in reply.jobs}

    async def _waiting(self) -> int:
        return sum(job.phase is JobPhase.WAITING for job in (await self._queue()).values())

    def _job(self) -> JobSpec:
        name = f"job-{len(self.jobs):04}"
        directory = self.cluster.directory / "jobs" / name
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)
        never = self.chance.random() < 0.1
        return JobSpec(
            job=name,
            workers=1 if never else self.chance.choice((1, 1, 2, 3, 4)),
            cpu_cores=0.1,
            memory_bytes=64 * MIB,
            command=(
                sys.executable,
                "-S",
                "-E",
                counting_worker.__file__,
                str(directory),
                str(self.chance.randint(100, 1_500)),
            ),
            directory=str(directory),
            preemption=Preemption.NEVER if never else Preemption.CHECKPOINT,
            grace_s=20.0,
        )

    async def _submit(self, spec: JobSpec) -> None:
        """Until it is accepted: a lost answer is followed by the refusal of a second job of this name."""
        while True:
            try:
                await self._ask(SCHEDULER_SUBMIT, SubmitRequest(spec=spec, by="soak"))
            except RequestRefusedError as error:
                if error.code != 409:
                    raise
            except BusError:
                await asyncio.sleep(0.2)
                continue
            self.jobs[spec.job] = spec
            self.report.submitted += 1
            return

    async def _preempt(self) -> None:
        running = [job for job in (await self._queue()).values() if job.phase is JobPhase.RUNNING]
        chosen = [job.job for job in running if job.preemption is Preemption.CHECKPOINT]
        if chosen:
            await self._ask(
                SCHEDULER_CONTROL, ControlRequest(job=self.chance.choice(chosen), action=JobAction.PREEMPT, by="soak")
            )
            self.report.preempted_by_hand += 1

    async def _next_decision(self) -> None:
        """Everything runs again: a leader takes over what it is asked."""
        begin_s = time.monotonic()
        await self._submit(self._job())
        self.report.next_decision_s = time.monotonic() - begin_s

    async def _drain(self) -> None:
        deadline_s = time.monotonic() + DRAINED_S
        jobs: dict[str, QueuedJob] = {}
        while time.monotonic() < deadline_s:
            with suppress(BusError):
                jobs = await self._queue()
                if all(name in jobs and jobs[name].phase in {JobPhase.ENDED, JobPhase.FAILED} for name in self.jobs):
                    break
            await asyncio.sleep(0.5)
        for name in self.jobs:
            phase = jobs[name].phase if name in jobs else None
            if phase is JobPhase.FAILED:
                self.report.failed.append(f"{name}: {jobs[name].why}")
            elif phase is not JobPhase.ENDED:
                self.report.not_ended.append(f"{name}: {phase}, {jobs[name].why if name in jobs else 'not known'}")
        self.report.ended = sum(job.phase is JobPhase.ENDED for job in jobs.values())
        self.report.attempts = sum(job.attempt for job in jobs.values())

    def _judge(self) -> None:
        report = self.report
        for name, spec in self.jobs.items():
            events = self.cluster.directory / "jobs" / name / "events"
            lines = events.read_text(encoding="ascii").split("\n")[:-1] if events.exists() else []
            starts = [tuple(line.split()[1:3]) for line in lines if line.startswith("start")]
            report.started_twice += [f"{name}: {one}" for one in set(starts) if starts.count(one) > 1]
            report.alive_twice += [f"{name}: {line}" for line in lines if line.startswith("again")]
            done = {line.split()[2] for line in lines if line.startswith("done")}
            if name not in " ".join(report.failed) and done != {str(rank) for rank in range(spec.workers)}:
                report.not_done.append(f"{name}: {sorted(done)} of {spec.workers}")
        report.left_behind += [*self._processes(), *self._groups()]
        report.faults, report.fault_log = dict(self.faults.counts), self.faults.log
        report.ended_by_themselves = self.faults.ended_by_themselves

    def _processes(self) -> list[str]:
        """Workers and shims that live."""
        found = []
        here = str(self.cluster.directory).encode()
        ours = {slot.process.pid for slot in self.faults.slots} | {os.getppid()}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in {*ours, os.getpid()}:
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    if here in command and b"nats-server" not in command:
                        found.append(f"process {entry.name}: {command.replace(bytes(1), b' ').decode()[:200]}")
        return found

    def _groups(self) -> list[str]:
        """Control groups of jobs."""
        root = Path(self.cluster.tree.cpu, self.cluster.root)
        return [f"control group {path}" for path in root.glob("job-*/*") if path.is_dir()]


async def soak(seed: int, seconds: float, directory: Path) -> JobsReport:
    """In a cluster of its own; workers' user may enter the directory."""
    cluster = ClusterLab(directory)
    try:
        await cluster.start()
        return await JobsSoak(cluster, seed).run(seconds)
    finally:
        await cluster.close()


def main() -> int:
    """As `command`."""
    return command(soak, "soak-jobs", (__doc__ or "").partition("\n")[0])


if __name__ == "__main__":
    sys.exit(main())

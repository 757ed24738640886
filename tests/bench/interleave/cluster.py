"""The product itself for the interleaving benchmark: `turnbuckle up` with two racks, jobs submitted across the uplink.

A job's place is forced by draining every other node: one worker on a node of the first rack, the other on its opposite.
A column's congestion control is a setting of its jobs, where the runners offer it; else it is that of the routes in the
nodes' namespaces (ip-route(8), ``congctl``), which only names that the kernel has can be.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.message import Message
from schemas.scheduling import (
    MLTCP,
    ControlRequest,
    JobAction,
    JobPhase,
    JobSpec,
    LinkScore,
    QueuedJob,
    QueueReply,
    QueueRequest,
    RunnerInfo,
    SubmitRequest,
    WorkerLogReply,
    WorkerLogRequest,
)
from schemas.service import Endpoint
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import RUNNERS
from schemas.subjects import WORKER_LOGS
from services._host.bpf.congestion import UNIT, CongestionPrograms
from services._host.bpf.loader_process import KernelProgramsError
from services._host.kernel_programs import kernel_directory
from services._jobs.sandbox.network import DEVICE
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.cli.toolkit.supervisor import free_port
from tests.bench.interleave.kernel_threads import receive_in_threads
from tests.bench.machine import descendants
from tests.support.up_process import environment, state_directory, up

WITHIN_S: Final = 120.0
"""For everything that is waited for, but the jobs' ends."""
POLL_S: Final = 0.2
OVER: Final = (JobPhase.ENDED, JobPhase.FAILED, JobPhase.CANCELLED)
AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_NETWORK: Final = "10.77.0.0/16"
_NAMESPACE: Final = "TURNBUCKLE_RUNNER__NETWORK_NAMESPACE"


class NotOfferedError(Exception):
    """A congestion control that neither the runners nor the kernel's routes have; the text says so."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job, and the nodes of its workers."""

    name: str
    nodes: tuple[str, ...]
    """By rank."""


@dataclass(frozen=True, slots=True)
class LastSeen:
    """What the scheduler knew last while all jobs of a run ran; nothing, if they never did at once."""

    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)
    links: tuple[LinkScore, ...] = ()
    """That several of them share."""

    @property
    def why_not_shifted(self) -> str:
        """In the scheduler's words, by link."""
        reasons = [f"{link.link}: {link.why}" for link in self.links if link.why]
        return "; ".join(reasons) or "it knew of no link that they share"


class RackCluster:
    """A running cluster of pairs of nodes, one of each pair in either rack."""

    def __init__(self, bus: NatsBus, pid: int, pairs: int, directory: Path) -> None:
        self._bus, self._pairs, self.directory = bus, pairs, directory
        names = [f"n{number}" for number in range(1, 2 * pairs + 1)]
        self.pairs = list(zip(names[:pairs], names[pairs:], strict=True))
        self._runners = _runner_environments(pid)
        self._unscaled: CongestionPrograms | None = None

    @property
    def namespaces(self) -> dict[str, Path]:
        """Of the nodes' networks, by node."""
        return {node: Path(settings[_NAMESPACE]) for node, settings in self._runners.items()}

    async def ask(self, endpoint: Endpoint, request: Message) -> Any:
        """A request to the scheduler."""
        return await self._bus.request(endpoint.template.subject(self._bus.root), request, timeout_s=30.0)

    async def drain_all(self) -> None:
        """Start nothing anywhere, until a job is submitted to a pair."""
        for pair in self.pairs:
            for node in pair:
                await self.ask(SCHEDULER_CONTROL, ControlRequest(drain=node))

    async def choose(self, congestion_control: str, *, scaled: bool = True) -> str:
        """How a job gets this congestion control: its setting, or empty, and the routes have it from now on.

        Not scaled is MLTCP with F = 1, which no runner offers: loaded here, given by the routes.

        Raises:
            NotOfferedError: there is none of this name.
        """
        if not scaled:
            for settings in self._runners.values():
                _route(settings, self._load_unscaled().registered[congestion_control])
            return ""
        entries = (await self._bus.bucket(RUNNERS).entries()).values()
        offered = [one.message.congestion_controls for one in entries if isinstance(one.message, RunnerInfo)]
        if offered and all(congestion_control in names for names in offered):
            return congestion_control
        if congestion_control not in AVAILABLE.read_text(encoding="ascii").split():
            raise NotOfferedError(f"{congestion_control}: no runner offers it, and the kernel has none of that name")
        for settings in self._runners.values():
            _route(settings, congestion_control)
        return ""

    def _load_unscaled(self) -> CongestionPrograms:
        try:
            self._unscaled = self._unscaled or CongestionPrograms(kernel_directory(None), "everybody", 0, UNIT)
        except KernelProgramsError as error:
            raise NotOfferedError(f"MLTCP with F = 1: {error}") from error
        if MLTCP not in self._unscaled.registered:
            raise NotOfferedError(f"MLTCP with F = 1: {self._unscaled.status.get(MLTCP, 'it is not there')}")
        return self._unscaled

    def unload(self) -> None:
        """What was loaded here."""
        if self._unscaled is not None:
            self._unscaled.close()

    async def submit(self, name: str, pair: int, command: list[str], **settings: Any) -> Submitted:
        """Run a job of two workers on a pair of nodes, and wait until they run."""
        nodes = self.pairs[pair]
        for node in nodes:
            await self.ask(SCHEDULER_CONTROL, ControlRequest(undrain=node))
        spec = JobSpec(
            job=name, workers=2, command=(sys.executable, *command), directory=str(self.directory), **settings
        )
        await self.ask(SCHEDULER_SUBMIT, SubmitRequest(spec=spec))
        reply = await self._until(
            lambda reply: _job(reply, name).phase is not JobPhase.WAITING, WITHIN_S, f"{name} runs"
        )
        for node in nodes:
            await self.ask(SCHEDULER_CONTROL, ControlRequest(drain=node))
        # By rank, as the scheduler has it: n10 goes before n4 there.
        return Submitted(name, _job(reply, name).nodes or nodes)

    async def cancel(self, job: Submitted) -> None:
        """End a job."""
        await self.ask(SCHEDULER_CONTROL, ControlRequest(job=job.name, action=JobAction.CANCEL))

    async def queue(self) -> QueueReply:
        """What the scheduler knows."""
        reply = await self.ask(SCHEDULER_QUEUE, QueueRequest())
        assert isinstance(reply, QueueReply)
        return reply

    async def _until(self, condition: Callable[[QueueReply], bool], within_s: float, what: str) -> QueueReply:
        """Wait until a condition of the scheduler's answer holds; returns that answer.

        Raises:
            RuntimeError: it did not in time.
        """
        deadline_s = time.monotonic() + within_s
        while not condition(reply := await self.queue()):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{what}: not within {within_s:g} s")
            await asyncio.sleep(POLL_S)
        return reply

    async def until_over(self, jobs: list[Submitted], within_s: float) -> LastSeen:
        """Wait until jobs have ended, however they do; returns what the scheduler knew of them last while all ran.

        Raises:
            RuntimeError: they did not in time.
        """
        last = LastSeen()
        names = {job.name for job in jobs}

        def over(reply: QueueReply) -> bool:
            nonlocal last
            mine = {job.job: job for job in reply.jobs if job.job in names}
            if all(job.phase is JobPhase.RUNNING for job in mine.values()):
                last = LastSeen(mine, tuple(link for link in reply.links if names.intersection(link.jobs)))
            return all(job.phase in OVER for job in mine.values())

        await self._until(over, within_s, "the jobs end")
        return last

    async def log(self, job: Submitted, rank: int = 0) -> str:
        """What a worker has written."""
        text, offset = "", 0
        subject = WORKER_LOGS.subject(self._bus.root, node=job.nodes[rank])
        while True:
            request = WorkerLogRequest(job=job.name, rank=rank, offset=offset)
            reply = await self._bus.request(subject, request, timeout_s=30.0)
            assert isinstance(reply, WorkerLogReply), reply
            text += reply.text
            if not reply.text:
                return text
            offset = reply.next_offset


def _job(reply: QueueReply, name: str) -> QueuedJob:
    return next(job for job in reply.jobs if job.job == name)


def _route(settings: dict[str, str], congestion_control: str) -> None:
    """Give a node's route to the others a congestion control."""
    network, address = settings[_NAMESPACE], settings["TURNBUCKLE_RUNNER__ADDRESS"]
    route = ["ip", "route", "replace", _NETWORK, "dev", DEVICE, "src", address, "congctl", congestion_control]
    subprocess.run(["nsenter", f"--net={network}", "--", *route], check=True)


def _runner_environments(pid: int) -> dict[str, dict[str, str]]:
    """Settings of the runners that a `turnbuckle up` has started, by node."""
    found = {}
    for child in descendants(pid):
        raw = Path(f"/proc/{child}/environ").read_bytes().decode(errors="replace")
        variables = dict(entry.partition("=")[::2] for entry in raw.split("\0"))
        if _NAMESPACE in variables:
            found[variables["TURNBUCKLE_RUNNER__NODE"]] = variables
    return found


@asynccontextmanager
async def rack_cluster(pairs: int, uplink: str, *, kernel_threads: bool = False) -> AsyncIterator[RackCluster]:
    """A cluster of so many pairs of nodes, ended with everything that it started.

    With `kernel_threads` its nodes take packets in threads of the kernel's.

    Raises:
        RuntimeError: it does not start; holds what it said.
    """
    port, root = free_port(), "turnbuckle-bench"
    env = environment(root) | {"TURNBUCKLE_RUNNER__RUN_AS": "root"}
    options = ("--cluster", f"{2 * pairs}x1", "--racks", "2", "--uplink", uplink, "--no-live", "--port", str(port))
    with tempfile.TemporaryDirectory(prefix="turnbuckle-bench-") as directory:
        with up(Path(directory), *options, env=env) as process:
            assert process.stderr is not None
            said = ""
            while "turnbuckle is up" not in said:
                line = await asyncio.to_thread(process.stderr.readline)
                if not line:
                    raise RuntimeError(f"turnbuckle up has ended: {said}")
                said += line
            bus = await NatsBus.connect(BusOptions(servers=(f"nats://127.0.0.1:{port}",)))
            try:
                cluster = RackCluster(bus, process.pid, pairs, Path(directory))
                await cluster.drain_all()
                if kernel_threads:
                    receive_in_threads(cluster.namespaces)
                try:
                    yield cluster
                finally:
                    cluster.unload()
            finally:
                await bus.close(2.0)
        shutil.rmtree(state_directory(root), ignore_errors=True)

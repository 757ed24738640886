"""A small cluster of real processes: nats-server, allocators, agents, and containers that do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions
from schemas.message import Message
from schemas.queries import AppState, StateReply, StateRequest
from schemas.streams import APPS
from schemas.subjects import CFS, LIMIT_DECISIONS, Subject
from services._host.cgroupfs import ManagedCgroup, detect, managed_directory
from services._runtime.bus.api import Bus, Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.agent.host_lock import exec_lock
from services.agent.settings import AgentSettings
from services.cli.apps.allocators import complete_state
from tests.support import obedient_load
from tests.support.cgroup_lab import wait_until
from tests.support.http_health import ask
from tests.support.limit_observer import CgroupTree, LimitObserver, Reading, read_group

ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 1 << 20
MODULES: Final = {"agent": "tests.support.agent_of_an_idle_machine"}
NICENESS: Final = -10
"""Of the services, and `WEIGHT` times the usual share for the loads: not other work on the machine is measured."""
WEIGHT: Final = 8
START_S: Final = 90.0
"""For a service to become ready on a machine that does other work."""


async def poll(
    probe: Callable[[], Awaitable[Any]], *, within_s: float = 60.0, every_s: float = 0.02, what: str = "the condition"
) -> Any:
    """The first true answer of an asynchronous probe; fails the test if that takes too long."""
    deadline = time.monotonic() + within_s
    while not (answer := await probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {within_s:g} s")
        await asyncio.sleep(every_s)
    return answer


class ServiceProcess:
    """One service as an operator would start it."""

    def __init__(self, service: str, environment: dict[str, str], log_path: Path) -> None:
        self.service = service
        self.log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULES.get(service, f"services.{service}")],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: os.nice(NICENESS),  # noqa: PLW1509 - one system call, no locks
            )

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def log(self) -> list[dict[str, Any]]:
        """Everything it has logged, whole lines only."""
        lines = self.log_path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    @property
    def health_port(self) -> int | None:
        """Where it listens, once it does."""
        return next((line["port"] for line in self.log() if line["event"] == "health_listening"), None)

    @property
    def replica_id(self) -> str:
        """Of an allocator."""
        return next(str(line["replica"]) for line in self.log() if line["event"] == "allocator_started")

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 while nobody listens."""
        port = self.health_port
        return (0, "") if port is None else await asyncio.to_thread(ask, port, path)

    async def ready(self, within_s: float = START_S) -> ServiceProcess:
        """Wait until it says that it is ready."""

        async def is_ready() -> bool:
            if not self.running:
                raise AssertionError(f"{self.service} ended: {self.log_path.read_text(encoding='utf-8')[-2000:]}")
            return (await self.get("/readyz"))[0] == 200

        await poll(is_ready, within_s=within_s, what=f"{self.service} ready")
        return self

    async def not_ready_because(self, text: str, within_s: float = 60.0) -> None:
        """Wait until it says that it is not ready, for this reason."""

        async def says_so() -> bool:
            status, body = await self.get("/readyz")
            return status == 503 and text in body

        await poll(says_so, within_s=within_s, what=f"{self.service} not ready because {text!r}")

    async def metric(self, name: str) -> float:
        """A metric's value now, summed over its labels."""
        status, text = await self.get("/metrics")
        assert status == 200, f"{self.service}: {status} {text}"
        samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return sum(float(value) for head, _, value in samples if head.partition("{")[0] == name)

    def send(self, number: signal.Signals) -> None:
        """Send a signal that does not end it."""
        self._process.send_signal(number)

    async def signal(self, number: signal.Signals, within_s: float = 60.0) -> int:
        """Send a signal that ends it; returns the exit code."""
        self._process.send_signal(number)
        return await asyncio.to_thread(self._process.wait, within_s)

    async def exit_code(self, within_s: float = 60.0) -> int:
        """Wait for its end."""
        return await asyncio.to_thread(self._process.wait, within_s)

    def kill(self) -> None:
        """End it whatever happens."""
        self._process.kill()
        self._process.wait()


class LabContainer:
    """A managed control group with an obedient load in it."""

    def __init__(self, create: Callable[[], ManagedCgroup], tree: CgroupTree) -> None:
        """``create`` makes the group once the load is there: an agent removes one that is empty for 2 s."""
        self._tree = tree
        self._load = subprocess.Popen(
            [sys.executable, "-S", "-E", obedient_load.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.wait_said("ready")
        self._group = group = create()
        self.directory = group.directory
        self.key = group.directory.rpartition("/")[2]
        assert group.add_process(self._load.pid), f"{group.directory} has vanished, or exit code {self._load.poll()}"

    def add_process(self, pid: int) -> None:
        """Charge another process to it from now on."""
        assert self._group.add_process(pid), f"{self.directory} has vanished"

    def tell(self, command: str) -> None:
        """See `obedient_load`."""
        assert self._load.stdin is not None
        self._load.stdin.write(f"{command}\n")
        self._load.stdin.flush()

    def wait_said(self, word: str) -> None:
        """Block until the load has said this."""
        assert self._load.stdout is not None
        assert self._load.stdout.readline().strip() == word

    @property
    def alive(self) -> bool:
        """Whether the load lives."""
        return self._load.poll() is None

    def read(self) -> Reading:
        """Its control files now."""
        reading = read_group(self._tree, self.directory)
        assert reading is not None, f"{self.directory} is gone"
        return reading

    @property
    def quota_us(self) -> int:
        """In the kernel now."""
        return self.read().quota_us

    @property
    def limit_bytes(self) -> int:
        """In the kernel now."""
        return self.read().limit_bytes

    @property
    def guarded(self) -> bool:
        """Whether the kernel's kill is taken away (version 1), or memory.high set below the limit (version 2)."""
        if self._tree.version == 2:
            return Path(self._tree.memory, self.directory, "memory.high").read_text(encoding="ascii").strip() != "max"
        control = Path(self._tree.memory, self.directory, "memory.oom_control").read_text(encoding="ascii").split()
        return control[1] == "1"

    def close(self) -> None:
        """Kill and remove. The agent may be quicker to remove the empty group."""
        self._load.kill()
        self._load.communicate()
        self._group.kill()
        wait_until(self._group.remove, what=f"removal of {self.directory}")


class MessageLog:
    """Messages of one pattern as they come, with their arrival."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def take(self, delivery: Delivery) -> None:
        """Bus handler."""
        self.messages.append(delivery.message)

    def rows(self, key: str) -> list[dict[str, Any]]:
        """One container's row of every batch or decision that has one, in order."""
        return [
            row
            for message in list(self.messages)
            if isinstance(message, CfsBatch | LimitDecisions)
            for row in message.rows()
            if row["container"] == key
        ]


class ClusterLab:
    """Makes everything, and takes it down again."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = f"tb-system-{os.getpid()}-{next(self._serial) % 10_000}"
        self.layout = detect()
        mounts = self.layout.mounts
        self.tree = CgroupTree(
            self.layout.version,
            mounts["cpu"].directory,
            mounts.get("cpuacct", mounts["cpu"]).directory,
            mounts["memory"].directory,
        )
        self.nats = EmbeddedNats()
        self.services: list[ServiceProcess] = []
        self.containers: list[LabContainer] = []
        self.observers: list[LimitObserver] = []
        self._agents_roots: set[str] = set()
        self._bus: NatsBus | None = None

    async def start(self) -> ClusterLab:
        """The server and our own connection."""
        await self.nats.start()
        self._bus = await NatsBus.connect(BusOptions(servers=(self.nats.url,), connect_deadline_s=60))
        return self

    @property
    def bus(self) -> Bus:
        """Our own connection."""
        assert self._bus is not None
        return self._bus

    def launch(self, service: str, **variables: str) -> ServiceProcess:
        """Start a service's process; variables without their prefix, such as ``AGENT__NODE="n1"``."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBUCKLE_", "NATS_"))}
        ours = {"NATS_URL": self.nats.url, "HEALTH_PORT": "0", "SHUTDOWN_GRACE_S": "30", **variables}
        environment = kept | {"XDG_CONFIG_HOME": "/nonexistent"} | {f"TURNBUCKLE_{k}": v for k, v in ours.items()}
        process = ServiceProcess(service, environment, self.directory / f"{service}-{next(self._serial)}.log")
        self.services.append(process)
        if "AGENT__MANAGED_ROOT" in variables:
            self._agents_roots.add(variables["AGENT__MANAGED_ROOT"])
        return process

    def launch_agent(
        self, node: str = "n1", root: str | None = None, docker: str = "off", **variables: str
    ) -> ServiceProcess:
        """Start an agent for a managed root of its own."""
        ours = {"AGENT__NODE": node, "AGENT__MANAGED_ROOT": root or self.root, "AGENT__DOCKER": docker}
        return self.launch("agent", **ours, **variables)

    def launch_allocator(self, **variables: str) -> ServiceProcess:
        """Start an allocator."""
        return self.launch("allocator", **variables)

    def running(self, service: str) -> list[ServiceProcess]:
        """Live processes of a service, oldest first."""
        return [process for process in self.services if process.service == service and process.running]

    async def announce(self, spec: AppSpec) -> AppSpec:
        """Put an application's spec, as `turnbuckle apply` does."""
        await self.bus.bucket(APPS).put(spec.name, spec)
        return spec

    def container(
        self, app: str, name: str, quota_us: int | None = None, limit_bytes: int | None = None, root: str | None = None
    ) -> LabContainer:
        """A new container; without limits unless given."""
        directory = managed_directory(app, name, f"{next(self._serial):012x}", root or self.root)
        return self.container_in(directory, quota_us, limit_bytes)

    def container_in(self, directory: str, quota_us: int | None = None, limit_bytes: int | None = None) -> LabContainer:
        """The same in a control group of any name, such as a pod's."""
        container = LabContainer(lambda: ManagedCgroup.create(self.layout, directory, quota_us, limit_bytes), self.tree)
        self._prefer(directory.partition("/")[0])
        self.containers.append(container)
        return container

    def _prefer(self, root: str) -> None:
        """Give all groups below a root more of the processors than other work gets. Quotas are not touched."""
        name, weight = ("cpu.shares", 1024) if self.tree.version == 1 else ("cpu.weight", 100)
        Path(self.tree.cpu, root, name).write_text(str(WEIGHT * weight), encoding="ascii")

    def remove(self, container: LabContainer) -> None:
        """The container ends."""
        self.containers.remove(container)
        container.close()

    def observe(self, *roots: str) -> LimitObserver:
        """An independent observer of all groups below these roots (default: ours), at work."""
        output = self.directory / f"observer-{next(self._serial)}.jsonl"
        observer = LimitObserver(self.tree, list(roots) or [self.root], output)
        self.observers.append(observer)
        wait_until(lambda: observer.at_work, what="the observer's first sample")
        return observer

    @contextlib.asynccontextmanager
    async def listen(self, pattern: Subject) -> AsyncIterator[MessageLog]:
        """Collect observations, from the first one that is sent within the block."""
        log = MessageLog()
        subscription = await self.bus.subscribe(pattern, log.take)
        try:
            await self.bus.flush(60)  # else what blocks the event loop next would keep the subscription here
            yield log
        finally:
            await subscription.stop()

    def batches(self, app: str) -> contextlib.AbstractAsyncContextManager[MessageLog]:
        """Collect an application's batches."""
        return self.listen(CFS.pattern(self.bus.root, app=app))

    def decisions(self, app: str) -> contextlib.AbstractAsyncContextManager[MessageLog]:
        """Collect an application's decisions."""
        return self.listen(LIMIT_DECISIONS.pattern(self.bus.root, app=app))

    async def state(self, app: str) -> AppState:
        """The allocator's view of an application."""
        reply = await complete_state(self.bus, StateRequest(app=app))
        assert isinstance(reply, StateReply)
        return reply.apps[0]

    async def states(self) -> dict[str, AppState]:
        """The allocators' view of all applications."""
        reply = await complete_state(self.bus, StateRequest())
        assert isinstance(reply, StateReply)
        return {state.spec.name: state for state in reply.apps}

    async def no_op_writes(self) -> float:
        """Of all running agents."""
        return sum([await agent.metric("turnbuckle_agent_no_op_writes_total") for agent in self.running("agent")])

    async def close(self) -> None:
        """Take everything down."""
        for observer in self.observers:
            observer.kill()
        for process in self.services:
            process.kill()
        for container in list(self.containers):
            self.remove(container)
        if self._bus is not None:
            await self._bus.close(2.0)
        await self.nats.stop()
        state: Path = AgentSettings.model_fields["state_directory"].default
        for root in self._agents_roots:  # agents leave their state to the next one; there will be none
            shutil.rmtree(state / root, ignore_errors=True)
            exec_lock(state, root).unlink(missing_ok=True)

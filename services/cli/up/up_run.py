"""What `turnbuckle up` does: NATS, allocators, agent, a cluster, each its own process; the demo; everything's end."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.apps import Policy
from schemas.streams import APPS, LEASES, NODES
from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, can_manage, detect
from services._runtime.bus.api import Bus
from services._runtime.bus.embedded_server import EmbeddedNats, NatsServerError, PortTakenError
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.command.output import print_note
from services.agent.commands import host_environment, managed_root, read_write_counts
from services.cli.apps.subscriptions import announcement_watcher, members_watcher, subscribe_sinks
from services.cli.apps.view_model import ViewModel
from services.cli.toolkit.supervisor import READY_TIMEOUT_S, ChildService, Supervisor
from services.cli.up.cluster import (
    Cluster,
    ClusterProcesses,
    forget_states,
    open_racks,
    until_complete,
    user_warning,
)
from services.cli.up.demo import DemoPlan, DemoWorkload, SimulatedWorkload, plan_demo
from services.cli.up.demo_processes import ProcessWorkload
from services.cli.up.demo_report import RunFacts, WriteCounts, build_report
from services.cli.up.recording import Recording

PORTS_TRIED: Final = 100
CHECK_EVERY_S: Final = 0.2
METRICS_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the user asked for."""

    demo: bool = False
    seconds: float | None = None
    """Stop by itself after so long; None: at Ctrl-C."""
    simulate: bool = False
    port: int = 4222
    store: Path | None = None
    """Where logs, pictures and JetStream's files are kept; None: in `turnbuckle-run`, and JetStream's are not kept."""
    policy: Policy = "waterfill"
    maker: str = "auto"
    """The demo's containers: auto, docker or processes."""
    allocators: int = 1
    ready_timeout_s: float = READY_TIMEOUT_S
    """How long NATS and each service may take to start."""
    cluster: Cluster | None = None
    """Emulated nodes for training jobs; None: there is no scheduler."""


@dataclass(slots=True)
class UpRun:
    """State and results of one run."""

    options: UpOptions
    directory: Path
    """Held by this run: logs, the picture and the report."""
    root: str = "tb"
    """First token of every subject."""
    nats_url: str = ""
    simulated: bool = False
    live: ViewModel = field(default_factory=ViewModel)
    recording: Recording = field(default_factory=Recording)
    plan: DemoPlan | None = None
    workload: DemoWorkload | None = None
    writes: WriteCounts = field(default_factory=WriteCounts)
    writes_before: WriteCounts = field(default_factory=WriteCounts)
    node: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def report_note(self, note: str) -> None:
        """Print a note, and keep it for the report."""
        self.notes.append(note)
        print_note(note)

    def begin_recording(self) -> None:
        """All containers are there: figures and picture start here."""
        self.recording = Recording()
        self.writes_before = self.writes

    def report(self) -> dict[str, Any]:
        """The demo's figures, or without a demo what ran."""
        if self.plan is None or self.workload is None:
            apps = self.live.snapshot()["apps"]
            seconds = max((app.seconds for app in self.recording.apps.values()), default=0.0)
            base = {"nats_url": self.nats_url, "seconds": round(seconds, 1), "simulated": self.simulated, "apps": apps}
            if self.options.cluster is not None:
                base |= {"nodes": self.options.cluster.names}
            return base | {"machine": self._machine(), "notes": self.notes}
        managed, static = self.plan.specs
        facts = RunFacts(
            app=managed.name,
            static_app=static.name,
            policy=managed.policy,
            maker=self.workload.maker,
            writes=self.writes.since(self.writes_before),
            machine=self._machine(),
            kills_seen=self.workload.kills_seen,
            notes=tuple(self.notes),
        )
        return build_report(self.recording, facts)

    def _machine(self) -> dict[str, Any]:
        return {
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "python": platform.python_version(),
            **self.node,
        }


LiveView = Callable[[ViewModel, asyncio.Event], Any]
"""Draws until the event is set; awaitable."""


async def run_up(run: UpRun, view: LiveView | None) -> None:
    """Start everything, run until stopped, and stop all in order: demo, scheduler, runners, agent, allocators, NATS.

    Raises:
        UnavailableError: NATS could not be started.
        ServiceDiedError: a service did not start, or has ended by itself; holds the end of its log.
    """
    options = run.options
    layout = _choose_host(run)
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(_embedded_nats(run))
        run.nats_url = nats.url
        supervisor = Supervisor(run.directory, nats.url, ready_timeout_s=options.ready_timeout_s)
        stack.push_async_callback(supervisor.stop_all)
        _handle_signals(run.stop, supervisor)
        bus_options = BusOptions(servers=(nats.url,), root=run.root)
        bus = await stack.enter_async_context(connected(bus_options, within_s=options.ready_timeout_s))
        # Messages during shutdown are not counted.
        await subscribe_sinks(bus, lambda: () if run.stop.is_set() else (run.live, run.recording))
        await stack.enter_async_context(bus.bucket(LEASES).watch(members_watcher(run.live)))
        await stack.enter_async_context(bus.bucket(APPS).watch(announcement_watcher(run.live)))
        if options.demo:
            run.plan = plan_demo(options.policy)
            for spec in run.plan.specs:
                await bus.bucket(APPS).put(spec.name, spec)
                run.live.announce(spec)
        for _ in range(options.allocators):
            await supervisor.start("allocator", {})
        agent = await supervisor.start("agent", _agent_environment(run))
        if options.cluster is not None:
            await _start_cluster(run, options.cluster, supervisor, bus, stack)
        run.report_note(f"turnbuckle is up: NATS at {nats.url}, logs in {run.directory}")
        if run.plan is not None:
            run.workload = await _start_workload(run, run.plan, layout, stack)
            await _read_metrics(run, agent)
            run.begin_recording()
        await _run_until_stopped(run, supervisor, agent, view)
        await _note_node(bus, run)


async def _start_cluster(run: UpRun, cluster: Cluster, supervisor: Supervisor, bus: Bus, stack: AsyncExitStack) -> None:
    if warning := user_warning():
        run.report_note(warning)
    states = run.directory / "runners"
    if run.options.store is None:
        forget_states(states)
    network = stack.enter_context(open_racks(cluster.racks))
    processes = ClusterProcesses(supervisor, cluster, states, groups=not run.simulated, network=network)
    await processes.start()
    stack.push_async_callback(processes.end)
    await until_complete(bus, cluster, run.options.ready_timeout_s)
    run.report_note(cluster.summary())


@asynccontextmanager
async def _embedded_nats(run: UpRun) -> Any:
    wanted, store = run.options.port, run.options.store
    for port in range(wanted, wanted + PORTS_TRIED):
        server = EmbeddedNats(port=port, store_directory=store.absolute() / "jetstream" if store else None)
        server.ready_timeout_s = run.options.ready_timeout_s
        try:
            await server.start()
        except PortTakenError:
            continue
        except NatsServerError as error:
            raise UnavailableError(str(error)) from error
        if port != wanted:
            run.report_note(
                f"port {wanted} is taken (another NATS server?): using {port}; "
                f"for other commands: export NATS_URL={server.url}"
            )
        try:
            yield server
        finally:
            await server.stop()
        return
    raise UnavailableError(f"no free port from {wanted} to {wanted + PORTS_TRIED - 1}; choose one with --port")


def _choose_host(run: UpRun) -> CgroupLayout | None:
    """The real control groups, or None: the host is simulated, and a note gives the reason."""
    if run.options.simulate:
        run.simulated = True
        run.report_note("simulated host, as asked: no real container is touched")
        return None
    try:
        layout = detect()
        reason = can_manage(layout)
    except CgroupUnavailableError as error:
        reason = str(error)
    else:
        if reason is None:
            return layout
    run.simulated = True
    run.report_note(
        f"simulated host, because control groups cannot be used here: {reason}. `turnbuckle doctor` has details"
    )
    return None


def _agent_environment(run: UpRun) -> dict[str, str]:
    if not run.simulated or run.plan is None:
        return host_environment(simulated=run.simulated)
    file = run.directory / "simulated-host.json"
    file.write_text(json.dumps(_simulated_host(run.plan), indent=2) + "\n", encoding="utf-8")
    return host_environment(simulated=True, scenario_file=file)


def _simulated_host(plan: DemoPlan) -> list[dict[str, Any]]:
    """The agent's scenario file: applications with their load and first limits."""
    scenario = plan.simulated_scenario.model_dump(mode="json")
    limits = {"quota_us": plan.limits.quota_us, "limit_bytes": plan.limits.memory_bytes}
    return [{"app": spec.name, "scenario": scenario, **limits} for spec in plan.specs]


async def _start_workload(
    run: UpRun, plan: DemoPlan, layout: CgroupLayout | None, stack: AsyncExitStack
) -> DemoWorkload:
    directory = run.directory
    if layout is None:
        return SimulatedWorkload()
    if run.options.maker != "processes":
        try:
            from services.cli.up.demo_docker import DockerWorkload  # noqa: PLC0415 - the SDK loads slowly

            return await _started(DockerWorkload(plan), stack)
        except CommandError as error:
            if run.options.maker == "docker":
                raise
            run.report_note(f"the demo uses plain processes, not Docker containers: {error}")
    return await _started(ProcessWorkload(plan, layout, managed_root(), directory), stack)


async def _started(workload: DemoWorkload, stack: AsyncExitStack) -> DemoWorkload:
    try:
        await workload.start()
    except BaseException:
        await workload.stop()
        raise
    stack.push_async_callback(workload.stop)
    return workload


async def _run_until_stopped(run: UpRun, supervisor: Supervisor, agent: ChildService, view: LiveView | None) -> None:
    loop = asyncio.get_running_loop()
    timer = None if run.options.seconds is None else loop.call_later(run.options.seconds, run.stop.set)
    tasks = [asyncio.ensure_future(_check_children(run, supervisor))]
    tasks.append(asyncio.ensure_future(_poll_metrics(run, agent)))
    if run.workload is not None:
        tasks.append(asyncio.ensure_future(run.workload.watch()))
    if view is not None:
        tasks.append(asyncio.ensure_future(view(run.live, run.stop)))
    stopped = asyncio.ensure_future(run.stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        run.stop.set()
        for task in done:
            task.result()
        await _read_metrics(run, agent)
    finally:
        run.stop.set()
        if timer is not None:
            timer.cancel()
        if view is not None:  # it restores the terminal's screen
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(tasks[-1]), 2.0)
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)


async def _check_children(run: UpRun, supervisor: Supervisor) -> None:
    while not run.stop.is_set():
        for loss in supervisor.check():
            run.report_note(loss)
        await asyncio.sleep(CHECK_EVERY_S)


async def _poll_metrics(run: UpRun, agent: ChildService) -> None:
    """Poll periodically, so that there are figures even if the agent dies."""
    while True:
        await _read_metrics(run, agent)
        await asyncio.sleep(METRICS_EVERY_S)


async def _read_metrics(run: UpRun, agent: ChildService) -> None:
    if (answer := await asyncio.to_thread(agent.fetch, "/metrics")) is not None:
        run.writes = WriteCounts(**read_write_counts(answer[1]))


async def _note_node(bus: Bus, run: UpRun) -> None:
    for entry in (await bus.bucket(NODES).entries()).values():
        if entry.message is not None:
            info = entry.message.model_dump(mode="json")
            run.node = {key: info[key] for key in ("cgroup_version", "telemetry_source", "docker") if key in info}


def _handle_signals(stop: asyncio.Event, supervisor: Supervisor) -> None:
    """The first Ctrl-C stops everything in order, the second at once."""

    def interrupted() -> None:
        if stop.is_set():
            supervisor.kill_all()
            os._exit(128 + signal.SIGINT)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)

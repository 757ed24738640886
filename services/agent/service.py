"""The agent's wiring: discovery and samples in, batches and events out, limit updates applied, memory controlled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import ClassVar

from schemas.apps import PERIOD_US
from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, ContainerSource, NodeInfo
from schemas.limits import LimitUpdate
from schemas.message import Message
from schemas.queries import QueryError
from schemas.streams import NODES
from schemas.subjects import CFS, LIMIT_UPDATES
from services._host.scheduling import become_realtime, request_short_slices
from services._runtime.bus.api import Delivery
from services._runtime.bus.name_registration import NameHolder
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services.agent.backend import Backend, build_backend, node_cpu_budget, node_memory_budget
from services.agent.containers.incarnation import Incarnation
from services.agent.discovery.container_events import ContainerEvents, Detail
from services.agent.discovery.selectors import follow_selectors
from services.agent.lifecycle import Removed
from services.agent.limits.accepted_updates import Refusal
from services.agent.limits.update_loop import LimitLoop
from services.agent.memory.events import MemoryLoop
from services.agent.memory.node_budget import MemoryBudget
from services.agent.node import Node, NodeOptions, assemble
from services.agent.ports import (
    Discovered,
    FoundContainer,
    GoneContainer,
    RejectedContainer,
    SourceAnswered,
    UnmanageableError,
)
from services.agent.sampling.ticker import ThrottlePoller, Ticker, publish_early
from services.agent.settings import AgentSettings

EMPTY_BATCHES = 10
"""How often an application's last container is reported as gone: batches may be lost."""
FIRST_CLEANUP_S = 5.0
"""By then discovery has found all containers: what a previous agent left of others is restored."""
CLEANUP_INTERVAL_S = 60.0


class Agent:
    """Samples every period, publishes one batch per application, applies limit updates, controls memory."""

    name: ClassVar[str] = "agent"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AgentSettings
    bus_wait_s: ClassVar[float] = 1.0
    """Memory is controlled, and limits stay what they are, also where no server can be reached at the start."""

    def __init__(self, runtime: Runtime[AgentSettings]) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._log = runtime.log
        self._clock = runtime.clock
        self._bus = runtime.bus
        self._memory: MemoryLoop | None = None
        self._limits: LimitLoop | None = None
        node, bus = self._settings.node, self._bus
        served = {LIMIT_UPDATES.subject(bus.root, node=node): self._apply}
        self._name = NameHolder(bus, NODES, self.name, node, self._clock, self._log, served)
        self._empty_apps: dict[str, int] = {}
        self._incarnation = Incarnation(self._settings.node, self._clock.time_ns())
        self._events = ContainerEvents(runtime, self._incarnation)
        self._sampling = False
        self._sources_pending: tuple[ContainerSource, ...] = ()
        self._ticker = Ticker(self._clock)
        self._throttle_poller: ThrottlePoller | None = None
        self._source = ""
        """Of telemetry, as logged last."""
        self._backend: Backend | None = None
        self.node: Node | None = None

    async def start(self) -> None:
        """Open the host, serve limit updates, begin to sample."""
        settings = self._settings
        self._backend = backend = build_backend(settings, self._clock)
        host = backend.host
        now_ns = self._clock.monotonic_ns()
        deadlines_ns = {source: now_ns + int(wait_s * 1e9) for source, wait_s in backend.source_timeouts_s.items()}
        options = NodeOptions(
            int(settings.oom_wait_timeout_s * 1e9),
            settings.on_drift == "reassert",
            deadlines_ns,
            self._memory_budget(host.memory_bytes),
            node_cpu_budget(settings, host.cpu_count),
            warns_of_overcommit=settings.cpu_overcommit == "warn",
        )
        node = assemble(self._incarnation, host, backend.reserves, options)
        report = partial(self._report_cpu_refusal, node)
        self._limits = LimitLoop(self._runtime, node.limits, self._flush, report, partial(self._publish_new, node))
        self._name.on_serving = self._limits.specs.read_all
        await self._name.try_hold(self._info(node, backend))
        self.node = node
        self._choose_scheduling()
        self._memory = MemoryLoop(self._runtime, node.memory, node.budget, backend.watchdog, self._events.drifted)
        self._memory.start()
        self._register_metrics(node, backend)
        for found in backend.recorded():
            self._adopt(found, node.lifecycle.recorded)
        for source, discovery in backend.discoveries.items():
            self._runtime.spawn(discovery.run(self._discovered), name=f"discovery {source}")
        if backend.select_pods is not None:
            self._runtime.spawn(follow_selectors(self._bus, self._clock, backend.select_pods), name="pod selectors")
        poll = partial(publish_early, node.sampler.poll, self._publish_batch, self._clock)
        self._throttle_poller = ThrottlePoller(self._clock, host, poll, settings.throttle_polls_per_period)
        self._runtime.spawn(
            self._ticker.run(partial(self._sample, node), poll, settings.throttle_polls_per_period), name="sampling"
        )
        self._runtime.spawn(self._heartbeat(node, backend), name="heartbeat")
        self._runtime.spawn(self._restore_orphans(node, backend), name="clear up")
        self._runtime.spawn(self._limits.specs.run(), name="announced limits")
        self._log_source(backend)
        self._log.info(
            "agent_started",
            node=settings.node,
            memory_guard=host.memory_guard,
            cpus=host.cpu_count,
            period_ms=100,
        )

    async def stop(self) -> None:
        """Restore the original limits, publish that, and close."""
        await self._name.stop_serving()
        await self._runtime.cancel_tasks()
        if self._limits is not None:
            self._limits.stop()
        if self._throttle_poller is not None:
            self._throttle_poller.stop()
        if self.node is not None and self._memory is not None:
            await self._release(self.node, self._memory)
        if self._backend is not None:
            self._backend.close()

    async def _release(self, node: Node, memory: MemoryLoop) -> None:
        memory.stop()
        released = node.lifecycle.release_all(self._clock.monotonic_ns())
        memory.stop_watchdog()
        memory.publish_events()
        for removed in released:
            reason = "the agent stopped; original limits restored"
            detail = Detail(oom_kills=removed.oom_kills, reason=reason)
            self._events.publish(removed.found, ContainerChange.RELEASED, detail)
        for app in {removed.found.app for removed in released}:
            self._publish_batch(node.sampler.empty_batch(app, self._clock.time_ns()))
        await self._name.release()
        self._log.info("agent_stopped", released=len(released))

    def not_ready(self) -> str | None:
        """Why the agent cannot do its work, or None."""
        return self._name.unconfirmed if self._sampling else "no sample has been taken yet"

    # -- sampling ----------------------------------------------------------------------------------------------

    def _sample(self, node: Node) -> bool:
        if self._memory is not None:
            self._memory.heartbeat()
        wall_ns = self._clock.time_ns()
        now_ns = self._clock.monotonic_ns()
        snapshot, vanished = node.sampler.read(now_ns)
        gone = [node.lifecycle.remove(container_id, now_ns) for container_id in vanished]
        batches = node.sampler.sample(snapshot, now_ns, wall_ns)
        for removed in filter(None, gone):
            self._exited(node, removed)
        for batch in batches:
            self._empty_apps.pop(batch.app, None)
            self._publish_batch(batch)
        for app in list(self._empty_apps):
            self._publish_batch(node.sampler.empty_batch(app, wall_ns))
            self._empty_apps[app] -= 1
            if not self._empty_apps[app]:
                del self._empty_apps[app]
        self._bus.write_now()
        node.sampler.read_back(self._clock.monotonic_ns())
        self._flush()
        self._report_refused_limits(node)
        self._log_inventory(node)
        self._sampling = True
        poll = node.sampler.polls_between_samples
        notified = self._throttle_poller is not None and self._throttle_poller.attach()
        return poll and not notified

    def _flush(self) -> None:
        if self._memory is not None:
            self._memory.flush()

    def _publish_batch(self, batch: CfsBatch) -> None:
        if self._name.unconfirmed is None:
            self._bus.publish(CFS.subject(self._bus.root, app=batch.app, node=batch.node), batch)

    def _publish_new(self, node: Node, app: str) -> None:
        """At once, not with the next sample: containers of it have their floor, and wait for more."""
        self._flush()
        self._publish_batch(node.sampler.first_batch(app, self._clock.time_ns()))
        self._bus.write_now()

    # -- limits ------------------------------------------------------------------------------------------------

    async def _apply(self, delivery: Delivery) -> Message:
        if self.node is None or self._limits is None or not isinstance(delivery.message, LimitUpdate):
            return QueryError(code=400, message=f"expected a LimitUpdate, got {delivery.message.type_name}")
        return await self._limits.apply(delivery.message)

    def _report_cpu_refusal(self, node: Node, refusal: Refusal) -> None:
        limits = node.containers.limits[refusal.container]
        detail = Detail(limits.quota_us, limits.limit_bytes, reason=refusal.reason)
        self._events.publish(node.containers.managed[refusal.container].found, ContainerChange.CPU_REFUSED, detail)

    def _report_refused_limits(self, node: Node) -> None:
        node.limits.refused.expire(self._clock.monotonic_ns())
        for refusal in node.limits.refused.take_changes():
            limits = node.containers.limits[refusal.container]
            detail = Detail(limits.quota_us, limits.limit_bytes, reason=refusal.reason)
            change = ContainerChange.LIMIT_ACCEPTED if refusal.ended else ContainerChange.LIMIT_REFUSED
            self._events.publish(node.containers.managed[refusal.container].found, change, detail)

    # -- containers --------------------------------------------------------------------------------------------

    def _discovered(self, change: Discovered) -> None:
        node = self.node
        if node is None:
            return
        match change:
            case FoundContainer():
                if (
                    old := node.lifecycle.remove_restarted(change.container_id, self._clock.monotonic_ns())
                ) is not None:
                    self._exited(node, old)
                self._adopt(change, node.lifecycle.found)
            case GoneContainer():
                self._events.forget_rejection(change.container_id)
                if (removed := node.lifecycle.remove(change.container_id, self._clock.monotonic_ns())) is not None:
                    self._exited(node, removed)
            case RejectedContainer():
                self._events.reject(change)
            case SourceAnswered():
                for removed in node.lifecycle.source_answered(change, self._clock.monotonic_ns()):
                    self._exited(node, removed)

    def _adopt(self, found: FoundContainer, begin: Callable[[FoundContainer, int], str | None]) -> None:
        try:
            key = begin(found, self._clock.monotonic_ns())
        except UnmanageableError as error:
            self._events.reject(RejectedContainer(found.container_id, found.app, found.name, found.source, str(error)))
            return
        if key is None or self.node is None:
            return
        self._empty_apps.pop(found.app, None)
        if self._limits is not None:
            self._limits.specs.read_soon(found.app)
        self._flush()
        limits = self.node.containers.limits[key]
        self._events.publish(found, ContainerChange.STARTED, Detail(limits.quota_us, limits.limit_bytes))
        self._log.info("container_found", app=found.app, container=key, source=str(found.source))

    def _exited(self, node: Node, removed: Removed) -> None:
        found = removed.found
        if not node.containers.of_app(found.app):
            self._empty_apps[found.app] = EMPTY_BATCHES
        self._events.publish(found, ContainerChange.EXITED, Detail(oom_kills=removed.oom_kills))
        self._flush()
        self._log.info("container_gone", app=found.app, container=found.key)

    async def _restore_orphans(self, node: Node, backend: Backend) -> None:
        """Restore what a previous agent left: reserves of applications, and limits of containers, that are gone."""
        source_deadline_s = self._clock.monotonic() + CLEANUP_INTERVAL_S
        pause_s = FIRST_CLEANUP_S
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)
            if all(discovery.available for discovery in backend.discoveries.values()):
                pause_s = CLEANUP_INTERVAL_S
            elif self._clock.monotonic() < source_deadline_s:
                continue  # Docker may be about to return with its containers
            for app in node.budget.reserves.void_orphans(node.containers.apps):
                self._empty_apps[app] = EMPTY_BATCHES
            if released := backend.release_leftovers():
                self._log.warning("orphaned_limits_restored", containers=released)

    def _log_inventory(self, node: Node) -> None:
        """Log which sources have not answered, and that the last of them has, or has timed out."""
        for source in node.containers.inventory.expire(self._clock.monotonic_ns()):
            self._log.warning(
                "container_source_unresponsive", source=str(source), remedy="its containers are managed once it answers"
            )
        if (pending := node.containers.inventory.pending) != self._sources_pending:
            self._sources_pending = pending
            self._log.info("container_sources_pending", sources=[str(source) for source in pending])

    # -- the rest ----------------------------------------------------------------------------------------------

    async def _heartbeat(self, node: Node, backend: Backend) -> None:
        """Heartbeats; the first connection, where there was none at the start."""
        while True:
            self._log_source(backend)
            # A new owner waits for the registered nodes: one that has not reported must not be forgotten.
            pending = bool(node.containers.inventory.pending)
            await self._name.heartbeat(self._info(node, backend), soon=pending)

    def _memory_budget(self, host_memory_bytes: int) -> MemoryBudget:
        budget, wanted_bytes = node_memory_budget(self._settings, host_memory_bytes), self._settings.node_memory_bytes
        if wanted_bytes is not None and wanted_bytes > budget.capacity_bytes:
            self._log.warning(
                "node_memory_setting_too_large",
                setting="TURNBUCKLE_AGENT__NODE_MEMORY_BYTES",
                bytes=int(wanted_bytes),
                used_bytes=budget.capacity_bytes,
                reason="the machine has no more",
            )
        return budget

    def _log_source(self, backend: Backend) -> None:
        if (source := backend.host.telemetry_source) != self._source:
            self._source = source
            self._log.info("telemetry_source", source=source, reason=backend.host.telemetry_note or None)

    def _info(self, node: Node, backend: Backend) -> NodeInfo:
        """What the entry in the bucket `nodes` says of the node as it is now."""
        containers, budget, cpu_budget = node.containers, node.budget, node.limits.cpu_budget
        host, docker = backend.host, backend.discoveries.get("docker")
        pressure = host.read_pressure()
        return NodeInfo(
            node=containers.node,
            incarnation=containers.incarnation.number,
            time_ns=self._clock.time_ns(),
            host_cpus=host.cpu_count,
            memory_bytes=budget.capacity_bytes or host.memory_bytes,
            cgroup_version=host.cgroup_version,
            telemetry_source=host.telemetry_source,
            docker=docker is not None and docker.available,
            container_count=len(containers.managed),
            version=self.version,
            sources_pending=containers.inventory.pending,
            memory_guard=host.memory_guard,
            holder=backend.holder,
            allocatable_memory_bytes=budget.allocatable_bytes,
            committed_memory_bytes=budget.committed_bytes(),
            committed_cpu_us=cpu_budget.committed_us(),
            allocatable_cpu_us=cpu_budget.allocatable_us,
            warns_cpu_overcommit=cpu_budget.warns,
            available_memory_bytes=host.read_available(),
            memory_pressure_percent=pressure.memory_percent,
            cpu_pressure_percent=pressure.cpu_percent,
        )

    def _register_metrics(self, node: Node, backend: Backend) -> None:
        observe = self._runtime.telemetry.observe
        observe("turnbuckle_agent_containers", lambda: len(node.containers.managed))
        observe("turnbuckle_agent_samples_total", lambda: node.sampler.samples_taken)
        observe("turnbuckle_agent_skipped_samples_total", lambda: self._ticker.skipped)
        observe("turnbuckle_agent_quota_writes_total", lambda: node.containers.kernel.writes.quota_writes)
        observe("turnbuckle_agent_memory_writes_total", lambda: node.containers.kernel.writes.memory_writes)
        observe("turnbuckle_agent_refused_writes_total", lambda: node.containers.kernel.writes.refused_writes)
        observe("turnbuckle_agent_refused_limits", lambda: len(node.limits.refused))
        cpu = node.limits.cpu_budget
        observe("turnbuckle_agent_node_cpu_budget_rejections_total", lambda: cpu.rejections)
        observe("turnbuckle_agent_node_allocatable_cores", lambda: (cpu.allocatable_us or 0) / PERIOD_US)
        observe("turnbuckle_agent_node_committed_cores", lambda: cpu.committed_us() / PERIOD_US)
        observe("turnbuckle_agent_no_op_writes_total", lambda: backend.host.no_op_writes)

    def _choose_scheduling(self) -> None:
        priority = self._settings.realtime_priority
        reason = become_realtime(priority) if priority else request_short_slices()
        if reason is not None:
            self._log.warning(
                "scheduling_refused", realtime_priority=priority, error=reason, remedy="run as root, or set 0"
            )

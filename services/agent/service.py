"""The agent's wiring: discovery and ticks in, batches and events out, limit orders carried out, memory guarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import ClassVar

from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, ContainerSource, NodeInfo
from schemas.limits import LimitReply, LimitUpdate
from schemas.message import Message
from schemas.queries import QueryError
from schemas.subjects import CFS, LIMIT_UPDATES
from services._host.scheduling import become_realtime, request_short_slices
from services._runtime.bus.api import BusError, Delivery, Subscription
from services._runtime.clock import monotonic_ns
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services.agent.backend import Ground, build_host
from services.agent.discovery.container_events import ContainerEvents, Detail
from services.agent.duplicate_name import NodeName, serve_node
from services.agent.limits.failed_rows import FailedRows
from services.agent.limits.spans import note_reply, order_span
from services.agent.limits.spec_bounds import AnnouncedLimits
from services.agent.memory.events import Guarding
from services.agent.node import Node, NodeOptions
from services.agent.ports import (
    Discovered,
    FoundContainer,
    GoneContainer,
    HostFullError,
    RejectedContainer,
    SourceAnswered,
)
from services.agent.registration import node_info
from services.agent.sampling.throttle_poller import PromptLooks
from services.agent.sampling.ticker import Ticks
from services.agent.settings import AgentSettings

HEARTBEAT_S = 5.0
JOIN_RETRY_S = 0.5
CUT_SPACING_S = 0.0005
"""Between looks at waiting cuts: those that are due close together are looked at together."""
EMPTY_BATCHES = 10
"""How often an application's last container is reported as gone: batches may be lost."""
CLEAR_UP_S = 5.0
"""By then discovery has found everything that runs: what an agent before us left for others is cleared up."""
CLEAR_UP_AGAIN_S = 60.0


class Agent:
    """Samples every period, publishes one batch per application, carries out limit orders, guards memory."""

    name: ClassVar[str] = "agent"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AgentSettings
    bus_patience_s: ClassVar[float] = 1.0
    """Memory is guarded, and limits stay what they are, also where no server can be reached at the start."""

    def __init__(self, runtime: Runtime[AgentSettings]) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._log = runtime.log
        self._clock = runtime.clock
        self._bus = runtime.bus
        self._guarding: Guarding | None = None
        self._announced: AnnouncedLimits | None = None
        self._subscriptions: list[Subscription] = []
        self._name = NodeName(self._bus, self._settings.node, self._clock, self._log)
        self._emptied: dict[str, int] = {}
        self._events: ContainerEvents | None = None
        self._failed_rows = FailedRows(runtime.log, runtime.clock.monotonic)
        self._sampling = False
        self._sources_pending: tuple[ContainerSource, ...] = ()
        self._cut_timer: asyncio.TimerHandle | None = None
        self._ticks = Ticks(self._clock)
        self._prompt_looks: PromptLooks | None = None
        self._source = ""
        """Of telemetry, as said last."""
        self._ground: Ground | None = None
        self.node: Node | None = None

    async def start(self) -> None:
        """Open the host, serve orders, begin to sample."""
        settings = self._settings
        self._ground = ground = build_host(settings, self._clock)
        host = ground.host
        now_ns = self._now_ns()
        deadlines_ns = {source: now_ns + int(wait_s * 1e9) for source, wait_s in ground.source_timeouts_s.items()}
        budget = settings.memory_budget(host.memory_bytes)
        reassert = settings.on_drift == "reassert"
        options = NodeOptions(int(settings.oom_wait_timeout_s * 1e9), reassert, deadlines_ns, budget)
        node = Node(settings.node, self._clock.time_ns(), host, ground.reserves, options)
        self._announced = AnnouncedLimits(self._runtime, node)
        await self._join_if_possible(node, ground)
        self.node, self._events = node, ContainerEvents(self._runtime, node)
        self._choose_scheduling()
        self._guarding = Guarding(self._runtime, node, ground.watchdog, self._events.drifted)
        self._guarding.start()
        self._register_metrics(node, ground)
        for found in ground.recorded():
            self._adopt(found, node.recorded)
        for maker, discovery in ground.discoveries.items():
            self._runtime.spawn(discovery.run(self._discovered), name=f"discovery {maker}")
        look = partial(self._look, node)
        self._prompt_looks = PromptLooks(self._clock, host, look, settings.throttle_polls_per_period)
        self._runtime.spawn(
            self._ticks.run(partial(self._tick, node), look, settings.throttle_polls_per_period), name="sampling"
        )
        self._runtime.spawn(self._serve_the_bus(node, ground), name="heartbeat")
        self._runtime.spawn(self._clear_up(node, ground), name="clear up")
        self._runtime.spawn(self._announced.run(), name="announced limits")
        self._say_source(ground)
        self._log.info(
            "agent_started",
            node=node.name,
            memory_guard=host.memory_guard,
            cpus=host.cpu_count,
            period_ms=100,
        )

    async def _join(self, node: Node, ground: Ground) -> bool:
        """Register, or renew that; take orders, once it is certain that nobody else does so under our name."""
        held = await self._name.hold(self._info(node, ground))
        if held and not self._subscriptions:
            self._subscriptions = await serve_node(self._bus, node.name, {LIMIT_UPDATES: self._carry_out})
            if self._announced is not None:
                self._announced.look()
        return held

    async def stop(self) -> None:
        """Restore what was found, say so, and go."""
        for subscription in self._subscriptions:
            await subscription.stop()
        await self._runtime.cancel_tasks()
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        if self._prompt_looks is not None:
            self._prompt_looks.stop()
        if self.node is not None and self._guarding is not None:
            await self._release(self.node, self._guarding)
        if self._ground is not None:
            self._ground.close()

    async def _release(self, node: Node, guarding: Guarding) -> None:
        guarding.stop()
        kills = {found.key: node.kills_of(found.key) for found in node.containers}
        released = node.release_all()
        guarding.dismiss_watchdog()
        guarding.tell()
        for found in released:
            reason = "the agent stopped; original limits restored"
            self._publish_event(found, ContainerChange.RELEASED, Detail(oom_kills=kills[found.key], reason=reason))
        for app in {found.app for found in released}:
            self._publish_batch(node.empty_batch(app, self._clock.time_ns()))
        try:
            await self._name.release()
        except BusError as error:
            self._log.warning("deregistration_failed", error=str(error))
        self._log.info("agent_stopped", released=len(released))

    def not_ready(self) -> str | None:
        """Why the agent cannot do its work, or None."""
        return self._name.in_doubt if self._sampling else "no sample has been taken yet"

    # -- sampling ----------------------------------------------------------------------------------------------

    def _look(self, node: Node) -> None:
        """Between two samples: do not let containers that have just been throttled wait for the next."""
        for batch in node.look(self._clock.time_ns()):
            self._publish_batch(batch)

    def _tick(self, node: Node) -> bool:
        if self._guarding is not None:
            self._guarding.beat()
        wall_ns = self._clock.time_ns()
        batches, vanished = node.sample(self._now_ns(), wall_ns)
        for found in vanished:
            self._exited(found)
        for batch in batches:
            self._emptied.pop(batch.app, None)
            self._publish_batch(batch)
        for app in list(self._emptied):
            self._publish_batch(node.empty_batch(app, wall_ns))
            self._emptied[app] -= 1
            if not self._emptied[app]:
                del self._emptied[app]
        node.read_back(self._now_ns())
        self._follow_up()
        self._follow_inventory(node)
        self._sampling = True
        told = self._prompt_looks is not None and self._prompt_looks.follow()
        return node.is_watched and not told

    def _follow_up(self) -> None:
        if self._guarding is not None:
            self._guarding.follow_up()

    def _publish_batch(self, batch: CfsBatch) -> None:
        if self._name.in_doubt is None:
            self._bus.publish(CFS.subject(self._bus.root, app=batch.app, node=batch.node), batch)

    # -- limits ------------------------------------------------------------------------------------------------

    async def _carry_out(self, delivery: Delivery) -> Message:
        node, update = self.node, delivery.message
        if node is None or not isinstance(update, LimitUpdate):
            return QueryError(code=400, message=f"expected a LimitUpdate, got {delivery.message.type_name}")
        if self._announced is not None:
            await self._announced.learn(update)
        with order_span(node.name, update) as current:
            reply = await self._settle(node, update)
            note_reply(current, reply)
        self._failed_rows.warn(node.orders.take_failures())
        return reply

    async def _settle(self, node: Node, update: LimitUpdate) -> LimitReply:
        settled: asyncio.Future[LimitReply] = asyncio.get_running_loop().create_future()
        node.carry_out(update, self._now_ns(), settled.set_result)
        if self._announced is not None:
            self._announced.follow_up()
        self._follow_up()
        if not settled.done():
            self._schedule_cuts(node)
        return await settled

    def _schedule_cuts(self, node: Node) -> None:
        """Wake when the next waiting cut is due to be looked at; a timer costs half of what two tasks do."""
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        wake_ns = node.cuts.next_wake_ns()
        if wake_ns is None:
            self._cut_timer = None
            return
        delay_s = max(wake_ns / 1e9 - self._clock.monotonic(), CUT_SPACING_S)
        self._cut_timer = asyncio.get_running_loop().call_later(delay_s, self._write_cuts, node)

    def _write_cuts(self, node: Node) -> None:
        try:
            node.poll_cuts(self._now_ns())
        finally:
            self._schedule_cuts(node)

    # -- containers --------------------------------------------------------------------------------------------

    def _discovered(self, change: Discovered) -> None:
        node = self.node
        if node is None or self._events is None:
            return
        match change:
            case FoundContainer():
                self._adopt(change, node.found)
            case GoneContainer():
                self._events.may_return(change.container_id)
                if (found := node.gone(change.container_id)) is not None:
                    self._exited(found)
            case RejectedContainer():
                self._events.reject(change)
            case SourceAnswered():
                for found in node.source_answered(change):
                    self._exited(found)

    def _adopt(self, found: FoundContainer, begin: Callable[[FoundContainer], str | None]) -> None:
        try:
            key = begin(found)
        except HostFullError as error:
            self._reject(RejectedContainer(found.container_id, found.app, found.name, found.source, str(error)))
            return
        if key is None or self.node is None:
            return
        self._emptied.pop(found.app, None)
        if self._announced is not None:
            self._announced.expect(found.app)
        self._follow_up()
        limits = self.node.book.containers[key]
        self._publish_event(found, ContainerChange.STARTED, Detail(limits.quota_us, limits.limit_bytes))
        self._log.info("container_found", app=found.app, container=key, source=str(found.source))

    def _exited(self, found: FoundContainer) -> None:
        node = self.node
        if node is not None and not node.book.of_apps({found.app}):
            self._emptied[found.app] = EMPTY_BATCHES
        kills = node.kills_of(found.key) if node is not None else 0
        self._publish_event(found, ContainerChange.EXITED, Detail(oom_kills=kills))
        self._follow_up()
        self._log.info("container_gone", app=found.app, container=found.key)

    def _reject(self, rejected: RejectedContainer) -> None:
        if self._events is not None:
            self._events.reject(rejected)

    async def _clear_up(self, node: Node, ground: Ground) -> None:
        """What an agent before us left: reserves of applications, and altered limits of containers, that are gone."""
        patience_s = self._clock.monotonic() + CLEAR_UP_AGAIN_S
        pause_s = CLEAR_UP_S
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)
            if all(discovery.available for discovery in ground.discoveries.values()):
                pause_s = CLEAR_UP_AGAIN_S
            elif self._clock.monotonic() < patience_s:
                continue  # Docker may be about to come back with its containers
            for app in node.void_orphans():
                self._emptied[app] = EMPTY_BATCHES
            if released := ground.release_leftovers():
                self._log.warning("orphaned_limits_restored", containers=released)

    def _publish_event(self, found: FoundContainer, change: ContainerChange, detail: Detail) -> None:
        if self._events is not None:
            self._events.publish(found, change, detail)

    def _follow_inventory(self, node: Node) -> None:
        """Say which sources have not answered, and that the last of them has, or is no longer waited for."""
        for source in node.inventory.expire(self._now_ns()):
            self._log.warning(
                "container_source_unresponsive", source=str(source), remedy="its containers are managed once it answers"
            )
        if (pending := node.inventory.pending) != self._sources_pending:
            self._sources_pending = pending
            self._log.info("container_sources_pending", sources=[str(source) for source in pending])

    # -- the rest ----------------------------------------------------------------------------------------------

    async def _serve_the_bus(self, node: Node, ground: Ground) -> None:
        """Heartbeats; the first connection, where there was none at the start."""
        while True:
            pending = node.inventory.pending
            held = await self._join_if_possible(node, ground)
            self._say_source(ground)
            # A new owner waits for the nodes that are announced: one that is not heard of must not be forgotten.
            pause_s = HEARTBEAT_S if held and self._subscriptions and not pending else JOIN_RETRY_S
            await self._clock.sleep_until(self._clock.monotonic() + pause_s)

    def _say_source(self, ground: Ground) -> None:
        if (source := ground.host.telemetry_source) != self._source:
            self._source = source
            self._log.info("telemetry_source", source=source, reason=ground.host.telemetry_note or None)

    async def _join_if_possible(self, node: Node, ground: Ground) -> bool:
        """One heartbeat. False: it could not be stored."""
        try:
            return await self._join(node, ground)
        except BusError as error:
            self._log.debug("registration_failed", error=str(error))
            return False

    def _info(self, node: Node, ground: Ground) -> NodeInfo:
        return node_info(node, ground, self._clock.time_ns(), self.version)

    def _register_metrics(self, node: Node, ground: Ground) -> None:
        observe = self._runtime.telemetry.observe
        observe("turnbuckle_agent_containers", lambda: node.container_count)
        observe("turnbuckle_agent_samples_total", lambda: node.ticks)
        observe("turnbuckle_agent_skipped_samples_total", lambda: self._ticks.late)
        observe("turnbuckle_agent_quota_writes_total", lambda: node.writes.quota_writes)
        observe("turnbuckle_agent_memory_writes_total", lambda: node.writes.memory_writes)
        observe("turnbuckle_agent_refused_writes_total", lambda: node.writes.refused_writes)
        observe("turnbuckle_agent_no_op_writes_total", lambda: ground.host.no_op_writes)
        observe("turnbuckle_agent_failed_limit_update_rows_total", lambda: self._failed_rows.count)

    def _choose_scheduling(self) -> None:
        priority = self._settings.realtime_priority
        reason = become_realtime(priority) if priority else request_short_slices()
        if reason is not None:
            self._log.warning(
                "scheduling_refused", realtime_priority=priority, error=reason, remedy="run as root, or set 0"
            )

    def _now_ns(self) -> int:
        return monotonic_ns(self._clock)

"""The memory guard on the event loop: alarms, close looks, requests to the allocator, the watchdog; and its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from schemas.oom import MemoryReply, MemoryRequest, OomCause, OomEvent, OomKind
from schemas.subjects import MEMORY_REQUESTS, OOM_EVENTS
from services._runtime.bus.api import BusError
from services._runtime.clock import monotonic_ns
from services._runtime.service.app import Runtime
from services._runtime.telemetry.tracing import span, untraced
from services.agent.memory.records import Answer, Asked, Drift, Occurrence, described
from services.agent.memory.trace_groups import Episodes
from services.agent.node import Node
from services.agent.ports import Watchdog
from services.agent.settings import AgentSettings

REQUEST_TIMEOUT_S: Final = 0.5
IDLE_SHARE: Final = 3
"""Where many containers are polled, at least this many times what a poll takes lies between two."""


class Guarding:
    """Lets a `Node` guard memory between its samples. Every call of the node is to be followed by `follow_up`."""

    def __init__(
        self, runtime: Runtime[AgentSettings], node: Node, watchdog: Watchdog, on_drift: Callable[[Drift], None]
    ) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._log = runtime.log
        self._bus = runtime.bus
        self._node = node
        self._watchdog = watchdog
        self._on_drift = on_drift
        self._timer: asyncio.TimerHandle | None = None
        self._poll_s = 0.0
        """What the last poll took."""
        self._told = 0
        self._episodes = Episodes()
        self._untold_reports = False
        """Whether reports of the watchdog are on their way to the stream."""

    def start(self) -> None:
        """Start the watchdog, listen for alarms."""
        try:
            self._watchdog.start()
        except OSError as error:  # `beat` tries again
            self._log.error("watchdog_not_started", error=str(error))
        if (alarm_fd := self._node.host.alarm_fd) is not None:
            asyncio.get_running_loop().add_reader(alarm_fd, self._take_alarms)
        self._register_metrics()

    def stop(self) -> None:
        """No more looks; the watchdog still watches until `dismiss_watchdog`."""
        if (alarm_fd := self._node.host.alarm_fd) is not None:
            asyncio.get_running_loop().remove_reader(alarm_fd)
        if self._timer is not None:
            self._timer.cancel()

    def dismiss_watchdog(self) -> None:
        """Everything has been restored."""
        self._watchdog.stop()

    def beat(self) -> None:
        """Every tick, before the sample: say that we live, take over what was done while we seemed not to."""
        self._watchdog.beat()
        reports = self._watchdog.take_reports()
        if reports:
            self._log.warning("watchdog_intervened", reports=len(reports))
            self._node.take_reports(reports, self._now_ns())
            self.tell()
            self._untold_reports = True
        elif self._untold_reports and not self._bus.counters["facts_pending"]:
            self._watchdog.forget_reports()
            self._untold_reports = False

    def follow_up(self) -> None:
        """Tell what has happened, ask what has to be asked, look again when it is due."""
        self._handle(self._node.journal.take_requests())
        self._schedule()

    def tell(self) -> None:
        """Tell what has happened."""
        self._handle([])

    def _handle(self, requests: list[Asked]) -> None:
        """What happened to an application's memory at one moment is one step of a trace, whatever it was."""
        journal = self._node.journal
        occurrences = journal.take_occurrences()
        apps = [occurrence.app for occurrence in occurrences] + [request.app for request in requests]
        for app in dict.fromkeys(apps):
            told = [occurrence for occurrence in occurrences if occurrence.app == app]
            asked = [request for request in requests if request.app == app]
            now_ns = self._now_ns()
            begin = self._episodes.begin(app, now_ns, self._since_ns(told, now_ns))
            with span("agent.handle_oom", begin, **described(told, asked), turnbuckle__node=self._node.name) as step:
                self._episodes.note(app, step, now_ns)
                for occurrence in told:
                    self._publish(occurrence)
                for request in asked:
                    self._runtime.spawn(self._request(request), name=f"memory request {app}")
        for drift in journal.take_drifts():
            self._log.warning("limits_drifted", app=drift.found.app, container=drift.found.key, reason=drift.reason)
            self._on_drift(drift)

    # -- looks -------------------------------------------------------------------------------------------------

    def _take_alarms(self) -> None:
        self._node.take_alarms(self._now_ns())
        self.follow_up()

    def _schedule(self) -> None:
        if self._timer is not None:
            return
        now_ns = self._now_ns()
        due_ns = self._node.guard.next_poll_ns(now_ns)
        if due_ns is not None:
            delay_s = max((due_ns - now_ns) / 1e9, IDLE_SHARE * self._poll_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._poll, context=untraced())

    def _poll(self) -> None:
        self._timer = None
        begin_s = self._clock.monotonic()
        try:
            self._node.guard.poll(self._now_ns())
        finally:
            self._poll_s = self._clock.monotonic() - begin_s
            self.follow_up()

    # -- messages ----------------------------------------------------------------------------------------------

    async def _request(self, asked: Asked) -> None:
        if (why := self._node.budget.grant_refusal()) is not None:  # whatever is given could not be granted
            self._answered(asked, Answer(refusal=why.sentence(self._node.name)))
            return
        request = MemoryRequest(
            app=asked.app,
            node=self._node.name,
            incarnation=self._node.incarnation,
            container=asked.key,
            wanted_bytes=asked.wanted_bytes,
            usage_bytes=asked.usage_bytes,
            limit_bytes=asked.limit_bytes,
            paused=asked.paused,
            time_ns=self._clock.time_ns(),
        )
        subject = MEMORY_REQUESTS.subject(self._bus.root, app=asked.app)
        try:
            reply = await self._bus.request(subject, request, timeout_s=REQUEST_TIMEOUT_S)
        except BusError as error:
            answer = Answer(silence=f"no reply from an allocator: {error}")
        else:
            if isinstance(reply, MemoryReply):
                answer = Answer(refusal=self._node.budget.explain_refusal(reply.refusal, asked.wanted_bytes))
            else:
                answer = Answer(silence=f"no usable reply from an allocator: {reply.type_name}")
        self._answered(asked, answer)

    def _answered(self, asked: Asked, answer: Answer) -> None:
        self._node.guard.answered(asked, answer, self._now_ns())
        self.follow_up()

    def _since_ns(self, told: list[Occurrence], now_ns: int) -> int | None:
        """Since when, by the wall clock, the agent could know of what it did."""
        known_ns = min((each.known_ns for each in told if each.known_ns is not None), default=None)
        return None if known_ns is None else self._clock.time_ns() - now_ns + known_ns

    def _publish(self, occurrence: Occurrence) -> None:
        since_ns, kind = occurrence.known_ns, occurrence.kind
        event = OomEvent(
            kind=kind,
            cause=occurrence.cause,
            app=occurrence.app,
            node=self._node.name,
            container=occurrence.key,
            incarnation=self._node.incarnation,
            time_ns=self._clock.time_ns() if occurrence.wall_ns is None else occurrence.wall_ns,
            usage_bytes=occurrence.usage_bytes,
            limit_before_bytes=occurrence.limit_before_bytes,
            limit_after_bytes=occurrence.limit_after_bytes,
            reserve_bytes=occurrence.reserve_bytes,
            latency_us=0 if since_ns is None else max(self._now_ns() - since_ns, 0) // 1000,
            paused_us=occurrence.paused_us,
            oom_kills=occurrence.oom_kills,
            limit_hits=occurrence.limit_hits,
            reason=occurrence.reason,
        )
        if occurrence.cause is OomCause.WATCHDOG:  # taken again, and told again, if we die before it is stored
            message_id = f"watchdog-{occurrence.key}-{event.time_ns}"
        else:
            self._told += 1
            message_id = f"{self._node.incarnation}-oom-{self._told}"
        subject = OOM_EVENTS.subject(self._bus.root, app=occurrence.app, node=self._node.name)
        self._bus.publish_fact(subject, event, message_id=message_id)
        if kind in {OomKind.OOM_KILLER_ENABLED, OomKind.KILL, OomKind.LIMIT_HITS}:
            self._log.warning(f"memory_{kind}", app=event.app, container=event.container, reason=event.reason)

    def _register_metrics(self) -> None:
        observe, node, counters = self._runtime.telemetry.observe, self._node, self._node.journal.counters
        observe("turnbuckle_agent_node_budget_rejections_total", lambda: node.budget.refused)
        observe("turnbuckle_agent_node_allocatable_bytes", lambda: node.budget.allocatable_bytes or 0)
        observe("turnbuckle_agent_node_committed_bytes", node.budget.committed_bytes)
        observe("turnbuckle_agent_guarded_containers", lambda: node.guard.count)
        observe("turnbuckle_agent_reserve_bytes", lambda: node.reserves.left_bytes)
        observe("turnbuckle_agent_memory_grants_total", lambda: counters.grants)
        observe("turnbuckle_agent_memory_granted_bytes_total", lambda: counters.granted_bytes)
        observe("turnbuckle_agent_oom_waits_total", lambda: counters.traps)
        observe("turnbuckle_agent_memory_requests_total", lambda: counters.requests)
        observe("turnbuckle_agent_memory_grants_denied_total", lambda: counters.refusals)
        observe("turnbuckle_agent_oom_killer_enabled_total", lambda: counters.releases)
        observe("turnbuckle_agent_memory_rejected_decreases_total", lambda: counters.refused_cuts)
        observe("turnbuckle_agent_memory_polls_total", lambda: counters.polls)
        observe("turnbuckle_agent_oom_kills_total", lambda: counters.kills)
        observe("turnbuckle_agent_memory_limit_hits_total", lambda: counters.limit_hits)
        observe("turnbuckle_agent_drifts_total", lambda: counters.drifts)

    def _now_ns(self) -> int:
        return monotonic_ns(self._clock)

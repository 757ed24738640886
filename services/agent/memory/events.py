"""Memory control on the event loop: notifications, polls, requests to the allocator, the watchdog; and its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemas.oom import MemoryReply, MemoryRequest, OomCause, OomEvent, OomKind
from schemas.subjects import MEMORY_REQUESTS, OOM_EVENTS
from services._runtime.bus.api import BusError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.tracing import Begin, Carrier, Span, span, trace_headers, trace_ids, untraced
from services.agent.memory.controller import MemoryController
from services.agent.memory.node_budget import NodeBudget
from services.agent.memory.records import Drift, MemoryEvent, PendingRequest, RequestOutcome, span_attributes
from services.agent.ports import Watchdog
from services.agent.settings import AgentSettings

REQUEST_TIMEOUT_S: Final = 0.5
POLL_SPACING: Final = 3
"""Where many containers are polled, at least this many times what a poll takes lies between two."""


TRACE_GAP_NS: Final = 1_000_000_000
"""After so long without a step the next one begins another trace."""


LONGEST_TRACE_NS: Final = 10_000_000_000
"""A container may grow all day: a trace of it must end."""


@dataclass(slots=True)
class _TraceGroup:
    carrier: Carrier
    trace_id: str
    begun_ns: int
    last_ns: int


class TraceGroups:
    """Groups one shortage's memory events in one trace: near the limit, requested, granted, or killed.

    The memory may come with a limit update of another cause: the allocator's own step was faster than its reply. The
    step that follows stays in the trace of the shortage then, and is linked to that update. Times are monotonic
    nanoseconds.
    """

    def __init__(self) -> None:
        self._open: dict[str, _TraceGroup] = {}

    def begin(self, app: str, now_ns: int, begun_ns: int | None) -> Begin:
        """How the span of a step begins; ``begun_ns`` is wall clock, None: now."""
        group, here = self._open.get(app), trace_ids()
        if group is not None and (now_ns - group.last_ns > TRACE_GAP_NS or now_ns - group.begun_ns > LONGEST_TRACE_NS):
            del self._open[app]
            group = None
        if group is None or (here is not None and here[0] == group.trace_id):
            return Begin(begun_ns=begun_ns)
        update = trace_headers()
        return Begin(group.carrier, (update,) if update else (), begun_ns)

    def record(self, app: str, step: Span, now_ns: int) -> None:
        """A step has begun."""
        group = self._open.get(app)
        if group is not None:
            group.last_ns = now_ns
        elif step.carrier:
            self._open[app] = _TraceGroup(step.carrier, step.trace_id, now_ns, now_ns)


class MemoryLoop:
    """Runs memory control between samples. `flush` follows every call of the controller and the limit executor."""

    def __init__(
        self,
        runtime: Runtime[AgentSettings],
        memory: MemoryController,
        budget: NodeBudget,
        watchdog: Watchdog,
        on_drift: Callable[[Drift], None],
    ) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._log = runtime.log
        self._bus = runtime.bus
        self._memory = memory
        self._budget = budget
        self._host = memory.containers.host
        self._incarnation = memory.containers.incarnation
        self._watchdog = watchdog
        self._on_drift = on_drift
        self._timer: asyncio.TimerHandle | None = None
        self._poll_s = 0.0
        """What the last poll took."""
        self._published = 0
        self._grant_s = runtime.telemetry.histogram("turnbuckle_agent_memory_grant_seconds")
        self._by_app: dict[OomKind, dict[str, int]] = {OomKind.OOM_WAIT: {}, OomKind.GRANT_DENIED: {}}
        """Events by application, for metrics."""
        self._traces = TraceGroups()
        self._unpublished_reports = False
        """Whether reports of the watchdog are on their way to the stream."""

    def start(self) -> None:
        """Start the watchdog, listen for notifications."""
        try:
            self._watchdog.start()
        except OSError as error:  # `heartbeat` tries again
            self._log.error("watchdog_not_started", error=str(error))
        if (notification_fd := self._host.notification_fd) is not None:
            asyncio.get_running_loop().add_reader(notification_fd, self._take_notifications)
        self._register_metrics()

    def stop(self) -> None:
        """No more inspections; the watchdog goes on until `stop_watchdog`."""
        if (notification_fd := self._host.notification_fd) is not None:
            asyncio.get_running_loop().remove_reader(notification_fd)
        if self._timer is not None:
            self._timer.cancel()

    def stop_watchdog(self) -> None:
        """Everything has been restored."""
        self._watchdog.stop()

    def heartbeat(self) -> None:
        """Every period, before the sample: send the heartbeat, take over what the watchdog did during a gap."""
        self._watchdog.heartbeat()
        reports = self._watchdog.take_reports()
        if reports:
            self._log.warning("watchdog_intervened", reports=len(reports))
            self._memory.adopt_reports(reports, self._clock.monotonic_ns())
            self.publish_events()
            self._unpublished_reports = True
        elif self._unpublished_reports and not self._bus.counters["events_pending"]:
            self._watchdog.forget_reports()
            self._unpublished_reports = False

    def flush(self) -> None:
        """Publish events, send requests, schedule the next poll."""
        buffer = self._memory.events
        if buffer.waiting:
            buffer.waiting = False
            self._publish_all(buffer.take_requests())
        self._schedule()

    def publish_events(self) -> None:
        """Publish events."""
        self._publish_all([])

    def _publish_all(self, requests: list[PendingRequest]) -> None:
        """What happened to an application's memory at one moment is one step of a trace, whatever it was."""
        buffer = self._memory.events
        events = buffer.take_events()
        apps = [occurrence.app for occurrence in events] + [request.app for request in requests]
        for app in dict.fromkeys(apps):
            happened = [occurrence for occurrence in events if occurrence.app == app]
            wanted = [request for request in requests if request.app == app]
            now_ns = self._clock.monotonic_ns()
            begin = self._traces.begin(app, now_ns, self._known_since_ns(happened, now_ns))
            with span(
                "agent.handle_oom", begin, **span_attributes(happened, wanted), turnbuckle__node=self._incarnation.node
            ) as step:
                self._traces.record(app, step, now_ns)
                for occurrence in happened:
                    self._publish(occurrence)
                for request in wanted:
                    self._runtime.spawn(self._request(request), name=f"memory request {app}")
        for drift in buffer.take_drifts():
            self._log.warning("limits_drifted", app=drift.found.app, container=drift.found.key, reason=drift.reason)
            self._on_drift(drift)

    # -- inspections -------------------------------------------------------------------------------------------

    def _take_notifications(self) -> None:
        self._memory.take_notifications(self._host.take_notifications(), self._clock.monotonic_ns())
        self.flush()

    def _schedule(self) -> None:
        if self._timer is not None:
            return
        now_ns = self._clock.monotonic_ns()
        due_ns = self._memory.next_poll_ns(now_ns)
        if due_ns is not None:
            delay_s = max((due_ns - now_ns) / 1e9, POLL_SPACING * self._poll_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._poll, context=untraced())

    def _poll(self) -> None:
        self._timer = None
        begin_s = self._clock.monotonic()
        try:
            self._memory.poll(self._clock.monotonic_ns())
        finally:
            self._poll_s = self._clock.monotonic() - begin_s
            self.flush()

    # -- messages ----------------------------------------------------------------------------------------------

    async def _request(self, pending: PendingRequest) -> None:
        if (why := self._budget.grant_refusal()) is not None:  # whatever is given could not be granted
            self._answered(pending, RequestOutcome(denial=why.sentence(self._incarnation.node)))
            return
        request = MemoryRequest(
            app=pending.app,
            node=self._incarnation.node,
            incarnation=self._incarnation.number,
            container=pending.key,
            wanted_bytes=pending.wanted_bytes,
            usage_bytes=pending.usage_bytes,
            limit_bytes=pending.limit_bytes,
            tasks_blocked=pending.paused,
            time_ns=self._clock.time_ns(),
        )
        subject = MEMORY_REQUESTS.subject(self._bus.root, app=pending.app, node=self._incarnation.node)
        try:
            reply = await self._bus.request(subject, request, timeout_s=REQUEST_TIMEOUT_S)
        except BusError as error:
            answer = RequestOutcome(timeout=f"no reply from an allocator: {error}")
        else:
            if isinstance(reply, MemoryReply):
                answer = self._budget.outcome(reply, pending.wanted_bytes)
            else:
                answer = RequestOutcome(timeout=f"no usable reply from an allocator: {reply.type_name}")
        self._answered(pending, answer)

    def _answered(self, request: PendingRequest, answer: RequestOutcome) -> None:
        self._memory.answered(request, answer, self._clock.monotonic_ns())
        self.flush()

    def _known_since_ns(self, happened: list[MemoryEvent], now_ns: int) -> int | None:
        """Since when, by the wall clock, the agent could know of what it did."""
        known_ns = min((each.known_ns for each in happened if each.known_ns is not None), default=None)
        return None if known_ns is None else self._clock.time_ns() - now_ns + known_ns

    def _publish(self, occurrence: MemoryEvent) -> None:
        since_ns, kind = occurrence.known_ns, occurrence.kind
        event = OomEvent(
            kind=kind,
            cause=occurrence.cause,
            app=occurrence.app,
            node=self._incarnation.node,
            container=occurrence.key,
            incarnation=self._incarnation.number,
            time_ns=self._clock.time_ns() if occurrence.wall_ns is None else occurrence.wall_ns,
            usage_bytes=occurrence.usage_bytes,
            limit_before_bytes=occurrence.limit_before_bytes,
            limit_after_bytes=occurrence.limit_after_bytes,
            reserve_bytes=occurrence.reserve_bytes,
            latency_us=0 if since_ns is None else max(self._clock.monotonic_ns() - since_ns, 0) // 1000,
            blocked_us=occurrence.blocked_us,
            oom_kills=occurrence.oom_kills,
            limit_hits=occurrence.limit_hits,
            reason=occurrence.reason,
        )
        if occurrence.cause is OomCause.WATCHDOG:  # read and published again, if the agent dies before it is stored
            message_id = f"watchdog-{occurrence.key}-{event.time_ns}"
        else:
            self._published += 1
            message_id = f"{self._incarnation.number}-oom-{self._published}"
        subject = OOM_EVENTS.subject(self._bus.root, app=occurrence.app, node=self._incarnation.node)
        self._bus.publish_event(subject, event, message_id=message_id)
        if kind is OomKind.GRANT and since_ns is not None:
            self._grant_s.observe(event.latency_us / 1e6)
        elif kind in {OomKind.OOM_WAIT, OomKind.GRANT_DENIED}:
            self._count(kind, event.app)
        if kind in {OomKind.OOM_KILLER_ENABLED, OomKind.KILL, OomKind.LIMIT_HITS}:
            self._log.warning(f"memory_{kind}", app=event.app, container=event.container, reason=event.reason)

    def _register_metrics(self) -> None:
        observe, budget, counters = self._runtime.telemetry.observe, self._budget, self._memory.events.counters
        observe("turnbuckle_agent_node_budget_rejections_total", lambda: budget.rejections)
        observe("turnbuckle_agent_node_allocatable_bytes", lambda: budget.allocatable_bytes or 0)
        observe("turnbuckle_agent_node_committed_bytes", budget.committed_bytes)
        observe("turnbuckle_agent_guarded_containers", lambda: self._memory.count)
        observe("turnbuckle_agent_reserve_bytes", lambda: budget.reserves.left_bytes)
        observe("turnbuckle_agent_memory_grants_total", lambda: counters.grants)
        observe("turnbuckle_agent_memory_granted_bytes_total", lambda: counters.granted_bytes)
        observe("turnbuckle_agent_oom_waits_total", lambda: counters.oom_waits)
        observe("turnbuckle_agent_memory_requests_total", lambda: counters.requests)
        observe("turnbuckle_agent_memory_grants_denied_total", lambda: counters.grants_denied)
        observe("turnbuckle_agent_oom_killer_enabled_total", lambda: counters.oom_killer_enabled)
        observe("turnbuckle_agent_memory_rejected_decreases_total", lambda: counters.rejected_decreases)
        observe("turnbuckle_agent_memory_polls_total", lambda: counters.polls)
        observe("turnbuckle_agent_oom_kills_total", lambda: counters.kills)
        observe("turnbuckle_agent_memory_limit_hits_total", lambda: counters.limit_hits)
        observe("turnbuckle_agent_drifts_total", lambda: counters.drifts)
        by_app = self._runtime.telemetry.observe_by_label
        by_app("turnbuckle_agent_app_oom_waits_total", "app", lambda: self._by_app[OomKind.OOM_WAIT])
        by_app("turnbuckle_agent_app_memory_grants_denied_total", "app", lambda: self._by_app[OomKind.GRANT_DENIED])

    def _count(self, kind: OomKind, app: str) -> None:
        """By application: of those that come first, as many as the setting allows."""
        counts = self._by_app[kind]
        if app in counts or len(counts) < self._runtime.settings.metrics_applications:
            counts[app] = counts.get(app, 0) + 1

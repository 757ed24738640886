"""OOM controller: raises memory limits from the node's reserve, requests more from the allocator, bounds OOM waits.

The decisions are in `services.agent.memory.policy`; here they meet control files and reserves. No bus, no clock: events
and requests wait in the `EventBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from schemas.limits import RowStatus
from schemas.oom import OomCause, OomKind
from services._host.cgroup_snapshot import UNLIMITED, MemoryState, Notification, NotificationKind, WriteOutcome
from services.agent.containers.container import ManagedContainer, same_memory
from services.agent.containers.container_set import ContainerSet
from services.agent.memory.growth import PAGE_BYTES
from services.agent.memory.policy import (
    DECREASE_MARGIN_BYTES,
    LOOKAHEAD_S,
    POLL_NS,
    SETTLE_NS,
    ContainerMemory,
    Decision,
    IntArray,
    Observation,
    RequestState,
    decrease_is_unsafe,
    describe_limit_hits,
    kill_reason,
    needs_inspection,
)
from services.agent.memory.records import (
    EventBuffer,
    MemoryEvent,
    PendingRequest,
    RequestOutcome,
    events_of_reports,
    mib,
)
from services.agent.memory.reserve import Asking, FairShares, Reserves
from services.agent.ports import ContainerHandle, WatchdogReport

ARM_AGAIN_NS: Final = 20_000_000
"""While a container grows fast, its thresholds follow this often."""
KILL_SEEN_NS: Final = 2 * SETTLE_NS
"""A container that ends this soon after the OOM killer was enabled again was killed."""


GAP_NS: Final = 190_000_000
"""A longer gap between inspections means that the process was stopped or starved; a watchdog acts after more.
"""


WATCHDOG_GAP_NS: Final = 700_000_000
"""After a longer gap the watchdog has acted, and has recorded which tasks wait (by its usual setting)."""


class OomWaitTimes:
    """Recorded OOM waits: one deadline from when tasks began to wait, across agents and their watchdogs.

    An agent may die or be stopped while tasks wait. Its watchdog goes on, and the next agent, or the same one once it
    runs again. Each records since when tasks wait, and loads what the one before it recorded.
    """

    def __init__(self, containers: ContainerSet) -> None:
        self._containers = containers
        self._recorded: dict[str, int] = {}
        """By container, as far as its tasks wait."""
        self._last_ns: int | None = None

    def load(self, container: ContainerMemory) -> int | None:
        """Load what was recorded of a container during a gap."""
        since_ns = self._containers.managed[container.key].handle.oom_wait_since_ns
        if since_ns is not None:
            self._recorded[container.key] = since_ns
        container.recorded_wait_ns = since_ns
        return since_ns

    def record(self, container: ContainerMemory) -> None:
        """After an inspection: record whether tasks wait, where that has changed."""
        since_ns, container.recorded_wait_ns = container.oom_wait_since_ns, None
        if since_ns == self._recorded.get(container.key):
            return
        if since_ns is None:
            del self._recorded[container.key]
        else:
            self._recorded[container.key] = since_ns
        self._containers.managed[container.key].handle.record_oom_wait(since_ns)

    def forget(self, key: str) -> None:
        """The container is gone."""
        self._recorded.pop(key, None)

    def after_gap(self, containers: Iterable[ContainerMemory], now_ns: int) -> list[ContainerMemory]:
        """Called before any inspection: containers to inspect first after a gap, with their recorded waits loaded."""
        before_ns, self._last_ns = self._last_ns, now_ns
        if before_ns is None or now_ns - before_ns < GAP_NS:
            return []
        found = [
            container for container in containers if container.oom_wait_since_ns is None and not container.killer_reason
        ]
        for container in found:
            if self.load(container) is None and now_ns - before_ns < WATCHDOG_GAP_NS:
                container.recorded_wait_ns = before_ns
        return found


def start_counting(container: ContainerMemory, handle: ContainerHandle) -> None:
    """What the kernel counted before OOM control began is not reported."""
    if (state := handle.read_memory()) is not None:
        container.limit_hits.counter = state.limit_hits


class _Inspection(NamedTuple):
    """One inspection of one container."""

    container: ContainerMemory
    state: MemoryState
    cause: OomCause
    now_ns: int


class MemoryController:
    """All containers of a node under OOM control."""

    def __init__(
        self,
        containers: ContainerSet,
        reserves: Reserves,
        events: EventBuffer,
        check_limits: Callable[[str], None],
        oom_wait_timeout_ns: int,
    ) -> None:
        """``check_limits`` reads a container's limits back: they differ from what was written last."""
        self.containers = containers
        self.events = events
        self._reserves = reserves
        self._check_limits = check_limits
        self._oom_wait_timeout_ns = oom_wait_timeout_ns
        self._controlled: dict[str, ContainerMemory] = {}
        self._active: dict[str, ContainerMemory] = {}  # those that may be polled fast, or have an incident
        self._requests: dict[str, RequestState] = {}
        self._oom_waits = OomWaitTimes(containers)
        self._shares = FairShares(containers, reserves)

    # -- containers under OOM control --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Containers under OOM control."""
        return len(self._controlled)

    def is_controlled(self, key: str) -> bool:
        """Whether a container is under OOM control."""
        return key in self._controlled

    def control(self, key: str, now_ns: int) -> None:
        """Begin: a limit update for it was accepted, so it is enforced; or a previous agent controlled it."""
        known = self.containers.limits[key]
        if key not in self._controlled and (known.limit_bytes != UNLIMITED or known.limit_ordered):
            known.limit_ordered = True
            self._controlled[key] = ContainerMemory(key, known.app)
            self._oom_waits.load(self._controlled[key])
            start_counting(self._controlled[key], self.containers.managed[key].handle)
            self._enable_control(self._controlled[key], self.containers.managed[key], now_ns)

    def inspect_soon(self, key: str, now_ns: int) -> None:
        """The next `poll` inspects it, if it is controlled."""
        if (container := self._controlled.get(key)) is not None:
            self._active[key] = container
            container.poll_fast(now_ns)

    def _enable_control(self, container: ContainerMemory, member: ManagedContainer, now_ns: int) -> None:
        container.armed_ns = now_ns
        member.handle.enable_oom_control()

    def renew(self, key: str, now_ns: int) -> bool:
        """Follow usage; returns whether OOM control had been disabled externally."""
        if (container := self._controlled.get(key)) is None or container.killer_reason:
            return False
        member = self.containers.managed[key]
        undone = member.handle.oom_control_was_undone()
        self._enable_control(container, member, now_ns)
        return undone

    def forget(self, member: ManagedContainer, now_ns: int) -> None:
        """It is gone. The kernel's counter may have gone with it before it could be read."""
        container = self._controlled.pop(member.found.key, None)
        self._active.pop(member.found.key, None)
        self._oom_waits.forget(member.found.key)
        state = container.state if container else None
        if container is None or state is None or not container.killer_reason or not container.was_waiting:
            return
        if member.oom_kills <= container.kills_before and now_ns - container.killer_enabled_ns < KILL_SEEN_NS:
            reason = f"{container.killer_reason}; the container ended at once, and the kernel's counter with it"
            inspect = _Inspection(container, state, OomCause.KERNEL, now_ns)
            self._report(inspect, OomKind.KILL, OomCause.KERNEL, reason, oom_kills=member.kills + 1)

    def limit_was_increased(self, key: str, now_ns: int) -> None:
        """A limit update gave it more: tasks go on."""
        container = self._controlled.get(key)
        if container is not None:
            container.end_oom_wait()
            self._oom_waits.record(container)
            self.inspect_soon(key, now_ns)

    def rejects_decrease(self, key: str, limit_bytes: int, now_ns: int) -> bool:
        """Whether a lower limit must not be written now: too much of it is used, or was granted lately for growth."""
        member, held_bytes = self.containers.managed[key], self.containers.limits[key].limit_bytes
        if held_bytes != UNLIMITED and limit_bytes >= held_bytes:
            return False
        container, state = self._controlled.get(key), member.handle.read_memory()
        if container is not None and container.granted_ns is not None and now_ns - container.granted_ns < SETTLE_NS:
            # Who ordered it may not know of the grant yet; what leaves enough for the growth seen here may pass.
            ahead_bytes = max(int(container.growth.rate * LOOKAHEAD_S), DECREASE_MARGIN_BYTES)
            if state is None or limit_bytes < state.usage_bytes + ahead_bytes:
                self.events.counters.rejected_decreases += 1
                return True
        if state is None or not decrease_is_unsafe(limit_bytes, state.usage_bytes, 0):
            return False
        dangerous = decrease_is_unsafe(limit_bytes, state.usage_bytes, member.handle.read_reclaimable())
        self.events.counters.rejected_decreases += dangerous
        return dangerous

    # -- when to inspect ---------------------------------------------------------------------------------------

    def take_notifications(self, notifications: Iterable[Notification], now_ns: int) -> None:
        """Inspect the containers of the notifications; late and doubled ones do no harm."""
        self._resume_after_gap(now_ns)
        causes: dict[str, OomCause] = {}
        for alarm in notifications:
            paused = alarm.kind is NotificationKind.PAUSED
            causes[alarm.key] = OomCause.LIMIT if paused else causes.get(alarm.key, OomCause.THRESHOLD)
        for key, cause in causes.items():
            if (container := self._controlled.get(key)) is not None:
                container.poll_fast(now_ns)
                self.inspect(key, cause, now_ns)

    def take_sample(self, keys: list[str], usage_bytes: IntArray, rate: np.ndarray[Any, Any], now_ns: int) -> None:
        """The periodic sample of all containers, shape (N,)."""
        self._resume_after_gap(now_ns)
        if not self._controlled:
            return
        update_log = self.containers.limits
        limit_bytes = np.array([update_log[key].limit_bytes for key in keys], dtype=np.int64)
        near = np.flatnonzero(needs_inspection(usage_bytes, limit_bytes, rate)).tolist()
        due = {keys[row] for row in near if keys[row] in self._controlled}
        due |= {key for key, container in self._active.items() if container.has_incident}
        for key in sorted(due):
            self.inspect(key, OomCause.SAMPLE, now_ns)

    def next_poll_ns(self, now_ns: int) -> int | None:
        """When `poll` is due; None: nothing grows fast, no task waits."""
        active: dict[str, ContainerMemory] = {}
        is_due = False
        for container in self._active.values():
            polled = container.is_polled_fast(now_ns)
            is_due |= polled
            if polled or container.has_incident:
                active[container.key] = container
        self._active = active
        return now_ns + POLL_NS if is_due else None

    def poll(self, now_ns: int) -> None:
        """Inspect all that grow fast or wait."""
        self._resume_after_gap(now_ns)
        for container in list(self._active.values()):
            if not container.is_polled_fast(now_ns):
                continue
            self.events.counters.polls += 1
            self.inspect(container.key, OomCause.SAMPLE, now_ns)
            if now_ns - container.armed_ns >= ARM_AGAIN_NS and not container.killer_reason:
                self._enable_control(container, self.containers.managed[container.key], now_ns)

    def _resume_after_gap(self, now_ns: int) -> None:
        for container in self._oom_waits.after_gap(self._controlled.values(), now_ns):
            self.inspect(container.key, OomCause.SAMPLE, now_ns)

    def reserve_increased(self, app: str, now_ns: int) -> None:
        """A reserve was updated: waiting containers get what they need."""
        for container in self._short_of(app):
            self.inspect(container.key, OomCause.ALLOCATOR_REPLY, now_ns)

    # -- what to do --------------------------------------------------------------------------------------------

    def inspect(self, key: str, cause: OomCause, now_ns: int) -> None:
        """Read a controlled container's memory, and carry out what is decided."""
        container, member = self._controlled[key], self.containers.managed[key]
        self._active[key] = container
        state, known_bytes = member.handle.read_memory(), self.containers.limits[key].limit_bytes
        if state is not None and state.limit_bytes != known_bytes and not same_memory(state.limit_bytes, known_bytes):
            self._check_limits(key)
            state = member.handle.read_memory()
        if state is None:
            return  # vanished: the next sample notices
        self.containers.samples.note_memory(key, state.usage_bytes)
        most_bytes, left_bytes = self._reserves.bounds_of(container.app)
        seen = Observation(state, now_ns, member.oom_kills, most_bytes, left_bytes, self._oom_wait_timeout_ns)
        self._carry_out(_Inspection(container, state, cause, now_ns), member, container.inspect(seen))
        self._oom_waits.record(container)

    def _carry_out(self, inspect: _Inspection, member: ManagedContainer, decision: Decision) -> None:
        container, state = inspect.container, inspect.state
        if decision.kill_reason:
            self._report_kill(inspect, member, decision.kill_reason)
        if (hits := decision.limit_hits) and member.handle.read_reclaimable() < DECREASE_MARGIN_BYTES:
            self._report(inspect, OomKind.LIMIT_HITS, OomCause.LIMIT, describe_limit_hits(state, hits), limit_hits=hits)
        if decision.control_again:
            self._enable_control(container, member, inspect.now_ns)
        if decision.wait_reason:
            found = OomCause.LIMIT if inspect.cause is OomCause.LIMIT else OomCause.SAMPLE
            self._report(inspect, OomKind.OOM_WAIT, found, decision.wait_reason)
        wanted_bytes = decision.need.added_bytes
        granted = self._grant(inspect, wanted_bytes) if wanted_bytes else 0
        if granted < wanted_bytes:
            self._request_more(inspect, wanted_bytes - granted)
        elif granted:
            container.end_shortage()
        if granted:
            return
        if decision.killer_reason:
            self._enable_killer(inspect, decision.killer_cause, decision.killer_reason)
        elif decision.wake:
            self.containers.kernel.wake_tasks(container.key, state.limit_bytes)

    def _grant(self, inspect: _Inspection, wanted_bytes: int) -> int:
        """Raise the limit by what the reserve covers; returns by how much."""
        container, state, now_ns = inspect.container, inspect.state, inspect.now_ns
        others = list(self._asking_beside(container, now_ns))
        if container.is_urgent:
            spent = self._shares.spend(container.app, state.limit_bytes, wanted_bytes, others)
        else:
            asked = sum(other.asked_bytes for other in others)
            spent = self._reserves.spend(
                container.app, min(wanted_bytes, self._reserves.left_of(container.app) - asked)
            )
        granted = spent // PAGE_BYTES * PAGE_BYTES
        self._reserves.refund(container.app, spent - granted)
        if granted == 0:
            return 0
        limit_bytes = state.limit_bytes + granted
        if self.containers.kernel.write_memory(container.key, limit_bytes) is not RowStatus.APPLIED:
            self._reserves.refund(container.app, granted)
            return 0
        self._report(
            inspect,
            OomKind.GRANT,
            OomCause.DEADLINE if container.overdue(now_ns) else inspect.cause,
            f"usage {mib(state.usage_bytes)} of {mib(state.limit_bytes)}, growing by {mib(container.growth.rate)}/s",
            limit_after_bytes=limit_bytes,
            known_ns=now_ns if container.short_since_ns is None else container.short_since_ns,
            blocked_us=container.blocked_us(now_ns),
        )
        container.was_granted(limit_bytes, now_ns)
        return granted

    def _asking_beside(self, container: ContainerMemory, now_ns: int) -> Iterator[Asking]:
        """Other containers of its application that ask for memory now."""
        for other in self._active.values():
            if other.app == container.app and other is not container and (asked := other.asked_bytes(now_ns)):
                yield Asking(asked, self.containers.limits[other.key].limit_bytes)

    def _request_more(self, inspect: _Inspection, missing_bytes: int) -> None:
        """The reserve is empty: request more, unless a request is under way."""
        container, state = inspect.container, inspect.state
        container.note_shortage(missing_bytes, inspect.now_ns)
        if not container.near_limit_reported and container.granted_ns != inspect.now_ns and not state.paused:
            container.near_limit_reported = True
            usage, limit, missing = mib(state.usage_bytes), mib(state.limit_bytes), mib(missing_bytes)
            reason = f"usage {usage} is near the limit of {limit}: {missing} more are needed, the reserve has none"
            self._report(inspect, OomKind.NEAR_LIMIT, inspect.cause, reason)
        request_state = self._requests.setdefault(container.app, RequestState())
        if request_state.may_request(inspect.now_ns, container.oom_wait_since_ns):
            request_state.sent(inspect.now_ns)
            waiting = self._short_of(container.app)
            waiting = [one for one in waiting if one.is_urgent] or waiting
            self.events.request(
                PendingRequest(
                    app=container.app,
                    key=waiting[0].key,
                    wanted_bytes=sum(one.missing_bytes + int(one.growth.rate * LOOKAHEAD_S) for one in waiting),
                    usage_bytes=waiting[0].state.usage_bytes if waiting[0].state else 0,
                    limit_bytes=waiting[0].state.limit_bytes if waiting[0].state else UNLIMITED,
                    paused=waiting[0].oom_wait_since_ns is not None,
                )
            )

    def _short_of(self, app: str) -> list[ContainerMemory]:
        """Containers of an application that lack memory, the most urgent first."""
        return self._shares.short_of(app, self._controlled.values())

    def _enable_killer(self, inspect: _Inspection, cause: OomCause, reason: str) -> None:
        container = inspect.container
        if self.containers.managed[container.key].handle.enable_oom_killer() is not WriteOutcome.WRITTEN:
            return  # vanished; or refused: the next poll tries again
        self._report(
            inspect, OomKind.OOM_KILLER_ENABLED, cause, reason, blocked_us=container.blocked_us(inspect.now_ns)
        )
        container.oom_killer_enabled(reason, inspect.now_ns, inspect.state.oom_kills)
        self._requests.setdefault(container.app, RequestState()).killer_enabled_ns = inspect.now_ns
        self._oom_waits.record(container)

    # -- replies and events ------------------------------------------------------------------------------------

    def answered(self, request: PendingRequest, answer: RequestOutcome, now_ns: int) -> None:
        """A request was answered, refused, or was not answered in time."""
        request_state = self._requests.setdefault(request.app, RequestState())
        request_state.answered(now_ns, refused=bool(answer.denial))
        reason = answer.denial or answer.timeout
        if not reason:
            return
        waiting = self._short_of(request.app)
        for container in waiting:
            container.denial = reason
        requester = next((one for one in waiting if one.key == request.key), waiting[0] if waiting else None)
        if requester is not None and requester.state is not None and not requester.denial_reported:
            requester.denial_reported = True
            inspect = _Inspection(requester, requester.state, OomCause.ALLOCATOR_REPLY, now_ns)
            blocked_us = requester.blocked_us(now_ns)
            self._report(
                inspect,
                OomKind.GRANT_DENIED,
                OomCause.ALLOCATOR_REPLY,
                reason,
                known_ns=request_state.sent_ns,
                blocked_us=blocked_us,
            )
        if answer.denial:
            for container in self._shares.by_size(waiting):
                if request_state.may_enable_killer(now_ns, container.oom_wait_since_ns):
                    self._enable_killer_after_denial(container, reason, now_ns)
            if any(container.oom_wait_since_ns is not None for container in waiting):
                request_state.retry_soon(now_ns)

    def _enable_killer_after_denial(self, container: ContainerMemory, reason: str, now_ns: int) -> None:
        """A refusal ends a wait (thesis 2.4.4.2), unless the reserve has got something meanwhile."""
        if container.oom_wait_since_ns is not None:
            self.inspect(container.key, OomCause.ALLOCATOR_REPLY, now_ns)
        if container.oom_wait_since_ns is not None and container.state is not None:
            self._enable_killer(
                _Inspection(container, container.state, OomCause.ALLOCATOR_REPLY, now_ns),
                OomCause.ALLOCATOR_REPLY,
                reason,
            )

    def count_kills(self, key: str, oom_kills: int) -> None:
        """The kernel's own counter, as read with the limits: where it has risen, report the kill."""
        member = self.containers.managed[key]
        if oom_kills <= member.oom_kills:
            return
        state = member.handle.read_memory()
        if state is None:
            state = MemoryState(0, self.containers.limits[key].limit_bytes, paused=False, oom_kills=oom_kills)
        state = state._replace(oom_kills=max(oom_kills, state.oom_kills))
        container = self._controlled.get(key)
        known = container or ContainerMemory(key, member.found.app)
        known.granted_ns = None  # what the killed one leaves may be taken at once
        reason = known.killer_reason or kill_reason(known, state, is_controlled=container is not None)
        self._report_kill(_Inspection(known, state, OomCause.KERNEL, 0), member, reason)

    def _report_kill(self, inspect: _Inspection, member: ManagedContainer, reason: str) -> None:
        member.oom_kills = inspect.state.oom_kills
        self._report(inspect, OomKind.KILL, OomCause.KERNEL, reason, oom_kills=member.kills)

    def release_all(self, now_ns: int) -> None:
        """The agent stops: waiting tasks are left to the kernel (restoring the limits does it)."""
        for container in self._controlled.values():
            if container.oom_wait_since_ns is not None and container.state is not None:
                inspect = _Inspection(container, container.state, OomCause.SHUTDOWN, now_ns)
                reason = "the agent stops: the kernel's own behaviour is restored"
                self._report(
                    inspect,
                    OomKind.OOM_KILLER_ENABLED,
                    OomCause.SHUTDOWN,
                    reason,
                    blocked_us=container.blocked_us(now_ns),
                )

    def adopt_reports(self, reports: Sequence[WatchdogReport], now_ns: int) -> None:
        """Publish what the watchdog did while the agent did not run; adopt it where the containers are still here."""
        for report, event in zip(reports, events_of_reports(reports), strict=True):
            self.events.add(event)
            if report.key in self.containers.managed:
                self.containers.kernel.refresh(report.key)
                if not report.granted:
                    self._killer_enabled_by_watchdog(report.key, event.reason, now_ns)

    def _killer_enabled_by_watchdog(self, key: str, reason: str, now_ns: int) -> None:
        """The watchdog enabled the OOM killer: controlled again as after the agent's own."""
        container = self._controlled.get(key)
        if container is not None and not container.killer_reason:
            self._active[key] = container
            container.oom_killer_enabled(reason, now_ns, self.containers.managed[key].oom_kills)

    def _report(self, inspect: _Inspection, kind: OomKind, cause: OomCause, reason: str, **details: int) -> None:
        state = inspect.state
        values = {"limit_after_bytes": state.limit_bytes} | details
        self.events.add(
            MemoryEvent(
                kind=kind,
                cause=cause,
                key=inspect.container.key,
                app=inspect.container.app,
                usage_bytes=state.usage_bytes,
                limit_before_bytes=state.limit_bytes,
                reserve_bytes=self._reserves.left_of(inspect.container.app),
                reason=reason,
                **values,
            )
        )

"""Memory control policy: when memory is near its limit, how much to grant, when to request more, how long to wait.

How much is granted is in `services.agent.memory.growth`, which the watchdog shares.

Thesis 2.3.2; design 4.4. A grant takes 0.1 ms, a reply of the allocator some milliseconds, a sample comes every 100 ms;
a task touches up to 2 GB/s. So a growing container is polled every few milliseconds and gets what it will have used
by the next chance to raise it.

`decide` says what is to be done about a container; `ContainerMemory` is what is remembered of it from one inspection to
the next. Pure: readings and times come in as arguments. Times are monotonic nanoseconds, rates bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from schemas.oom import OomCause
from services._host.cgroup_snapshot import UNLIMITED, MemoryState
from services.agent.memory.growth import MIB, NEAR_BYTES, NEAR_S, NEAR_SHARE, NO_NEED, Growth, Need, near_bytes, need_of
from services.agent.memory.records import mib

FAST_POLL_NS: Final = 250_000_000
"""A container is polled for this long after it has last grown fast."""
FAST_GROWTH_S: Final = 0.5
"""Growing fast: at this rate the limit is reached within so many seconds."""
LOOKAHEAD_S: Final = 0.2
"""A request covers the growth of so many seconds, on top of what is missing."""
POLL_NS: Final = 4_000_000
WAKE_NS: Final = 20_000_000
"""Tasks that wait for so long although there is room are woken, again after as long."""
RETRY_NS: Final = 100_000_000
"""Between requests where the last one was not answered, or its grant has not come."""
REFUSED_RETRY_NS: Final = 1_000_000_000
"""Between requests after a refusal, as long as no task waits."""
INFORMED_NS: Final = 200_000_000
"""What another container has freed the allocator knows from the next sample: a refusal ends a wait only if its request
was sent two periods after the wait began."""
VICTIM_NS: Final = 500_000_000
"""So long after a release the allocator knows what a killed container has left: a refusal before may be outdated."""
SETTLE_NS: Final = 1_000_000_000
"""So long after a grant a limit is lowered only as far as growth allows; an enabled OOM killer without a kill stays."""
DECREASE_MARGIN_BYTES: Final = 4 * MIB
"""A decrease leaves at least this, or an eighth of the limit, above what cannot be reclaimed."""

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


def needs_inspection(usage_bytes: IntArray, limit_bytes: IntArray, rate: np.ndarray[Any, Any]) -> BoolArray:
    """Which containers are near, or will be within `FAST_GROWTH_S` at this rate. Columns of shape (N,)."""
    free = limit_bytes - usage_bytes
    near = np.maximum(np.minimum(NEAR_BYTES, limit_bytes // NEAR_SHARE), (rate * NEAR_S).astype(np.int64))
    inspect: BoolArray = (limit_bytes >= 0) & ((free < near) | (free < rate * FAST_GROWTH_S))
    return inspect


def decrease_is_unsafe(limit_bytes: int, usage_bytes: int, reclaimable_bytes: int) -> bool:
    """Whether a lower limit would leave no room above what the kernel cannot drop."""
    margin_bytes = min(DECREASE_MARGIN_BYTES, limit_bytes // NEAR_SHARE)  # a small limit could never be set otherwise
    return limit_bytes < usage_bytes - min(reclaimable_bytes, usage_bytes) + margin_bytes


REPORT_INTERVAL_NS: Final = 10_000_000_000


@dataclass(slots=True)
class LimitHits:
    """How often the kernel hit one limit without a wait or a kill (memory.failcnt; `max` in memory.events).

    The kernel counts every charge that found no room at first, also where reclaim then made some: so a hit says that
    calls may have failed, not that they did. Hits are reported together, the first at once and the others every
    interval. Times are monotonic nanoseconds.
    """

    counter: int | None = None
    """As last read; None: never."""
    unreported: int = 0
    reported_ns: int | None = None

    def read(self, counter: int, now_ns: int, *, expected: bool) -> int:
        """Take in the kernel's counter; returns how many hits are to be reported now, 0: none.

        Args:
            counter: since the group was made; one that has fallen was reset externally, and begins anew.
            now_ns: when it was read.
            expected: tasks wait, or the kernel may kill: that is reported by itself.
        """
        before, self.counter = self.counter, counter
        if before is None or expected:
            return 0
        self.unreported += max(counter - before, 0)
        if not self.unreported or (self.reported_ns is not None and now_ns - self.reported_ns < REPORT_INTERVAL_NS):
            return 0
        hits, self.unreported, self.reported_ns = self.unreported, 0, now_ns
        return hits


@dataclass(slots=True)
class ContainerMemory:
    """State of one container under OOM control.

    Two kinds of incidents: a *shortage* lasts while it is near its limit and the reserve does not cover it; an *OOM
    wait* while its tasks wait at the limit. Either ends by a grant; an OOM wait also by the OOM killer at its deadline.
    """

    key: str
    app: str
    growth: Growth = field(default_factory=Growth)
    fast_poll_until_ns: int = 0
    granted_ns: int | None = None
    """Latest grant."""
    granted_bytes: int = 0
    """Its size."""
    short_since_ns: int | None = None
    missing_bytes: int = 0
    near_limit_reported: bool = False
    denial_reported: bool = False
    denial: str = ""
    """Why nothing more was granted, by the last reply in this shortage."""
    oom_wait_since_ns: int | None = None
    recorded_wait_ns: int | None = None
    """Since when its tasks may have waited before the last inspection, as others recorded; until the next one."""
    deadline_ns: int = 0
    woken_ns: int = 0
    killer_reason: str = ""
    """Why the OOM killer is enabled again; empty: it is not."""
    killer_enabled_ns: int = 0
    kills_before: int = 0
    was_waiting: bool = False
    state: MemoryState | None = None
    """Latest reading."""
    armed_ns: int = 0
    limit_hits: LimitHits = field(default_factory=LimitHits)

    def inspect(self, seen: Observation) -> Decision:
        """`decide`, and remember what was seen and decided."""
        state, now_ns = seen.state, seen.now_ns
        expected = state.paused or bool(self.killer_reason)
        hits = self.limit_hits.read(state.limit_hits, now_ns, expected=expected)
        rate, growth = self.read(state, now_ns), self.growth
        need = need_of(state, rate, seen.container_max_bytes, growth.fastest, seen.reserve_bytes)
        decision = decide(self, seen, need, hits)
        self.oom_wait_since_ns, self.deadline_ns = decision.oom_wait_since_ns, decision.deadline_ns
        if decision.kill_reason:
            self.granted_ns = None  # what the killed one leaves may be taken at once
        if decision.wake:
            self.woken_ns = now_ns
        if decision.control_again:
            self.killer_reason = ""
        if self.short_since_ns is not None and not (self.killer_reason or decision.need.added_bytes):
            self.end_shortage()
        return decision

    def read(self, state: MemoryState, now_ns: int) -> float:
        """Take a reading; returns the rate."""
        self.state = state
        rate = self.growth.read(state.usage_bytes, now_ns)
        free = state.limit_bytes - state.usage_bytes
        if state.limit_bytes != UNLIMITED and (state.paused or free < rate * FAST_GROWTH_S):
            self.poll_fast(now_ns)
        return rate

    def poll_fast(self, now_ns: int) -> None:
        """Inspect again soon."""
        self.fast_poll_until_ns = max(self.fast_poll_until_ns, now_ns + FAST_POLL_NS)

    def is_polled_fast(self, now_ns: int) -> bool:
        """Whether it is polled: it grows fast, its tasks wait, or a kill may be on its way."""
        return now_ns < self.fast_poll_until_ns or self.oom_wait_since_ns is not None or bool(self.killer_reason)

    @property
    def has_incident(self) -> bool:
        """Whether it lacks memory, its tasks wait, or the OOM killer is enabled again."""
        return self.short_since_ns is not None or self.oom_wait_since_ns is not None or bool(self.killer_reason)

    def end_oom_wait(self) -> None:
        """Tasks do not wait any more."""
        self.oom_wait_since_ns = None

    def blocked_us(self, now_ns: int) -> int:
        """For how long they have waited; 0: they do not."""
        return 0 if self.oom_wait_since_ns is None else (now_ns - self.oom_wait_since_ns) // 1000

    def overdue(self, now_ns: int) -> bool:
        """Whether they have waited for as long as the setting allows."""
        return self.oom_wait_since_ns is not None and now_ns >= self.deadline_ns

    def note_shortage(self, missing_bytes: int, now_ns: int) -> None:
        """The reserve does not cover its need."""
        if self.short_since_ns is None:
            self.short_since_ns = now_ns
        self.missing_bytes = missing_bytes

    def was_granted(self, limit_bytes: int, now_ns: int) -> None:
        """The limit was raised out of the reserve: tasks go on."""
        self.granted_ns = now_ns
        self.end_oom_wait()
        self.poll_fast(now_ns)
        if self.state is not None:
            self.granted_bytes = limit_bytes - self.state.limit_bytes
            self.state = self.state._replace(limit_bytes=limit_bytes, paused=False)

    @property
    def is_urgent(self) -> bool:
        """Whether its tasks wait, or will within `LOOKAHEAD_S`; not where it is near its limit and does not grow."""
        if self.state is None or self.oom_wait_since_ns is not None or self.state.paused:
            return True
        return self.state.limit_bytes - self.state.usage_bytes < self.growth.rate * LOOKAHEAD_S

    def asked_bytes(self, now_ns: int) -> int:
        """What it lacks, or will within `FAST_GROWTH_S` as it grows; 0: it asks for nothing. Beyond its limit.

        One that was granted something a moment ago may need as much again: its tasks go on only now.
        """
        if self.short_since_ns is not None and self.is_urgent:
            return self.missing_bytes
        if self.state is None or now_ns >= self.fast_poll_until_ns:
            return 0
        free_bytes = self.state.limit_bytes - self.state.usage_bytes
        again_bytes = self.granted_bytes if self.granted_ns is not None and now_ns - self.granted_ns < RETRY_NS else 0
        return max(int(self.growth.rate * FAST_GROWTH_S) - free_bytes, again_bytes)

    def end_shortage(self) -> None:
        """It is not near its limit any more."""
        self.short_since_ns, self.missing_bytes = None, 0
        self.near_limit_reported = self.denial_reported = False
        self.denial = ""

    def oom_killer_enabled(self, reason: str, now_ns: int, oom_kills: int) -> None:
        """The OOM killer was enabled again."""
        self.killer_reason, self.killer_enabled_ns, self.kills_before = reason, now_ns, oom_kills
        self.was_waiting = self.oom_wait_since_ns is not None
        self.end_oom_wait()

    def may_be_controlled_again(self, now_ns: int) -> bool:
        """After a release: the kernel has killed, or it is not near its limit any more and some time has passed."""
        state = self.state
        if state is None or state.oom_kills > self.kills_before:
            return True
        near = near_bytes(max(state.limit_bytes, 0), self.growth.rate)
        has_headroom = state.limit_bytes == UNLIMITED or state.limit_bytes - state.usage_bytes >= 2 * near
        return has_headroom and not state.paused and now_ns - self.killer_enabled_ns >= SETTLE_NS


class Observation(NamedTuple):
    """What an inspection sees of a container and of its application's reserve."""

    state: MemoryState
    now_ns: int
    oom_kills: int
    """By the kernel's counter, as far as they were reported."""
    container_max_bytes: int
    """Greatest limit of a container of this application."""
    reserve_bytes: int
    """Left of the reserve."""
    oom_wait_timeout_ns: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What an inspection shows of a container, and what is to be done about it. Reasons: empty where there is none."""

    oom_wait_since_ns: int | None
    """Since when its tasks wait; None: they do not."""
    deadline_ns: int
    """When that wait has to end."""
    kill_reason: str = ""
    """The kernel has killed, and this is why that was not prevented."""
    limit_hits: int = 0
    """To be reported, unless the kernel could drop page cache instead."""
    control_again: bool = False
    """Disable the OOM killer again: it has killed, or it was enabled for long enough."""
    wait_reason: str = ""
    """Tasks are found waiting, which is new."""
    need: Need = NO_NEED
    """Grant this out of the reserve; request what it does not cover."""
    killer_cause: OomCause = OomCause.LIMIT
    killer_reason: str = ""
    """Enable the OOM killer if nothing is granted."""
    wake: bool = False
    """Wake tasks that wait although there is room."""


def decide(container: ContainerMemory, seen: Observation, need: Need, limit_hits: int = 0) -> Decision:
    """What is to be done about a container that was just read (`ContainerMemory.read`). Changes nothing.

    Args:
        container: what is remembered of it.
        seen: the reading, and the bounds of its limit.
        need: what is to be added to the limit, by `need_of`.
        limit_hits: so many are due to be reported.
    """
    state, since_ns, deadline_ns = seen.state, container.oom_wait_since_ns, container.deadline_ns
    killed = ""
    if state.oom_kills > seen.oom_kills:
        killed = container.killer_reason or kill_reason(container, state, is_controlled=True)
    if container.killer_reason:
        again = container.may_be_controlled_again(seen.now_ns)
        return Decision(since_ns, deadline_ns, killed, limit_hits, control_again=again)
    if not state.paused:
        return Decision(None, deadline_ns, killed, limit_hits, need=need)
    wait_reason = ""
    if since_ns is None:
        recorded_ns = container.recorded_wait_ns
        since_ns = seen.now_ns if recorded_ns is None else min(recorded_ns, seen.now_ns)
        deadline_ns = since_ns + seen.oom_wait_timeout_ns
        wait_reason = f"usage {mib(state.usage_bytes)} reached the limit of {mib(state.limit_bytes)}: tasks wait"
    cause, reason = _end_of_wait(container, seen, need, deadline_ns)
    # The kernel wakes waiting tasks when a limit is raised. A task whose charge was refused before, and that is marked
    # as waiting only afterwards (mem_cgroup_oom_synchronize in mm/memcontrol-v1.c), is not woken by that.
    has_room = not reason and need.added_bytes == 0
    wake = has_room and seen.now_ns - max(since_ns, container.woken_ns) >= WAKE_NS
    return Decision(
        since_ns,
        deadline_ns,
        killed,
        limit_hits,
        wait_reason=wait_reason,
        need=need,
        killer_cause=cause,
        killer_reason=reason,
        wake=wake,
    )


def _end_of_wait(container: ContainerMemory, seen: Observation, need: Need, deadline_ns: int) -> tuple[OomCause, str]:
    """Why tasks may not wait any longer if nothing can be granted; an empty reason: they may."""
    usage, limit = mib(seen.state.usage_bytes), mib(seen.state.limit_bytes)
    if need.added_bytes == 0 and need.capped:
        most = mib(seen.container_max_bytes)
        return OomCause.LIMIT, f"usage {usage} of {limit}: no container of {container.app} may have more than {most}"
    if seen.now_ns < deadline_ns:
        return OomCause.DEADLINE, ""
    why = container.denial or "nothing more could be had"
    if need.added_bytes == 0:
        why = f"usage {usage} is below the limit of {limit}: a group above is full"
    return OomCause.DEADLINE, f"tasks waited for {seen.oom_wait_timeout_ns / 1e9:g} s: {why}"


@dataclass(slots=True)
class RequestState:
    """Requests of one application: at most one is under way."""

    outstanding: bool = False
    sent_ns: int = 0
    next_ns: int = 0
    killer_enabled_ns: int | None = None
    """Latest release of any of the application's containers."""

    def may_enable_killer(self, now_ns: int, oom_wait_since_ns: int | None) -> bool:
        """Whether a refusal may end a wait: one victim at a time, for what it leaves may be enough for all."""
        if oom_wait_since_ns is None or self.sent_ns - oom_wait_since_ns < INFORMED_NS:
            return False
        return self.killer_enabled_ns is None or now_ns - self.killer_enabled_ns >= VICTIM_NS

    def may_request(self, now_ns: int, oom_wait_since_ns: int | None) -> bool:
        """Whether to send one now. A wait that began since the last request need not wait for the next interval."""
        if self.outstanding:
            return False
        return now_ns >= self.next_ns or (oom_wait_since_ns is not None and oom_wait_since_ns > self.sent_ns)

    def sent(self, now_ns: int) -> None:
        """A request goes out."""
        self.outstanding, self.sent_ns = True, now_ns

    def answered(self, now_ns: int, *, refused: bool) -> None:
        """Its reply has come, or will not come any more."""
        self.outstanding = False
        self.next_ns = now_ns + (REFUSED_RETRY_NS if refused else RETRY_NS)

    def retry_soon(self, now_ns: int) -> None:
        """Tasks still wait."""
        self.next_ns = min(self.next_ns, now_ns + RETRY_NS)


def by_urgency(waiting: list[ContainerMemory]) -> list[ContainerMemory]:
    """The order in which containers get memory: those whose tasks wait, then those that lack it the longest."""
    return sorted(
        waiting,
        key=lambda one: (one.oom_wait_since_ns is None, one.oom_wait_since_ns or 0, one.short_since_ns or 0, one.key),
    )


def describe_limit_hits(state: MemoryState, hits: int) -> str:
    """Their possible effects: the kernel counts those, too, after which reclaim made room."""
    times = "once" if hits == 1 else f"{hits} times"
    return (
        f"usage {mib(state.usage_bytes)} of {mib(state.limit_bytes)}: the kernel hit the limit {times}; calls such as "
        "read, fork and writes to tmpfs can have failed with EFAULT or ENOMEM"
    )


def kill_reason(container: ContainerMemory, state: MemoryState, *, is_controlled: bool) -> str:
    """Why nothing could be done about a kill that was not left to the kernel."""
    if not is_controlled:
        return f"its memory is not guarded: no limit update for it was received; its limit is {mib(state.limit_bytes)}"
    rate = mib(container.growth.rate)
    return f"although guarded: it grew by {rate}/s when last seen, or a group above or the host is full"

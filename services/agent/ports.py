"""What the agent needs from the outside world. A vanished container is a value here, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from schemas.containers import ContainerSource
from services._host.cgroup_snapshot import (
    Counters,
    CounterSnapshot,
    Limits,
    MemoryState,
    Notification,
    Pressure,
    QuotaWriter,
    RefusedQuota,
    ThrottleSnapshot,
    WriteOutcome,
)


class ContainerHandle(Protocol):
    """One container's control files, kept open."""

    def read(self) -> Counters | None:
        """Counters now, or None if the container has vanished."""

    def read_periods(self) -> int | None:
        """Only nr_periods: the cheapest way to see a period boundary pass. None: vanished."""

    def read_usage(self) -> int | None:
        """Only the processor time used so far, in microseconds. None: vanished."""

    def read_limits(self) -> Limits | None:
        """Limits as the kernel holds them, re-read. None: vanished."""

    def read_quota(self) -> int | None:
        """Only the quota, per `PERIOD_US`, re-read; `UNLIMITED` if none. None: vanished."""

    @property
    def configured(self) -> Limits:
        """Limits without an agent's changes: as found, or, in what no agent changed, as the kernel was read last."""

    def read_oom_kills(self) -> int:
        """Kills by the kernel since the cgroup was made; 0 if vanished."""

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set the quota (>= 1000) per `PERIOD_US`; sets the period too where the kernel holds another one.

        A CPU burst above it is lowered with it, and put back as far as later quotas, and the original one, allow.
        """

    def why_quota_refused(self, quota_us: int) -> RefusedQuota:
        """Why `write_quota` of this quota was just REFUSED; reads other groups' files, milliseconds."""

    def write_memory(self, limit_bytes: int) -> WriteOutcome:
        """Set the memory limit, without ever causing a kill by itself (v2: memory.max never below current + margin)."""

    def why_memory_refused(self) -> str:
        """Why `write_memory` was just REFUSED, a clause for people."""

    def read_memory(self) -> MemoryState | None:
        """Usage, limit and whether tasks wait, now. None: vanished."""

    def read_reclaimable(self) -> int:
        """Inactive page cache in bytes (memory.stat, about 20 us: not for every sample); 0 if vanished."""

    def enable_oom_control(self) -> None:
        """Enable OOM control: near or at the limit a notification comes, and tasks wait instead of being killed.

        Version 1: usage thresholds (registered in the background, each takes 11-20 ms) and oom_kill_disable.
        Version 2: memory.high stays below memory.max. Again: repairs an external modification (True from
        `oom_control_was_undone` before), and follows usage with the thresholds. Never raises; vanished: nothing.
        """

    @property
    def oom_controlled(self) -> bool:
        """Whether OOM control is enabled; just opened: whether it was by a previous agent (then enable it again)."""

    def oom_control_was_undone(self) -> bool:
        """Whether OOM control was disabled externally (oom_kill_disable 0, a higher memory.high)."""

    @property
    def oom_wait_since_ns(self) -> int | None:
        """Since when tasks wait, as a previous agent or its watchdog recorded (monotonic); None: none did then."""

    def record_oom_wait(self, since_ns: int | None) -> None:
        """Record it (None: none waits any more) for the watchdog and the next agent."""

    def enable_oom_killer(self) -> WriteOutcome:
        """Leave out-of-memory to the OOM killer (oom_kill_disable 0; memory.high as it was found)."""

    def restore(self) -> None:
        """Restore every value that was found at opening and that this handle, or a previous agent, has changed.

        OOM control included. Vanished: nothing.
        """

    def close(self) -> None:
        """Close the descriptors."""


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A running container that carries the labels."""

    container_id: str
    app: str
    name: str
    source: ContainerSource
    pid: int | None = None
    """A process of it (Docker: its init); its cgroups are read from /proc."""
    managed_directory: str | None = None
    """For `turnbuckle exec`: the directory below each controller's mount."""
    directories: Mapping[str, str] | None = field(default=None, compare=False)
    """Of one that the state directory names: its control groups by controller, as a previous agent found them."""

    @property
    def key(self) -> str:
        """Unique in the cluster and readable."""
        return f"{self.name}-{self.container_id[:12]}"


@dataclass(frozen=True, slots=True)
class GoneContainer:
    """A container that has stopped."""

    container_id: str


@dataclass(frozen=True, slots=True)
class RejectedContainer:
    """A container whose labels cannot be used: it is left alone and reported once."""

    container_id: str
    app: str
    name: str
    source: ContainerSource
    reason: str


@dataclass(frozen=True, slots=True)
class SourceAnswered:
    """A source has named every container that it knows: all were reported before this. Repeating it is harmless."""

    source: ContainerSource
    exists: bool = True
    """False: there is no such engine on this host (no socket)."""


Discovered = FoundContainer | GoneContainer | RejectedContainer | SourceAnswered


class UnmanageableError(Exception):
    """This container is left alone: a sentence for people."""


class HostFullError(UnmanageableError):
    """No more containers can be managed here."""


class Host(Protocol):
    """The machine below the agent."""

    @property
    def cpu_count(self) -> int:
        """Processors."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the machine, or of the group that is the root here where that is limited."""

    def read_available(self) -> int | None:
        """MemAvailable of /proc/meminfo now, bytes; None: not known (simulated)."""

    def read_idle(self) -> int | None:
        """Idle time of all processors of the machine added up, us; None: not known (simulated)."""

    def read_pressure(self) -> Pressure:
        """Pressure stall information of the whole machine, now."""

    @property
    def cgroup_version(self) -> int:
        """1, 2, or 0 where simulated."""

    @property
    def telemetry_source(self) -> str:
        """``bpf-periods``, ``bpf``, ``cgroup-v1``, ``cgroup-v2`` or ``simulated``."""

    @property
    def memory_guard(self) -> str:
        """``thresholds+trap``, ``memory.high`` or ``sampled``."""

    @property
    def throttle_notifier(self) -> ThrottleNotifier | None:
        """Notifies of throttling while it happens; None: not available (any more), so throttling has to be polled."""

    @property
    def notification_fd(self) -> int | None:
        """Readable while notifications wait; None where there are none (simulated)."""

    def take_notifications(self) -> list[Notification]:
        """Notifications that wait, at most one of a kind per container; those of closed handles are dropped."""

    def read(self, handles: Sequence[ContainerHandle]) -> CounterSnapshot:
        """Counters of all, and the kernel's state where one read shows it. The same list until a container is added."""

    def throttle_snapshot(self, handles: Sequence[ContainerHandle]) -> ThrottleSnapshot | None:
        """Containers of the last `read` that are throttled at this moment; None: not available (now, or at all)."""

    def take_quota_writer(self, handle: ContainerHandle) -> QuotaWriter | None:
        """The process that wrote its CPU quota since the agent did; None: not known, or taken before."""

    @property
    def shows_usage(self) -> bool:
        """Whether only usage shows throttling between two samples (`read_usage`), not `throttle_snapshot`."""

    def open(self, container: FoundContainer) -> ContainerHandle | None:
        """Open its control files; None if it vanished meanwhile.

        Changes of a previous agent are known: `restore` puts back what was there before *that* one started.

        Raises:
            UnmanageableError: no descriptor is left for it, or the settings refuse it.
        """


class ThrottleNotifier(Protocol):
    """Becomes readable when a container, or any other group with a quota, has used it up."""

    def fileno(self) -> int:
        """Readable once a group was throttled."""

    def drain(self) -> int:
        """Skip what has arrived: readable again at the next throttling. Returns how many records were skipped."""


class Reserve(NamedTuple):
    """Memory of an application that this node may grant by itself, added up over the node's life."""

    given_bytes: int
    used_bytes: int

    @property
    def left_bytes(self) -> int:
        """What can still be granted."""
        return max(self.given_bytes - self.used_bytes, 0)


class ReserveStore(Protocol):
    """Reserves by application: shared with the watchdog, and kept when the agent dies.

    Every call sees what the watchdog has spent meanwhile. Never blocks: where the watchdog holds the lock, or it cannot
    be read, a reserve counts as empty for this call.
    """

    def read(self) -> dict[str, Reserve]:
        """All of them."""

    def give(self, app: str, given_bytes: int) -> Reserve:
        """Set what was given so far; never below what is used. Returns what holds then."""

    def spend(self, app: str, wanted_bytes: int) -> int:
        """Take up to so much out; returns how much. Written down before it is granted, so a crash can only lose it."""

    def refund(self, app: str, unspent_bytes: int) -> None:
        """Undo a `spend` whose grant the kernel refused."""

    def void(self, app: str) -> None:
        """The last container is gone: what is left is no longer held (used becomes given)."""

    def read_container_max(self) -> dict[str, int]:
        """Greatest limit of a container, bytes, of the applications that have one."""

    def set_container_max(self, app: str, most_bytes: int | None) -> bool:
        """Store it for the watchdog and the next agent; None: there is none.

        False: the store is locked now; the next update stores it.
        """


class Discovery(Protocol):
    """Finds containers: one implementation per source."""

    async def run(self, sink: Callable[[Discovered], None]) -> None:
        """Report what runs, then every change, until cancelled. Reconnects by itself; reporting twice is harmless."""

    @property
    def available(self) -> bool:
        """Whether the source answers right now (Docker down: False)."""


class WatchdogReport(NamedTuple):
    """What the watchdog did while the agent did not live."""

    key: str
    app: str
    time_ns: int
    granted: bool
    """True: the limit was raised out of the reserve. False: the OOM killer was enabled."""
    usage_bytes: int
    limit_before_bytes: int
    limit_after_bytes: int
    paused_us: int


class Watchdog(Protocol):
    """A process that outlives the agent and ends every wait that the agent would have ended."""

    def start(self) -> None:
        """Start it; from now on missing heartbeats mean that the agent is dead."""

    def heartbeat(self) -> None:
        """Send a heartbeat, every period. Never blocks; starts the process again where it has died."""

    def take_reports(self) -> list[WatchdogReport]:
        """Actions since the last call, also for a previous agent. Kept until `forget_reports`."""

    def forget_reports(self) -> None:
        """All that was taken is stored in the stream: a next agent need not publish it again."""

    def stop(self) -> None:
        """End it without a release: everything has been restored."""

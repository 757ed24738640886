"""A host whose containers are plain values, for tests of the agent's logic. Memory behaves as in version 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.containers import ContainerSource
from services._host.cgroup_snapshot import (
    Counters,
    Limits,
    MemoryState,
    Notification,
    NotificationKind,
    Pressure,
    QuotaWriter,
    RefusedQuota,
    WriteOutcome,
)
from services._host.control_file import read_each
from services.agent.cgroup.simulated import InMemoryReserveStore
from services.agent.ports import FoundContainer, HostFullError

PAGE_BYTES = 4096


@dataclass
class FakeContainer:
    """Control files of one container; set `gone` to make it vanish and `refuse` to make the kernel say no.

    It also says no as Linux does: to a quota below `burst_us` (which nobody lowers here) or that of a group below, to
    one above the group above (version 1), and to whatever is not in `writable`.

    `touch` uses memory: at the limit a guarded container's tasks wait and go on when the limit rises; without a guard,
    or once that is released, the kernel kills.
    """

    quota_us: int = -1
    limit_bytes: int = -1
    counters: Counters = field(default_factory=lambda: Counters(0, 0, 0, 0, 0))
    oom_kills: int = 0
    limit_hits: int = 0
    gone: bool = False
    refuse: bool = False
    burst_us: int = 0
    child_quota_us: int = 0
    """0: there is none."""
    parent_quota_us: int = 0
    """0: unlimited."""
    writable: frozenset[str] = frozenset({"quota", "memory"})
    attempts: list[tuple[int, str, int]] = field(default_factory=list)
    """Writes that were tried: moment (`now_ns`), what, value."""
    now_ns: int = 0
    writes: list[tuple[str, int]] = field(default_factory=list)
    original: tuple[int, int] | None = None
    key: str = ""
    reclaimable_bytes: int = 0
    oom_controlled: bool = False
    kernel_kills: bool = True
    """oom_kill_disable is 0."""
    wanted_bytes: int = 0
    """Memory that paused tasks still want to touch."""
    full_above: bool = False
    """A group above is full: whatever the limit, tasks wait."""
    calls: list[str] = field(default_factory=list)
    """Of the guard: arm, release, restore."""
    notifications: list[Notification] = field(default_factory=list)
    oom_wait_since_ns: int | None = None
    """Noted; outlives the agent."""

    def record_oom_wait(self, since_ns):
        self.oom_wait_since_ns = since_ns

    def read(self):
        return None if self.gone else self.counters

    def read_periods(self):
        return None if self.gone else self.counters.nr_periods

    def read_usage(self):
        return None if self.gone else self.counters.usage_us

    def read_limits(self):
        return None if self.gone else Limits(self.quota_us, self.limit_bytes)

    def read_quota(self):
        return None if self.gone else self.quota_us

    @property
    def configured(self):
        return Limits(*(self.original or (self.quota_us, self.limit_bytes)))

    def read_oom_kills(self):
        return 0 if self.gone else self.oom_kills

    def read_memory(self):
        if self.gone:
            return None
        return MemoryState(self.usage_bytes, self.limit_bytes, self.paused, self.oom_kills, self.limit_hits)

    def read_reclaimable(self):
        return 0 if self.gone else self.reclaimable_bytes

    def write_quota(self, quota_us):
        self.attempts.append((self.now_ns, "quota", quota_us))
        most = self.parent_quota_us or quota_us
        if not self.gone and not max(self.burst_us, self.child_quota_us) <= quota_us <= most:
            return WriteOutcome.REFUSED
        return self._write("quota", quota_us)

    def why_quota_refused(self, quota_us):
        if "quota" not in self.writable or self.refuse:
            return RefusedQuota("cpu.cfs_quota_us: Read-only file system (EROFS)")
        for floor_us, what in ((self.burst_us, "cpu.cfs_burst_us is"), (self.child_quota_us, "the group below has")):
            if quota_us < floor_us:
                return RefusedQuota(f"{what} {floor_us}", floor_us)
        return RefusedQuota(f"the group above has {self.parent_quota_us}", self.parent_quota_us)

    def why_memory_refused(self):
        return "memory.limit_in_bytes: Read-only file system (EROFS)"

    def write_memory(self, limit_bytes):
        limit_bytes = limit_bytes // PAGE_BYTES * PAGE_BYTES
        self.attempts.append((self.now_ns, "memory", limit_bytes))
        if not self.gone and limit_bytes < self.usage_bytes - self.reclaimable_bytes:
            return WriteOutcome.REFUSED
        outcome = self._write("memory", limit_bytes)
        self._go_on()
        return outcome

    def _write(self, kind, value):
        if self.gone:
            return WriteOutcome.VANISHED
        if self.refuse or kind not in self.writable:
            return WriteOutcome.REFUSED
        if self.original is None:
            self.original = (self.quota_us, self.limit_bytes)
        self.writes.append((kind, value))
        if kind == "quota":
            self.quota_us = value
        else:
            self.limit_bytes = value
        return WriteOutcome.WRITTEN

    def enable_oom_control(self):
        if not self.gone:
            self.calls.append("enable_oom_control")
            self.oom_controlled, self.kernel_kills = True, False

    def oom_control_was_undone(self):
        return self.oom_controlled and self.kernel_kills

    def enable_oom_killer(self):
        if self.gone:
            return WriteOutcome.VANISHED
        self.calls.append("enable_oom_killer")
        self.oom_controlled, self.kernel_kills = False, True
        self._go_on()
        return WriteOutcome.WRITTEN

    def restore(self):
        self.calls.append("restore")
        if self.original is not None:
            self.quota_us, self.limit_bytes = self.original
        self.oom_controlled, self.kernel_kills = False, True
        self._go_on()

    def close(self):
        pass

    # -- the container's side --

    @property
    def usage_bytes(self):
        return self.counters.memory_bytes

    @property
    def paused(self):
        return self.wanted_bytes > 0

    def run(self, used_us, *, periods=1, throttled=0, memory_bytes=0):
        """Let periods pass."""
        old = self.counters
        self.counters = Counters(
            old.nr_periods + periods,
            old.nr_throttled + throttled,
            old.throttled_us,
            old.usage_us + used_us,
            memory_bytes,
        )

    def touch(self, added_bytes):
        """Use more memory, as far as the limit lets it; raises alarms on the way."""
        if self.paused:
            return
        self.wanted_bytes = added_bytes
        self._go_on()
        if (
            self.oom_controlled
            and self.limit_bytes >= 0
            and self.limit_bytes - self.usage_bytes < self.limit_bytes // 8
        ):
            self.notifications.append(Notification(self.key, NotificationKind.NEAR))
        if self.oom_controlled and self.paused:
            self.notifications.append(Notification(self.key, NotificationKind.PAUSED))

    def free(self, freed_bytes):
        """Use less memory."""
        self.counters = self.counters._replace(memory_bytes=max(self.usage_bytes - freed_bytes, 0))

    def _go_on(self):
        if self.full_above:
            return
        room = self.wanted_bytes if self.limit_bytes < 0 else max(self.limit_bytes - self.usage_bytes, 0)
        taken = min(self.wanted_bytes, room)
        self.counters = self.counters._replace(memory_bytes=self.usage_bytes + taken)
        self.wanted_bytes -= taken
        if self.wanted_bytes and self.kernel_kills:
            self.oom_kills += 1
            self.wanted_bytes = 0
            self.counters = self.counters._replace(memory_bytes=0)


@dataclass
class FakeHost:
    """Opens the fake containers by id. `reserve_store` outlives the agent, like the file that it stands for."""

    containers: dict[str, FakeContainer] = field(default_factory=dict)
    cpu_count: int = 2
    memory_bytes: int = 8 << 30
    cgroup_version: int = 0
    telemetry_source: str = "simulated"
    telemetry_note: str = ""
    full: str = ""
    """Why no more containers can be opened."""
    memory_guard: str = "sampled"
    notification_fd: int | None = None
    reserve_store: InMemoryReserveStore = field(default_factory=InMemoryReserveStore)
    recorded: list = field(default_factory=list)
    """Containers that the state directory names."""
    available_bytes: int | None = None
    """MemAvailable."""
    pressure: Pressure = field(default_factory=Pressure)
    quota_writers: dict[str, QuotaWriter] = field(default_factory=dict)
    """Who wrote a container's quota last, by key; taken once."""
    before_notifications: Callable[[], object] | None = None
    """Called once, before alarms are taken."""

    def read(self, handles):
        return read_each(handles)

    shows_usage: bool = False

    def throttle_snapshot(self, handles):
        return None

    def read_available(self):
        return self.available_bytes

    idle_us: int | None = None

    def read_idle(self):
        return self.idle_us

    def read_pressure(self):
        return self.pressure

    def take_quota_writer(self, handle):
        return self.quota_writers.pop(handle.key, None)

    def open(self, container):
        if self.full:
            raise HostFullError(self.full)
        fake = self.containers.get(container.container_id)
        return None if fake is None or fake.gone else fake

    def take_notifications(self):
        before, self.before_notifications = self.before_notifications, None
        if before is not None:
            before()
        taken = []
        for container in self.containers.values():
            taken += dict.fromkeys(container.notifications)
            container.notifications.clear()
        return taken

    def add(self, name, app="shop", **values):
        """A running container, as discovery would report it."""
        found = FoundContainer(f"{name}0123456789ab", app, name, ContainerSource.SIMULATED)
        self.containers[found.container_id] = FakeContainer(key=found.key, **values)
        return found

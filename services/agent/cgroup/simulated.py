"""A host without control groups, for `--simulate`: containers are arithmetic, and nothing is done to this machine."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.apps import PERIOD_US
from schemas.containers import ContainerSource
from services._host.cgroup_snapshot import (
    UNLIMITED,
    Counters,
    CounterSnapshot,
    Limits,
    MemoryState,
    Notification,
    Pressure,
    WriteOutcome,
    read_each,
)
from services._host.control_file import PAGE_BYTES, WriteTally
from services._host.simulation.cfs_bandwidth import STEP_US, SimulatedContainer
from services._host.simulation.load_profile import Scenario
from services.agent.memory.reserve_file import Amounts
from services.agent.memory.reserve_store import ReserveStoreBase
from services.agent.ports import (
    ContainerHandle,
    Discovered,
    FoundContainer,
    GoneContainer,
    Reserve,
    SourceAnswered,
    WatchdogReport,
)


@dataclass(frozen=True, slots=True)
class SimulatedApp:
    """One application's containers and the limits that they start with."""

    app: str
    scenario: Scenario
    quota_us: int = UNLIMITED
    """Of each container, per `PERIOD_US`."""
    limit_bytes: int = UNLIMITED
    """Of each container."""


class SimulatedHost:
    """A virtual machine; implements both `Host` and `Discovery`.

    Time is the injected clock's, advanced in steps of 1 ms whenever something is read or written. Where the
    containers want more than the machine has, each gets the same share of what it wants.
    """

    cgroup_version = 0
    telemetry_source = "simulated"
    telemetry_note = ""
    memory_guard = "sampled"
    notification_fd = None
    throttle_notifier = None
    available = True

    def __init__(
        self,
        apps: Sequence[SimulatedApp],
        *,
        cpu_count: int = 4,
        memory_bytes: int = 8 << 30,
        node: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`node` makes the containers' ids differ from those of another simulated host."""
        self.cpu_count = cpu_count
        self.memory_bytes = memory_bytes
        self.tally = WriteTally()
        """What was written, like the real hosts'."""
        self._clock = clock
        self._zero_s = clock()
        self._now_us = 0
        self._containers: dict[str, SimulatedContainer] = {}
        self._found: list[FoundContainer] = []
        self._sinks: list[Callable[[Discovered], None]] = []
        for app in apps:
            self._add(app, node)

    def _add(self, app: SimulatedApp, node: str) -> None:
        chance = random.Random(app.scenario.seed)  # noqa: S311 - no secret: spreads the period phases repeatably
        for load in app.scenario.containers:
            container_id = hashlib.sha256(f"{node}/{app.app}/{load.name}".encode()).hexdigest()
            container = SimulatedContainer(load.schedule, load.threads, chance.randrange(STEP_US, PERIOD_US, STEP_US))
            container.limit_bytes = app.limit_bytes
            container.set_quota(app.quota_us)
            self._containers[container_id] = container
            self._found.append(FoundContainer(container_id, app.app, load.name, ContainerSource.SIMULATED))

    @property
    def writes_by_file(self) -> dict[str, int]:
        """Writes by what was written."""
        return self.tally.writes_by_file

    @property
    def no_op_writes(self) -> int:
        """Writes of a value that was held already."""
        return self.tally.no_op_writes

    def read_available(self) -> None:
        """Not simulated."""

    def read_idle(self) -> None:
        """Not simulated."""

    def read_pressure(self) -> Pressure:
        """Not simulated."""
        return Pressure()

    def take_notifications(self) -> list[Notification]:
        """None: memory is only sampled."""
        return []

    def release_leftovers(self) -> list[str]:
        """Nothing outlives a simulation."""
        return []

    def recorded(self) -> list[FoundContainer]:
        """Nothing outlives a simulation."""
        return []

    def read(self, handles: Sequence[ContainerHandle]) -> CounterSnapshot:
        """Counters of all."""
        return read_each(handles)

    def throttle_snapshot(self, handles: Sequence[ContainerHandle]) -> None:
        """As with files: only ended periods show."""

    def take_quota_writer(self, handle: ContainerHandle) -> None:
        """There is no other writer."""

    @property
    def shows_usage(self) -> bool:
        """A simulated container's usage is as good as that of files."""
        return True

    def open(self, container: FoundContainer) -> SimulatedHandle | None:
        """A handle; None if the container was removed."""
        if container.container_id not in self._containers:
            return None
        return SimulatedHandle(self, container.container_id)

    async def run(self, sink: Callable[[Discovered], None]) -> None:
        """Report all containers, then removals, until cancelled."""
        self._sinks.append(sink)
        try:
            for found in self._found:
                sink(found)
            sink(SourceAnswered(ContainerSource.SIMULATED))
            await asyncio.Event().wait()
        finally:
            self._sinks.remove(sink)

    def remove(self, container_id: str) -> None:
        """Remove a container, as if it exited."""
        del self._containers[container_id]
        self._found = [found for found in self._found if found.container_id != container_id]
        for sink in self._sinks:
            sink(GoneContainer(container_id))

    @property
    def containers(self) -> tuple[FoundContainer, ...]:
        """All that run."""
        return tuple(self._found)

    def state_of(self, container_id: str) -> SimulatedContainer | None:
        """Its state now; None if it was removed."""
        until_us = int((self._clock() - self._zero_s) * 1e6)
        while self._now_us + STEP_US <= until_us:
            self._step()
        return self._containers.get(container_id)

    def _step(self) -> None:
        now_us = self._now_us
        containers = self._containers.values()
        wanted: list[float] = []
        for container in containers:
            container.end_periods(now_us)
            wanted.append(0.0 if container.throttled else container.wanted_us(now_us))
        capacity_us = self.cpu_count * STEP_US
        share = min(1.0, capacity_us / total) if (total := sum(wanted)) > 0 else 1.0
        for container, wanted_us in zip(containers, wanted, strict=True):
            container.run(wanted_us * share)
        self._now_us = now_us + STEP_US


class SimulatedHandle:
    """One simulated container's controls; `ContainerHandle`."""

    __slots__ = ("_container_id", "_host", "_original")

    def __init__(self, host: SimulatedHost, container_id: str) -> None:
        self._host = host
        self._container_id = container_id
        self._original = self.read_limits()

    def _now(self) -> SimulatedContainer | None:
        return self._host.state_of(self._container_id)

    def read(self) -> Counters | None:
        """Counters now. None: removed."""
        c = self._now()
        if c is None:
            return None
        return Counters(c.nr_periods, c.nr_throttled, c.throttled_us, int(c.usage_us), c.memory_bytes)

    def read_periods(self) -> int | None:
        """Only nr_periods. None: removed."""
        container = self._now()
        return None if container is None else container.nr_periods

    def read_usage(self) -> int | None:
        """Processor time in microseconds. None: removed."""
        container = self._now()
        return None if container is None else int(container.usage_us)

    def read_limits(self) -> Limits | None:
        """Limits as held. None: removed."""
        container = self._now()
        return None if container is None else Limits(container.quota_us, container.limit_bytes)

    def read_quota(self) -> int | None:
        """The quota as held. None: removed."""
        container = self._now()
        return None if container is None else container.quota_us

    def read_oom_kills(self) -> int:
        """Kills for memory; 0 if removed."""
        container = self._now()
        return 0 if container is None else container.oom_kills

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set the quota; refills, like the kernel."""
        container = self._now()
        if container is None:
            return WriteOutcome.VANISHED
        self._count("quota_us", unchanged=container.quota_us == quota_us)
        container.set_quota(quota_us)
        return WriteOutcome.WRITTEN

    def write_memory(self, limit_bytes: int) -> WriteOutcome:
        """Set the memory limit; REFUSED below usage."""
        container = self._now()
        if container is None:
            return WriteOutcome.VANISHED
        limit_bytes = limit_bytes // PAGE_BYTES * PAGE_BYTES
        if limit_bytes < container.memory_bytes:
            self._host.tally.refused += 1
            return WriteOutcome.REFUSED
        self._count("limit_bytes", unchanged=container.limit_bytes == limit_bytes)
        container.limit_bytes = limit_bytes
        return WriteOutcome.WRITTEN

    def read_memory(self) -> MemoryState | None:
        """Memory now; there is no OOM wait. None: removed."""
        c = self._now()
        return None if c is None else MemoryState(c.memory_bytes, c.limit_bytes, paused=False, oom_kills=c.oom_kills)

    def read_reclaimable(self) -> int:
        """There is no page cache."""
        return 0

    def enable_oom_control(self) -> None:
        """Not simulated: at the limit the container is killed."""

    @property
    def oom_controlled(self) -> bool:
        """Never."""
        return False

    def oom_control_was_undone(self) -> bool:
        """Never."""
        return False

    @property
    def oom_wait_since_ns(self) -> int | None:
        """There is no OOM wait."""
        return None

    def record_oom_wait(self, since_ns: int | None) -> None:
        """There is no OOM wait."""

    def enable_oom_killer(self) -> WriteOutcome:
        """Nothing to release."""
        return WriteOutcome.VANISHED if self._now() is None else WriteOutcome.WRITTEN

    def _count(self, what: str, *, unchanged: bool) -> None:
        tally = self._host.tally
        tally.writes_by_file[what] = tally.writes_by_file.get(what, 0) + 1
        tally.no_op_writes += unchanged

    def restore(self) -> None:
        """Restore the limits found at opening; a memory limit below usage stays as it is."""
        container = self._now()
        if container is None or self._original is None:
            return
        if container.quota_us != self._original.quota_us:
            self.write_quota(self._original.quota_us)
        if container.limit_bytes == self._original.memory_bytes:
            return
        if self._original.memory_bytes == UNLIMITED:
            self._count("limit_bytes", unchanged=False)
            container.limit_bytes = UNLIMITED
        else:
            self.write_memory(self._original.memory_bytes)

    def close(self) -> None:
        """Nothing is open."""


class InMemoryReserveStore(ReserveStoreBase):
    """Forgotten with the process."""

    def __init__(self) -> None:
        self._amounts: dict[str, Amounts] = {}
        self._container_max: dict[str, int] = {}

    def read_container_max(self) -> dict[str, int]:
        """Of the applications that have one, bytes."""
        return dict(self._container_max)

    def set_container_max(self, app: str, most_bytes: int | None) -> bool:
        """None: there is none."""
        if most_bytes is None:
            self._container_max.pop(app, None)
        else:
            self._container_max[app] = most_bytes
        return True

    def read(self) -> dict[str, Reserve]:
        """All of them."""
        return {app: Reserve(*amounts) for app, amounts in self._amounts.items()}

    def _change(self, app: str, rule: Callable[[Amounts], Amounts]) -> tuple[Amounts, Amounts]:
        before = self._amounts.get(app, (0, 0))
        after = self._amounts[app] = rule(before)
        return before, after


class NoWatchdog:
    """For a host that is only simulated: nothing waits there."""

    def start(self) -> None:
        """Nothing."""

    def heartbeat(self) -> None:
        """Nothing."""

    def take_reports(self) -> list[WatchdogReport]:
        """None."""
        return []

    def forget_reports(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

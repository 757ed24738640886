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
    CounterSnapshot,
    Notification,
    Pressure,
)
from services._host.control_file import read_each
from services._host.simulation.cfs_bandwidth import STEP_US, SimulatedContainer
from services._host.simulation.load_profile import Scenario
from services._host.simulation.machine import SimulatedHandle, SimulatedMachine
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
    """A virtual machine; implements both `Host` and `Discovery`."""

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
        self._machine = SimulatedMachine(cpu_count, clock)
        self.tally = self._machine.tally
        """What was written, like the real hosts'."""
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
            self._machine.containers[container_id] = container
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
        if container.container_id not in self._machine.containers:
            return None
        return SimulatedHandle(self._machine, container.container_id)

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
        del self._machine.containers[container_id]
        self._found = [found for found in self._found if found.container_id != container_id]
        for sink in self._sinks:
            sink(GoneContainer(container_id))

    def state_of(self, container_id: str) -> SimulatedContainer | None:
        """Its state now; None if it was removed."""
        return self._machine.state_of(container_id)

    @property
    def containers(self) -> tuple[FoundContainer, ...]:
        """All that run."""
        return tuple(self._found)


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

"""A machine whose containers are arithmetic, and their controls.

Time is the given clock's, advanced in steps of 1 ms whenever something is read or written. Where the containers want
more than the machine has, each gets the same share of what it wants.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.reasons import quantity
from services._host.cgroup_snapshot import UNLIMITED, Counters, Limits, MemoryState, RefusedQuota, WriteOutcome
from services._host.control_file import PAGE_BYTES, WriteTally
from services._host.simulation.cfs_bandwidth import STEP_US, SimulatedContainer


class SimulatedMachine:
    """Its processors, and the containers that share them."""

    def __init__(self, cpu_count: int, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self.containers: dict[str, SimulatedContainer] = {}
        """By id."""
        self.tally = WriteTally()
        """What was written, like a real host's."""
        self._capacity_us = cpu_count * STEP_US
        self._clock = clock
        self._zero_s = clock()
        self._now_us = 0

    def state_of(self, container_id: str) -> SimulatedContainer | None:
        """Its state now; None if it was removed."""
        until_us = int((self._clock() - self._zero_s) * 1e6)
        while self._now_us + STEP_US <= until_us:
            self._step()
        return self.containers.get(container_id)

    def _step(self) -> None:
        now_us = self._now_us
        containers = self.containers.values()
        wanted: list[float] = []
        for container in containers:
            container.end_periods(now_us)
            wanted.append(0.0 if container.throttled else container.wanted_us(now_us))
        share = min(1.0, self._capacity_us / total) if (total := sum(wanted)) > 0 else 1.0
        for container, wanted_us in zip(containers, wanted, strict=True):
            container.run(wanted_us * share)
        self._now_us = now_us + STEP_US


class SimulatedHandle:
    """One simulated container's controls, as those of its control groups."""

    __slots__ = ("_container_id", "_machine", "_original")

    def __init__(self, machine: SimulatedMachine, container_id: str) -> None:
        self._machine = machine
        self._container_id = container_id
        self._original = self.read_limits()

    def _now(self) -> SimulatedContainer | None:
        return self._machine.state_of(self._container_id)

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

    @property
    def configured(self) -> Limits:
        """As found at opening."""
        return self._original or Limits(UNLIMITED, UNLIMITED)

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
            self._machine.tally.refused += 1
            return WriteOutcome.REFUSED
        self._count("limit_bytes", unchanged=container.limit_bytes == limit_bytes)
        container.limit_bytes = limit_bytes
        return WriteOutcome.WRITTEN

    def why_quota_refused(self, quota_us: int) -> RefusedQuota:
        """It never is."""
        return RefusedQuota(f"{quota_us} us are refused")

    def why_memory_refused(self) -> str:
        """Only below usage."""
        container = self._now()
        return "" if container is None else f"{quantity('memory', container.memory_bytes)} are in use"

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
        tally = self._machine.tally
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

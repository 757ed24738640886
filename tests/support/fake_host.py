"""A host whose containers are plain values, for tests of the agent's logic."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.containers import ContainerSource
from services.agent.ports import Counters, FoundContainer, Limits, WriteOutcome


@dataclass
class FakeContainer:
    """Control files of one container; set `gone` to make it vanish and `refuse` to make the kernel say no."""

    quota_us: int = -1
    limit_bytes: int = -1
    counters: Counters = field(default_factory=lambda: Counters(0, 0, 0, 0, 0))
    oom_kills: int = 0
    gone: bool = False
    refuse: bool = False
    writes: list[tuple[str, int]] = field(default_factory=list)
    original: tuple[int, int] | None = None

    def read(self):
        return None if self.gone else self.counters

    def read_periods(self):
        return None if self.gone else self.counters.nr_periods

    def read_limits(self):
        return None if self.gone else Limits(self.quota_us, self.limit_bytes)

    def read_oom_kills(self):
        return self.oom_kills

    def write_quota(self, quota_us):
        return self._write("quota", quota_us)

    def write_memory(self, limit_bytes):
        return self._write("memory", limit_bytes)

    def _write(self, kind, value):
        if self.gone:
            return WriteOutcome.VANISHED
        if self.refuse:
            return WriteOutcome.REFUSED
        if self.original is None:
            self.original = (self.quota_us, self.limit_bytes)
        self.writes.append((kind, value))
        if kind == "quota":
            self.quota_us = value
        else:
            self.limit_bytes = value
        return WriteOutcome.WRITTEN

    def restore(self):
        if self.original is not None:
            self.quota_us, self.limit_bytes = self.original

    def close(self):
        pass

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


@dataclass
class FakeHost:
    """Opens the fake containers by id."""

    containers: dict[str, FakeContainer] = field(default_factory=dict)
    cpu_count: int = 2
    memory_bytes: int = 8 << 30
    cgroup_version: int = 0
    telemetry_source: str = "simulated"

    def open(self, container):
        fake = self.containers.get(container.container_id)
        return None if fake is None or fake.gone else fake

    def add(self, name, app="shop", **values):
        """A running container, as discovery would report it."""
        found = FoundContainer(f"{name}0123456789ab", app, name, ContainerSource.SIMULATED)
        self.containers[found.container_id] = FakeContainer(**values)
        return found

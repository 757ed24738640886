"""One group's memory as the watchdog (`watchdog.supervision`) reads and writes it. Standard library only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from services.agent.memory.growth import FreeMemory, Growth, Need, high_margin_bytes, need_of
from services.agent.state_files import FoundValues

NEAR_BYTES: Final = 2 << 20
"""Closer to the limit than this, with nothing to reclaim, counts as waiting: reclaim may spin without an event."""
THRASHING_S: Final = 1.0
"""Pages refused at the limit for so long, although reclaim finds some each time: granted, too, out of the reserve."""
BLOCKED_CHECK_S: Final = 0.025
"""Between two readings whether tasks are blocked although there is room."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_READ_ONLY: Final = frozenset({"memory.events"})
_UNLIMITED: Final = 1 << 62


class Memory(NamedTuple):
    """One reading of a group."""

    usage_bytes: int
    limit_bytes: int
    near: bool
    """Only reclaim makes room."""
    blocked: bool
    """Version 1: tasks wait as if the limit had been reached (under_oom)."""
    paused: bool
    """Reclaim makes none: tasks wait."""
    refusals: int
    """How often pages were refused at the limit, ever; as far as it is near."""


class Group:
    """One controlled group's control files, kept open. Methods raise OSError once it has vanished."""

    def __init__(self, found: FoundValues, oom_wait_since_s: float | None, unobserved_since_s: float) -> None:
        """Open nothing yet.

        Args:
            found: the group.
            oom_wait_since_s: since when its tasks wait, as the agent recorded.
            unobserved_since_s: when the agent last inspected it.
        """
        self.key = found.key
        self.app = found.app
        self.version = found.version
        self.original_oom_control = found.values.get("memory.oom_control", "0")
        self.original_high = found.values.get("memory.high", "max")
        """Set externally, as by the kubelet: that of OOM control stays at or below it."""
        self.oom_wait_since_s = oom_wait_since_s
        self.unobserved_since_s = unobserved_since_s
        """When it was last known that no task waited."""
        self.killer_enabled = False
        self.initial_granted = False
        """Whether it was granted initial memory, or was found to need none."""
        self.due_s = 0.0
        """When it is to be read again, monotonic."""
        self.woken_s = 0.0
        self.growth = Growth()
        self._blocked_check_s = 0.0
        self._near_since_s: float | None = None
        self._refusals = 0
        self._directory = found.directories["memory"]
        self._descriptors: dict[str, int] = {}

    def _descriptor(self, name: str) -> int:
        if name not in self._descriptors:
            mode = os.O_RDONLY if name in _READ_ONLY else os.O_RDWR
            self._descriptors[name] = os.open(f"{self._directory}/{name}", mode | os.O_CLOEXEC)
        return self._descriptors[name]

    def _read_number(self, name: str) -> int:
        text = os.pread(self._descriptor(name), 64, 0).strip()
        return _UNLIMITED if text == b"max" else int(text)

    def _write(self, name: str, value: str) -> None:
        os.pwrite(self._descriptor(name), value.encode(), 0)

    def _external_high(self) -> int:
        return _UNLIMITED if self.original_high == "max" else int(self.original_high)

    def _reclaimable_bytes(self) -> int:
        """Inactive page cache of the group and those below it."""
        key = "total_inactive_file " if self.version == 1 else "inactive_file "
        for line in Path(f"{self._directory}/memory.stat").read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.removeprefix(key))
        return 0

    def _read_high_events(self) -> int:
        for line in os.pread(self._descriptor("memory.events"), 512, 0).splitlines():
            if line.startswith(b"high "):
                return int(line.removeprefix(b"high "))
        return 0

    def read(self, now_s: float) -> Memory:
        """Usage and limit; near the limit also whether tasks wait."""
        memory = self._read_v1(now_s) if self.version == 1 else self._read_v2()
        self.growth.read(memory.usage_bytes, int(now_s * 1e9))
        return memory

    def _read_v1(self, now_s: float) -> Memory:
        usage, limit = self._read_number("memory.usage_in_bytes"), self._read_number("memory.limit_in_bytes")
        near = usage + NEAR_BYTES >= limit
        if not near and now_s < self._blocked_check_s:
            return Memory(usage, limit, near, blocked=False, paused=False, refusals=0)
        self._blocked_check_s = now_s + BLOCKED_CHECK_S
        blocked = os.pread(self._descriptor("memory.oom_control"), 256, 0).split()[3] == b"1"
        paused = near and (blocked or usage - self._reclaimable_bytes() + 2 * NEAR_BYTES >= limit)
        return Memory(usage, limit, near, blocked, paused, self._read_number("memory.failcnt") if near else 0)

    def _read_v2(self) -> Memory:
        usage, limit, high = (
            self._read_number("memory.current"),
            self._read_number("memory.max"),
            self._read_number("memory.high"),
        )
        near = usage >= high and high < self._external_high()  # a grant does not help at an external memory.high
        paused = near and usage - self._reclaimable_bytes() + 2 * NEAR_BYTES >= high
        return Memory(
            usage, limit, near, blocked=False, paused=paused, refusals=self._read_high_events() if near else 0
        )

    def free_memory(self, memory: Memory, max_bytes: int) -> FreeMemory:
        """What it can use between two readings. Page cache that can be dropped is free."""
        free_bytes = max(memory.limit_bytes - memory.usage_bytes, 0) + self._reclaimable_bytes()
        return FreeMemory(free_bytes, max(max_bytes - memory.limit_bytes, 0))

    def need(self, memory: Memory, max_bytes: int, reserve_bytes: int) -> Need:
        """What it lacks by the agent's rule. Page cache that can be dropped first does not count as used."""
        need = need_of(memory, self.growth.rate, max_bytes, self.growth.fastest, reserve_bytes)
        if not need.added_bytes or memory.paused:
            return need
        net = memory._replace(usage_bytes=max(memory.usage_bytes - self._reclaimable_bytes(), 0))
        return need_of(net, self.growth.rate, max_bytes, self.growth.fastest, reserve_bytes)

    def is_thrashing(self, memory: Memory, now_s: float) -> bool:
        """Whether it has been near the limit for long, and was refused pages, though no task waits for good."""
        if not memory.near:
            self._near_since_s = None
        elif self._near_since_s is None:
            self._near_since_s, self._refusals = now_s, memory.refusals
        elif now_s - self._near_since_s >= THRASHING_S:
            is_thrashing = memory.refusals > self._refusals
            self._near_since_s, self._refusals = now_s, memory.refusals
            return is_thrashing
        return False

    def grant(self, memory: Memory, granted_bytes: int) -> int:
        """Raise the limit by so much; returns the new one."""
        limit = memory.limit_bytes + granted_bytes
        if self.version == 1:
            with suppress(FileNotFoundError):  # the kernel does not account for swap
                if self._read_number("memory.memsw.limit_in_bytes") < limit:
                    self._write("memory.memsw.limit_in_bytes", str(limit))
            self._write("memory.limit_in_bytes", str(limit))
        else:
            self._write("memory.max", str(limit))
            if self._read_number("memory.high") < _UNLIMITED:  # where the agent would put it, and recognize it
                self._write("memory.high", str(min(limit - high_margin_bytes(limit), self._external_high())))
        return limit

    def wake(self) -> None:
        """Let tasks try again that are blocked although there is room. Version 1.

        The kernel wakes blocked tasks when a limit is raised, but not a task that was refused memory before and blocks
        down after it (mem_cgroup_oom_synchronize in mm/memcontrol-v1.c). Where a group above is full, they lie down
        again.
        """
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            with suppress(OSError):  # the first may not exceed the second
                held = self._read_number(name)
                self._write(name, str(held + _PAGE_BYTES))
                self._write(name, str(held))
                return

    def enable_oom_killer(self) -> None:
        """Enable the OOM killer."""
        if self.version == 1:
            self._write("memory.oom_control", self.original_oom_control)
        else:
            self._write("memory.high", self.original_high)
        self.killer_enabled = True

    def force_oom_killer(self) -> None:
        """Like `enable_oom_killer`, also where it was disabled before the first agent: tasks wait now."""
        self.original_oom_control = "0"
        self.enable_oom_killer()

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

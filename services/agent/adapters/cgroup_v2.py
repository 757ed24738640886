"""Control groups of version 2: one unified hierarchy.

Source: Documentation/admin-guide/cgroup-v2.rst, sections "CPU" and "Memory".
"""

from __future__ import annotations

import errno
from os import pread
from typing import Final

from schemas.apps import PERIOD_US
from services.agent.adapters.cgroup_host import CgroupHost
from services.agent.adapters.control_file import CLOSED, PAGE_BYTES, OpenFiles, WriteTally, field_positions, is_gone
from services.agent.ports import UNLIMITED, Counters, Limits, WriteOutcome

_MAX: Final = b"max"
_CPU_KEYS: Final = (b"nr_periods", b"nr_throttled", b"throttled_usec", b"usage_usec")
_STAT_BYTES: Final = 1024
_NUMBER_BYTES: Final = 32
MARGIN_BYTES: Final = 4 << 20
"""memory.max stays at least this far above memory.current: below it, the kernel kills and the write succeeds."""


def _as_number(value: bytes) -> int:
    return UNLIMITED if value == _MAX else int(value)


class CgroupV2Handle:
    """One container's control files. After the group has gone every reading is None and every write VANISHED."""

    __slots__ = (
        "_cpu_max",
        "_cpu_stat",
        "_files",
        "_high",
        "_max",
        "_memory_current",
        "_memory_events",
        "_nr_periods_at",
        "_nr_throttled_at",
        "_throttled_at",
        "_usage_at",
    )

    def __init__(self, directories: dict[str, str], tally: WriteTally) -> None:
        """Open everything.

        Raises:
            OSError: the group has vanished, or lacks the cpu or the memory controller; nothing stays open.
        """
        cpu, memory = directories["cpu"], directories["memory"]
        self._files = files = OpenFiles(tally)
        self._cpu_stat = files.reader(f"{cpu}/cpu.stat")
        self._memory_current = files.reader(f"{memory}/memory.current")
        self._memory_events = files.reader(f"{memory}/memory.events")
        self._cpu_max = files.control(cpu, "cpu.max")
        self._max = files.control(memory, "memory.max")
        self._high = files.control(memory, "memory.high")
        positions = field_positions(files.read(self._cpu_stat, _STAT_BYTES), _CPU_KEYS)
        if positions is None:
            files.close()
            raise FileNotFoundError(errno.ENOENT, "no bandwidth statistics", f"{cpu}/cpu.stat")
        self._nr_periods_at, self._nr_throttled_at, self._throttled_at, self._usage_at = positions

    def read(self) -> Counters | None:
        """Counters now, or None if the container has vanished."""
        try:
            stat = pread(self._cpu_stat, _STAT_BYTES, 0).split()
            memory_bytes = pread(self._memory_current, _NUMBER_BYTES, 0)
        except OSError as error:
            if is_gone(error):
                return None
            raise
        return Counters(
            int(stat[self._nr_periods_at]),
            int(stat[self._nr_throttled_at]),
            int(stat[self._throttled_at]),
            int(stat[self._usage_at]),
            int(memory_bytes),
        )

    def read_periods(self) -> int | None:
        """Only nr_periods. None: vanished."""
        try:
            return int(pread(self._cpu_stat, _STAT_BYTES, 0).split()[self._nr_periods_at])
        except OSError as error:
            if is_gone(error):
                return None
            raise

    def read_limits(self) -> Limits | None:
        """cpu.max scaled to `PERIOD_US`, and memory.max, as the kernel holds them. None: vanished."""
        try:
            quota, period_us = self._cpu_max.refresh().split()
            limit_bytes = _as_number(self._max.refresh())
            self._high.refresh()
        except OSError as error:
            if is_gone(error):
                return None
            raise
        return Limits(UNLIMITED if quota == _MAX else int(quota) * PERIOD_US // int(period_us), limit_bytes)

    def read_oom_kills(self) -> int:
        """Kills by the kernel in this group and below it; 0 if vanished."""
        try:
            text = pread(self._memory_events, _STAT_BYTES, 0)
        except OSError as error:
            if is_gone(error):
                return 0
            raise
        position = field_positions(text, (b"oom_kill",))
        return int(text.split()[position[0]]) if position else 0

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set quota and period in one write."""
        return self._cpu_max.write(b"%d %d" % (quota_us, PERIOD_US))

    def write_memory(self, limit_bytes: int) -> WriteOutcome:
        """Set memory.max, never below memory.current + `MARGIN_BYTES`: REFUSED instead.

        A cut that is too deep for what is in use lowers memory.high first, which reclaims and slows the tasks without
        ever killing one, and looks again. memory.high is then put back; where the container came with one, it keeps
        its distance from memory.max, or else a raise would have no effect.
        """
        limit_bytes = limit_bytes // PAGE_BYTES * PAGE_BYTES  # as the kernel rounds it
        held_bytes = _as_number(self._max.value)
        if held_bytes != UNLIMITED and limit_bytes >= held_bytes:
            outcome = self._max.write(b"%d" % limit_bytes)
        else:
            outcome = self._cut_memory(limit_bytes)
        if outcome is WriteOutcome.WRITTEN:
            self._set_high(self._high_for(limit_bytes))
        return outcome

    def _cut_memory(self, limit_bytes: int) -> WriteOutcome:
        room = self._has_room(limit_bytes)
        if room:
            return self._max.write(b"%d" % limit_bytes)
        if room is None:
            return WriteOutcome.VANISHED
        held_high = self._high.value
        self._set_high(b"%d" % max(PAGE_BYTES, limit_bytes - MARGIN_BYTES))
        room = self._has_room(limit_bytes)
        if room:
            return self._max.write(b"%d" % limit_bytes)  # the caller puts memory.high where it belongs
        self._set_high(held_high)
        return WriteOutcome.VANISHED if room is None else self._max.refuse()

    def _has_room(self, limit_bytes: int) -> bool | None:
        """Whether memory.current leaves the margin below a limit. None: vanished."""
        try:
            return int(pread(self._memory_current, _NUMBER_BYTES, 0)) + MARGIN_BYTES <= limit_bytes
        except OSError as error:
            if is_gone(error):
                return None
            raise

    def _high_for(self, limit_bytes: int) -> bytes:
        """Where memory.high belongs for a memory.max: as far below it as the container came with, or nowhere."""
        if _MAX in (self._high.original, self._max.original):
            return self._high.original
        distance_bytes = int(self._max.original) - int(self._high.original)
        return b"%d" % max(PAGE_BYTES, limit_bytes - distance_bytes)

    def _set_high(self, value: bytes) -> None:
        if value != self._high.value:
            self._high.write(value)

    def restore(self) -> None:
        """Put back what was found at opening. A memory limit that is now too close to usage cannot be: it stays."""
        if self._cpu_max.needs_restoring:
            self._cpu_max.write(self._cpu_max.original)
        if self._max.needs_restoring:
            if self._max.original == _MAX:
                self._max.write(_MAX)
            else:
                self.write_memory(int(self._max.original))
        if self._high.needs_restoring and not self._max.needs_restoring:
            self._high.write(self._high.original)

    def close(self) -> None:
        """Close the descriptors; later calls answer as if the container had vanished."""
        self._files.close()
        self._cpu_stat = self._memory_current = self._memory_events = CLOSED


class CgroupV2Host(CgroupHost):
    """A host with the unified hierarchy."""

    cgroup_version = 2
    telemetry_source = "cgroup-v2"

    def _open(self, directories: dict[str, str]) -> CgroupV2Handle:
        return CgroupV2Handle(directories, self.tally)

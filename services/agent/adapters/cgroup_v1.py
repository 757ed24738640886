"""Control groups of version 1: cpu, cpuacct and memory hierarchies.

Sources: Documentation/scheduler/sched-bwc.rst, Documentation/admin-guide/cgroup-v1/{cpuacct,memory}.rst.
"""

from __future__ import annotations

import errno
from os import pread
from pathlib import Path
from typing import Final

from schemas.apps import PERIOD_US
from services.agent.adapters.cgroup_host import CgroupHost
from services.agent.adapters.control_file import CLOSED, PAGE_BYTES, OpenFiles, WriteTally, field_positions, is_gone
from services.agent.ports import UNLIMITED, Counters, Limits, WriteOutcome

_HUGE: Final = 1 << 62
"""Version 1 prints "no limit" as the largest multiple of the page size."""
_CPU_KEYS: Final = (b"nr_periods", b"nr_throttled", b"throttled_time")
_STAT_BYTES: Final = 256
_NUMBER_BYTES: Final = 32
_PERIOD: Final = b"%d" % PERIOD_US


class CgroupV1Handle:
    """One container's control files. After the group has gone every reading is None and every write VANISHED."""

    __slots__ = (
        "_cpu_stat",
        "_cpuacct_usage",
        "_files",
        "_limit",
        "_memory_usage",
        "_memsw",
        "_nr_periods_at",
        "_nr_throttled_at",
        "_oom_control",
        "_period",
        "_quota",
        "_throttled_time_at",
    )

    def __init__(self, directories: dict[str, str], tally: WriteTally) -> None:
        """Open everything.

        Raises:
            OSError: the group has vanished or lacks a file; nothing stays open.
        """
        cpu, memory = directories["cpu"], directories["memory"]
        self._files = files = OpenFiles(tally)
        self._cpu_stat = files.reader(f"{cpu}/cpu.stat")
        self._cpuacct_usage = files.reader(f"{directories['cpuacct']}/cpuacct.usage")
        self._memory_usage = files.reader(f"{memory}/memory.usage_in_bytes")
        self._oom_control = files.reader(f"{memory}/memory.oom_control")
        self._quota = files.control(cpu, "cpu.cfs_quota_us")
        self._period = files.control(cpu, "cpu.cfs_period_us")
        self._limit = files.control(memory, "memory.limit_in_bytes")
        # Absent where the kernel does not account for swap
        has_memsw = Path(f"{memory}/memory.memsw.limit_in_bytes").exists()
        self._memsw = files.control(memory, "memory.memsw.limit_in_bytes") if has_memsw else None
        positions = field_positions(files.read(self._cpu_stat, _STAT_BYTES), _CPU_KEYS)
        if positions is None:
            files.close()
            raise FileNotFoundError(errno.ENOENT, "no bandwidth statistics", f"{cpu}/cpu.stat")
        self._nr_periods_at, self._nr_throttled_at, self._throttled_time_at = positions

    def read(self) -> Counters | None:
        """Counters now (both kernel times are nanoseconds), or None if the container has vanished."""
        try:
            stat = pread(self._cpu_stat, _STAT_BYTES, 0).split()
            usage_ns = pread(self._cpuacct_usage, _NUMBER_BYTES, 0)
            memory_bytes = pread(self._memory_usage, _NUMBER_BYTES, 0)
        except OSError as error:
            if is_gone(error):
                return None
            raise
        return Counters(
            int(stat[self._nr_periods_at]),
            int(stat[self._nr_throttled_at]),
            int(stat[self._throttled_time_at]) // 1000,
            int(usage_ns) // 1000,
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
        """Limits as the kernel holds them, the quota scaled to `PERIOD_US`. None: vanished."""
        try:
            quota_us, period_us = int(self._quota.refresh()), int(self._period.refresh())
            limit_bytes = int(self._limit.refresh())
            if self._memsw is not None:
                self._memsw.refresh()
        except OSError as error:
            if is_gone(error):
                return None
            raise
        return Limits(
            UNLIMITED if quota_us < 0 else quota_us * PERIOD_US // period_us,
            UNLIMITED if limit_bytes >= _HUGE else limit_bytes,
        )

    def read_oom_kills(self) -> int:
        """Kills by the kernel; 0 if vanished, or before Linux 4.13, which does not say."""
        try:
            text = pread(self._oom_control, _STAT_BYTES, 0)
        except OSError as error:
            if is_gone(error):
                return 0
            raise
        position = field_positions(text, (b"oom_kill",))
        return int(text.split()[position[0]]) if position else 0

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set the quota per `PERIOD_US`, and the period where the kernel holds another one."""
        if self._period.value == _PERIOD:
            return self._quota.write(b"%d" % quota_us)
        return self._write_bandwidth(b"%d" % quota_us, _PERIOD)

    def _write_bandwidth(self, quota: bytes, period: bytes) -> WriteOutcome:
        """Set both, in the order that the kernel accepts, or neither.

        Between the two writes quota/period is neither the old nor the new ratio. It must not exceed the parent's nor
        fall below a child's (EINVAL), so if one order is refused the other one is tried.
        """
        old_quota, old_period = self._quota.value, self._period.value
        outcome = self._period.write(period)
        if outcome is WriteOutcome.WRITTEN:
            outcome = self._quota.write(quota) if quota != old_quota else outcome
            if outcome is WriteOutcome.REFUSED:
                self._period.write(old_period)
        elif outcome is WriteOutcome.REFUSED and quota != old_quota:
            outcome = self._quota.write(quota)
            if outcome is WriteOutcome.WRITTEN:
                outcome = self._period.write(period)
                if outcome is WriteOutcome.REFUSED:
                    self._quota.write(old_quota)
        return outcome

    def write_memory(self, limit_bytes: int) -> WriteOutcome:
        """Set the memory limit. Below usage: the kernel reclaims for some milliseconds, and REFUSED if that fails.

        The limit may not exceed memory plus swap (memsw; Docker sets it to twice the memory), so memsw is raised
        before and lowered after, by as much swap as the container came with.
        """
        value = b"%d" % (limit_bytes // PAGE_BYTES * PAGE_BYTES)  # as the kernel rounds it
        if self._memsw is None or int(self._memsw.value) >= _HUGE:
            return self._limit.write(value)
        old_memsw = self._memsw.value
        swap_bytes = int(self._memsw.original) - int(self._limit.original)
        memsw_bytes = max(int(self._memsw.original), int(value) + swap_bytes)
        if memsw_bytes > int(old_memsw):
            outcome = self._memsw.write(b"%d" % memsw_bytes)
            if outcome is not WriteOutcome.WRITTEN:
                return outcome
        outcome = self._limit.write(value)
        if outcome is WriteOutcome.REFUSED and self._memsw.value != old_memsw:
            self._memsw.write(old_memsw)
        elif outcome is WriteOutcome.WRITTEN and memsw_bytes < int(self._memsw.value):
            self._memsw.write(b"%d" % memsw_bytes)  # refused only if that much is swapped out: then it stays higher
        return outcome

    def restore(self) -> None:
        """Put back what was found at opening. A memory limit that is now below usage cannot be: it stays."""
        if self._period.needs_restoring:
            self._write_bandwidth(self._quota.original, self._period.original)
        elif self._quota.needs_restoring:
            self._quota.write(self._quota.original)
        # memsw is never below its original, so this order is always the right one
        if self._limit.needs_restoring:
            self._limit.write(self._limit.original)
        if self._memsw is not None and self._memsw.needs_restoring:
            self._memsw.write(self._memsw.original)

    def close(self) -> None:
        """Close the descriptors; later calls answer as if the container had vanished."""
        self._files.close()
        self._cpu_stat = self._cpuacct_usage = self._memory_usage = self._oom_control = CLOSED


class CgroupV1Host(CgroupHost):
    """A host whose cpu and memory controllers are of version 1."""

    cgroup_version = 1
    telemetry_source = "cgroup-v1"

    def _open(self, directories: dict[str, str]) -> CgroupV1Handle:
        return CgroupV1Handle(directories, self.tally)

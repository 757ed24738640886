"""Control groups of version 1: cpu, cpuacct and memory hierarchies.

Sources: Documentation/scheduler/sched-bwc.rst, Documentation/admin-guide/cgroup-v1/{cpuacct,memory}.rst.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from os import pread
from pathlib import Path
from typing import Final, NamedTuple

from schemas.apps import PERIOD_US
from schemas.reasons import quantity
from services._host.cgroup_snapshot import (
    UNLIMITED,
    Counters,
    Limits,
    MemoryState,
    NotificationKind,
    RefusedQuota,
    WriteOutcome,
)
from services._host.control_file import CLOSED, PAGE_BYTES, ControlFile, field_positions, read_once
from services._host.usage_thresholds import UsageThresholds, write_event
from services.agent.cgroup.handle import NUMBER_BYTES, STAT_BYTES, CgroupHandle, SharedParts, none_if_gone
from services.agent.cgroup.host import CgroupHost
from services.agent.state_files import FoundValues

_HUGE: Final = 1 << 62
"""Version 1 prints "no limit" as the largest multiple of the page size."""
_CPU_KEYS: Final = (b"nr_periods", b"nr_throttled", b"throttled_time")
_PERIOD: Final = b"%d" % PERIOD_US
_MOST_GROUPS: Final = 1_000
"""Groups below a container that are read to explain a refusal: some milliseconds, in which nothing else is done."""
_DISABLED: Final = b"1"
"""oom_kill_disable."""


def _quota(quota: bytes, period: bytes) -> int:
    """Per `PERIOD_US`."""
    return UNLIMITED if int(quota) < 0 else int(quota) * PERIOD_US // int(period)


class _GroupQuota(NamedTuple):
    """Of another group, scaled to `PERIOD_US`."""

    quota_us: int
    group: Path

    def __str__(self) -> str:
        return f"{self.group}, has a quota of {quantity('cpu', self.quota_us)}"


def _quota_of(group: Path) -> _GroupQuota | None:
    """None: it has none, or has gone, or is no group."""
    try:
        quota, period = (int((group / name).read_bytes()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    except OSError:
        return None
    return None if quota < 0 else _GroupQuota(quota * PERIOD_US // period, group)


def _groups_below(group: Path) -> Iterator[Path]:
    """The first ones: a container may make any number."""
    return islice((path.parent for path in group.glob("*/**/cpu.cfs_quota_us")), _MOST_GROUPS)


def _memory_limit(text: bytes) -> int:
    return UNLIMITED if int(text) >= _HUGE else int(text)


class CgroupV1Handle(CgroupHandle):
    """One container's control files.

    OOM control: thresholds notify of growing usage, and at the limit tasks wait (oom_kill_disable) while an event
    of memory.oom_control notifies. A group that is below another one shows under_oom also when that one's limit was
    hit: then usage is below its own limit, and raising that does not help.
    """

    _BURST = "cpu.cfs_burst_us"
    _RECLAIMABLE_KEY = b"\ntotal_inactive_file "

    __slots__ = (
        "_cpuacct_usage",
        "_hits_path",
        "_limit",
        "_memsw",
        "_oom_event",
        "_period",
        "_quota",
        "_thresholds",
    )

    def __init__(self, found: FoundValues, parts: SharedParts) -> None:
        """Open everything.

        Raises:
            OSError: the group has vanished or lacks a file; nothing stays open.
        """
        super().__init__(found, parts, _CPU_KEYS, "memory.usage_in_bytes")
        cpu, memory, files = found.directories["cpu"], found.directories["memory"], self._files
        self._cpuacct_usage = files.reader(f"{found.directories['cpuacct']}/cpuacct.usage")
        self._quota = files.control(cpu, "cpu.cfs_quota_us")
        self._period = files.control(cpu, "cpu.cfs_period_us")
        self._limit = files.control(memory, "memory.limit_in_bytes")
        # Absent where the kernel does not account for swap
        has_memsw = Path(f"{memory}/memory.memsw.limit_in_bytes").exists()
        self._memsw = files.control(memory, "memory.memsw.limit_in_bytes") if has_memsw else None
        self._hits_path = f"{memory}/memory.failcnt"
        self._control_file, self._control_on = files.switch(memory, "memory.oom_control"), _DISABLED
        self._kills = self._control_file.descriptor
        kills_at = field_positions(files.read(self._kills, STAT_BYTES), (b"oom_kill",))
        self._kills_at = kills_at[0] if kills_at else None
        self._thresholds: UsageThresholds | None = None
        self._oom_event = CLOSED
        self._adopt_originals()

    @none_if_gone
    def read(self) -> Counters:
        """Counters now; both kernel times are nanoseconds."""
        stat = pread(self._cpu_stat, STAT_BYTES, 0).split()
        usage_ns = pread(self._cpuacct_usage, NUMBER_BYTES, 0)
        memory_bytes = pread(self._usage, NUMBER_BYTES, 0)
        periods_at, throttled_at, throttled_time_at = self._stat_at
        return Counters(
            int(stat[periods_at]),
            int(stat[throttled_at]),
            int(stat[throttled_time_at]) // 1000,
            int(usage_ns) // 1000,
            int(memory_bytes),
        )

    def read_usage(self) -> int | None:
        """Processor time in microseconds (cpuacct.usage is in nanoseconds). None: vanished."""
        text = self._pread(self._cpuacct_usage, NUMBER_BYTES)
        return None if text is None else int(text) // 1000

    @none_if_gone
    def read_limits(self) -> Limits:
        """Limits as the kernel holds them, the quota scaled to `PERIOD_US`."""
        quota_us = self._refresh_quota()
        limit_bytes = _memory_limit(self._limit.refresh())
        if self._memsw is not None:
            self._memsw.refresh()
        return Limits(quota_us, limit_bytes)

    @property
    def configured(self) -> Limits:
        """Limits without an agent's changes."""
        return Limits(
            _quota(self._quota.configured, self._period.configured),
            _memory_limit(self._limit.configured),
        )

    @none_if_gone
    def read_quota(self) -> int:
        """Only the quota."""
        return self._refresh_quota()

    def _refresh_quota(self) -> int:
        """Per `PERIOD_US`. Raises OSError."""
        return _quota(self._quota.refresh(), self._period.refresh())

    @none_if_gone
    def read_memory(self) -> MemoryState:
        """Usage, limit and under_oom."""
        usage = pread(self._usage, NUMBER_BYTES, 0)
        limit_bytes = int(self._limit.refresh())
        oom_control = pread(self._kills, STAT_BYTES, 0).split()
        hits = read_once(self._hits_path, NUMBER_BYTES)
        return MemoryState(
            int(usage),
            UNLIMITED if limit_bytes >= _HUGE else limit_bytes,
            oom_control[3] == b"1",
            int(oom_control[self._kills_at]) if self._kills_at is not None else 0,
            int(hits),
        )

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set the quota per `PERIOD_US`, and the period where the kernel holds another one; and the burst that fits."""
        return self._write_with_burst(quota_us, partial(self._write_bandwidth, b"%d" % quota_us, _PERIOD))

    @property
    def _kernel_quota_us(self) -> int:
        return int(self._quota.value)

    @property
    def _quota_files(self) -> tuple[ControlFile, ...]:
        return self._quota, self._period

    def why_quota_refused(self, quota_us: int) -> RefusedQuota:
        """As in `CgroupHandle`; the kernel keeps every quota within that of the next group above that has one."""
        refused, cpu = super().why_quota_refused(quota_us), Path(self._found.directories["cpu"])
        if refused.nearest_us or all(file.refused_errno != errno.EINVAL for file in self._quota_files):
            return refused
        above = next(filter(None, map(_quota_of, cpu.parents)), None)
        if above is not None and above.quota_us < quota_us:
            return RefusedQuota(f"the group above, {above}", above.quota_us)
        below = max(filter(None, map(_quota_of, _groups_below(cpu))), default=None)
        if below is not None and below.quota_us > quota_us:
            return RefusedQuota(f"the group below, {below}", below.quota_us)
        return refused._replace(may_accept_less=True)

    def _write_bandwidth(self, quota: bytes, period: bytes) -> WriteOutcome:
        """Set both, in the order that the kernel accepts, or neither.

        Between the two writes quota/period is neither the old nor the new ratio. It must not exceed the parent's nor
        fall below a child's (EINVAL), so if one order is refused the other one is tried.
        """
        old_quota, old_period = self._quota.value, self._period.value
        if period == old_period:
            return self._quota.write(quota)
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
        before and lowered after, by as much swap as the container had at first.
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

    @property
    def _limit_files(self) -> tuple[ControlFile, ...]:
        return (self._limit,) if self._memsw is None else (self._limit, self._memsw)

    @property
    def _control_off(self) -> bytes:
        return b"0"

    def _enable_oom_control(self) -> bool:
        """Disable the OOM killer and follow usage with the thresholds."""
        self._watch()
        if self._control_file.refresh() != _DISABLED:
            self._save_controlled(self._control_file, self._limit, *([self._memsw] if self._memsw is not None else ()))
            self._control_file.write(_DISABLED)
        if self._thresholds is not None:
            self._thresholds.follow(int(pread(self._usage, NUMBER_BYTES, 0)))
        return self._control_file.value == _DISABLED

    def _watch(self) -> None:
        """Register the OOM event, and create thresholds where there are none, or too many. Raises OSError."""
        notifications, memory = self._parts.notifications, self._found.directories["memory"]
        if self._oom_event == CLOSED:
            event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                notifications.watch(event, self.key, NotificationKind.PAUSED)
                write_event(memory, event, self._kills)  # signals at once if tasks wait already
            except OSError:
                notifications.forget(event)
                os.close(event)
                raise
            self._oom_event = event
        if self._thresholds is not None and self._thresholds.full:
            self._drop_thresholds()
        if self._thresholds is None:
            self._thresholds = thresholds = UsageThresholds(memory, self._parts.registrar)
            notifications.watch(thresholds.eventfd, self.key, NotificationKind.NEAR)

    def _put_back(self) -> None:
        """A memory limit that is now below usage cannot be restored: it stays."""
        if self._period.needs_restoring or self._quota.needs_restoring:
            quota, period = self._quota.original, self._period.original
            self._write_with_burst(int(quota), partial(self._write_bandwidth, quota, period))
        # memsw is never below its original, so this order is always the right one
        if self._limit.needs_restoring:
            self._limit.write(self._limit.original)
        if self._memsw is not None and self._memsw.needs_restoring:
            self._memsw.write(self._memsw.original)
        if self._control_file.needs_restoring:
            self._control_file.write(self._control_file.original)

    def _drop_thresholds(self) -> None:
        if self._thresholds is not None:
            self._parts.notifications.forget(self._thresholds.eventfd)
            self._thresholds.close()
            self._thresholds = None

    def _close_control(self) -> None:
        self._drop_thresholds()
        if self._oom_event != CLOSED:
            self._parts.notifications.forget(self._oom_event)
            os.close(self._oom_event)
            self._oom_event = CLOSED
        self._cpuacct_usage = CLOSED


class CgroupV1Host(CgroupHost):
    """A host whose cpu and memory controllers are of version 1."""

    cgroup_version = 1
    files_source = "cgroup-v1"
    memory_guard = "thresholds+trap"

    def _open_files(self, found: FoundValues) -> CgroupV1Handle:
        return CgroupV1Handle(found, self._parts)

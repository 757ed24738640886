"""Control groups of version 2: one unified hierarchy.

Source: Documentation/admin-guide/cgroup-v2.rst, sections "CPU" and "Memory".
"""

from __future__ import annotations

import select
from functools import partial
from os import pread
from pathlib import Path
from typing import Final

from schemas.apps import PERIOD_US
from services._host.cgroup_snapshot import UNLIMITED, Counters, Limits, MemoryState, NotificationKind, WriteOutcome
from services._host.cgroupfs import CgroupLayout
from services._host.control_file import PAGE_BYTES, ControlFile, field_positions
from services.agent.cgroup.handle import NUMBER_BYTES, STAT_BYTES, CgroupHandle, SharedParts, none_if_gone
from services.agent.cgroup.host import CgroupHost
from services.agent.memory.growth import MARGIN_BYTES, high_margin_bytes
from services.agent.ports import ContainerHandle, FoundContainer, UnmanageableError
from services.agent.state_files import FoundValues, StateDirectory

_MAX: Final = b"max"
_CPU_KEYS: Final = (b"nr_periods", b"nr_throttled", b"throttled_usec", b"usage_usec")


def _as_number(value: bytes) -> int:
    return UNLIMITED if value == _MAX else int(value)


def _quota(cpu_max: bytes) -> int:
    """Per `PERIOD_US`."""
    quota, period_us = cpu_max.split()
    return UNLIMITED if quota == _MAX else int(quota) * PERIOD_US // int(period_us)


def external_high(high: bytes, limit: bytes) -> int | None:
    """What of a memory.high beside a memory.max was set by others, such as the kubelet's Memory QoS (KEP-2570).

    None: nothing, or it lies where the memory guard of an agent puts it, whose record may be lost.
    """
    if high == _MAX:
        return None
    is_guard = limit != _MAX and int(high) == int(limit) - high_margin_bytes(int(limit))
    return None if is_guard else int(high)


class CgroupV2Handle(CgroupHandle):
    """One container's control files.

    OOM control: memory.high stays a margin below memory.max, where tasks are slowed more and more, not killed, and
    memory.events notifies. A lower memory.high that others have set (`external_high`) stays, and is restored.
    """

    _BURST = "cpu.max.burst"
    _RECLAIMABLE_KEY = b"\ninactive_file "

    __slots__ = ("_cpu_max", "_hits_at", "_max", "_watched")

    def __init__(self, found: FoundValues, parts: SharedParts) -> None:
        """Open everything.

        Raises:
            OSError: the group has vanished, or lacks the cpu or the memory controller; nothing stays open.
        """
        super().__init__(found, parts, _CPU_KEYS, "memory.current")
        cpu, memory, files = found.directories["cpu"], found.directories["memory"], self._files
        self._kills = files.reader(f"{memory}/memory.events")
        kills_at = field_positions(files.read(self._kills, STAT_BYTES), (b"oom_kill",))
        self._kills_at = kills_at[0] if kills_at else None
        hits_at = field_positions(files.read(self._kills, STAT_BYTES), (b"max",))
        self._hits_at = hits_at[0] if hits_at else None
        self._cpu_max = files.control(cpu, "cpu.max")
        self._max = files.control(memory, "memory.max")
        self._control_file = files.control(memory, "memory.high")
        self._control_on = self._control_file.value
        self._watched = False
        self._adopt_originals()
        if self.external_high_bytes is None:
            self._control_file.original = _MAX

    @property
    def external_high_bytes(self) -> int | None:
        """The memory.high that the container came with, or that others have set since. None: there is none."""
        return external_high(self._control_file.original, self._max.original)

    @none_if_gone
    def read(self) -> Counters:
        """Counters now."""
        stat = pread(self._cpu_stat, STAT_BYTES, 0).split()
        memory_bytes = pread(self._usage, NUMBER_BYTES, 0)
        periods_at, throttled_at, throttled_time_at, usage_at = self._stat_at
        return Counters(
            int(stat[periods_at]),
            int(stat[throttled_at]),
            int(stat[throttled_time_at]),
            int(stat[usage_at]),
            int(memory_bytes),
        )

    def read_usage(self) -> int | None:
        """Processor time in microseconds (usage_usec of cpu.stat). None: vanished."""
        text = self._pread(self._cpu_stat, STAT_BYTES)
        return None if text is None else int(text.split()[self._stat_at[3]])

    @none_if_gone
    def read_limits(self) -> Limits:
        """cpu.max scaled to `PERIOD_US`, and memory.max, as the kernel holds them."""
        quota_us = self._refresh_quota()
        limit_bytes = _as_number(self._max.refresh())
        self._control_file.refresh()
        return Limits(quota_us, limit_bytes)

    @property
    def configured(self) -> Limits:
        """Limits without an agent's changes."""
        return Limits(_quota(self._cpu_max.configured), _as_number(self._max.configured))

    @none_if_gone
    def read_quota(self) -> int:
        """Only the quota."""
        return self._refresh_quota()

    def _refresh_quota(self) -> int:
        """Per `PERIOD_US`. Raises OSError."""
        return _quota(self._cpu_max.refresh())

    @none_if_gone
    def read_memory(self) -> MemoryState:
        """Usage, limit, and whether memory.high is passed."""
        usage_bytes = int(pread(self._usage, NUMBER_BYTES, 0))
        limit_bytes = _as_number(self._max.refresh())
        high = self._control_file.refresh()
        if self._oom_controlled:
            self._adopt_external_high()
        events = pread(self._kills, STAT_BYTES, 0).split()
        guarded = high not in (_MAX, self._control_file.original)  # a grant does not help at an external memory.high
        paused = guarded and usage_bytes >= int(high)
        kills, hits = (int(events[at]) if at is not None else 0 for at in (self._kills_at, self._hits_at))
        return MemoryState(usage_bytes, limit_bytes, paused, kills, hits)

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set quota and period in one write, and the burst that fits the quota."""
        return self._write_with_burst(quota_us, partial(self._cpu_max.write, b"%d %d" % (quota_us, PERIOD_US)))

    @property
    def _kernel_quota_us(self) -> int:
        return _as_number(self._cpu_max.value.split()[0])

    @property
    def _quota_files(self) -> tuple[ControlFile, ...]:
        return (self._cpu_max,)

    @property
    def _limit_files(self) -> tuple[ControlFile, ...]:
        return (self._max,)

    def write_memory(self, limit_bytes: int) -> WriteOutcome:
        """Set memory.max, never below memory.current + `MARGIN_BYTES`: REFUSED instead.

        A decrease that is too deep for what is in use lowers memory.high first, which reclaims and slows the tasks
        without killing any, and checks again. memory.high is then set: below memory.max under OOM control, or else
        as it was found.
        """
        limit_bytes = limit_bytes // PAGE_BYTES * PAGE_BYTES  # as the kernel rounds it
        if self._control_value() is not None:
            self._adopt_external_high()
        limit_before_bytes = _as_number(self._max.value)
        if limit_before_bytes != UNLIMITED and limit_bytes >= limit_before_bytes:
            outcome = self._max.write(b"%d" % limit_bytes)
        else:
            outcome = self._decrease_memory(limit_bytes)
        if outcome is WriteOutcome.WRITTEN:
            self._set_high(self._high_for(limit_bytes))
        return outcome

    def _decrease_memory(self, limit_bytes: int) -> WriteOutcome:
        high_before = self._control_file.value
        has_margin = self._has_margin(limit_bytes)
        if has_margin is False:
            self._set_high(self._lower_of(limit_bytes - MARGIN_BYTES))
            has_margin = self._has_margin(limit_bytes)
        elif has_margin and self._oom_controlled:  # a growing group is slowed before the margin shrinks
            self._set_high(self._high_for(limit_bytes))
            has_margin = self._has_margin(limit_bytes)
        if has_margin:
            return self._max.write(b"%d" % limit_bytes)  # the caller puts memory.high where it belongs
        self._set_high(high_before)
        return WriteOutcome.VANISHED if has_margin is None else self._max.refuse()

    def _has_margin(self, limit_bytes: int) -> bool | None:
        """Whether memory.current leaves the margin below a limit. None: vanished."""
        usage = self._pread(self._usage, NUMBER_BYTES)
        return None if usage is None else int(usage) + MARGIN_BYTES <= limit_bytes

    def _high_for(self, limit_bytes: int) -> bytes:
        """Where memory.high belongs for a memory.max."""
        if not self._oom_controlled or limit_bytes == UNLIMITED:
            return self._control_file.original
        return self._lower_of(limit_bytes - high_margin_bytes(limit_bytes))

    def _lower_of(self, high_bytes: int) -> bytes:
        """This memory.high, or the external one."""
        external = self._control_file.original
        return external if external != _MAX and int(external) < high_bytes else b"%d" % max(PAGE_BYTES, high_bytes)

    def _set_high(self, value: bytes) -> None:
        if value != self._control_file.value:
            self._control_file.write(value)
        if self._oom_controlled:
            self._control_on = value

    def _enable_oom_control(self) -> bool:
        """Set memory.high for OOM control, and watch memory.events."""
        if not self._watched:
            self._parts.notifications.watch(self._kills, self.key, NotificationKind.NEAR, select.EPOLLPRI)
            self._watched = True
        self._control_file.refresh()
        limit_bytes = _as_number(self._max.refresh())
        self._adopt_external_high()
        self._save_controlled(self._control_file, self._max)
        self._oom_controlled = True
        self._set_high(self._high_for(limit_bytes))
        return self._control_file.value == self._control_on

    def oom_control_was_undone(self) -> bool:
        """Whether memory.high was modified externally, but for one that is kept (`_adopt_external_high`)."""
        if not super().oom_control_was_undone():
            return False
        if not self._adopt_external_high():
            return True
        self._set_high(self._high_for(_as_number(self._max.value)))
        return False

    def _adopt_external_high(self) -> bool:
        """Keep, and restore at the end, a memory.high that others have set since; whether there is one.

        Under OOM control a lower one than its own, or any while an external one holds. The files have been read.
        """
        value, control, original = self._control_file.value, self._control_on, self._control_file.original
        if self._oom_controlled:
            external = value != control and (control == original or _is_below(value, control))
        else:
            external = value != original and external_high(value, self._max.value) is not None
        if external:
            self._control_file.original = value
            self._control_on = value if self._oom_controlled else control
            if self._control_file.name in self._found.values:
                self._found.values[self._control_file.name] = value.decode()
                self._save()
        return external

    @property
    def _control_off(self) -> bytes:
        return self._control_file.original

    def _put_back(self) -> None:
        """A memory limit that is now too close to usage cannot be restored: it stays, and memory.high with it."""
        if self._cpu_max.needs_restoring:
            quota = self._cpu_max.original
            self._write_with_burst(_as_number(quota.split()[0]), partial(self._cpu_max.write, quota))
        if self._max.needs_restoring:
            if self._max.original == _MAX:
                self._max.write(_MAX)
            else:
                self.write_memory(int(self._max.original))
        if self._max.needs_restoring:
            self._set_high(self._high_for(_as_number(self._max.value)))
        elif self._control_file.needs_restoring:
            self._control_file.write(self._control_file.original)

    def _close_control(self) -> None:
        if self._watched:
            self._parts.notifications.forget(self._kills)
        self._watched = False


def _is_below(high: bytes, other: bytes) -> bool:
    return high != _MAX and (other == _MAX or int(high) < int(other))


class CgroupV2Host(CgroupHost):
    """A host with the unified hierarchy."""

    cgroup_version = 2
    files_source = "cgroup-v2"
    memory_guard = "memory.high"

    def __init__(
        self,
        layout: CgroupLayout,
        state: StateDirectory | None = None,
        kernel_directory: Path | None = None,
        *,
        refuse_memory_qos: bool = False,
    ) -> None:
        """``refuse_memory_qos``: leave containers alone that came with a memory.high; the rest as for `CgroupHost`."""
        super().__init__(layout, state, kernel_directory)
        self._refuse_memory_qos = refuse_memory_qos

    def open(self, container: FoundContainer) -> ContainerHandle | None:
        """As in `CgroupHost`. Raises UnmanageableError where its memory.high is refused."""
        handle = super().open(container)
        if self._refuse_memory_qos and isinstance(handle, CgroupV2Handle):
            high_bytes = handle.external_high_bytes
            if high_bytes is not None:
                handle.restore()  # what an agent that cooperated has changed
                handle.close()
                raise UnmanageableError(
                    f"its memory.high is {high_bytes >> 20} MiB, as of the kubelet's Memory QoS, and the agent's "
                    "memory guard writes it, too: switch that off on this node, "
                    "or set TURNBUCKLE_AGENT__MEMORY_QOS=cooperate"
                )
        return handle

    def _open_files(self, found: FoundValues) -> CgroupV2Handle:
        return CgroupV2Handle(found, self._parts)

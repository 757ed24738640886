"""What the handles of both cgroup versions share: descriptors, vanishing, and what was found first."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from os import pread
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from schemas.reasons import quantity
from services._host.cgroup_snapshot import Limits, RefusedQuota, WriteOutcome
from services._host.control_file import CLOSED, ControlFile, OpenFiles, WriteTally, field_positions, is_gone, read_once
from services._host.notifications import Notifications
from services._host.usage_thresholds import ThresholdRegistrar
from services.agent.state_files import FoundValues, StateDirectory, inode_of

STAT_BYTES: Final = 1024
NUMBER_BYTES: Final = 32
_MEMORY_STAT_BYTES: Final = 8192
_Handle = TypeVar("_Handle", bound="CgroupHandle")
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What all handles of a host use."""

    tally: WriteTally
    notifications: Notifications
    registrar: ThresholdRegistrar
    state: StateDirectory | None
    """Where originals are kept; None: nowhere."""
    open_keys: set[str] = field(default_factory=set)
    """Of the containers whose handle is open."""


def none_if_gone(read: Callable[[_Handle], _Read]) -> Callable[[_Handle], _Read | None]:
    """For a reading of control files: None once the group has vanished."""

    @wraps(read)
    def guarded(handle: _Handle) -> _Read | None:
        try:
            return read(handle)
        except OSError as error:
            if is_gone(error):
                return None
            raise

    return guarded


class CgroupHandle(ABC):
    """One container's control files. After the group has gone every reading is None and every write VANISHED."""

    _BURST: ClassVar[str]
    """File with the CPU burst, us; none before Linux 5.14."""
    _RECLAIMABLE_KEY: ClassVar[bytes]
    r"""The line of memory.stat, as ``\nkey ``."""
    _control_file: ControlFile
    """Switches OOM control on and off."""
    _control_on: bytes
    """Its value while OOM control is enabled."""
    _kills: int
    """Descriptor of the file that counts kills."""

    __slots__ = (
        "_burst",
        "_control_file",
        "_control_on",
        "_cpu_stat",
        "_files",
        "_found",
        "_kills",
        "_kills_at",
        "_memory_stat",
        "_nr_periods_at",
        "_oom_controlled",
        "_parts",
        "_stat_at",
        "_usage",
        "group_ids",
        "key",
    )

    def __init__(self, found: FoundValues, parts: SharedParts, cpu_keys: tuple[bytes, ...], usage_name: str) -> None:
        """Open what is only read.

        Args:
            found: the container, with the values that a previous agent has changed.
            parts: the host's.
            cpu_keys: of cpu.stat, those whose places are wanted in `_stat_at`; nr_periods first.
            usage_name: the file with the memory in use.

        Raises:
            OSError: the group has vanished or lacks a file; nothing stays open.
        """
        cpu, memory = found.directories["cpu"], found.directories["memory"]
        self.key = found.key
        self.group_ids = (Path(cpu).stat().st_ino, Path(memory).stat().st_ino)
        """Of its groups in the hierarchies of cpu and memory, as the kernel's own programs name them."""
        self._found = found
        self._parts = parts
        self._oom_controlled = False
        self._files = files = OpenFiles(parts.tally)
        self._cpu_stat = files.reader(f"{cpu}/cpu.stat")
        self._usage = files.reader(f"{memory}/{usage_name}")
        self._memory_stat = files.reader(f"{memory}/memory.stat")
        positions = field_positions(files.read(self._cpu_stat, STAT_BYTES), cpu_keys)
        if positions is None:
            files.close()
            raise FileNotFoundError(errno.ENOENT, "no bandwidth statistics", f"{cpu}/cpu.stat")
        self._stat_at = positions
        self._nr_periods_at = positions[0]
        self._kills_at: int | None = None

    def _adopt_originals(self) -> None:
        """Load the originals that a previous agent saved; have those saved that this agent changes."""
        self._parts.open_keys.add(self.key)
        self._oom_controlled = self._found.guarded  # by a previous agent; `enable_oom_control` renews it
        for control in self._files.controls:
            self._adopt_original(control)
        self._burst = self._open_burst()

    def _adopt_original(self, control: ControlFile) -> None:
        value = self._found.values.get(control.name)
        if value is not None:
            control.original, control.changed = value.encode(), True
        control.before_change = self._save_original

    def _save_original(self, control: ControlFile) -> None:
        if control.name not in self._found.values:
            self._found.values[control.name] = control.original.decode()
            self._save()

    def _save_controlled(self, *controls: ControlFile) -> None:
        """Before OOM control is enabled: from now on the watchdog, too, may change these."""
        if not self._found.guarded:
            self._found.guarded = True
            for control in controls:
                self._found.values.setdefault(control.name, control.original.decode())
                control.changed = True
            self._save()

    def _save(self) -> None:
        """A state directory that has become unwritable must not keep a limit from being raised."""
        if self._parts.state is not None:
            with suppress(OSError):
                self._parts.state.save(self._found)

    # -- CPU burst: the kernel refuses a quota below it (EINVAL; kernel/sched/core.c, tg_set_cfs_bandwidth) -----

    def _open_burst(self) -> ControlFile | None:
        """None: it is 0, as nearly always, and not worth a descriptor; or the kernel has none."""
        cpu = self._found.directories["cpu"]
        try:
            if self._BURST not in self._found.values and not int(read_once(f"{cpu}/{self._BURST}", NUMBER_BYTES)):
                return None
        except OSError:
            return None
        burst = self._files.control_if_there(cpu, self._BURST)
        if burst is not None:
            self._adopt_original(burst)
        return burst

    def _refresh_burst(self) -> None:
        """Read it: others may have set it since. What they have set is put back with the quota, and at the end."""
        burst = self._burst
        if burst is None:
            self._burst = self._open_burst()
            return
        known = burst.value
        with suppress(OSError):  # vanished: the next write finds out
            if burst.refresh() != known:
                burst.original = burst.value
                if burst.name in self._found.values:
                    self._found.values[burst.name] = burst.original.decode()
                    self._save()

    def _write_with_burst(self, quota_us: int, write: Callable[[], WriteOutcome]) -> WriteOutcome:
        """Write a quota (us, negative: none) after lowering the burst to it, or before raising the burst again.

        A write of the burst refills the bandwidth as one of the quota does, so it is written only where it must.
        """
        self._fit_burst(quota_us, raises=False)
        outcome = write()
        if outcome is WriteOutcome.REFUSED:
            self._refresh_burst()
            if self._fit_burst(quota_us, raises=False):
                outcome = write()
        if outcome is not WriteOutcome.VANISHED:
            self._fit_burst(self._kernel_quota_us, raises=True)
        return outcome

    def _fit_burst(self, quota_us: int, *, raises: bool) -> bool:
        """Set as much of the original burst as a quota allows; whether it was written."""
        burst = self._burst
        if burst is None:
            return False
        if raises and burst.value != burst.original:
            self._refresh_burst()
        fitting = int(burst.original) if quota_us < 0 else min(int(burst.original), quota_us)
        held = int(burst.value)
        if fitting == held or (fitting > held and not raises):
            return False
        return burst.write(b"%d" % fitting) is WriteOutcome.WRITTEN

    @property
    @abstractmethod
    def _kernel_quota_us(self) -> int:
        """The quota as the kernel was last known to hold it, per its own period; negative: none."""

    def why_quota_refused(self, quota_us: int) -> RefusedQuota:
        """Why the latest `write_quota`, of this quota, was REFUSED."""
        burst = self._burst
        if burst is not None and burst.refused_errno and quota_us < int(burst.value):
            return RefusedQuota(f"{self._BURST} is {int(burst.value)}", int(burst.value))
        return RefusedQuota(self._refusal(self._quota_files))

    @property
    @abstractmethod
    def _quota_files(self) -> tuple[ControlFile, ...]:
        """What `write_quota` writes."""

    @property
    @abstractmethod
    def _limit_files(self) -> tuple[ControlFile, ...]:
        """What `write_memory` writes."""

    @staticmethod
    def _refusal(files: tuple[ControlFile, ...]) -> str:
        return "; ".join(file.refusal for file in files if file.refused_errno)

    def why_memory_refused(self) -> str:
        """Why the latest `write_memory` was REFUSED, a clause for people."""
        usage = self._pread(self._usage, NUMBER_BYTES)
        if usage is not None and any(file.refused_errno == errno.EBUSY for file in self._limit_files):
            return f"{quantity('memory', int(usage))} are in use"
        return self._refusal(self._limit_files)

    @property
    @abstractmethod
    def configured(self) -> Limits:
        """Limits without an agent's changes."""

    def read_periods(self) -> int | None:
        """Only nr_periods. None: vanished."""
        text = self._pread(self._cpu_stat, STAT_BYTES)
        return None if text is None else int(text.split()[self._nr_periods_at])

    def read_oom_kills(self) -> int:
        """Kills by the kernel; 0 if vanished, or where the kernel does not count them (version 1 before Linux 4.13)."""
        text = self._pread(self._kills, STAT_BYTES)
        return 0 if text is None or self._kills_at is None else int(text.split()[self._kills_at])

    def read_reclaimable(self) -> int:
        """Inactive page cache, of groups below too; 0 if vanished."""
        text = self._pread(self._memory_stat, _MEMORY_STAT_BYTES)
        _, _, after = (b"\n" + (text or b"")).partition(self._RECLAIMABLE_KEY)
        return int(after.split(maxsplit=1)[0]) if after else 0

    def oom_control_was_undone(self) -> bool:
        """Whether its value was modified externally."""
        return self._oom_controlled and self._control_value() not in {None, self._control_on}

    @none_if_gone
    def _control_value(self) -> bytes:
        return self._control_file.refresh()

    def enable_oom_killer(self) -> WriteOutcome:
        """Leave out-of-memory to the kernel: blocked tasks go on, and its OOM killer works as always."""
        self._oom_controlled = False
        value = self._control_value()
        if value is None:
            return WriteOutcome.VANISHED
        return WriteOutcome.WRITTEN if value == self._control_off else self._control_file.write(self._control_off)

    @property
    @abstractmethod
    def _control_off(self) -> bytes:
        """Value of `_control_file` with which the kernel kills as it always does."""

    @property
    def oom_controlled(self) -> bool:
        """Whether OOM control is enabled."""
        return self._oom_controlled

    @property
    def oom_wait_since_ns(self) -> int | None:
        """Since when tasks wait, as recorded last."""
        return self._parts.state.oom_wait_since_ns(self.key) if self._parts.state is not None else None

    def record_oom_wait(self, since_ns: int | None) -> None:
        """Record it for the watchdog and the next agent."""
        if self._parts.state is not None:
            self._parts.state.record_oom_wait(self.key, since_ns)

    @staticmethod
    def _pread(descriptor: int, size: int) -> bytes | None:
        """None: vanished, or closed."""
        try:
            return pread(descriptor, size, 0)
        except OSError as error:
            if is_gone(error):
                return None
            raise

    def enable_oom_control(self) -> None:
        """Enable OOM control; again: repair it, and follow usage."""
        if self._usage == CLOSED:
            return
        try:
            self._oom_controlled = self._enable_oom_control()
        except OSError as error:
            self._oom_controlled = False
            self._parts.tally.failed_oom_controls += not is_gone(error)

    @abstractmethod
    def _enable_oom_control(self) -> bool:
        """Whether it is enabled now. Raises OSError."""

    def restore(self) -> None:
        """Restore every value that was found before the first agent changed it, and remove its record.

        What the kernel refuses stays (a memory limit that is now below usage), and stays recorded.
        """
        self._oom_controlled = False
        if self._burst is not None:
            self._refresh_burst()
        try:
            for control in self._files.controls:
                control.refresh()
        except OSError as error:
            if not is_gone(error):
                raise
            self._forget()
            return
        self._put_back()
        if self._burst is not None:  # one that others set above the original quota is put back as far as that allows
            self._fit_burst(self._kernel_quota_us, raises=True)
            self._burst.original = self._burst.value
        if not any(control.needs_restoring for control in self._files.controls):
            self._found.values.clear()
            self._found.guarded = False
            self._forget()

    @abstractmethod
    def _put_back(self) -> None:
        """Write the originals, in the order that the kernel accepts."""

    def _forget(self) -> None:
        if self._parts.state is not None:
            self._parts.state.forget(self.key)

    def close(self) -> None:
        """Close the descriptors; later calls answer as if the container had vanished."""
        if self._cpu_stat == CLOSED:
            return
        self._oom_controlled = False
        self._parts.open_keys.discard(self.key)
        if inode_of(self._found.directories["memory"]) != self._found.inode:
            self._forget()
        self._close_control()
        self._files.close()
        self._cpu_stat = self._usage = self._memory_stat = self._kills = CLOSED

    @abstractmethod
    def _close_control(self) -> None:
        """Leave nothing registered."""

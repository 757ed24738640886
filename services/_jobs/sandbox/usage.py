"""What a control group uses, from descriptors that stay open; both versions of the interface.

Sources: Documentation/admin-guide/cgroup-v1/{cpuacct,memory}.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from services._host.cgroupfs import CgroupLayout

_GONE: Final = (errno.ENOENT, errno.ENODEV)
_FILE_BYTES: Final = 16 << 10


class Used(NamedTuple):
    """One sample."""

    cpu_s: float
    memory_bytes: int
    oom_kills: int
    throttled_s: float
    """By its quota, summed over processors."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Open files of one control group."""

    version: int
    cpu: int
    """cpuacct.usage (nanoseconds), or cpu.stat."""
    memory: int
    """memory.usage_in_bytes, or memory.current."""
    memory_stat: int
    events: int
    """memory.oom_control, or memory.events."""
    quota: int
    """cpu.stat."""

    @classmethod
    def of(cls, layout: CgroupLayout, directory: str) -> Self:
        """Open them.

        Raises:
            OSError: the group has vanished.
        """
        paths = layout.directories(directory)
        if layout.version == 1:
            files = [f"{paths['cpuacct']}/cpuacct.usage"]
            files += [f"{paths['memory']}/memory.{name}" for name in ("usage_in_bytes", "stat", "oom_control")]
        else:
            files = [f"{paths['cpu']}/cpu.stat"]
            files += [f"{paths['memory']}/memory.{name}" for name in ("current", "stat", "events")]
        files.append(f"{paths['cpu']}/cpu.stat")
        opened: list[int] = []
        try:
            for file in files:
                opened.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - closed if one fails
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return cls(layout.version, *opened)

    def read(self) -> Used | None:
        """Sample; None if the group has vanished."""
        try:
            cpu, memory, stat, events, quota = (os.pread(file, _FILE_BYTES, 0).decode("ascii") for file in self._files)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        if self.version == 1:
            cpu_s, idle = int(cpu) / 1e9, field_of(stat, "total_inactive_file")
            throttled_s = field_of(quota, "throttled_time") / 1e9
        else:
            cpu_s, idle = field_of(cpu, "usage_usec") / 1e6, field_of(stat, "inactive_file")
            throttled_s = field_of(quota, "throttled_usec") / 1e6
        return Used(cpu_s, max(0, int(memory) - idle), field_of(events, "oom_kill"), throttled_s)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)

    @property
    def _files(self) -> tuple[int, ...]:
        return self.cpu, self.memory, self.memory_stat, self.events, self.quota


def field_of(text: str, name: str) -> int:
    """A number from a flat keyed file; 0 where an older kernel has no such line."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0

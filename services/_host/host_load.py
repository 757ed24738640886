"""The machine's load: memory that there is and is available, idle processors, whether tasks wait for either."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.cgroup_snapshot import Pressure
from services._host.cgroupfs import CgroupLayout

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MEMINFO: Final = Path("/proc/meminfo")
_FIRST_LINES_BYTES: Final = 256
_PRESSURE: Final = Path("/proc/pressure")
_ROOT_LIMIT_FILES: Final = {1: "memory.limit_in_bytes", 2: "memory.max"}


def memory_capacity(layout: CgroupLayout) -> int:
    """MemTotal, or the limit of the group that is the root of what is mounted here, where that is less.

    The root of a machine has no limit; where this is the inside of a container, its root is the container's own group.
    """
    total_bytes = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    limit_file = Path(layout.mounts["memory"].directory, _ROOT_LIMIT_FILES[layout.version])
    with suppress(OSError, ValueError):  # version 2 has no such file at its root; "max" is no number
        total_bytes = min(total_bytes, int(limit_file.read_text(encoding="ascii")))
    return total_bytes


def read_available(meminfo: Path = _MEMINFO) -> int | None:
    """MemAvailable, bytes; None: it cannot be read, or the kernel is older than 3.14."""
    # Read with every sample and limit update: without a buffer and a decoder, and only the first lines.
    with suppress(OSError, ValueError, IndexError), meminfo.open("rb", buffering=0) as file:
        return int((file.read(_FIRST_LINES_BYTES) or b"").split(b"MemAvailable:", 1)[1].split(None, 1)[0]) * 1024
    return None


def read_pressure(directory: Path = _PRESSURE) -> Pressure:
    """`some` avg10 of processors and memory; nothing where the kernel has no pressure stall information."""
    return Pressure(_some_avg10(directory / "cpu"), _some_avg10(directory / "memory"))


def _some_avg10(file: Path) -> float | None:
    """Of a file as Documentation/accounting/psi.rst describes it: ``some avg10=0.00 avg60=0.00 ...``."""
    with suppress(OSError, ValueError, IndexError):  # EOPNOTSUPP: switched off at boot (psi=0)
        kind, average = file.read_text(encoding="ascii").split(maxsplit=2)[:2]
        if kind == "some":
            return float(average.removeprefix("avg10="))
    return None


_UPTIME: Final = Path("/proc/uptime")


def read_idle(uptime: Path = _UPTIME) -> int | None:
    """Idle time of all processors added up, us (proc_uptime(5), second field); None: it cannot be read.

    Cheaper than /proc/stat, which lists every interrupt, and like it true inside of a container, too.
    """
    with suppress(OSError, ValueError, IndexError):
        return round(float(uptime.read_text(encoding="ascii").split()[1]) * 1e6)
    return None

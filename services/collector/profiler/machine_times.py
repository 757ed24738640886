"""The kernel's counters of processors and threads, as `contention` takes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.collector.profiler.contention import MachineTime, ThreadTime

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_NS_PER_S: Final = 1e9
_BUSY: Final = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq of the line ``cpu`` (proc_stat(5)); guests are in user."""
_STEAL: Final = 7


def read_machine(proc: Path = Path("/proc")) -> MachineTime:
    """Read the times of all processors, in steps of 10 ms.

    Raises:
        OSError: there is no /proc.
    """
    with (proc / "stat").open(encoding="ascii") as file:
        ticks = [int(part) for part in file.readline().split()[1:]]
    return MachineTime(sum(ticks[at] for at in _BUSY) / _TICKS_PER_S, ticks[_STEAL] / _TICKS_PER_S)


def read_threads(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[int, ThreadTime]:
    """Read the times of all threads of some processes, by thread id; those that end meanwhile are left out.

    Empty where the kernel has no such file (without CONFIG_SCHED_INFO).
    """
    found: dict[int, ThreadTime] = {}
    for pid in pids:
        with suppress(OSError):
            for thread in (proc / str(pid) / "task").iterdir():
                with suppress(OSError, ValueError):
                    ran, waited, _ = map(int, (thread / "schedstat").read_text(encoding="ascii").split())
                    found[int(thread.name)] = ThreadTime(ran / _NS_PER_S, waited / _NS_PER_S)
    return found

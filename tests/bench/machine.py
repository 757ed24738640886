"""The machine under the benchmark, and exact CPU time of other processes."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from services._host.cgroupfs import CgroupUnavailableError, detect

_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a figure cannot be read without. No host name: the record may be published."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    cgroups: str
    python: str
    load_at_start: tuple[float, float, float]

    @property
    def line(self) -> str:
        """One line for people."""
        load = " ".join(f"{value:.1f}" for value in self.load_at_start)
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB, Linux {self.kernel}, {self.cgroups}, "
            f"Python {self.python}, load at start {load}"
        )

    def as_dict(self) -> dict[str, object]:
        """For the JSON record."""
        return asdict(self)


def this_machine() -> Machine:
    """The machine that we run on."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        cgroups = f"cgroup v{detect().version}"
    except CgroupUnavailableError:
        cgroups = "no control groups"
    return Machine(
        _cpu_model(),
        os.cpu_count() or 1,
        memory_bytes / (1 << 30),
        platform.release(),
        cgroups,
        platform.python_version(),
        os.getloadavg(),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def process_cpu_ns(pid: int) -> int:
    """CPU time of a whole process, all threads, in nanoseconds.

    The kernel's process clock (clock_getcpuclockid(3)) counts the same as /proc/<pid>/stat, which only shows 10 ms.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def process_stat_cpu_s(pid: int) -> float:
    """Utime + stime of /proc/<pid>/stat in seconds, as a check of `process_cpu_ns`."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, pages shared with others included (proc(5), statm)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """Processes that it has started, and theirs; empty once it has gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text(encoding="ascii").split()]
    except FileNotFoundError:
        return []
    return [*children, *(further for child in children for further in descendants(child))]


def transferred_bytes(pid: int) -> int:
    """What a process has read and written by read(2) and write(2), sockets and files alike (proc(5), io).

    A nats-server moves all its messages so, with their protocol lines; on top come its store's files, and below it the
    headers of TCP and IP.
    """
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    counts = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return counts["rchar"] + counts["wchar"]

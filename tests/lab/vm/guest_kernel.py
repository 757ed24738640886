"""The programs of kernel/ in the machine: their loader, control groups and tasks that burn; nothing but Python's own.

It reads the records by itself, not as the agent does: two readings of the same description (kernel/records.h).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

CHECKOUT: Final = Path(__file__).parents[3]
BUILD: Final = CHECKOUT / "kernel/build"
PROGRAM: Final = BUILD / "turnbuckle-kernel"
ROOT: Final = Path("/sys/fs/cgroup")
TABLE, STATUS, READY, PERIODS, OOMS, LOST, BELL, WRITERS = range(1, 9)
HEADER: Final = struct.Struct("=II")
VERSION: Final = 7
TABLE_ROWS: Final = 16_384
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


class Period(NamedTuple):
    """struct tb_period."""

    id: int
    time_ns: int
    quota_ns: int
    unused_ns: int
    usage_ns: int
    nr_periods: int
    nr_throttled: int
    throttled_ns: int


class Oom(NamedTuple):
    """struct tb_oom."""

    id: int
    time_ns: int
    kind: int
    pid: int
    memory_bytes: int
    limit_bytes: int


class Row(NamedTuple):
    """struct tb_group."""

    id: int
    flags: int
    level: int
    nr_periods: int
    nr_throttled: int
    throttled_us: int
    usage_us: int
    memory_bytes: int
    quota_us: int
    limit_bytes: int
    high_bytes: int
    local_kills: int
    kills: int
    boundary_ns: int


PERIOD: Final = struct.Struct("=QQqqQQQQ")
OOM: Final = struct.Struct("=QQIIqq")
ROW: Final = struct.Struct("=QIIQQQQqqqqQQQ")


class Loader:
    """turnbuckle-kernel, and what it said."""

    def __init__(self, *arguments: str, objects: Path = BUILD) -> None:
        """Start it and wait until it has tried everything."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [str(PROGRAM), "--objects", str(objects), "--hierarchy", str(ROOT)]
        command += ["--socket", str(theirs.fileno()), *arguments]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.status: dict[str, str] = {}
        self.bells: list[int] = []
        """A ring buffer that becomes readable when a group is throttled."""
        self.writers: list[int] = []
        """A map of who wrote CPU quotas."""
        self.links: list[int] = []
        """An iterator's link, and its map."""
        self.periods: list[Period] = []
        self.ooms: list[Oom] = []
        self.lost = 0
        while self.receive(60.0) != READY:
            pass

    def receive(self, within_s: float) -> int | None:
        """Take one packet; its kind, or None if none came in time."""
        self.channel.settimeout(within_s)
        try:
            packet, links, _flags, _address = socket.recv_fds(self.channel, 1 << 16, 4)
        except TimeoutError:
            return None
        version, kind = HEADER.unpack_from(packet)
        assert version == VERSION
        if kind == BELL:
            self.bells += links
        elif kind == WRITERS:
            self.writers += links
        else:
            self.links += links
        self._take(kind, packet[HEADER.size :])
        return int(kind)

    def _take(self, kind: int, content: bytes) -> None:
        if kind == STATUS:
            name, _, rest = content.decode().partition(" ")
            self.status[name] = rest
        elif kind == PERIODS:
            self.periods += map(Period._make, PERIOD.iter_unpack(content))
        elif kind == OOMS:
            self.ooms += map(Oom._make, OOM.iter_unpack(content))
        elif kind == LOST:
            [self.lost] = struct.unpack("=Q", content)

    def drain(self, quiet_s: float = 0.5) -> None:
        """Take packets until none has come for so long, in five looks: a machine that stands still fills one."""
        empty = 0
        while empty < 5:
            empty = empty + 1 if self.receive(quiet_s / 5) is None else 0

    def close(self) -> int:
        """Close the socket; the exit status, at the latest after 10 s."""
        for link in self.links + self.bells + self.writers:
            os.close(link)
        self.channel.close()
        return self.process.wait(60)


class Group:
    """A control group with tasks of ours, which wait until they are let go."""

    def __init__(
        self, name: str, quota_us: int | None = None, *, parent: Path = ROOT, period_us: int = 100_000
    ) -> None:
        """Make it."""
        self.name = name
        self.path = parent / f"{name}-{os.getpid()}"
        self.path.mkdir()
        self.id = self.path.stat().st_ino
        self.tasks: list[int] = []
        if quota_us:
            self.write("cpu.max", f"{quota_us} {period_us}")

    def write(self, name: str, value: str) -> None:
        """One of its files."""
        (self.path / name).write_text(value)

    def read(self, name: str) -> str:
        """One of its files."""
        return (self.path / name).read_text().strip()

    def numbers(self, name: str) -> dict[str, int]:
        """A file of names and numbers, such as cpu.stat."""
        return {key: int(value) for key, value in (line.split() for line in self.read(name).splitlines())}

    def add(self, work: Callable[[], object]) -> int:
        """A task that does this once it is let go; its process id."""
        task = os.fork()
        if not task:
            try:
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a test that fails leaves nothing running
                self.write("cgroup.procs", "0")
                os.kill(os.getpid(), signal.SIGSTOP)
                work()
            finally:
                os._exit(1)
        os.waitpid(task, os.WUNTRACED)
        self.tasks.append(task)
        return task

    def let_go(self) -> None:
        """Its tasks run."""
        for task in self.tasks:
            os.kill(task, signal.SIGCONT)

    def stop(self) -> None:
        """Its tasks stand still."""
        for task in self.tasks:
            os.kill(task, signal.SIGSTOP)
        for task in self.tasks:
            os.waitpid(task, os.WUNTRACED)

    def end(self) -> None:
        """Its tasks end."""
        for task in self.tasks:
            with suppress(ProcessLookupError):
                os.kill(task, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(task, 0)
        self.tasks.clear()

    def remove(self) -> None:
        """End its tasks, and remove it."""
        self.end()
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.path.rmdir()
            except OSError:  # its tasks are on their way out
                assert time.monotonic() < deadline


def burn(burst_ms: float = 0, pause_ms: float = 0) -> None:
    """For ever: at once, or in bursts."""
    while True:
        until = time.perf_counter() + burst_ms / 1e3
        while not burst_ms or time.perf_counter() < until:
            pass
        time.sleep(pause_ms / 1e3)


def figure(text: str) -> None:
    """A line that the test outside prints."""
    print(f"figure: {text}", flush=True)  # noqa: T201 - a command


def enable_controllers() -> None:
    """For the groups below the root."""
    (ROOT / "cgroup.subtree_control").write_text("+cpu +memory")


class _IterCreate(ctypes.Structure):
    _fields_ = (("link", ctypes.c_uint32), ("flags", ctypes.c_uint32))


def read_table(link: int, rows: int) -> list[Row]:
    """Every group of the hierarchy whose iterator's link and map these are, the root first."""
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    request = _IterCreate(link, 0)
    descriptor = _LIBC.syscall(number, 33, ctypes.byref(request), ctypes.sizeof(request))
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        [count] = struct.unpack("=Q", os.read(descriptor, 64))
        assert not os.read(descriptor, 64)
    finally:
        os.close(descriptor)
    with mmap.mmap(rows, TABLE_ROWS * ROW.size, mmap.MAP_SHARED, mmap.PROT_READ) as table:
        return list(map(Row._make, ROW.iter_unpack(table[: count * ROW.size])))

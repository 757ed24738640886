"""Control groups made of ordinary files, and a kernel that answers writes to them.

An ordinary file keeps the tail of a longer old value when a shorter one is written at its start; a control file is
replaced as a whole. `FakeKernel` does that, records the order of writes, and refuses by rule.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.containers import ContainerSource
from services._host.cgroupfs import CgroupLayout, ControllerMount
from services.agent.ports import FoundContainer

APP, NAME, ID = "shop", "web", "0123456789ab"
DIRECTORY = f"turnbuckle/{APP}/{NAME}-{ID}"
CONTAINER = FoundContainer(ID, APP, NAME, ContainerSource.EXEC, managed_directory=DIRECTORY)
V1_HUGE = "9223372036854771712"

V1_TREE = {
    f"cpu/{DIRECTORY}": {
        "cpu.stat": "nr_periods 40\nnr_throttled 7\nthrottled_time 123456789\nnr_bursts 0\nburst_time 0\n",
        "cpu.cfs_quota_us": "20000\n",
        "cpu.cfs_period_us": "100000\n",
    },
    f"cpuacct/{DIRECTORY}": {"cpuacct.usage": "5000999\n"},
    f"memory/{DIRECTORY}": {
        "memory.usage_in_bytes": "10485760\n",
        "memory.limit_in_bytes": "67108864\n",
        "memory.memsw.limit_in_bytes": "134217728\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        "memory.failcnt": "0\n",
        "memory.stat": "cache 4096\ninactive_file 1\ntotal_cache 8192\ntotal_inactive_file 4096\ntotal_active_file 0\n",
        "cgroup.event_control": "",
    },
}
V2_TREE = {
    f"unified/{DIRECTORY}": {
        "cpu.stat": (
            "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\nnice_usec 0\ncore_sched.force_idle_usec 0\n"
            "nr_periods 40\nnr_throttled 7\nthrottled_usec 123456\nnr_bursts 0\nburst_usec 0\n"
        ),
        "cpu.max": "20000 100000\n",
        "memory.current": "10485760\n",
        "memory.max": "67108864\n",
        "memory.high": "max\n",
        "memory.stat": "anon 1000\nfile 9000\ninactive_file 8192\nactive_file 808\nworkingset_refault_file 7\n",
        "memory.events": "low 0\nhigh 5\nmax 1\noom 4\noom_kill 3\noom_group_kill 0\n",
    },
}

Refusal = Callable[["FakeKernel", str, str], int | None]
"""(kernel, file name, value about to be written) -> errno, or None to accept."""


def materialise(base: Path, tree: dict[str, dict[str, str]]) -> None:
    """Make directories and files from ``{directory: {file: content}}``."""
    for directory, files in tree.items():
        (base / directory).mkdir(parents=True)
        for name, content in files.items():
            (base / directory / name).write_text(content)


def fake_layout(base: Path, version: int) -> CgroupLayout:
    """The layout that belongs to `V1_TREE` or `V2_TREE`."""
    if version == 2:
        mount = ControllerMount(str(base / "unified"), "/", read_only=False)
        return CgroupLayout(2, hybrid=False, mounts={"cpu": mount, "memory": mount})
    names = ("cpu", "cpuacct", "memory")
    return CgroupLayout(
        1, hybrid=False, mounts={name: ControllerMount(str(base / name), "/", read_only=False) for name in names}
    )


class FakeKernel:
    """Answers writes below a directory."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.writes: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.rules: list[Refusal] = []
        self.after_write: Callable[[str, str], None] = lambda _name, _value: None
        self._pwrite = os.pwrite
        monkeypatch.setattr("services._host.control_file.os.pwrite", self.pwrite)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        if descriptor < 0:
            raise OSError(errno.EBADF, "closed")
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path.endswith(" (deleted)"):
            raise OSError(errno.ENODEV, "removed")
        if f"/{DIRECTORY}/" not in path:
            return self._pwrite(descriptor, data, offset)  # an ordinary file
        name, value = Path(path).name, data.decode()
        for rule in self.rules:
            if code := rule(self, name, value):
                self.refused.append((name, value))
                raise OSError(code, os.strerror(code))
        content = data + b"\n"
        if name == "memory.oom_control":  # takes one of the values that it shows
            content = b"oom_kill_disable " + content + b"".join(Path(path).read_bytes().splitlines(keepends=True)[1:])
        self._pwrite(descriptor, content.ljust(os.fstat(descriptor).st_size), offset)  # see `set`
        os.ftruncate(descriptor, len(content))
        self.writes.append((name, value))
        self.after_write(name, value)
        return len(data)

    def path(self, name: str) -> Path:
        [path] = self.base.glob(f"*/{DIRECTORY}/{name}")
        return path

    def value(self, name: str) -> str:
        return self.path(name).read_text().strip()

    def set(self, name: str, value: str) -> None:
        """As a kernel does: who reads meanwhile sees the old value or the new one, never an empty file."""
        path = self.path(name)
        content, old_bytes = f"{value}\n".encode(), path.stat().st_size
        with path.open("r+b", buffering=0) as file:
            file.write(content.ljust(old_bytes))
            file.truncate(len(content))


def refuse(name: str, code: int) -> Refusal:
    """Refuse every write to one file."""
    return lambda _kernel, written, _value: code if written == name else None


def memsw_rule(kernel: FakeKernel, name: str, value: str) -> int | None:
    """Version 1: memory.limit_in_bytes may never exceed memory.memsw.limit_in_bytes."""
    if name == "memory.limit_in_bytes" and int(value) > int(kernel.value("memory.memsw.limit_in_bytes")):
        return errno.EINVAL
    if name == "memory.memsw.limit_in_bytes" and int(value) < int(kernel.value("memory.limit_in_bytes")):
        return errno.EINVAL
    return None


def burst_rule(kernel: FakeKernel, name: str, value: str) -> int | None:
    """No burst above its quota (kernel/sched/core.c, tg_set_cfs_bandwidth); without a quota any."""
    v1 = (kernel.base / "cpu").exists()
    quota = kernel.value("cpu.cfs_quota_us") if v1 else kernel.value("cpu.max").split()[0]
    burst = int(kernel.value("cpu.cfs_burst_us" if v1 else "cpu.max.burst"))
    if name in {"cpu.cfs_quota_us", "cpu.max"}:
        quota = value.split(maxsplit=1)[0]
    elif name in {"cpu.cfs_burst_us", "cpu.max.burst"}:
        burst = int(value)
    return None if quota in {"-1", "max"} or burst <= int(quota) else errno.EINVAL


def ratio_rule(most: float) -> Refusal:
    """Version 1: quota / period may never exceed the parent's."""

    def rule(kernel: FakeKernel, name: str, value: str) -> int | None:
        quota, period = int(kernel.value("cpu.cfs_quota_us")), int(kernel.value("cpu.cfs_period_us"))
        if name == "cpu.cfs_quota_us":
            quota = int(value)
        elif name == "cpu.cfs_period_us":
            period = int(value)
        return errno.EINVAL if quota / period > most else None

    return rule

"""Other hands on the same control files: what people, `docker update`, the kubelet and systemd write."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.support.limit_observer import UNLIMITED, CgroupTree


def write_quota(tree: CgroupTree, directory: str, quota_us: int) -> None:
    """Per 100 ms; `UNLIMITED` as systemd does at ``daemon-reload`` for a unit without CPUQuota."""
    if tree.version == 1:
        Path(tree.cpu, directory, "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
    else:
        text = f"{'max' if quota_us == UNLIMITED else quota_us} 100000"
        Path(tree.cpu, directory, "cpu.max").write_text(text, encoding="ascii")


def write_limit(tree: CgroupTree, directory: str, limit_bytes: int) -> None:
    """The memory limit; `UNLIMITED` as systemd does at ``daemon-reload`` for a unit without MemoryMax."""
    if tree.version == 2:
        text = "max" if limit_bytes == UNLIMITED else str(limit_bytes)
        Path(tree.memory, directory, "memory.max").write_text(text, encoding="ascii")
        return
    files = [f"{tree.memory}/{directory}/memory.{name}limit_in_bytes" for name in ("memsw.", "")]
    with suppress(FileNotFoundError, OSError):  # no swap accounting; or lower than the limit: that comes first
        Path(files[0]).write_text(str(limit_bytes), encoding="ascii")
    Path(files[1]).write_text(str(limit_bytes), encoding="ascii")


def give_the_kernel_its_kill_back(tree: CgroupTree, directory: str) -> None:
    """Undo the guard."""
    name, value = ("memory.oom_control", "0") if tree.version == 1 else ("memory.high", "max")
    Path(tree.memory, directory, name).write_text(value, encoding="ascii")

"""What the control groups that this process is in let it have: the least on the way up to what is mounted here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._host.cgroupfs import CgroupLayout, paths_of_pid

_UNLIMITED_BYTES: Final = 1 << 62
"""Version 1 says so by the largest multiple of a page."""


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """None: no limit."""

    cpu_cores: float | None
    memory_bytes: int | None


def own_limits(layout: CgroupLayout, proc: str = "/proc") -> OwnLimits:
    """Of this process, by its groups' files; a group that is not visible here has none."""
    paths = paths_of_pid(layout, os.getpid(), proc)
    cores = [found for group in _ancestors(layout, paths, "cpu") if (found := _cores(group)) is not None]
    memory = [found for group in _ancestors(layout, paths, "memory") if (found := _memory(group)) is not None]
    return OwnLimits(min(cores, default=None), min(memory, default=None))


def _ancestors(layout: CgroupLayout, paths: dict[str, str | None], controller: str) -> Iterator[Path]:
    path = paths[controller]
    if path is None:
        return
    top, group = Path(layout.mounts[controller].directory), Path(path)
    yield group
    while group != top and top in group.parents:
        group = group.parent
        yield group


def _cores(group: Path) -> float | None:
    with suppress(OSError, ValueError):  # "max" is no number; version 1 has -1
        quota_us, period_us = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota_us) / int(period_us)
    with suppress(OSError, ValueError):
        quota_us, period_us = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in _QUOTA_FILES)
        return int(quota_us) / int(period_us) if int(quota_us) > 0 else None
    return None


_QUOTA_FILES: Final = ("quota", "period")


def _memory(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limit_bytes = int((group / name).read_text(encoding="ascii"))
            return limit_bytes if limit_bytes < _UNLIMITED_BYTES else None
    return None

"""An observer of control groups that shares no code with what it observes: files in, one JSON line per sample out.

Run as a program (standard library only) it lists every group ``<root>/<app>/<name>`` 50 times a second and reads quota,
memory limit and usage, whether tasks wait at the limit, kills and CPU time. A sample counts only if two readings in a
row agree: the files cannot be read at one instant, and a cut here with a raise there between two files would look like
a sum that never was.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

RATE_HZ: Final = 50
UNLIMITED: Final = -1
_HUGE: Final = 1 << 62
_ATTEMPTS: Final = 20
"""Double readings until two agree; a write costs the agent more than a reading costs us."""


class CgroupTree(NamedTuple):
    """Mount points of the controllers."""

    version: int
    cpu: str
    cpuacct: str
    memory: str


class Reading(NamedTuple):
    """One group. `UNLIMITED` where there is no limit."""

    quota_us: int
    """Per 100 ms."""
    limit_bytes: int
    memsw_bytes: int
    """Version 1 only, else `UNLIMITED`."""
    cpu_us: int
    periods: int
    throttled: int
    usage_bytes: int = 0
    guarded: bool = False
    """Version 1: oom_kill_disable; version 2: memory.high is set."""
    waiting: bool = False
    """Version 1: under_oom, tasks wait. Version 2: never, there tasks are slowed."""
    kills: int = 0
    """By the kernel."""

    @property
    def limits(self) -> tuple[int, int]:
        """What must not differ between two readings of one sample."""
        return self.quota_us, self.limit_bytes


def read_group(tree: CgroupTree, directory: str) -> Reading | None:
    """Read a group below the mounts; None: it is gone."""
    try:
        return _read_v1(tree, directory) if tree.version == 1 else _read_v2(tree, directory)
    except OSError:  # ENOENT; ENODEV: removed while open
        return None


def _text(*parts: str) -> str:
    with open("/".join(parts), encoding="ascii") as file:  # noqa: PTH123 - half the cost, 50 times a second
        return file.read()


def _stat(*parts: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in _text(*parts).splitlines())}


def _limit(text: str) -> int:
    return UNLIMITED if text.strip() == "max" or int(text) >= _HUGE else int(text)


def _quota(quota: str, period: str) -> int:
    return UNLIMITED if quota in {"max", "-1"} else int(quota) * 100_000 // int(period)


def read_limits(version: int, cpu: str, memory: str) -> tuple[int, int]:
    """Quota in us per 100 ms and memory limit in bytes, by the group's directories. Raises OSError: it is gone."""
    if version == 2:
        return _quota(*_text(cpu, "cpu.max").split()), _limit(_text(memory, "memory.max"))
    quota = _quota(_text(cpu, "cpu.cfs_quota_us").strip(), _text(cpu, "cpu.cfs_period_us"))
    return quota, _limit(_text(memory, "memory.limit_in_bytes"))


def _read_limits(tree: CgroupTree, directory: str) -> tuple[int, int]:
    return read_limits(tree.version, f"{tree.cpu}/{directory}", f"{tree.memory}/{directory}")


def _read_v1(tree: CgroupTree, directory: str) -> Reading:
    stat, trap = _stat(tree.cpu, directory, "cpu.stat"), _stat(tree.memory, directory, "memory.oom_control")
    memsw = f"{tree.memory}/{directory}/memory.memsw.limit_in_bytes"
    return Reading(
        *_read_limits(tree, directory),
        _limit(_text(memsw)) if os.access(memsw, os.R_OK) else UNLIMITED,
        int(_text(tree.cpuacct, directory, "cpuacct.usage")) // 1000,
        stat["nr_periods"],
        stat["nr_throttled"],
        int(_text(tree.memory, directory, "memory.usage_in_bytes")),
        trap["oom_kill_disable"] == 1,
        trap["under_oom"] == 1,
        trap.get("oom_kill", 0),
    )


def _read_v2(tree: CgroupTree, directory: str) -> Reading:
    stat = _stat(tree.cpu, directory, "cpu.stat")
    return Reading(
        *_read_limits(tree, directory),
        UNLIMITED,
        stat["usage_usec"],
        stat["nr_periods"],
        stat["nr_throttled"],
        int(_text(tree.memory, directory, "memory.current")),
        _limit(_text(tree.memory, directory, "memory.high")) != UNLIMITED,
        waiting=False,
        kills=_stat(tree.memory, directory, "memory.events")["oom_kill"],
    )


def _groups(tree: CgroupTree, roots: list[str]) -> Iterator[tuple[str, str]]:
    """(application, directory) of every managed group."""
    for root in roots:
        for app in _names(f"{tree.cpu}/{root}"):
            for name in _names(f"{tree.cpu}/{root}/{app}"):
                yield app, f"{root}/{app}/{name}"


def _names(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _read_all(tree: CgroupTree, roots: list[str]) -> dict[tuple[str, str], Reading]:
    found = {group: read_group(tree, group[1]) for group in _groups(tree, roots)}
    return {group: reading for group, reading in found.items() if reading is not None}


def _all_limits(tree: CgroupTree, roots: list[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Takes a third of the time of `_read_all`."""
    found = {}
    for group in _groups(tree, roots):
        with suppress(OSError):
            found[group] = _read_limits(tree, group[1])
    return found


def _sample(tree: CgroupTree, roots: list[str]) -> dict[tuple[str, str], Reading] | None:
    """All groups as they were at one moment; None: they never stood still."""
    before = _all_limits(tree, roots)
    for _ in range(_ATTEMPTS):
        sample = _read_all(tree, roots)
        after = {group: reading.limits for group, reading in sample.items()}
        if after == before:
            return sample
        before = after
    return None


def main() -> None:
    """``limit_observer.py VERSION CPU CPUACCT MEMORY ROOT...``: samples on standard output until its input closes."""
    tree, roots = CgroupTree(int(sys.argv[1]), *sys.argv[2:5]), sys.argv[5:]
    os.nice(-15)  # an observer that is starved sees nothing
    next_s = time.monotonic()
    while not select.select([sys.stdin], [], [], max(next_s - time.monotonic(), 0))[0]:
        sample = _sample(tree, roots)
        if sample is not None:
            groups = [[app, directory, *reading] for (app, directory), reading in sample.items()]
            print(json.dumps([time.monotonic(), groups]), flush=True)  # noqa: T201 - that is its output
        next_s = max(next_s + 1 / RATE_HZ, time.monotonic())


Sample = tuple[float, dict[str, dict[str, Reading]]]
"""Monotonic seconds, and readings by application and group."""


@dataclass(frozen=True, slots=True)
class Observation:
    """All samples of one application, oldest first: seconds and the readings by group."""

    samples: list[tuple[float, dict[str, Reading]]]

    @property
    def duration_s(self) -> float:
        """From the first sample to the last."""
        return self.samples[-1][0] - self.samples[0][0]

    @property
    def highest_quota_us(self) -> int:
        """Largest sum of quotas in a sample; what is unlimited is not managed yet and counts nothing."""
        return max(sum(max(r.quota_us, 0) for r in groups.values()) for _, groups in self.samples)

    @property
    def highest_limit_bytes(self) -> int:
        """Largest sum of memory limits in a sample."""
        return max(sum(max(r.limit_bytes, 0) for r in groups.values()) for _, groups in self.samples)

    @property
    def most_groups(self) -> int:
        """Largest number of groups in a sample."""
        return max(len(groups) for _, groups in self.samples)

    def quotas(self, directory: str) -> list[int]:
        """Successive different quotas of one group."""
        seen: list[int] = []
        for _, groups in self.samples:
            if directory in groups and (not seen or seen[-1] != groups[directory].quota_us):
                seen.append(groups[directory].quota_us)
        return seen


class LimitObserver:
    """A running observer; its output goes to a file, so that it never waits for us."""

    def __init__(self, tree: CgroupTree, roots: list[str], output: Path) -> None:
        self._output = output
        self._taken_bytes = 0
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", __file__, str(tree.version), *tree[1:], *roots],
                stdin=subprocess.PIPE,
                stdout=file,
            )

    @property
    def at_work(self) -> bool:
        """Whether it has taken a sample: its interpreter may take seconds to start."""
        return self._output.stat().st_size > 0

    def stop(self) -> dict[str, Observation]:
        """End it and return what it saw, by application."""
        self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        return self.seen()

    def seen(self) -> dict[str, Observation]:
        """What it has seen so far, by application."""
        by_app: defaultdict[str, list[Any]] = defaultdict(list)
        for time_s, apps in self._samples(0)[0]:
            for app, readings in apps.items():
                by_app[app].append((time_s, readings))
        return {app: Observation(samples) for app, samples in by_app.items()}

    def take(self) -> list[Sample]:
        """What it has seen since the last call."""
        samples, self._taken_bytes = self._samples(self._taken_bytes)
        return samples

    def _samples(self, offset_bytes: int) -> tuple[list[Sample], int]:
        """Samples from here on, and where whole lines end."""
        with self._output.open("rb") as file:
            file.seek(offset_bytes)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        samples: list[Sample] = []
        for line in whole.splitlines():
            time_s, groups = json.loads(line)
            apps: defaultdict[str, dict[str, Reading]] = defaultdict(dict)
            for app, directory, *values in groups:
                apps[app][directory] = Reading(*values)
            samples.append((time_s, dict(apps)))
        return samples, offset_bytes + len(whole)

    def kill(self) -> None:
        """End it whatever happens."""
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    main()

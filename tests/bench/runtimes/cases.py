"""Start a probe in a control group of its own, move the group's limits, and read what the probe prints."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PERIOD_US: Final = 100_000
START_WITHIN_S: Final = 300.0
"""A Java virtual machine in an emulated machine, at 0.3 of a core."""
FOLLOW_WITHIN_S: Final = 60.0
"""Go looks at its control group at most once a second, and less often while it idles (runtime/proc.go, sysmon)."""
SETTLED_S: Final = 20.0
"""What has not changed for so long after a change of limits is taken for final."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a control group."""

    cores: float
    memory_mib: int

    def __str__(self) -> str:
        """As the table names them."""
        return f"{self.cores:g} cores, {self.memory_mib} MiB"


@dataclass(frozen=True, slots=True)
class Case:
    """A probe, its environment, and the limits that its group has one after another."""

    name: str
    command: tuple[str, ...]
    limits: tuple[Limits, ...]
    environment: tuple[tuple[str, str], ...] = ()


SMALL: Final = Limits(0.3, 256)
LARGE: Final = Limits(4.0, 2048)
SMALL_CPU: Final = Limits(0.3, 2048)
FLOOR: Final = Limits(3.0, 2048)
"""What an idle container keeps with `container_min_cpu: 3` and `container_min_memory: 2GiB`."""


def cases(java: Sequence[str], go: Sequence[str]) -> tuple[Case, ...]:
    """All of them.

    Args:
        java: the command of the Java probe, options come second.
        go: the command of the Go probe.
    """
    machine, rest = java[0], tuple(java[1:])
    pinned = (machine, "-XX:ActiveProcessorCount=4", "-Xmx1g", *rest)
    return (
        Case("Java, started small", tuple(java), (SMALL, LARGE)),
        Case("Java, started large", tuple(java), (LARGE, SMALL_CPU, LARGE)),
        Case("Java, a floor of 3 cores and 2 GiB", tuple(java), (FLOOR, LARGE, FLOOR)),
        Case("Java, -XX:ActiveProcessorCount=4 -Xmx1g", pinned, (SMALL, LARGE)),
        Case("Go, started small", tuple(go), (SMALL, LARGE)),
        Case("Go, started large", tuple(go), (LARGE, SMALL_CPU, LARGE)),
        Case("Go, a floor of 3 cores and 2 GiB", tuple(go), (FLOOR, LARGE, FLOOR)),
        Case("Go, GOMAXPROCS=4", tuple(go), (SMALL, LARGE), (("GOMAXPROCS", "4"),)),
    )


@contextmanager
def control_group(name: str) -> Iterator[tuple[Path, ...]]:
    """A new group's directories: one on version 2, those of the controllers cpu and memory on version 1.

    Raises:
        OSError: it cannot be made: not root, or no control groups.
    """
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        (root / "cgroup.subtree_control").write_text("+cpu +memory")
        directories = (root / name,)
    else:
        directories = (root / "cpu" / name, root / "memory" / name)
    for directory in directories:
        directory.mkdir()
    try:
        yield directories
    finally:
        for directory in directories:
            directory.rmdir()


def write_limits(directories: Sequence[Path], limits: Limits) -> None:
    """Quota and memory limit of the group."""
    quota, memory = int(limits.cores * PERIOD_US), str(limits.memory_mib << 20)
    if len(directories) == 1:
        (directories[0] / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (directories[0] / "memory.max").write_text(memory)
    else:
        (directories[0] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (directories[0] / "cpu.cfs_quota_us").write_text(str(quota))
        (directories[1] / "memory.limit_in_bytes").write_text(memory)


class Probe:
    """A running probe and the newest line that it printed."""

    def __init__(self, directories: Sequence[Path], command: Sequence[str], environment: Mapping[str, str]) -> None:
        enter = "".join(f"echo $$ >{directory}/cgroup.procs; " for directory in directories)
        self._process = subprocess.Popen(
            ["sh", "-c", f'{enter}exec "$@"', "sh", *command],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._new = threading.Condition()
        self._seen: dict[str, Any] | None = None
        self._reader = threading.Thread(target=self._read, name="probe", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._new:
                self._seen = json.loads(line)
                self._new.notify_all()

    def first(self) -> dict[str, Any]:
        """What it printed first.

        Raises:
            RuntimeError: nothing within `START_WITHIN_S`.
        """
        with self._new:
            if not self._new.wait_for(lambda: self._seen is not None, START_WITHIN_S):
                raise RuntimeError(f"the probe printed nothing within {START_WITHIN_S:.0f} s")
            assert self._seen is not None
            return self._seen

    def after_change(self, before: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """What it prints once it has settled, and after how many seconds it changed; None: it did not."""
        started_s = time.monotonic()
        with self._new:
            changed = self._new.wait_for(lambda: self._seen != before, min(FOLLOW_WITHIN_S, SETTLED_S))
            seconds = time.monotonic() - started_s if changed else None
            while changed:
                last = dict(self._seen or {})
                changed = self._new.wait_for(lambda last=last: self._seen != last, 3.0)
            return dict(self._seen or {}), seconds

    def end(self) -> None:
        """Kill it and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def run_case(case: Case) -> list[dict[str, Any]]:
    """A row for each of the case's limits: what the runtime says of itself, and after how long."""
    rows: list[dict[str, Any]] = []
    with control_group(f"turnbuckle-runtimes-{os.getpid()}") as directories:
        write_limits(directories, case.limits[0])
        probe = Probe(directories, case.command, dict(case.environment))
        try:
            seen, seconds = probe.first(), None
            for index, limits in enumerate(case.limits):
                if index:
                    write_limits(directories, limits)
                    seen, seconds = probe.after_change(seen)
                rows.append({"case": case.name, "limits": str(limits), "followed_after_s": seconds, **seen})
        finally:
            probe.end()
    return rows


def main() -> int:
    """Run all cases; the rows as JSON into a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--java", type=shlex.split, required=True, help="command line of the Java probe")
    parser.add_argument("--go", type=shlex.split, required=True, help="command line of the Go probe")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in cases(options.java, options.go):
        print(f"... {case.name}", file=sys.stderr, flush=True)
        rows += run_case(case)
    record = {"cores": os.cpu_count(), "rows": rows}
    options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

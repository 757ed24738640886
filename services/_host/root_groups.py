"""Out of a container's control groups: a process that should outlive the container must not be found in them.

A container runtime that shares the host's process ids ends a container by killing all in its control groups, and
so does systemd with a unit (KillMode=control-group).
"""

from __future__ import annotations

from pathlib import Path


def move_to_root_groups(pid: int, mounts: Path = Path("/proc/self/mounts")) -> list[str]:
    """Move a process to the top of every hierarchy that is mounted here; returns why it could not, one reason each."""
    refused = []
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, directory, filesystem = line.split(" ", 3)[:3]
        if filesystem in {"cgroup", "cgroup2"}:
            try:
                Path(directory, "cgroup.procs").write_text(str(pid), encoding="ascii")
            except OSError as error:
                refused.append(f"{directory}: {error.strerror}")
    return refused

"""Processes of a control group: joined, signalled, killed to the last, and its removal. Standard library only.

Sources: cgroups(7), Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_KILL_PASSES: Final = 10
END_WITHIN_S: Final = 10.0
GONE: Final = (errno.ENOENT, errno.ENODEV)


def write_file(path: str, value: str) -> None:
    """Write one control file. Raises OSError as the kernel answers."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


class CgroupProcesses:
    """The processes of one control group, which may lie in several hierarchies."""

    def __init__(self, paths: Sequence[str], parents: int, kills_file: str = "", freezer: str = "") -> None:
        """Name it.

        Args:
            paths: its directory in each hierarchy.
            parents: so many directories above it are removed with it once they are empty.
            kills_file: where the kernel counts its OOM kills: memory.oom_control, or memory.events.
            freezer: the file that stops all its processes: freezer.state, or cgroup.freeze; empty: there is none.
        """
        self._paths = tuple(paths)
        self._parents = parents
        self._kills_file = kills_file
        self._freezer = freezer

    @property
    def has_freezer(self) -> bool:
        """Whether all its processes can be stopped at once."""
        return bool(self._freezer)

    @property
    def place(self) -> dict[str, object]:
        """The arguments that make it again, in another process."""
        return {
            "paths": list(self._paths),
            "parents": self._parents,
            "kills_file": self._kills_file,
            "freezer": self._freezer,
        }

    def add_process(self, pid: int) -> bool:
        """Move a process in, in every hierarchy; 0 is the caller itself. False: it, or the group, has vanished."""
        try:
            for path in self._paths:
                write_file(f"{path}/cgroup.procs", str(pid))
        except OSError as error:
            if error.errno in (errno.ESRCH, *GONE):
                return False
            raise
        return True

    def process_ids(self) -> list[int]:
        """Processes in any of the hierarchies; empty if the group has vanished."""
        found = {int(pid) for path in self._paths for pid in _process_lines(path)}
        return sorted(found - {0})  # 0: a process of another PID namespace, which we cannot name

    def is_populated(self) -> bool:
        """Whether there is any process, also one without a visible id. One read where there is one."""
        return any(_process_lines(path) for path in self._paths)

    def oom_kills(self) -> int:
        """How many of its tasks the kernel has OOM-killed; 0 where it does not report it."""
        with suppress(OSError):
            for line in Path(self._kills_file).read_text(encoding="ascii").splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count)
        return 0

    def freeze(self) -> bool:
        """Stop every process, until `thaw`; False: it has no freezer, or has vanished.

        Raises:
            OSError: as the kernel answers.
        """
        return self._write_freezer("FROZEN", "1")

    def thaw(self) -> bool:
        """Let every process go on; False: as `freeze`.

        Raises:
            OSError: as the kernel answers.
        """
        return self._write_freezer("THAWED", "0")

    def _write_freezer(self, v1: str, v2: str) -> bool:
        if not self._freezer:
            return False
        try:
            write_file(self._freezer, v1 if self._freezer.endswith("/freezer.state") else v2)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each process that is in it now."""
        for pid in self.process_ids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Send SIGKILL to every process. They vanish a moment later: `process_ids()` shows when.

        Version 1 has no cgroup.kill, so a forking group is swept several times; and what is frozen there dies only when
        it is thawed.
        """
        self.thaw()
        kill_file = f"{self._paths[0]}/cgroup.kill"
        if Path(kill_file).exists():
            try:
                write_file(kill_file, "1")
            except OSError as error:
                if error.errno not in GONE:
                    raise
            return
        killed: set[int] = set()
        for _ in range(_KILL_PASSES):
            fresh = set(self.process_ids()) - killed
            if not fresh:
                return
            killed |= fresh
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the group, and its parents as far as they are empty. False: it still has processes."""
        gone = True
        for path in self._paths:
            gone &= _remove_directory(path)
            for depth in range(self._parents):
                if not gone or not _remove_directory(path.rsplit("/", depth + 1)[0]):
                    break
        return gone

    def end(self, within_s: float = END_WITHIN_S) -> bool:
        """Kill what is left in the group and remove it; False: something would not die within that time."""
        deadline = time.monotonic() + within_s
        pause_s = 0.001
        while True:
            self.kill()
            if self.remove():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(0.1, 2 * pause_s)


def _process_lines(path: str) -> list[str]:
    """Lines of cgroup.procs; none if the group has vanished."""
    try:
        return Path(f"{path}/cgroup.procs").read_text(encoding="ascii").split()
    except OSError as error:
        if error.errno not in GONE:
            raise
        return []


def _remove_directory(path: str) -> bool:
    try:
        Path(path).rmdir()
    except OSError as error:
        # ENOTDIR: the name was refused by create() because a control file has it
        return error.errno in (*GONE, errno.ENOTDIR)
    return True

"""Real managed control groups with processes in them, for tests that run as root."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable

from schemas.containers import ContainerSource
from services._host.cgroupfs import CgroupLayout, ManagedCgroup, detect, managed_directory, parse_managed
from services.agent.cgroup.host import CgroupHost
from services.agent.cgroup.open import open_host
from services.agent.ports import ContainerHandle, FoundContainer

BURN = "while True: pass"
SLEEP = "import time; time.sleep(1000)"
HOLD = "import sys, time; held = bytearray({bytes}); sys.stdout.write('held'); sys.stdout.flush(); time.sleep(1000)"


def wait_until(condition: Callable[[], object], *, within_s: float = 60.0, what: str = "the condition") -> None:
    """Return once the condition is true; fail the test if that takes too long. For tests without an event loop."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {within_s:g} s")
        time.sleep(0.005)


class CgroupLab:
    """Makes groups and processes, and removes both."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(self, root: str) -> None:
        self.root = root
        self.layout: CgroupLayout = detect()
        self.host: CgroupHost = open_host(self.layout)
        self.groups: list[ManagedCgroup] = []
        self.processes: list[subprocess.Popen[str]] = []
        self._handles: list[ContainerHandle] = []

    def group(self, name: str = "web", quota_us: int | None = None, limit_bytes: int | None = None) -> ManagedCgroup:
        """A new group of application "lab"."""
        directory = managed_directory("lab", name, f"{next(self._serial):012x}", self.root)
        group = ManagedCgroup.create(self.layout, directory, quota_us, limit_bytes)
        self.groups.append(group)
        return group

    def found(self, group: ManagedCgroup) -> FoundContainer:
        """As discovery would report it."""
        name = parse_managed(group.directory, self.root)
        assert name is not None
        return FoundContainer(
            name.container_id, name.app, name.name, ContainerSource.EXEC, managed_directory=group.directory
        )

    def handle(self, group: ManagedCgroup):
        """An opened handle."""
        handle = self.host.open(self.found(group))
        assert handle is not None
        self._handles.append(handle)
        return handle

    def start(self, group: ManagedCgroup, code: str) -> subprocess.Popen[str]:
        """A Python process that is in the group before it runs `code`; its interpreter is charged elsewhere."""
        gate = f"import sys; sys.stdin.readline()\n{code}"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", gate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        assert group.add_process(process.pid)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process

    def hold(self, group: ManagedCgroup, held_bytes: int) -> subprocess.Popen[str]:
        """A process that holds this much, and has touched it."""
        process = self.start(group, HOLD.format(bytes=held_bytes))
        assert process.stdout is not None
        assert process.stdout.read(4) == "held"
        return process

    def close(self) -> None:
        """Kill, close and remove everything."""
        for handle in self._handles:
            handle.close()
        for process in self.processes:
            process.kill()
            process.communicate()
        for group in self.groups:
            group.kill()
            wait_until(group.remove, what=f"removal of {group.directory}")
        self.host.close()

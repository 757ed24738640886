"""Real managed control groups with a process each: sleepers, and a few that burn CPU."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from schemas.containers import ContainerSource
from services._runtime.cgroupfs import ManagedCgroup, detect, managed_directory, parse_managed
from services.agent.ports import FoundContainer

MANAGED_ROOT = "turnbuckle-bench"
"""Not the product's default, so that no other agent of this machine takes them over."""
APP = "bench"
QUOTA_US = 5_000
LIMIT_BYTES = 64 << 20
MOST_BURNERS = 30
BUSY_SHARE = 0.3
_REMOVE_S = 5.0
_REMOVE_EACH_S = 0.01

Profile = Literal["mixed", "bursts"]
"""Of a burner: `tests.bench.burner`."""


class Containers:
    """``count`` groups of one application, and burners in some of them."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(
        self, count: int, busy: int | None = None, profile: Profile = "mixed", quota_us: int = QUOTA_US
    ) -> None:
        """Begin.

        Args:
            count: containers.
            busy: how many hold a burner; by default `BUSY_SHARE` of them, at most `MOST_BURNERS`.
            profile: of the burners.
            quota_us: with which they are found; their sum must be within the application's limit.
        """
        self.count = count
        self.busy_count = min(MOST_BURNERS, round(count * BUSY_SHARE)) if busy is None else min(busy, count)
        self._profile = profile
        self._quota_us = quota_us
        self.groups: list[ManagedCgroup] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._layout = detect()

    def __enter__(self) -> Self:
        try:
            for number in range(self.count):
                self._start(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, number: int) -> None:
        directory = managed_directory(APP, f"c{number}", f"{next(self._serial):012x}", MANAGED_ROOT)
        group = ManagedCgroup.create(self._layout, directory, self._quota_us, LIMIT_BYTES)
        self.groups.append(group)
        burner = [sys.executable, "-S", str(Path(__file__).with_name("burner.py")), str(number), self._profile]
        command = burner if number < self.busy_count else ["sleep", "100000"]
        process = subprocess.Popen(command)
        self._processes.append(process)
        if not group.add_process(process.pid):
            raise RuntimeError(f"{directory} vanished")

    @property
    def found(self) -> list[FoundContainer]:
        """As discovery reports them."""
        names = [(group.directory, parse_managed(group.directory, MANAGED_ROOT)) for group in self.groups]
        return [
            FoundContainer(name.container_id, name.app, name.name, ContainerSource.EXEC, managed_directory=directory)
            for directory, name in names
            if name is not None
        ]

    def set_burning(self, *, burning: bool) -> None:
        """Stop or continue the burners: stopped ones are idle to the kernel."""
        for process in self._processes[: self.busy_count]:
            os.kill(process.pid, signal.SIGCONT if burning else signal.SIGSTOP)

    def close(self) -> None:
        """Kill the processes and remove the groups."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        deadline_s = time.monotonic() + _REMOVE_S + _REMOVE_EACH_S * len(self.groups)
        for group in self.groups:
            while not group.remove() and time.monotonic() < deadline_s:
                time.sleep(0.002)
        self._processes.clear()
        self.groups.clear()

"""Real managed control groups with a process each."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from schemas.containers import ContainerSource
from services._host.cgroupfs import ManagedCgroup, detect, managed_directory, parse_managed
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


class Groups:
    """Groups of one application with a process each; killed and removed at the end."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(self, app: str, commands: Sequence[Sequence[str]], quota_us: int | None, output: int | None) -> None:
        """Begin.

        Args:
            app: application.
            commands: of each group's process.
            quota_us: with which they are found; None: without any.
            output: where what they print goes, as `subprocess.Popen` takes it.
        """
        self._app = app
        self._commands = commands
        self._quota_us = quota_us
        self._output = output
        self.groups: list[ManagedCgroup] = []
        self.processes: list[subprocess.Popen[str]] = []
        self._layout = detect()

    def __enter__(self) -> Self:
        try:
            for number, command in enumerate(self._commands):
                self._start(number, command)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, number: int, command: Sequence[str]) -> None:
        directory = managed_directory(self._app, f"c{number}", f"{next(self._serial):012x}", MANAGED_ROOT)
        group = ManagedCgroup.create(self._layout, directory, self._quota_us, LIMIT_BYTES)
        self.groups.append(group)
        process = subprocess.Popen(command, stdout=self._output, text=True)
        self.processes.append(process)
        if not group.add_process(process.pid):
            raise RuntimeError(f"{directory} vanished")

    def close(self) -> None:
        """Kill the processes and remove the groups."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        deadline_s = time.monotonic() + _REMOVE_S + _REMOVE_EACH_S * len(self.groups)
        for group in self.groups:
            while not group.remove() and time.monotonic() < deadline_s:
                time.sleep(0.002)
        self.processes.clear()
        self.groups.clear()


class Containers(Groups):
    """``count`` groups: sleepers, and burners in some of them."""

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
        burner = [sys.executable, "-S", str(Path(__file__).with_name("burner.py"))]
        burners = [[*burner, str(number), profile] for number in range(self.busy_count)]
        sleepers = [["sleep", "100000"]] * (count - self.busy_count)
        super().__init__(APP, [*burners, *sleepers], quota_us, None)

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
        for process in self.processes[: self.busy_count]:
            os.kill(process.pid, signal.SIGCONT if burning else signal.SIGSTOP)

"""Discovery of managed control groups: made by `turnbuckle exec` and by the demo."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from schemas.containers import ContainerSource
from services._host.cgroupfs import MANAGED_ROOT, CgroupLayout, ManagedCgroup, ManagedName, parse_managed
from services.agent.ports import Discovered, FoundContainer, GoneContainer, RejectedContainer, SourceAnswered

EMPTY_S: Final = 2.0
"""A group without a process for this long is removed: `turnbuckle exec` has died, or has not cleaned up."""

CHECK_TURNS: Final = 5


class ManagedDiscovery:
    """Lists the directories below the managed root, twice a second.

    Asking a group for its processes costs 30 us, a hundred times the listing of its name, so groups that are known to
    live are asked in turns, each every `CHECK_TURNS` scans.
    """

    available = True
    """The file system always answers."""

    def __init__(
        self,
        layout: CgroupLayout,
        root: str = MANAGED_ROOT,
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._root = root
        self._interval_s = interval_s
        self._clock = clock
        self._known: dict[str, ManagedName] = {}
        self._rejected: set[str] = set()
        self._empty_since: dict[str, float] = {}
        self._turn = 0

    async def run(self, sink: Callable[[Discovered], None]) -> None:
        """Report what exists, then every change, until cancelled."""
        for report in self.scan():
            sink(report)
        sink(SourceAnswered(ContainerSource.EXEC))
        while True:
            await asyncio.sleep(self._interval_s)
            for report in self.scan():
                sink(report)

    def scan(self) -> list[Discovered]:
        """Scan once, remove groups that have been empty for `EMPTY_S`, and return what has changed."""
        seen = self._list()
        reports: list[Discovered] = []
        self._turn += 1
        for position, directory in enumerate(sorted(seen)):
            alive = directory in self._known and directory not in self._empty_since
            if alive and (position + self._turn) % CHECK_TURNS:
                continue
            name = parse_managed(directory, self._root)
            if name is None:
                reports += self._reject(directory)
            elif self._is_abandoned(directory):
                if directory in self._known:
                    reports.append(GoneContainer(self._known.pop(directory).container_id))
            elif directory not in self._known and directory not in self._empty_since:
                self._known[directory] = name
                reports.append(
                    FoundContainer(
                        name.container_id, name.app, name.name, ContainerSource.EXEC, managed_directory=directory
                    )
                )
        for directory in [known for known in self._known if known not in seen]:
            reports.append(GoneContainer(self._known.pop(directory).container_id))
        self._rejected &= seen
        self._empty_since = {path: since for path, since in self._empty_since.items() if path in seen}
        return reports

    def _list(self) -> set[str]:
        """Directories two levels below the managed root, relative to the mount."""
        top = self._layout.mounts["cpu"].directory
        found: set[str] = set()
        for app in _subdirectories(f"{top}/{self._root}"):
            found.update(f"{self._root}/{app}/{leaf}" for leaf in _subdirectories(f"{top}/{self._root}/{app}"))
        return found

    def _reject(self, directory: str) -> list[Discovered]:
        """Once for each directory."""
        if directory in self._rejected:
            return []
        self._rejected.add(directory)
        _, app, leaf = directory.rsplit("/", 2)
        reason = f"directory {directory} is not <application>/<name>-<12 hexadecimal digits>"
        return [RejectedContainer(leaf, app, leaf, ContainerSource.EXEC, reason)]

    def _is_abandoned(self, directory: str) -> bool:
        """Whether it was empty for `EMPTY_S` and is now removed."""
        group = ManagedCgroup(self._layout, directory)
        if group.is_populated():
            self._empty_since.pop(directory, None)
            return False
        now = self._clock()
        if now - self._empty_since.setdefault(directory, now) < EMPTY_S:
            return False
        return group.remove()


def _subdirectories(path: str) -> list[str]:
    """Names of the directories in a directory; none if it does not exist (any more)."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []

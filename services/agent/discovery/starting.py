"""Docker containers that are about to start, from the files of their bundles: before their own program runs.

The engine names a container once it has started; a program can have taken gigabytes by then. But first containerd makes
its bundle (``config.json`` of the OCI runtime specification, with the control group's name), then the runtime makes the
control groups, and only then starts the program. inotify notifies of the bundle; its groups are polled for every
millisecond. A container that the engine gives limits of its own is left out: the runtime writes those into its
groups meanwhile. So is each whose bundle cannot be read from here: both are found when the engine names them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from services._host.cgroupfs import CgroupLayout
from services._host.moved_files import NewEntries

T = TypeVar("T")
_STATES: Final = ("/run/containerd", "/run/docker/containerd/daemon")
STATES: Final = (*_STATES, *(f"/proc/1/root{state}" for state in _STATES))
"""Of a containerd of the system's, and of one that the engine has started; as the host sees them, where this process
runs in a container with the host's processes."""
BUNDLES: Final = "io.containerd.runtime.v2.task/moby"
POLL_S: Final = 0.001
WATCH_AGAIN_S: Final = 1.0
GIVE_UP_S: Final = 5.0
"""After the bundle: the engine prepares a container's network before its groups are made."""


@dataclass(slots=True)
class _Awaited(Generic[T]):
    """A bundle without its groups."""

    until_s: float
    """Monotonic."""
    container: T | None = None
    groups: dict[str, str] | None = None
    """By controller; None: the bundle is not written yet."""


class StartingContainers:
    """Notifies of each container's control groups as they appear; for a thread of its own."""

    def __init__(self, layout: CgroupLayout, states: tuple[str, ...] = STATES) -> None:
        """``states``: where containerd may have its state."""
        self._layout = layout
        self._directories = [Path(state, BUNDLES) for state in states]
        self._watched: set[tuple[int, int]] = set()
        """Device and inode of each directory."""
        self._listed: dict[Path, int] = {}
        """Inode of each bundle that was there as its directory began to be watched: inotify may notify of it, too."""

    def follow(
        self, stopped: threading.Event, find: Callable[[str], T | None], started: Callable[[T, dict[str, str]], None]
    ) -> None:
        """Until stopped, call ``started`` with containers and their groups by controller.

        Args:
            stopped: ends it, within a quarter of a second.
            find: the container of an id, as the bundle is found; None: it is not wanted.
            started: called as soon as all its groups are there, which is before its program runs.
        """
        awaited: dict[Path, _Awaited[T]] = {}
        watch_s = 0.0
        with suppress(OSError), NewEntries() as entries:
            while not stopped.is_set():
                if time.monotonic() >= watch_s:
                    watch_s = time.monotonic() + WATCH_AGAIN_S
                    found = self._watch(entries)
                else:
                    within_s = POLL_S if awaited else WATCH_AGAIN_S / 4
                    named = [Path(directory, name) for directory, name in entries.take(within_s)]
                    found = [bundle for bundle in named if not self._was_listed(bundle)]
                awaited |= {bundle: _Awaited(time.monotonic() + GIVE_UP_S) for bundle in found}
                for bundle, each in list(awaited.items()):
                    if self._is_over(bundle, each, find, started) or time.monotonic() > each.until_s:
                        del awaited[bundle]
        stopped.wait()  # without inotify: all are found as the engine names them

    def _watch(self, entries: NewEntries) -> list[Path]:
        """Watch the directories that are there by now; returns the bundles that those have already."""
        found: list[Path] = []
        for directory in self._directories:
            with suppress(OSError):
                seen = directory.stat()
                if (seen.st_dev, seen.st_ino) not in self._watched:
                    entries.watch(str(directory))
                    self._watched.add((seen.st_dev, seen.st_ino))
                    here = list(directory.iterdir())
                    self._listed |= {bundle: _inode(bundle) for bundle in here}
                    found += here
        return found

    def _was_listed(self, bundle: Path) -> bool:
        """Whether a notification is of one that was listed, and not of a later one of the same name."""
        return bundle in self._listed and self._listed.pop(bundle) == _inode(bundle)

    def _is_over(
        self,
        bundle: Path,
        awaited: _Awaited[T],
        find: Callable[[str], T | None],
        started: Callable[[T, dict[str, str]], None],
    ) -> bool:
        if awaited.groups is None:
            config = _config(bundle)
            if config is None:
                return False
            awaited.groups = groups_of(self._layout, config)
            if awaited.groups is None or _has_limits(config):
                return True
            awaited.container = find(bundle.name)
        if awaited.container is None:
            return True
        if not all(Path(group).is_dir() for group in awaited.groups.values()):
            return False
        started(awaited.container, awaited.groups)
        return True


def _inode(bundle: Path) -> int:
    """0: it is gone."""
    with suppress(OSError):
        return bundle.stat().st_ino
    return 0


def _config(bundle: Path) -> dict[str, Any] | None:
    """None: it is not there (yet), or written in part."""
    try:
        config = json.loads((bundle / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def groups_of(layout: CgroupLayout, config: dict[str, Any]) -> dict[str, str] | None:
    """Control groups by controller that a bundle's ``cgroupsPath`` names; None: it names none of its own.

    With systemd it is ``slice:prefix:name``, for ``slice/prefix-name.scope``.
    """
    path = str((config.get("linux") or {}).get("cgroupsPath") or "")
    if path.count(":") == 2:
        slice_name, prefix, name = path.split(":")
        parents = "/".join(_slices(slice_name or "system.slice"))
        path = f"{parents}/{prefix}-{name}.scope"
    path = path.strip("/")
    return layout.directories(path) if path else None


def _slices(name: str) -> Iterator[str]:
    """A slice's directories: ``a-b.slice`` lies in ``a.slice`` (systemd.slice(5))."""
    parts = name.removesuffix(".slice").split("-")
    for count in range(1, len(parts) + 1):
        yield f"{'-'.join(parts[:count])}.slice"


def _has_limits(config: dict[str, Any]) -> bool:
    resources = (config.get("linux") or {}).get("resources") or {}
    memory, cpu = resources.get("memory") or {}, resources.get("cpu") or {}
    values = memory.get("limit"), memory.get("swap"), cpu.get("quota")
    return any(value is not None and value > 0 for value in values)

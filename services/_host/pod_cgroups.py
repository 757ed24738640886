"""Control groups of pods, as the kubelet and the container runtimes name them; their listing.

With the systemd driver: ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/`` and in it
``cri-containerd-<id>.scope`` (CRI-O: ``crio-<id>.scope``). The uid's dashes are underscores; pods of the class
Guaranteed lie right below kubepods.slice.
With the cgroupfs driver: ``kubepods/burstable/pod<uid>/<id>``. A kubelet with ``--cgroup-root`` puts all of it deeper.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from services._host.cgroupfs import CgroupLayout

_TOP: Final = re.compile(r"(?:[a-z0-9_-]+-)?kubepods(?:\.slice)?")
_CLASS: Final = re.compile(r"(?:[a-z0-9_-]+-)?(?:burstable|besteffort)(?:\.slice)?")
_POD: Final = re.compile(r"(?:[a-z0-9_-]+-)?pod[0-9a-f]{8}[0-9a-f_-]{24,28}(?:\.slice)?")
_CONTAINER: Final = re.compile(
    r"(?:(?:cri-containerd|crio|docker)-(?P<scope>[0-9a-f]{64})\.scope|(?P<plain>[0-9a-f]{64}))"
)
_TOP_DEPTH: Final = 2
_FEWEST_LINKS: Final = 2
LIST_TURNS: Final = 5


class PodGroup(NamedTuple):
    """The control group of one container of a pod."""

    container_id: str
    directory: str
    """Relative to each controller's mount."""


def parse_group(pod: str, container: str) -> str | None:
    """The container's id from the names of its pod's directory and its own; None: not a container's group.

    The groups of conmon (CRI-O) and whatever else lies beside are not containers'; the sandbox is one by its name.
    """
    match = _CONTAINER.fullmatch(container)
    return match["scope"] or match["plain"] if match is not None and _POD.fullmatch(pod) else None


def find_tops(layout: CgroupLayout) -> list[str]:
    """The kubelet's directories, relative to the mounts; usually one, none where no kubelet has run."""
    return sorted(_find_tops(layout.mounts["cpu"].directory, "", _TOP_DEPTH))


def _find_tops(mount: str, below: str, depth: int) -> Iterator[str]:
    for name in _subdirectories(f"{mount}/{below}"):
        if _TOP.fullmatch(name):
            yield f"{below}{name}"
        elif depth > 1:
            yield from _find_tops(mount, f"{below}{name}/", depth - 1)


class PodGroups:
    """Lists the groups of all containers of pods, sandboxes included.

    Listing a pod's directory costs 23 us, asking how many directories it holds 6. So a pod is listed when that number
    has changed, and each in turn every `LIST_TURNS` scans: a container that was replaced between two scans leaves the
    number as it was.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._mount = layout.mounts["cpu"].directory
        self._known: dict[str, tuple[int, list[PodGroup]]] = {}
        self._turn = 0

    def scan(self, tops: list[str]) -> list[PodGroup]:
        """All that are there below the kubelet's directories, by container id."""
        self._turn += 1
        known = self._known
        self._known = {}
        for position, pod in enumerate(_pods(self._mount, tops)):
            links = _links(f"{self._mount}/{pod}")
            before = known.get(pod)
            if (
                before is None
                or links != before[0]
                or links < _FEWEST_LINKS
                or (position + self._turn) % LIST_TURNS == 0
            ):
                self._known[pod] = links, self._list_pod(pod)
            else:
                self._known[pod] = before
        return sorted(
            (group for _, groups in self._known.values() for group in groups), key=lambda each: each.container_id
        )

    def _list_pod(self, pod: str) -> list[PodGroup]:
        groups = []
        for container in _subdirectories(f"{self._mount}/{pod}"):
            container_id = parse_group(pod.rpartition("/")[2], container)
            if container_id is not None:
                groups.append(PodGroup(container_id, f"{pod}/{container}"))
        return groups


def _links(path: str) -> int:
    """Two, and one for each directory in it; fewer where a file system does not count them, or it has vanished."""
    try:
        return os.stat(path).st_nlink  # noqa: PTH116 - half of the cost of Path
    except OSError:
        return 0


def _pods(mount: str, tops: list[str]) -> Iterator[str]:
    for top in tops:
        for name in _subdirectories(f"{mount}/{top}"):
            if _POD.fullmatch(name):
                yield f"{top}/{name}"
            elif _CLASS.fullmatch(name):
                yield from (
                    f"{top}/{name}/{pod}" for pod in _subdirectories(f"{mount}/{top}/{name}") if _POD.fullmatch(pod)
                )


def _subdirectories(path: str) -> list[str]:
    """Names of the directories in a directory; none if it does not exist (any more)."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # ENOENT, or ENODEV while it is being removed
        return []

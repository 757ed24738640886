"""Control groups of pods, as the kubelet and the container runtimes name them. Pure, but for the listing.

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

from services._runtime.cgroupfs import CgroupLayout

_TOP: Final = re.compile(r"(?:[a-z0-9_-]+-)?kubepods(?:\.slice)?")
_CLASS: Final = re.compile(r"(?:[a-z0-9_-]+-)?(?:burstable|besteffort)(?:\.slice)?")
_POD: Final = re.compile(r"(?:[a-z0-9_-]+-)?pod(?P<uid>[0-9a-f]{8}[0-9a-f_-]{24,28})(?:\.slice)?")
_CONTAINER: Final = re.compile(
    r"(?:(?:cri-containerd|crio|docker)-(?P<scope>[0-9a-f]{64})\.scope|(?P<plain>[0-9a-f]{64}))"
)
_TOP_DEPTH: Final = 2


class PodGroup(NamedTuple):
    """The control group of one container of a pod."""

    pod_uid: str
    container_id: str
    directory: str
    """Relative to each controller's mount."""


def parse_group(pod: str, container: str) -> tuple[str, str] | None:
    """The pod's uid and the container's id from the names of their directories; None: not a container's group.

    The groups of conmon (CRI-O) and whatever else lies beside are not containers'; the sandbox is one by its name.
    """
    pod_match, container_match = _POD.fullmatch(pod), _CONTAINER.fullmatch(container)
    if pod_match is None or container_match is None:
        return None
    return pod_match["uid"].replace("_", "-"), container_match["scope"] or container_match["plain"]


def find_tops(layout: CgroupLayout) -> list[str]:
    """The kubelet's directories, relative to the mounts; usually one, none where no kubelet has run."""
    return sorted(_find_tops(layout.mounts["cpu"].directory, "", _TOP_DEPTH))


def _find_tops(mount: str, below: str, depth: int) -> Iterator[str]:
    for name in _subdirectories(f"{mount}/{below}"):
        if _TOP.fullmatch(name):
            yield f"{below}{name}"
        elif depth > 1:
            yield from _find_tops(mount, f"{below}{name}/", depth - 1)


def list_groups(layout: CgroupLayout, tops: list[str]) -> list[PodGroup]:
    """Groups of all containers of pods, sandboxes included; some 15 us a pod."""
    mount = layout.mounts["cpu"].directory
    groups = []
    for pod in _pods(mount, tops):
        for container in _subdirectories(f"{mount}/{pod}"):
            names = parse_group(pod.rpartition("/")[2], container)
            if names is not None:
                groups.append(PodGroup(*names, f"{pod}/{container}"))
    return sorted(groups, key=lambda group: group.container_id)


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

"""What hosts of both cgroup versions share: finding a container's directories, and counting what is written."""

from __future__ import annotations

import os
import resource
from abc import ABC, abstractmethod
from typing import ClassVar

from services._runtime.cgroupfs import CgroupLayout, paths_of_pid
from services.agent.adapters.control_file import PAGE_BYTES, WriteTally, is_gone
from services.agent.ports import ContainerHandle, FoundContainer


class CgroupHost(ABC):
    """A machine with control groups; implements `services.agent.ports.Host`."""

    cgroup_version: ClassVar[int]
    telemetry_source: ClassVar[str]

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self.tally = WriteTally()
        """What all handles of this host have written."""
        self.cpu_count = os.cpu_count() or 1
        self.memory_bytes = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
        raise_descriptor_limit()

    @property
    def writes_by_file(self) -> dict[str, int]:
        """Successful writes by control file."""
        return self.tally.writes_by_file

    @property
    def no_op_writes(self) -> int:
        """Writes of a value that the kernel already held: the agent proves that there are none."""
        return self.tally.no_op_writes

    @abstractmethod
    def _open(self, directories: dict[str, str]) -> ContainerHandle:
        """Open the control files. Raises OSError, with nothing left open."""

    def open(self, container: FoundContainer) -> ContainerHandle | None:
        """Open its control files; None if it vanished meanwhile, or has no group of its own."""
        directories = container_directories(self._layout, container)
        if directories is None:
            return None
        try:
            return self._open(directories)
        except OSError as error:
            if is_gone(error):
                return None
            raise


def container_directories(layout: CgroupLayout, container: FoundContainer) -> dict[str, str] | None:
    """The container's own directory by controller, or None if it is not (or no longer) to be found.

    A Docker container's init may sit in a child group (systemd in a container): then the group whose name carries
    the container's id is the one that Docker limits. A process in the root group (moved there, or another process
    that got its number) has no group of its own, and the root group is never touched.
    """
    if container.managed_directory is not None:
        return layout.directories(container.managed_directory)
    if container.pid is None:
        return None
    directories: dict[str, str] = {}
    for controller, path in paths_of_pid(layout, container.pid).items():
        if path is None or path == layout.mounts[controller].directory:
            return None
        directories[controller] = _up_to_id(path, container.container_id)
    return directories


def _up_to_id(path: str, container_id: str) -> str:
    parts = path.split("/")
    for index, part in enumerate(parts):
        if container_id in part:
            return "/".join(parts[: index + 1])
    return path


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as the host lets it (8 for each container); returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard

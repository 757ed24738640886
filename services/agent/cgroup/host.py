"""What hosts of both cgroup versions share: finding a container's directories, and counting what is written."""

from __future__ import annotations

import errno
import os
import resource
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, cast

from schemas.containers import ContainerSource
from services._host.bpf.loader_process import KernelProgramsError
from services._host.bpf.telemetry import KernelTelemetry
from services._host.bpf.throttle_ring import ThrottleRing
from services._host.cgroup_snapshot import (
    CounterSnapshot,
    Notification,
    Pressure,
    QuotaWriter,
    ThrottleSnapshot,
)
from services._host.cgroupfs import CgroupLayout, paths_of_pid
from services._host.control_file import WriteTally, is_gone, read_each
from services._host.host_load import memory_capacity, read_available, read_idle, read_pressure
from services._host.kernel_programs import hierarchies_of
from services._host.notifications import Notifications
from services._host.usage_thresholds import ThresholdRegistrar
from services.agent.cgroup.handle import CgroupHandle, SharedParts
from services.agent.ports import ContainerHandle, FoundContainer, HostFullError
from services.agent.state_files import FoundValues, StateDirectory, inode_of

FILES_PER_CONTAINER: Final = 11
"""Version 1: counters, limits, and three of OOM control. Version 2 has fewer."""
_SOURCES: Final = frozenset(map(str, ContainerSource))


class CgroupHost(ABC):
    """A machine with control groups; implements `services.agent.ports.Host`."""

    cgroup_version: ClassVar[int]
    files_source: ClassVar[str]
    memory_guard: ClassVar[str]

    def __init__(
        self, layout: CgroupLayout, state: StateDirectory | None = None, kernel_directory: Path | None = None
    ) -> None:
        """Begin.

        Args:
            layout: where the controllers are.
            state: where original values are kept, so that the next agent can restore them; None: nowhere.
            kernel_directory: of the programs of kernel/; None: files are read.
        """
        self._layout = layout
        self._kernel: KernelTelemetry | None = None
        self.telemetry_note = "the kernel's programs are switched off"
        """Why there is no better source; empty: there is none."""
        if kernel_directory is not None:
            self._open_kernel(kernel_directory)
        self.tally = WriteTally()
        """What all handles of this host have written."""
        self.cpu_count = os.cpu_count() or 1
        self.memory_bytes = memory_capacity(layout)
        self._notifications = Notifications()
        self.registrar = ThresholdRegistrar()
        """Of usage thresholds (version 1)."""
        self._state = state
        self._parts = SharedParts(self.tally, self._notifications, self.registrar, state)
        raise_descriptor_limit()

    @property
    def writes_by_file(self) -> dict[str, int]:
        """Successful writes by control file."""
        return self.tally.writes_by_file

    @property
    def no_op_writes(self) -> int:
        """Writes of a value that the kernel already held: the agent proves that there are none."""
        return self.tally.no_op_writes

    @property
    def notification_fd(self) -> int | None:
        """Readable while notifications wait."""
        return self._notifications.fileno()

    @property
    def throttle_notifier(self) -> ThrottleRing | None:
        """Notifies when a container is throttled; None: not available."""
        return None if self._kernel is None else self._kernel.throttle_ring

    def read_available(self) -> int | None:
        """MemAvailable, bytes."""
        return read_available()

    def read_idle(self) -> int | None:
        """Idle time of all processors, us."""
        return read_idle()

    def read_pressure(self) -> Pressure:
        """Of the whole machine."""
        return read_pressure()

    def take_notifications(self) -> list[Notification]:
        """Notifications that wait, at most one of a kind per container."""
        return self._notifications.take()

    def _open_kernel(self, directory: Path) -> None:
        try:
            self._kernel = KernelTelemetry(directory, hierarchies_of(self._layout))
        except KernelProgramsError as error:
            self.telemetry_note = str(error)
        else:
            self.telemetry_note = self._kernel.note

    @property
    def telemetry_source(self) -> str:
        """``bpf-periods``, ``bpf``, or the files that are read."""
        return self.files_source if self._kernel is None else self._kernel.source

    def read(self, handles: Sequence[ContainerHandle]) -> CounterSnapshot:
        """Counters of all, and what the kernel holds; where its programs fail, file by file from then on."""
        if self._kernel is not None and handles:
            try:
                readings = self._kernel.read(cast("Sequence[CgroupHandle]", handles))
            except OSError as error:
                self.telemetry_note = f"the table of control groups cannot be read: {error.strerror or error}"
                self._kernel.close()
                self._kernel = None
            else:
                self.telemetry_note = self._kernel.note
                return readings
        return read_each(handles)

    def throttle_snapshot(self, handles: Sequence[ContainerHandle]) -> ThrottleSnapshot | None:
        """Containers of the last `read` that are throttled now; None: files do not show it."""
        if self._kernel is None:
            return None
        try:
            return self._kernel.throttle_snapshot(cast("Sequence[CgroupHandle]", handles))
        except OSError:
            return None  # the next `read` gives the reason

    def take_quota_writer(self, handle: ContainerHandle) -> QuotaWriter | None:
        """The last writer of its CPU quota since the agent; None: the BPF program for that is not loaded."""
        return None if self._kernel is None else self._kernel.take_quota_writer(cast("CgroupHandle", handle))

    @property
    def shows_usage(self) -> bool:
        """Where only files are read: usage takes 2 to 5 us a container."""
        return self._kernel is None

    def open(self, container: FoundContainer) -> ContainerHandle | None:
        """Open its control files; None if it vanished meanwhile, or has no group of its own."""
        directories = container_directories(self._layout, container)
        inode = inode_of(directories["memory"]) if directories is not None else None
        if directories is None or inode is None:
            return None
        found = self._state.load(container.key) if self._state is not None else None
        if found is None or (found.directories, found.inode) != (directories, inode):
            found = FoundValues(
                container.key, container.app, container.container_id, self.cgroup_version, directories, inode
            )
        handle = self._open(found)
        if handle is not None:
            self._record(found, container.source)
        return handle

    def _record(self, found: FoundValues, source: ContainerSource) -> None:
        """Record that it is managed, so that the next agent can name it before its source has answered."""
        if self._state is not None and found.source != source:
            found.source = source
            with suppress(OSError):  # full: then the next agent waits for the source
                self._state.save(found)

    def recorded(self) -> list[FoundContainer]:
        """Containers that a previous agent managed and whose control groups still exist."""
        notes = self._state.load_all() if self._state is not None else []
        return [
            FoundContainer(
                found.container_id,
                found.app,
                found.key.removesuffix(f"-{found.container_id[:12]}"),
                ContainerSource(found.source),
                directories=found.directories,
            )
            for found in notes
            if found.source in _SOURCES and found.version == self.cgroup_version and found.exists()
        ]

    @abstractmethod
    def _open_files(self, found: FoundValues) -> ContainerHandle:
        """Open the control files. Raises OSError, with nothing left open."""

    def _open(self, found: FoundValues) -> ContainerHandle | None:
        try:
            return self._open_files(found)
        except OSError as error:
            if is_gone(error):
                return None
            if error.errno == errno.EMFILE:
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                raise HostFullError(
                    f"the agent has no file descriptor left of {most} (some {FILES_PER_CONTAINER} for each container): "
                    "raise its limit (LimitNOFILE, ulimits)"
                ) from error
            raise

    def release_leftovers(self) -> list[str]:
        """Restore what a previous agent has changed and no agent manages any more; returns the containers' keys.

        Call it once discovery has had the time to find everything (some seconds after the start), and then now and
        again: a container whose handle is open is left alone, records of groups that have vanished are removed, and
        all others get their limits and the kernel's own behaviour back. Found again later, they are opened as new.
        """
        if self._state is None:
            return []
        self._state.sweep()
        released = []
        for found in self._state.load_all():
            if found.key in self._parts.open_keys:
                continue
            try:
                handle = self._open(found) if found.exists() and found.version == self.cgroup_version else None
            except HostFullError:
                break  # next time
            if handle is None:
                self._state.forget(found.key)
                continue
            changed = bool(found.values)
            handle.restore()
            handle.close()
            if changed:
                released.append(found.key)
        return released

    def close(self) -> None:
        """End the background threads and close the notifications; handles are closed by their owners."""
        if self._kernel is not None:
            self._kernel.close()
        self.registrar.close()
        self._notifications.close()


def container_directories(layout: CgroupLayout, container: FoundContainer) -> dict[str, str] | None:
    """The container's own directory by controller, or None if it is not (or no longer) to be found.

    A Docker container's init may sit in a child group (systemd in a container): then the group whose name carries
    the container's id is the one that Docker limits. A process in the root group (moved there, or another process
    that got its number) has no group of its own, and the root group is never touched.
    """
    if container.directories is not None:
        return dict(container.directories)
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
    """Raise the soft limit of open files to the hard one (`FILES_PER_CONTAINER` each); returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard

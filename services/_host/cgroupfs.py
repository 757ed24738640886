"""Where control groups are mounted, which ones a process is in, and the groups that Turnbuckle makes itself.

Sources: proc_pid_mountinfo(5), cgroups(7), Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from schemas.apps import NAME_PATTERN, PERIOD_US
from services._host.cgroup_processes import CgroupProcesses, write_file

MANAGED_ROOT: Final = "turnbuckle"
MANAGED_ID_LENGTH: Final = 12
V1_CONTROLLERS: Final = ("cpu", "cpuacct", "memory")
V2_CONTROLLERS: Final = ("cpu", "memory")
UNIFIED: Final = "unified"
"""Stands among controllers for the hierarchy of version 2, whatever controllers that has."""
UNIFIED_MOUNT: Final = Path("/run/turnbuckle/cgroup2")
"""Where it is mounted on a host that has it mounted nowhere."""
_NAME: Final = re.compile(NAME_PATTERN)
_MANAGED_ID: Final = re.compile(r"[0-9a-f]{12}")
_CREATE_ATTEMPTS: Final = 20
_NO_SUID_DEV_EXEC: Final = 2 | 4 | 8
"""MS_NOSUID, MS_NODEV, MS_NOEXEC of mount(2)."""


class CgroupUnavailableError(Exception):
    """This host's control groups cannot be used; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class ControllerMount:
    """Where one controller's hierarchy is mounted."""

    directory: str
    """Mount point."""
    root: str
    """The control group that is seen there: ``/`` on a host, deeper inside a container."""
    read_only: bool


@dataclass(frozen=True, slots=True)
class CgroupLayout:
    """The hierarchies that carry CPU time and memory on this host."""

    version: int
    """1 or 2: whose files control CPU time and memory."""
    hybrid: bool
    """Version 1 controls, and a version 2 hierarchy is mounted beside it (without these controllers)."""
    mounts: Mapping[str, ControllerMount]
    """By controller: cpu, cpuacct, memory (version 1); cpu, memory, both at one mount (version 2)."""
    freezer: ControllerMount | None = None
    """Where processes are stopped: a hierarchy of its own in version 1, if it can be written."""

    def directories(self, relative: str) -> dict[str, str]:
        """The directory of one control group, given relative to the mounts, by controller."""
        return {name: f"{mount.directory}/{relative}" for name, mount in self.mounts.items()}

    def distinct_mounts(self) -> tuple[ControllerMount, ...]:
        """Each mount once, although cpu and cpuacct (or, in version 2, all controllers) may share one."""
        return tuple({mount.directory: mount for mount in self.mounts.values()}.values())


class _Mount(NamedTuple):
    filesystem: str
    mount: ControllerMount
    super_options: frozenset[str]


def _unescape(field: str) -> str:
    r"""Undo mountinfo's octal escapes (a space is ``\040``)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def _cgroup_mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not separator or len(left) < 6 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        super_options = frozenset(right[2].split(","))
        read_only = "ro" in left[5].split(",") or "ro" in super_options
        mount = ControllerMount(_unescape(left[4]).rstrip("/"), _unescape(left[3]), read_only)
        yield _Mount(right[0], mount, super_options)


def _best(mounts: list[ControllerMount]) -> ControllerMount | None:
    """A mount of the whole hierarchy before one of a part of it: the same hierarchy may be mounted twice."""
    return min(mounts, key=lambda mount: (mount.root != "/", mount.read_only), default=None)


def detect(mountinfo_path: str = "/proc/self/mountinfo") -> CgroupLayout:
    """Find the hierarchies of the cpu and memory controllers.

    Raises:
        CgroupUnavailableError: none is mounted, or cpu and memory are not both of one version.
    """
    try:
        mounts = list(_cgroup_mounts(Path(mountinfo_path).read_text(encoding="utf-8", errors="surrogateescape")))
    except OSError as error:
        raise CgroupUnavailableError(f"cannot read {mountinfo_path}: {error.strerror}") from error
    v1: dict[str, ControllerMount] = {}
    for controller in V1_CONTROLLERS:
        found = _best([m.mount for m in mounts if m.filesystem == "cgroup" and controller in m.super_options])
        if found is not None:
            v1[controller] = found
    v2 = _best([m.mount for m in mounts if m.filesystem == "cgroup2"])
    if len(v1) == len(V1_CONTROLLERS):
        freezer = _best([m.mount for m in mounts if m.filesystem == "cgroup" and "freezer" in m.super_options])
        return CgroupLayout(1, v2 is not None, v1, None if freezer is None or freezer.read_only else freezer)
    if v1:
        missing = ", ".join(name for name in V1_CONTROLLERS if name not in v1)
        raise CgroupUnavailableError(
            f"control groups of version 1 are mounted for {', '.join(v1)}, but not for {missing}: mount them too, "
            "or boot with systemd.unified_cgroup_hierarchy=1 to use version 2 for all"
        )
    if v2 is None:
        raise CgroupUnavailableError(f"no control group file system is mounted (looked in {mountinfo_path})")
    return CgroupLayout(2, hybrid=False, mounts=dict.fromkeys(V2_CONTROLLERS, v2), freezer=v2)


def with_unified(layout: CgroupLayout, mount_at: Path = UNIFIED_MOUNT) -> CgroupLayout:
    """The layout with the hierarchy of version 2 in addition, as `UNIFIED`: programs for sockets go by its groups.

    Where only version 1 is mounted, it is mounted at `mount_at`, for good.

    Raises:
        CgroupUnavailableError: it cannot be mounted, or written.
    """
    if layout.version == 2:
        return replace(layout, mounts={**layout.mounts, UNIFIED: layout.mounts["cpu"]})
    mount = _unified_mount()
    if mount is None:
        try:
            mount_at.mkdir(parents=True, exist_ok=True)
            _mount_unified(mount_at)
        except OSError as error:
            raise CgroupUnavailableError(f"version 2 cannot be mounted at {mount_at}: {error.strerror}") from error
        mount = ControllerMount(str(mount_at), "/", read_only=False)
    if mount.read_only:
        raise CgroupUnavailableError(f"version 2 is mounted read-only at {mount.directory}")
    return replace(layout, mounts={**layout.mounts, UNIFIED: mount})


def _unified_mount(mountinfo_path: str = "/proc/self/mountinfo") -> ControllerMount | None:
    mounts = _cgroup_mounts(Path(mountinfo_path).read_text(encoding="utf-8", errors="surrogateescape"))
    return _best([each.mount for each in mounts if each.filesystem == "cgroup2"])


def _mount_unified(directory: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"cgroup2", os.fsencode(directory), b"cgroup2", _NO_SUID_DEV_EXEC, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _below_mount(path: str, mount: ControllerMount) -> str | None:
    """The directory of the control group `path` as seen at a mount, or None if it lies outside of what is mounted."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return None
    relative = path[len(root) :].strip("/")
    if ".." in relative.split("/"):  # outside of our cgroup namespace
        return None
    return posixpath.join(mount.directory, relative) if relative else mount.directory


def paths_of_pid(layout: CgroupLayout, pid: int, proc: str = "/proc") -> dict[str, str | None]:
    """The control group directories that a process is in, by controller.

    None where the process or its group has vanished, or where the group is not visible at our mounts (a container
    without the host's cgroup namespace). The path in ``/proc/<pid>/cgroup`` is relative to the hierarchy, while the
    mount may show only a part of it, so the mount's root is taken off first.
    """
    nowhere: dict[str, str | None] = dict.fromkeys(layout.mounts)
    try:
        text = Path(f"{proc}/{pid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return nowhere
    paths: dict[str, str] = {}
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.endswith(" (deleted)"):
            continue
        if layout.version == 2 and hierarchy == "0":
            paths.update(dict.fromkeys(layout.mounts, path))
        elif layout.version == 1:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return {
        controller: _below_mount(paths[controller], mount) if controller in paths else None
        for controller, mount in layout.mounts.items()
    }


class ManagedName(NamedTuple):
    """What the directory of a managed control group says."""

    app: str
    name: str
    container_id: str


def managed_directory(app: str, name: str, container_id: str, root: str = MANAGED_ROOT) -> str:
    """``root/app/name-id12``, below each controller's mount.

    Raises:
        ValueError: a name does not match `schemas.apps.NAME_PATTERN`, or the id has no 12 hexadecimal digits.
    """
    for what, value in (("application", app), ("container", name)):
        if not _NAME.fullmatch(value):
            raise ValueError(f"{what} name {value!r} does not match {NAME_PATTERN}")
    short_id = container_id[:MANAGED_ID_LENGTH]
    if not _MANAGED_ID.fullmatch(short_id):
        raise ValueError(f"container id {container_id!r} does not start with {MANAGED_ID_LENGTH} hexadecimal digits")
    return f"{root}/{app}/{name}-{short_id}"


def parse_managed(directory: str, root: str = MANAGED_ROOT) -> ManagedName | None:
    """The inverse of `managed_directory`; None for any other directory."""
    if not directory.startswith(f"{root}/"):
        return None
    app, _, leaf = directory[len(root) + 1 :].partition("/")
    name, _, container_id = leaf.rpartition("-")
    if not (_NAME.fullmatch(app) and _NAME.fullmatch(name) and _MANAGED_ID.fullmatch(container_id)):
        return None
    return ManagedName(app, name, container_id)


class ManagedCgroup(CgroupProcesses):
    """A control group made by Turnbuckle itself: `turnbuckle exec`, workers of training jobs, the demo.

    With a `freezer`, if the host has one, it can be stopped as a whole.
    """

    def __init__(self, layout: CgroupLayout, directory: str, *, freezer: bool = False) -> None:
        kills = "memory.events" if layout.version == 2 else "memory.oom_control"
        mounts = {mount.directory: mount for mount in layout.distinct_mounts()}
        file = ""
        if freezer and layout.freezer is not None:
            mounts[layout.freezer.directory] = layout.freezer
            name = "cgroup.freeze" if layout.version == 2 else "freezer.state"
            file = f"{layout.freezer.directory}/{directory}/{name}"
        super().__init__(
            [f"{mount}/{directory}" for mount in mounts],
            directory.count("/"),
            f"{layout.directories(directory)['memory']}/{kills}",
            file,
        )
        self.directory = directory
        """Relative to each mount."""
        self._layout = layout
        self._mounts = tuple(mounts.values())

    @classmethod
    def create(
        cls, layout: CgroupLayout, directory: str, quota_us: int | None = None, limit_bytes: int | None = None
    ) -> ManagedCgroup:
        """A new group, see `make`.

        Raises:
            CgroupUnavailableError: as `make`.
        """
        group = cls(layout, directory)
        group.make(quota_us, limit_bytes)
        return group

    def make(self, quota_us: int | None = None, limit_bytes: int | None = None) -> None:
        """Make the group in every hierarchy, with its first limits if given (quota per `PERIOD_US`).

        Raises:
            CgroupUnavailableError: the kernel does not let us; nothing is left behind.
        """
        try:
            for mount in self._mounts:
                self._make_directories(mount)
            self._write_first_limits(quota_us, limit_bytes)
        except OSError as error:
            self.remove()
            reason = error.strerror or str(error)
            if error.errno in (errno.EEXIST, errno.ENOTDIR):
                reason = "a control file has that name: choose another one"
            raise CgroupUnavailableError(
                f"cannot make control group {self.directory}: {error.filename}: {reason}"
            ) from error

    def _make_directories(self, mount: ControllerMount) -> None:
        """Retry while another process removes a parent that was empty for a moment."""
        for attempt in range(_CREATE_ATTEMPTS):
            try:
                path = mount.directory
                for part in self.directory.split("/"):
                    if self._layout.version == 2:
                        self._enable_controllers(path)
                    path = f"{path}/{part}"
                    Path(path).mkdir(exist_ok=True)
            except FileNotFoundError:
                if attempt == _CREATE_ATTEMPTS - 1:
                    raise
            else:
                return

    @staticmethod
    def _enable_controllers(path: str) -> None:
        """Version 2: a group has only the controllers that its parent passes on."""
        control = f"{path}/cgroup.subtree_control"
        enabled = Path(control).read_text(encoding="ascii").split()
        missing = [name for name in V2_CONTROLLERS if name not in enabled]
        if missing:
            try:
                write_file(control, " ".join(f"+{name}" for name in missing))
            except OSError as error:  # os.write knows no file name
                raise OSError(error.errno, error.strerror, control) from error

    def _write_first_limits(self, quota_us: int | None, limit_bytes: int | None) -> None:
        if quota_us is not None:
            self.write_quota(quota_us)
        if limit_bytes is not None:
            file = "memory.limit_in_bytes" if self._layout.version == 1 else "memory.max"
            write_file(f"{self._layout.directories(self.directory)['memory']}/{file}", str(limit_bytes))

    def write_quota(self, quota_us: int | None, period_us: int = PERIOD_US) -> None:
        """Set the processor time of every period; None: as much as there is.

        Raises:
            OSError: as the kernel answers.
        """
        path = self._layout.directories(self.directory)["cpu"]
        if self._layout.version == 1:
            write_file(f"{path}/cpu.cfs_period_us", str(period_us))
            write_file(f"{path}/cpu.cfs_quota_us", str(-1 if quota_us is None else quota_us))
        else:
            write_file(f"{path}/cpu.max", f"{'max' if quota_us is None else quota_us} {period_us}")


def can_manage(layout: CgroupLayout) -> str | None:
    """Why control groups cannot be made and limited here, in words for a person; None if they can.

    Finds out by doing it: a probe group with a quota and a memory limit is made and removed again.
    """
    for mount in layout.distinct_mounts():
        if mount.read_only:
            return f"{mount.directory} is mounted read-only"
        if layout.version == 2:
            try:
                offered = Path(f"{mount.directory}/cgroup.controllers").read_text(encoding="ascii").split()
            except OSError as error:
                return f"cannot read {mount.directory}/cgroup.controllers: {error.strerror}"
            if missing := [name for name in V2_CONTROLLERS if name not in offered]:
                return f"controllers missing at {mount.directory}: {', '.join(missing)}"
    try:
        probe = ManagedCgroup.create(layout, f"turnbuckle-probe-{os.getpid()}", 10_000, 16 << 20)
    except CgroupUnavailableError as error:
        return str(error) if os.geteuid() == 0 else f"not root (uid {os.geteuid()}): {error}"
    return None if probe.remove() else f"the probe group {probe.directory} could not be removed"

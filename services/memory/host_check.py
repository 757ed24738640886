"""What a host needs for swap to remote memory, and which of its disks could be used: read only."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._runtime.command.finding import Finding, Level
from services._runtime.command.output import format_size

MODULES: Final = ("nbd", "dm_mod", "dm_raid", "raid1")
PROGRAMS: Final = ("dmsetup", "blkid", "mkswap", "swapon", "swapoff", "wipefs", "modprobe")
PACKAGES: Final = "apt-get install dmsetup util-linux kmod"
PROGRAM_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_NAME: Final = "swap to remote memory"
_NO_DISKS: Final = ("dm-", "drbd", "fd", "loop", "md", "nbd", "ram", "sr", "zram")
"""Block devices that are made of others, of memory, or are removable."""
_SECTOR_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Where this host's state is read; tests have others."""

    sys: Path = Path("/sys")
    modules: Path = Path("/lib/modules") / platform.release()
    swaps: Path = Path("/proc/swaps")
    mounts: Path = Path("/proc/self/mounts")


def check_swap(
    paths: HostPaths | None = None,
    find: Callable[[str], str | None] = lambda name: shutil.which(name, path=PROGRAM_PATH),
) -> Finding:
    """Kernel, programs and disks, for `turnbuckle swap attach`. What is missing is a note: nothing else needs it."""
    paths = paths or HostPaths()
    if not paths.swaps.exists():
        return Finding(_NAME, Level.NOTE, "this kernel has no swap", "a kernel with CONFIG_SWAP")
    lacking = [name for name in MODULES if not _loadable(name, paths)]
    if lacking:
        found = f"this kernel has no {', '.join(lacking)}"
        return Finding(_NAME, Level.NOTE, found, "a kernel with these modules, such as Debian's (linux-image-amd64)")
    if absent := [name for name in PROGRAMS if find(name) is None]:
        return Finding(_NAME, Level.NOTE, f"not installed: {', '.join(absent)}", PACKAGES)
    disks = [f"{path} ({format_size(size_bytes)})" for path, size_bytes in unused_disks(paths)]
    areas = len(paths.swaps.read_text(encoding="utf-8").splitlines()) - 1
    in_use = f"{areas} swap area{'' if areas == 1 else 's'} in use"
    if not disks:
        found = f"{', '.join(MODULES)}; {in_use}; no disk without partitions, mounts and users is there"
        return Finding(_NAME, Level.NOTE, found, "attach an empty disk; of a file: losetup --find --show FILE")
    return Finding(_NAME, Level.OK, f"{', '.join(MODULES)}; {in_use}; unused disks: {', '.join(disks)}")


def unused_disks(paths: HostPaths | None = None) -> list[tuple[str, int]]:
    """Whole disks without partitions, mounts, swap areas and devices made of them, and their sizes in bytes.

    They may still hold a file system: `turnbuckle swap attach` looks, as root.
    """
    paths = paths or HostPaths()
    used = {line.split()[0] for line in _lines(paths.mounts) + _lines(paths.swaps) if line.startswith("/dev/")}
    found = []
    for directory in sorted((paths.sys / "block").glob("*")):
        name = directory.name
        if name.startswith(_NO_DISKS) or f"/dev/{name}" in used or any((directory / "holders").glob("*")):
            continue
        size_bytes = int((directory / "size").read_text(encoding="ascii")) * _SECTOR_BYTES
        if size_bytes and not any(directory.glob(f"{name}*/partition")):
            found.append((f"/dev/{name}", size_bytes))
    return found


def _loadable(module: str, paths: HostPaths) -> bool:
    """Loaded, built in, or a file of this kernel (names in files have either ``-`` or ``_``)."""
    if (paths.sys / "module" / module).exists():
        return True
    wanted = f"/{module}.ko"
    listed = _lines(paths.modules / "modules.builtin") + _lines(paths.modules / "modules.dep")
    return any(wanted in f"/{line.partition(':')[0]}".replace("-", "_") for line in listed)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

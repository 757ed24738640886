"""Where the programs of kernel/ are, for who loads them (the agent) and who examines the host (`turnbuckle doctor`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from services._host.cgroupfs import CgroupLayout

LOADER: Final = "turnbuckle-kernel"
BUILT_HERE: Final = Path(__file__).resolve().parents[2] / "kernel" / "build"
"""In a checkout, by `make kernel`."""
INSTALLED: Final = Path("/usr/lib/turnbuckle")


def kernel_directory(given: Path | None = None) -> Path:
    """The directory of the loader and its objects, whether they are there or not."""
    return given or (BUILT_HERE if BUILT_HERE.is_dir() else INSTALLED)


def hierarchies_of(layout: CgroupLayout) -> list[str]:
    """The directories whose groups the table shows: those of cpu and memory, one of them where they are the same."""
    return list(dict.fromkeys(layout.mounts[controller].directory for controller in ("cpu", "memory")))


def loader_command(directory: Path, hierarchies: Iterable[str], *arguments: str) -> list[str]:
    """How the loader is called."""
    asked = [part for hierarchy in hierarchies for part in ("--hierarchy", hierarchy)]
    return [str(directory / LOADER), "--objects", str(directory), *asked, *arguments]

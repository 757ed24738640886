"""Where the programs of kernel/ are, for agent and runner, which load them, and for `turnbuckle doctor`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from services._host.cgroupfs import CgroupLayout

LOADER: Final = "turnbuckle-kernel"
"""The agent's."""
CONGESTION_LOADER: Final = "turnbuckle-congestion"
"""The runner's."""
BUILT_HERE: Final = Path(__file__).resolve().parents[2] / "kernel" / "build"
"""In a checkout, by `make kernel`."""
INSTALLED: Final = Path("/usr/lib/turnbuckle")
_CHECK_TIMEOUT_S: Final = 10.0


def kernel_directory(given: Path | None = None) -> Path:
    """The directory of the loader and its objects, whether they are there or not."""
    return given or (BUILT_HERE if BUILT_HERE.is_dir() else INSTALLED)


def hierarchies_of(layout: CgroupLayout) -> list[str]:
    """The directories whose groups the table shows: those of cpu and memory, one of them where they are the same."""
    return list(dict.fromkeys(layout.mounts[controller].directory for controller in ("cpu", "memory")))


def loader_arguments(directory: Path, hierarchies: Iterable[str], *arguments: str) -> list[str]:
    """How the agent's loader is called."""
    asked = [part for hierarchy in hierarchies for part in ("--hierarchy", hierarchy)]
    return ["--objects", str(directory), *asked, *arguments]


def check_programs(command: Sequence[str | Path]) -> dict[str, str]:
    """Why each program of a loader that is called with ``--check --json`` cannot be loaded; empty: it can.

    Raises:
        OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError: it does not run, or says something else.
    """
    output = subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=False)  # noqa: S603 - our own program
    return {each["name"]: "" if each["ok"] else each["reason"] for each in json.loads(output.stdout)}

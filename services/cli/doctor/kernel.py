"""Whether the agent of this host can read by the kernel's own programs, and why not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, detect
from services._host.kernel_programs import LOADER, hierarchies_of, kernel_directory, loader_command
from services.cli.toolkit.finding import Finding, Level

DIRECTORY_VARIABLE: Final = "TURNBUCKLE_AGENT__KERNEL_DIRECTORY"
NAME: Final = "telemetry"
FILES: Final = "control groups are read file by file"
_TABLE: Final = "cgroups"
"""The program without which the agent reads files; the others add to it."""
_WITHIN_S: Final = 10.0


def check_kernel_programs(find_layout: Callable[[], CgroupLayout] = detect) -> Finding:
    """Load each of them for a moment."""
    directory = kernel_directory(Path(given) if (given := os.environ.get(DIRECTORY_VARIABLE)) else None)
    try:
        hierarchies = hierarchies_of(find_layout())
    except CgroupUnavailableError:
        return Finding(NAME, Level.NOTE, "no control groups: a simulated host has its own")
    if not os.access(directory / LOADER, os.X_OK):
        return Finding(NAME, Level.NOTE, f"{FILES}: {directory / LOADER} is not there", "make kernel")
    command = loader_command(directory, hierarchies, "--check", "--json")
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)  # noqa: S603 - our own program
        programs: dict[str, dict[str, Any]] = {each["name"]: each for each in json.loads(said.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        return Finding(NAME, Level.NOTE, f"{FILES}: {directory / LOADER} does not run: {error}", "make kernel")
    table = programs.get(_TABLE, {})
    if not table.get("ok"):
        mend = "sudo turnbuckle doctor" if os.geteuid() else ""
        return Finding(NAME, Level.NOTE, f"{FILES}: {table.get('reason', 'the loader does not know the table')}", mend)
    failed = [f"{name}: {each.get('reason')}" for name, each in programs.items() if not each.get("ok")]
    found = "all control groups in one read of the kernel's own table"
    return Finding(NAME, Level.NOTE if failed else Level.OK, "; ".join([found, *failed]))

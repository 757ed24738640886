"""FRR's daemons of the lab, each in a pathspace named as its namespace: found again, stopped or killed, cleared away.

The fabric starts them, those of switches too (`hosts`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from services._host.boot_records import start_ticks
from services.fabric.frr_text import DAEMON_PRIORITIES, FrrPaths
from services.fabric.testbed.processes import StartedProcess, end

_PATHS: Final = FrrPaths()
BINARIES: Final = Path(_PATHS.binaries)
CONFIGURATION: Final = Path(_PATHS.configuration)
RUNTIME: Final = Path(_PATHS.runtime)
USER: Final = "frr"
DAEMONS: Final = tuple(DAEMON_PRIORITIES)


def missing() -> str | None:
    """What has to be installed first, or None."""
    absent = [daemon for daemon in DAEMONS if not (BINARIES / daemon).exists()]
    return f"FRR's {', '.join(absent)} not found in {BINARIES}: apt-get install frr" if absent else None


def realtime_permitted() -> bool:
    """Whether a child process may run SCHED_RR (CAP_SYS_NICE, and real-time budget in its control group)."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(["chrt", "-r", "1", "true"], capture_output=True, timeout=10, check=False).returncode == 0  # noqa: S607 - util-linux, by PATH
    return False


def prepare() -> None:
    """Make the directory of all pathspaces' sockets where no FRR has run since the boot. It is left there.

    Raises:
        OSError: it cannot be made.
    """
    if not RUNTIME.exists():
        RUNTIME.mkdir(parents=True)
        shutil.chown(RUNTIME, USER, USER)


def running(netns: str) -> dict[str, int]:
    """Daemon -> pid, of those that live."""
    return {daemon: pid for (_, daemon), pid in _living([netns]).items()}


def stop(namespaces: Iterable[str], *, at_once: bool = False) -> None:
    """End the daemons of these namespaces and wait for it; `at_once`: as if the power had failed.

    Raises:
        CommandError: one does not end.
    """
    found = [(f"{daemon} of {netns}", pid, start_ticks(pid)) for (netns, daemon), pid in _living(namespaces).items()]
    end([StartedProcess(name=name, pid=pid, start_ticks=ticks) for name, pid, ticks in found if ticks], at_once=at_once)


def _living(namespaces: Iterable[str]) -> dict[tuple[str, str], int]:
    """(Pathspace, daemon) -> pid. By command line: one that is just starting has no pid file yet."""
    wanted = set(namespaces)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            path, daemon = words[0].rpartition("/")[::2]
            if path != str(BINARIES) or daemon not in DAEMONS or "-N" not in words[:-1]:
                continue
            pathspace = words[words.index("-N") + 1]
            if pathspace in wanted:
                found[pathspace, daemon] = int(entry.name)
    return found


def remove_directories(netns: str) -> None:
    """Remove a node's configuration, sockets and pid files."""
    for directory in (CONFIGURATION / netns, RUNTIME / netns):
        shutil.rmtree(directory, ignore_errors=True)

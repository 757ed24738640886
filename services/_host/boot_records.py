"""Ground of the records of what was made on this host: first written, then done, and bound to this boot.

An undo log that is read after a crash has to tell what it names from a later thing of the same name: inode numbers,
process ids and namespaces begin anew with every boot, process ids also within one. Standard library only: the agent's
watchdog reads such records, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from services._runtime.atomic_file import write_atomically

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD: Final = 19
"""Of /proc/pid/stat, counted behind the name in parentheses: start time in clock ticks (proc_pid_stat(5))."""


def boot_id() -> str:
    """Distinguishes this boot from every other; empty: it cannot be read."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None: there is none, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return None if words[0] in ("Z", "X") else int(words[_START_FIELD])


def is_hidden(pid: int) -> bool:
    """Whether there is such a process, of another user, that /proc does not show us (hidepid, proc(5))."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.access(f"/proc/{pid}/stat", os.R_OK)
    except (ProcessLookupError, OverflowError):
        pass
    return False


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, whole or not at all. What it announces must not happen where this raises OSError."""
    write_atomically(path, json.dumps(content))

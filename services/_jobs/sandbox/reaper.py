"""Ends a run's sandboxes when its owner has died: ``python -m services._jobs.sandbox.reaper RECORD``.

Its standard input is a pipe that only the owner can write to. At the pipe's end it removes the run's control groups, if
the owner has not: a process whose parent was killed with SIGKILL cannot do so itself, and one that the user's program
has started would live on. Where the reaper, too, was killed, the next run's start does it (`records.sweep`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from services._host.cgroupfs import detect
from services._jobs.sandbox.records import RunRecord, forget, remove_run


def main() -> int:
    """Wait for the end of the owner; returns 1 where something would not die."""
    path = Path(sys.argv[1])
    sys.stdin.buffer.read()
    record = RunRecord.read(path)
    if record is None:
        return 0
    if not remove_run(detect(), record):
        return 1
    forget(record, path.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())

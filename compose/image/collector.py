#!/usr/bin/env python3
"""Start a collector in a journal directory that no other replica holds: they share a volume, not a journal.

``TURNBUCKLE_COLLECTOR__DIRECTORY`` names the parent; replicas take 1, 2, 3 ... below it, and one that comes later goes
on with what an earlier one has left. The lock is the journal's own and outlives the exec.
"""

import fcntl
import itertools
import os
import sys
from pathlib import Path

VARIABLE = "TURNBUCKLE_COLLECTOR__DIRECTORY"
LOCK_NAME = "records.lock"  # as in services/collector/write_ahead_log.py


def main() -> None:
    """Take the first free directory, then become the collector."""
    parent = Path(os.environ.get(VARIABLE) or "/var/lib/turnbuckle/collector")
    for number in itertools.count(1):
        directory = parent / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # held; any other error would be the next directory's, too
            os.close(lock)
            continue
        os.set_inheritable(lock, True)  # noqa: FBT003 - the library's signature
        os.environ[VARIABLE] = str(directory)
        os.execvp("turnbuckle", ["turnbuckle", "run", "collector", *sys.argv[1:]])  # noqa: S606, S607 - ourselves


if __name__ == "__main__":
    main()

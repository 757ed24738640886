"""A training job's worker that counts to a number, saves on SIGTERM and goes on from there: standard library only.

``python counting_worker.py DIRECTORY STEPS``. What it does is appended to DIRECTORY/events: ``start``, ``again`` (two
processes of one rank live at the same time), ``done``; each line with attempt, rank and process id.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.01


def main() -> int:
    """143 where it was asked to stop, and has saved its count."""
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    attempt, rank = os.environ["TURNBUCKLE_ATTEMPT"], os.environ["RANK"]
    checkpoint = Path(os.environ["TURNBUCKLE_CHECKPOINT_DIR"]) / f"count-{rank}"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    stopping = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    lock = os.open(directory / f"lock-{rank}", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(directory, f"again {attempt} {rank} {os.getpid()}")
        return 99
    note(directory, f"start {attempt} {rank} {os.getpid()}")
    count = int(checkpoint.read_text(encoding="ascii")) if checkpoint.exists() else 0
    if ready := os.environ.get("TURNBUCKLE_READY_FILE"):
        Path(ready).touch()
    while count < steps and not stopping:
        time.sleep(STEP_S)
        count += 1
    saved = checkpoint.with_suffix(f".{os.getpid()}")
    saved.write_text(str(count), encoding="ascii")
    saved.replace(checkpoint)
    if count < steps:
        return 128 + signal.SIGTERM
    note(directory, f"done {attempt} {rank} {os.getpid()}")
    return 0


def note(directory: Path, line: str) -> None:
    """One write of one short line is not torn by others."""
    events = os.open(directory / "events", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    os.write(events, f"{line}\n".encode("ascii"))
    os.close(events)


if __name__ == "__main__":
    sys.exit(main())

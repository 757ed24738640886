"""A worker of a measured job: it sleeps in slices, saves its progress when it is told to stop, and notes when it ran.

Nothing but the standard library, so that a start costs the interpreter's and no more::

    python -S -E scheduler_live_worker.py SECONDS NOTES
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

SLICE_S = 0.01


class Progress:
    """Seconds that are done, kept in a file of this rank."""

    def __init__(self, directory: Path, rank: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / f"rank-{rank}"
        self.done_s = float(self._file.read_text()) if self._file.exists() else 0.0

    def save(self) -> None:
        """Replaced as a whole."""
        draft = self._file.with_suffix(".new")
        draft.write_text(repr(self.done_s))
        draft.replace(self._file)


def main() -> int:
    """Work until everything is done, or until SIGTERM."""
    whole_s, notes = float(sys.argv[1]), Path(sys.argv[2])
    job, attempt, rank = (os.environ[name] for name in ("TURNBUCKLE_JOB", "TURNBUCKLE_ATTEMPT", "RANK"))
    note = {"job": job, "attempt": int(attempt), "rank": int(rank), "pid": os.getpid(), "begin_s": time.monotonic()}
    (notes / f"{job}.{attempt}.{rank}.{os.getpid()}.begin").write_text(json.dumps(note))
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    progress = Progress(Path(os.environ["TURNBUCKLE_CHECKPOINT_DIR"]), rank)
    Path(os.environ["TURNBUCKLE_READY_FILE"]).touch()
    last_s = time.monotonic()
    while progress.done_s < whole_s:
        time.sleep(min(SLICE_S, whole_s - progress.done_s))
        now_s = time.monotonic()
        progress.done_s += now_s - last_s
        last_s = now_s
        if stopping:  # after a slice: told at once, it has something to save all the same
            break
    progress.save()
    note["end_s"] = time.monotonic()
    (notes / f"{job}.{attempt}.{rank}.{os.getpid()}.end").write_text(json.dumps(note))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

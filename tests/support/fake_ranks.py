"""In place of torchrun and its ranks: what they would print and report, without torch. Run with ``-S -E``.

``fake_ranks.py SOCKET STEPS DIRECTORY``: rank 0 goes on at step 10, two ranks report a step each time that there is
another file ``step-N`` in the directory, and save at the end.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path


def emit(event: dict[str, object]) -> None:
    """As a rank writes an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Report all steps."""
    place, steps, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    emit({"event": "resumed", "step": 10})
    for step in range(10, steps):
        while not (directory / f"step-{step}").exists():
            time.sleep(0.005)
        for rank in (0, 1):
            columns = {
                "step": step,
                "step_us": 2_000 + step,
                "end_us": 600_000 * step,
                "loss": 0.5,
                "samples": 4 - rank,
            }
            columns |= {"compute_us": 1_000, "gather_us": 300, "scatter_us": 200, "memory_bytes": 1 << 20}
            line = {"rank": rank, "lost_lines": 0} | {name: [value] for name, value in columns.items()}
            reports.sendto(json.dumps(line).encode(), place)
    emit({"event": "saved", "step": steps})
    emit({"event": "result", "step": steps, "loss": 0.5, "stopped": False})


if __name__ == "__main__":
    main()

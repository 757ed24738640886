"""The load of one demo container: ``python -m services._host.simulation.load_worker --profile JSON``.

It burns CPU by hashing and holds memory in pages that it has really touched, on top of what the interpreter itself
needs (some 10 MB). The loop is open: demand belongs to its moment, and what a throttled moment could not do is not
caught up later. In a phase without demand it sleeps through, so that the kernel's period timer really stops.

Standard library only, for a quick start and a small footprint. The JSON's validated form is
`services._host.simulation.load_profile.ContainerLoad`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

from services._host.simulation.load_schedule import Schedule

SLICE_S: Final = 0.01
CHUNK_BYTES: Final = 1 << 20
_BLOCK: Final = bytes(64 << 10)
"""Hashed at once: some 40 us, and large enough for hashlib to let other threads run."""
_TOUCH: Final = b"\x01" * CHUNK_BYTES
_LONGEST_SLEEP_S: Final = 0.5
"""How late it may notice that its parent has gone."""


class HeldMemory:
    """Private anonymous mappings, each touched when taken and unmapped when given back."""

    def __init__(self) -> None:
        self._chunks: list[mmap.mmap] = []

    def resize(self, wanted_bytes: int) -> None:
        """Hold `wanted_bytes`, rounded to `CHUNK_BYTES`."""
        wanted = round(wanted_bytes / CHUNK_BYTES)
        while len(self._chunks) > wanted:
            self._chunks.pop().close()
        while len(self._chunks) < wanted:
            chunk = mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._chunks.append(chunk)
            chunk[:] = _TOUCH

    @property
    def held_bytes(self) -> int:
        """Bytes mapped and touched."""
        return len(self._chunks) * CHUNK_BYTES


def schedule_of(profile: dict[str, object]) -> tuple[Schedule, int]:
    """The schedule and the number of threads of a ContainerLoad's plain form.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or wrong.
    """
    phases = profile["phases"]
    if not isinstance(phases, list) or not phases:
        raise ValueError("phases must be a list that is not empty")
    schedule = Schedule(
        tuple((float(p["duration_s"]), float(p["cpu_cores"]), int(p["memory_bytes"])) for p in phases),
        float(str(profile.get("offset_s", 0.0))),
        int(str(profile.get("memory_rate_bytes_s", 100_000_000))),
    )
    if schedule.cycle_s <= 0:
        raise ValueError("phases last no time")
    return schedule, int(str(profile.get("threads", 1)))


class Burner:
    """One thread's share of the demand; the first one also holds the memory."""

    def __init__(self, schedule: Schedule, share: float, started_s: float, memory: HeldMemory | None) -> None:
        self._schedule = schedule
        self._share = share
        self._started_s = started_s
        self._memory = memory

    def run_slice(self) -> None:
        """Do this slice's work, then sleep to its end, or as long as nothing is wanted."""
        cpu_mark_s = time.thread_time()
        now_s = time.monotonic() - self._started_s
        slice_end_s = (now_s // SLICE_S + 1) * SLICE_S
        if self._memory is not None:
            self._memory.resize(self._schedule.memory_bytes(now_s))
        budget_s = SLICE_S * self._schedule.demand_cores(now_s) * self._share
        while time.thread_time() - cpu_mark_s < budget_s and time.monotonic() - self._started_s < slice_end_s:
            hashlib.sha256(_BLOCK).digest()
        quiet_s = min(self._schedule.quiet_s(now_s), _LONGEST_SLEEP_S)
        elapsed_s = time.monotonic() - self._started_s
        time.sleep(max(now_s + quiet_s - elapsed_s, slice_end_s - elapsed_s, 0.0))

    def run_for_ever(self) -> None:
        """The body of the other threads."""
        while True:
            self.run_slice()


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load_worker", description="Make the load of one demo container.")
    parser.add_argument("--profile", required=True, help="a ContainerLoad as JSON, or a file with it")
    parser.add_argument("--epoch-s", type=float, help="Unix time of the schedule's zero, shared by twins; default: now")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the parent process has ended")
    return parser.parse_args()


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns 2 for a profile that cannot be used."""
    arguments = _arguments()
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    text = arguments.profile
    try:
        if not text.lstrip().startswith("{"):
            with open(text, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time and memory
                text = file.read()
        schedule, threads = schedule_of(json.loads(text))
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"load_worker: cannot use the profile: {error!r}\n")
        return 2
    elapsed_s = time.time() - arguments.epoch_s if arguments.epoch_s is not None else 0.0
    started_s = time.monotonic() - elapsed_s
    for _ in range(threads - 1):
        burner = Burner(schedule, 1 / threads, started_s, None)
        threading.Thread(target=burner.run_for_ever, daemon=True).start()
    first = Burner(schedule, 1 / threads, started_s, HeldMemory())
    while not (arguments.exit_with_parent and os.getppid() != parent):
        first.run_slice()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Calibration of this machine: ``python -m services._host.calibration [DIRECTORY]``, some five seconds.

Rates of four kinds of work that training is made of: matrix products, copying in memory, writing to the disk, one TCP
connection over loopback. Processor rates are per second of processor time, so that neither limits nor other work
change them. Run as a process of its own with one thread; prints one JSON object (`schemas.runs.MachineSpeed`).
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import ValidationError

from schemas.runs import MachineSpeed

PART_S: Final = 1.0
"""Processor time, or time, that each kind of work is repeated for."""
_TIMEOUT_S: Final = 60.0
_MATRIX: Final = 512
_COPIED_BYTES: Final = 64 << 20
"""Of one copy: beyond the caches of most processors."""
_WRITTEN_BYTES: Final = 8 << 20
_SENT_BYTES: Final = 1 << 18
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def rate(work: Callable[[], float], clock: Callable[[], float], least_s: float) -> float:
    """Return units of work per second, of the best of its repetitions within `least_s` (and of two at least).

    Args:
        work: Does some, and returns how much.
        clock: Seconds.
        least_s: Repeated for so long.
    """
    begin_s, best, count = clock(), 0.0, 0
    while count < 2 or clock() - begin_s < least_s:  # the first one meets cold caches
        before_s = clock()
        done = work()
        best, count = max(best, done / max(clock() - before_s, 1e-9)), count + 1
    return best


def _matmul() -> Callable[[], float]:
    left = np.random.default_rng(0).standard_normal((_MATRIX, _MATRIX)).astype(np.float32)
    out = np.empty_like(left)

    def work() -> float:
        for _ in range(8):
            np.matmul(left, left, out=out)
        return 8 * 2.0 * _MATRIX**3

    return work


def _copy() -> Callable[[], float]:
    source = np.ones(_COPIED_BYTES, dtype=np.uint8)
    target = np.empty_like(source)

    def work() -> float:
        np.copyto(target, source)
        return float(_COPIED_BYTES)

    return work


def disk_write_bytes_per_s(directory: Path, least_s: float = PART_S) -> float:
    """Return the rate of writing and flushing a file; 0 where none can be written there."""
    block = os.urandom(_WRITTEN_BYTES)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:

            def work() -> float:
                file.seek(0)
                file.write(block)
                file.flush()
                os.fsync(file.fileno())
                return float(len(block))

            return rate(work, time.perf_counter, least_s)
    except OSError:
        return 0.0


def loopback_bytes_per_s(least_s: float = PART_S) -> float:
    """Return the rate of one TCP connection over loopback; 0 where there is none."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = socket.create_connection(server.getsockname(), timeout=_TIMEOUT_S)
            receiver, _ = server.accept()
    except OSError:
        return 0.0
    block, room = bytes(_SENT_BYTES), bytearray(_SENT_BYTES)

    def drain() -> None:
        while receiver.recv_into(room):
            pass

    reader = threading.Thread(target=drain, daemon=True)
    with sender, receiver:
        reader.start()

        def work() -> float:
            for _ in range(64):
                sender.sendall(block)
            return 64.0 * len(block)

        found = rate(work, time.perf_counter, least_s)
        sender.shutdown(socket.SHUT_WR)
        reader.join(_TIMEOUT_S)
    return found


def processor_name(cpuinfo: str) -> str:
    """Return the processor's model name out of the text of ``/proc/cpuinfo``; empty if it has none."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else ""


def measured_speed(directory: Path, part_s: float = PART_S) -> MachineSpeed:
    """Measure this machine.

    Args:
        directory: Whose disk is measured.
        part_s: For each kind of work.
    """
    try:
        processor = processor_name(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        processor = ""
    return MachineSpeed(
        matmul_flops_per_cpu_s=rate(_matmul(), time.process_time, part_s),
        copy_bytes_per_cpu_s=rate(_copy(), time.process_time, part_s),
        disk_write_bytes_per_s=disk_write_bytes_per_s(directory, part_s),
        loopback_bytes_per_s=loopback_bytes_per_s(part_s),
        processor=processor,
    )


def calibrate(directory: Path) -> MachineSpeed | None:
    """Measure this machine in a process of its own; None where that fails: a run is no worse without."""
    command = [sys.executable, "-m", "services._host.calibration", str(directory)]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command,
            env=os.environ | _ONE_THREAD,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return MachineSpeed.model_validate_json(done.stdout)
    except (OSError, subprocess.SubprocessError, ValidationError):
        return None


def speed_sentence(speed: MachineSpeed) -> str:
    """Return the rates as text."""
    parts = [
        f"{speed.matmul_flops_per_cpu_s / 1e9:.3g} Gflop/s of matrix products",
        f"{speed.copy_bytes_per_cpu_s / 1e9:.3g} GB/s of copying",
    ]
    if speed.disk_write_bytes_per_s:
        parts.append(f"{speed.disk_write_bytes_per_s / 1e6:.3g} MB/s to the disk")
    if speed.loopback_bytes_per_s:
        parts.append(f"{speed.loopback_bytes_per_s / 1e9:.3g} GB/s over loopback")
    return f"calibration of this machine, by core: {', '.join(parts)}"


def main() -> None:
    """Print this machine's speed."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    sys.stdout.write(json.dumps(measured_speed(directory).model_dump(mode="json", exclude_defaults=True)) + "\n")


if __name__ == "__main__":
    main()

"""A rank's own peak of memory, whatever the process that started it has."""

from __future__ import annotations

import subprocess
import sys

from services.trainer.worker.resident_memory import peak_resident_bytes

MIB = 1 << 20
PROGRAM = "from services.trainer.worker.resident_memory import peak_resident_bytes; print(peak_resident_bytes())"


def test_the_peak_is_not_that_of_the_process_that_started_it() -> None:
    held = bytearray(b"1") * (256 * MIB)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    # an interpreter with a module or two
    assert len(held) > 128 * MIB > int(done.stdout) > MIB


def test_memory_that_was_freed_again_counts() -> None:
    before = peak_resident_bytes()
    held = bytearray(b"1") * (before + 64 * MIB)
    size = len(held)
    del held

    assert peak_resident_bytes() >= size

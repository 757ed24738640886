"""A load that does what it is told on standard input. Standard library only; run it with ``python -S -E``.

``burn [CORES]``: use one core, or this share of it: 20 ms at a time, and what could not be done is not caught up.
``idle``: nothing at all, so that the kernel's period timer stops. ``hold BYTES RATE``: grow to,
or fall to, this many touched bytes, at RATE bytes per second. It answers ``ready`` at first, and ``held`` when done.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import select
import sys
import time

_BLOCK = bytes(16 << 10)
_CHUNK_BYTES = 1 << 20
_TOUCH = b"\x01" * _CHUNK_BYTES
_LOOK_S = 0.002
"""Between looks at the input while burning a whole core."""
_SLICE_S = 0.02


def _hold(chunks: list[mmap.mmap], wanted_bytes: int, rate: float) -> None:
    start_s, before = time.monotonic(), len(chunks)
    while len(chunks) * _CHUNK_BYTES > wanted_bytes:
        chunks.pop().close()
    while len(chunks) * _CHUNK_BYTES < wanted_bytes:
        chunk = mmap.mmap(-1, _CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        chunk[:] = _TOUCH
        chunks.append(chunk)
        due_s = start_s + (len(chunks) - before) * _CHUNK_BYTES / rate
        time.sleep(max(due_s - time.monotonic(), 0))
    sys.stdout.write("held\n")
    sys.stdout.flush()


def _burn(cores: float) -> None:
    """One slice of work, and sleep to its end unless the input has something to say."""
    slice_s = _LOOK_S if cores >= 1 else _SLICE_S
    end_s, cpu_end_s = time.monotonic() + slice_s, time.thread_time() + slice_s * cores
    while time.monotonic() < end_s and time.thread_time() < cpu_end_s:
        hashlib.sha256(_BLOCK).digest()
    select.select([0], [], [], max(end_s - time.monotonic(), 0))


def main() -> None:
    """Obey until the input closes."""
    chunks: list[mmap.mmap] = []
    cores, begun = 0.0, b""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        if cores and not select.select([0], [], [], 0)[0]:
            _burn(cores)
            continue
        commands = os.read(0, 200)
        if not commands:
            return
        *lines, begun = (begun + commands).split(b"\n")  # a throttled load reads many at once, the last one in part
        for line in lines:
            word, *arguments = line.decode().split()
            if word == "burn":
                cores = float(arguments[0]) if arguments else 1.0
            elif word == "idle":
                cores = 0.0
            elif word == "hold":
                _hold(chunks, int(arguments[0]), float(arguments[1]))


if __name__ == "__main__":
    main()

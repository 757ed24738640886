"""A process that fills its container with a file on a tmpfs: memory that no reclaim and no kill gives back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_CODE = """
import os, sys, time
def write(descriptor):
    try:
        return os.write(descriptor, block) < len(block)
    except OSError:
        return True
block, failures, target = bytes(1 << 20), 0, os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
write(-1)
print("ready", flush=True)
sys.stdin.readline()
while failures < 40:
    failures += write(target)
    time.sleep(0.005)
os.ftruncate(target, os.fstat(target).st_size - (2 << 20))
print("full", flush=True)
sys.stdin.readline()
"""
"""At its limit it could not even speak, so it gives 2 MiB back before it does."""


class TmpfsWriter:
    """Grows from `fill` on until 40 writes have failed, and holds that until it is closed."""

    def __init__(self) -> None:
        self._path = Path(f"/dev/shm/turnbuckle-test-{os.getpid()}")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _CODE, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    @property
    def pid(self) -> int:
        """To be moved into a control group before it fills."""
        return self._process.pid

    def fill(self) -> None:
        """Block until it is full; fails if it was killed."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._line() == "full"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End it, and give everything back."""
        self._process.kill()
        self._process.communicate()
        self._path.unlink(missing_ok=True)

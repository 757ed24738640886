"""Swap areas of this host: mkswap(8), swapon(8), swapoff(8)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from services.memory.adapters.programs import run

SWAPOFF_WITHIN_S: Final = 3600.0
"""It reads every page back."""
_SWAPS: Final = Path("/proc/swaps")


class Swap:
    """Needs CAP_SYS_ADMIN. All raise ProgramError with the program's words."""

    def make(self, device: str) -> None:
        """Write the header of a swap area; what was on the device is gone."""
        run(["mkswap", "--force", device])

    def on(self, device: str, priority: int) -> None:
        """Swap to it; of several areas the kernel uses that of the highest priority first."""
        run(["swapon", "--priority", str(priority), device])

    def off(self, device: str) -> None:
        """Read every page back, and use it no more; an area that is not in use is left alone."""
        if self.is_on(device):
            run(["swapoff", device], within_s=SWAPOFF_WITHIN_S)

    def is_on(self, device: str) -> bool:
        """Whether the kernel swaps to it."""
        return used_bytes(device) is not None


def used_bytes(device: str) -> int | None:
    """Bytes of a swap area that are in use (proc_swaps(5)); None: the kernel does not swap to it."""
    real = os.path.realpath(device)
    for line in _SWAPS.read_text(encoding="utf-8").splitlines()[1:]:
        name, _, _, used_kib, _ = line.rsplit(maxsplit=4)
        if os.path.realpath(name) == real:
            return int(used_kib) << 10
    return None

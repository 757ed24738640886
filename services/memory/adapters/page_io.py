"""Page I/O of a block device, counted by the kernel."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

_SECTOR_BYTES: Final = 512
_READ_SECTORS, _WRITTEN_SECTORS = 2, 6
_SYS: Final = Path("/sys/dev/block")


def pages_moved(device: str, sys: Path = _SYS) -> int:
    """Pages read and written since the device was made (Documentation/block/stat.rst), without what a mirror copies.

    Raises:
        OSError: it is not there.
    """
    number = Path(device).stat().st_rdev
    words = (sys / f"{os.major(number)}:{os.minor(number)}" / "stat").read_text(encoding="ascii").split()
    return (int(words[_READ_SECTORS]) + int(words[_WRITTEN_SECTORS])) * _SECTOR_BYTES // mmap.PAGESIZE

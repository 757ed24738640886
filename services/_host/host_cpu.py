"""The machine's processors: how long they have been idle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

_UPTIME: Final = Path("/proc/uptime")


def read_idle(uptime: Path = _UPTIME) -> int | None:
    """Idle time of all processors added up, us (proc_uptime(5), second field); None: it cannot be read.

    Cheaper than /proc/stat, which lists every interrupt, and like it true inside of a container, too.
    """
    with suppress(OSError, ValueError, IndexError):
        return round(float(uptime.read_text(encoding="ascii").split()[1]) * 1e6)
    return None

"""Memory of this process, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int:
    """The largest resident size since this program began, with shared pages of its libraries (`VmHWM`).

    `getrusage` has what came before, too: `ru_maxrss` of a child begins with that of the process that started it.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    assert found is not None, "every process with memory of its own has this line"
    return int(found[1]) << 10

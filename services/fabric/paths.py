"""Where things are on a machine; tests have others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.fabric.frr_text import FrrPaths

STATE_DIRECTORY: Final = Path("/var/lib/turnbuckle/fabric")


@dataclass(frozen=True, slots=True)
class FabricPaths:
    """Directories that `fabric` reads and writes."""

    state: Path = STATE_DIRECTORY
    """The journal of what was done."""
    sysfs: Path = Path("/sys")
    """NICs, their functions and representors."""
    frr: FrrPaths = field(default_factory=FrrPaths)

"""Where things are on a machine; tests have others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

STATE_DIRECTORY: Final = Path("/var/lib/turnbuckle/fabric")


@dataclass(frozen=True, slots=True)
class FrrPaths:
    """FRR's directories, as Debian's and FRR's own packages have them."""

    configuration: str = "/etc/frr"
    runtime: str = "/var/run/frr"
    binaries: str = "/usr/lib/frr"


@dataclass(frozen=True, slots=True)
class FabricPaths:
    """Directories that `fabric` reads and writes."""

    state: Path = STATE_DIRECTORY
    """The journal of what was done."""
    sysfs: Path = Path("/sys")
    """NICs, their functions and representors."""
    frr: FrrPaths = field(default_factory=FrrPaths)

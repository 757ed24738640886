"""Capabilities that managing a network namespace requires (capabilities(7))."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
NET_ADMIN: Final = 12
SYS_ADMIN: Final = 21


def missing_capability(netns: str | None, status: Path = _STATUS) -> str | None:
    """The missing capability, with its remedy; None: all present."""
    text = status.read_text(encoding="ascii", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    if not held >> NET_ADMIN & 1:
        return (
            "no right to write tc rules (CAP_NET_ADMIN): run as root, or with AmbientCapabilities=CAP_NET_ADMIN in "
            "the unit; nothing was changed"
        )
    if netns is not None and not held >> SYS_ADMIN & 1:
        return (
            f"no right to enter the network namespace {netns!r} (CAP_SYS_ADMIN): run as root, or start the reconciler "
            "in it and unset TURNBUCKLE_RECONCILER__NETNS; nothing was changed"
        )
    return None

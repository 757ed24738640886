"""Whether this host has a network edge: without one the checks of FRR and tc are skipped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.cli.doctor.guard import state_directory
from services.cli.doctor.network import check_frr_installed, run_network_checks
from services.cli.toolkit.finding import Finding, Level
from services.fabric.paths import STATE_DIRECTORY as FABRIC_STATE

_PREFIXES: Final = ("TURNBUCKLE_RECONCILER__", "TURNBUCKLE_FAST_PATH__")
_LOCKS: Final = "network"
"""Below the services' state directory: the locks of reconcilers and fast paths."""


def network_edge_evidence(
    environ: Mapping[str, str], fabric_state: Path, locks: Path, *, frr_installed: bool
) -> list[str]:
    """What says that a fabric, a reconciler or a fast path is set up here; empty: nothing does."""
    found = [name for name in sorted(environ) if name.startswith(_PREFIXES)]
    found += [str(directory) for directory in (fabric_state, locks) if _has_entries(directory)]
    return [*found, "FRR is installed"] if frr_installed else found


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False


async def check_network_edge(*, asked: bool) -> list[Finding]:
    """The checks of the network edge where there is one, or where they are asked for; else one line."""
    frr = check_frr_installed().level is Level.OK
    if asked or network_edge_evidence(os.environ, FABRIC_STATE, state_directory() / _LOCKS, frr_installed=frr):
        return await run_network_checks()
    found = "not used here (no fabric, no FRR, no reconciler): not examined; `turnbuckle doctor --network` does"
    return [Finding("network edge", Level.OK, found)]

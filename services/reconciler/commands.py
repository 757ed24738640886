"""What the CLI uses of the reconciler: its command line for a node."""

from __future__ import annotations

from services.reconciler.settings import ReconcilerSettings


def start_command(node: str) -> str:
    """The shell command that starts a reconciler of this name."""
    return f"{ReconcilerSettings.variable('node')}={node} turnbuckle run {ReconcilerSettings.service}"

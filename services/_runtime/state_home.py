"""Where a command keeps what its next run needs: below the user's state directory (XDG Base Directories)."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """``$XDG_STATE_HOME/turnbuckle``, by default below ``~/.local/state``."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "turnbuckle"

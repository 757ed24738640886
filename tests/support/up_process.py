"""A `turnbuckle up` as a process, ended whatever the test does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CLI: Final = (sys.executable, "-m", "services.cli")
UP: Final = (*CLI, "up", "--ready-timeout", "120")


def state_directory(root: str) -> Path:
    """Of this managed root's agents alone, and on a tmpfs."""
    return Path("/run", root)


def environment(root: str | None = None) -> dict[str, str]:
    """Of a `turnbuckle up`; ``root``: its managed root."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "TURNBUCKLE_"))}
    own["TURNBUCKLE_AGENT__DOCKER"] = "off"
    own["TURNBUCKLE_AGENT__NODE"] = "test-node"
    if root is not None:
        own["TURNBUCKLE_AGENT__MANAGED_ROOT"] = root
        own["TURNBUCKLE_AGENT__STATE_DIRECTORY"] = str(state_directory(root))
    return own


@contextmanager
def up(directory: Path, *arguments: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A running `turnbuckle up`; ended with everything that it started, whatever the test did."""
    with subprocess.Popen(
        [*UP, *arguments], cwd=directory, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=120)


def until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """The first true answer; fails the test if that takes too long."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)
    return found

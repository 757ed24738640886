"""compose/image/collector.py: which directory a replica's journal gets. Only the collector itself is not started."""

from __future__ import annotations

import errno
import fcntl
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from services.collector.write_ahead_log import Journal

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "compose" / "image" / "collector.py"
VARIABLE = "TURNBUCKLE_COLLECTOR__DIRECTORY"
CHOSEN = f"""
import os, runpy, sys
def execvp(file, arguments):
    sys.exit(print(os.environ[{VARIABLE!r}], *arguments[1:]))
os.execvp = execvp
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def chosen(parent: Path) -> str:
    """What a replica would start, and where."""
    command = [sys.executable, "-c", CHOSEN, "--print-config"]
    environment = os.environ | {VARIABLE: str(parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_replica_takes_the_first_journal_that_nobody_holds(tmp_path: Path) -> None:
    with Journal(tmp_path / "1"):
        assert chosen(tmp_path) == f"{tmp_path}/2 run collector --print-config"
    assert chosen(tmp_path) == f"{tmp_path}/1 run collector --print-config"


def test_a_volume_without_locks_is_an_error_and_is_not_filled_with_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS without a lock service answers ENOLCK, whatever the directory."""
    tried = []

    def refuse(descriptor: int, _: int) -> None:
        tried.append(descriptor)
        assert len(tried) < 5, "it goes on for ever"
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(fcntl, "lockf", refuse)

    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]

"""Runs `tests.support.trainer_cases` for a test module, and has what each case has found. Imports no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Cases = dict[str, dict[str, Any]]
"""What each case has found, by its name."""


def run_cases(directory: Path, *chosen: str) -> Cases:
    """All cases of one process tree; `chosen` as its command line has it."""
    command = [sys.executable, "-m", "tests.support.trainer_cases", str(directory), *chosen]
    # A second thread per rank would only wait for a processor, spinning.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return {found["case"]: found for found in map(json.loads, done.stdout.splitlines())}


def case(cases: Cases, name: str) -> dict[str, Any]:
    """One of them, which has to have run to its end."""
    assert "failed" not in cases[name], f"{cases[name].get('failed')}\n{cases[name].get('logs')}"
    return cases[name]

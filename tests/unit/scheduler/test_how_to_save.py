"""The lines that `submit` prints for a job that cannot be preempted: they save at SIGTERM, and go on from there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from services.scheduler.commands.submit import HOW_TO_SAVE

ROOT = Path(__file__).parents[3]
SCRIPT = f"""
import json, os, signal, sys, time
from pathlib import Path
rank, steps = 0, int(sys.argv[1])
def first_state(): return {{"step": 0}}
def train_one_step(state):
    time.sleep(0.01); state["step"] += 1; print(state["step"], flush=True)
{dedent(HOW_TO_SAVE)}
"""


def start(directory: Path, steps: int) -> subprocess.Popen[str]:
    env = {**os.environ, "TURNBUCKLE_CHECKPOINT_DIR": str(directory)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(steps)], env=env, stdout=subprocess.PIPE, text=True)


def test_a_script_with_these_lines_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    with start(tmp_path, 1_000_000) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "3\n":
            pass
        process.send_signal(signal.SIGTERM)
        last = process.stdout.read().split()
    saved = json.loads((tmp_path / "0.json").read_text())["step"]

    assert process.returncode == 0
    assert [saved] == [int(line) for line in last[-1:] or ["3"]]
    with start(tmp_path, saved + 2) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [str(saved + 1), str(saved + 2)]


def test_the_page_has_the_same_lines() -> None:
    page = (ROOT / "docs" / "scheduler.md").read_text()
    (shown,) = re.findall(r"```python\n(.*?)\n```", page, flags=re.DOTALL)

    assert shown == dedent(HOW_TO_SAVE)

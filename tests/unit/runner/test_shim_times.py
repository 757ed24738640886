"""For how long a shim says that its worker ran."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services._host.cgroup_processes import CgroupProcesses
from services.runner import shim
from services.runner.worker_files import End, Intent, WorkerFiles
from services.runner.worker_process import start_worker
from tests.support.runner_lab import intent

SLEPT_S = 0.2


def test_a_worker_has_run_since_it_was_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late its shim goes on: on a busy machine the worker may have ended by then."""

    def start_and_pause(files: WorkerFiles, started: Intent, group: CgroupProcesses | None) -> int:
        pid = start_worker(files, started, group)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    monkeypatch.setattr(shim, "start_worker", start_and_pause)
    files = WorkerFiles(tmp_path)
    given = {"command": ["sleep", str(SLEPT_S)], "environment": {"PATH": os.environ["PATH"]}}
    shim.Shim(files, intent(tmp_path, **given)).live()
    end = files.read(End)
    assert end is not None
    assert end.exit_code == 0, end
    assert end.ran_s >= SLEPT_S

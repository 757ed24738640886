"""`turnbuckle train --elastic` as a user types it: a worker joins, is killed, and the rest is saved at SIGTERM."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.elastic_command import HASTE, elastic_command

pytestmark = [pytest.mark.host, pytest.mark.slow]
"""The store and each worker import torch: a quarter of a minute of a processor."""


def worker_named(parent: int, name: str) -> int:
    """The process id of a worker."""
    for file in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, file.read_text().split()):
            if name in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return pid
    raise LookupError(name)


def test_a_worker_joins_and_is_killed_and_what_is_left_saves_at_sigterm(tmp_path: Path) -> None:
    with elastic_command(tmp_path, *HASTE, "--usd-per-hour", "3600") as command:
        assert command.until(lambda event: event["event"] == "join")["threshold"] == 0.001
        joined = command.until(lambda event: event["event"] == "generation" and event["workers"] == 2)
        continued = command.until(lambda event: event["event"] == "continued")
        assert (continued["generation"], continued["step"]) == (2, joined["step"])
        assert (continued["pause_us"] > 0, continued["after_failure"]) == (True, False)
        progress = command.until_workers(2)
        assert progress["done"] > joined["step"]
        assert progress["usd"] >= 2
        os.kill(worker_named(command.process.pid, "worker-2"), signal.SIGKILL)
        assert command.until(lambda event: event["event"] == "lost")["worker"] == "worker-2"
        # half of the state is gone, and nothing was saved: it begins anew
        again = command.until(lambda event: event["event"] == "generation")
        assert (again["workers"], again["step"]) == (1, 0)
        assert command.until(lambda event: event["event"] == "continued")["after_failure"] is True
        command.process.send_signal(signal.SIGTERM)
        result = command.until(lambda event: event["event"] == "result")
        assert command.end() == (0, "")

    assert result["stopped"] is True
    [pauses] = [event for event in command.seen if event["event"] == "pauses"]
    assert pauses["changes"]["count"] >= 1
    assert 0 < pauses["changes"]["p50_us"] <= pauses["changes"]["p95_us"]
    assert pauses["failures"]["count"] == 1
    [saved] = (tmp_path / "saved").iterdir()
    assert saved.name == f"step-{result['step']:09d}"

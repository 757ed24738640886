"""What the curve of `make bench-remote-memory` says, without a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.remote_memory_curve import curve_table, draw_curve, ratios
from tests.lab.vm.guest_remote_memory import WORKER


@pytest.fixture
def curve() -> dict[str, Any]:
    rates = {
        "disk": {"100": [900.0, 1000.0, 1100.0], "75": [200.0, 250.0, 300.0], "50": [90.0, 100.0, 110.0]},
        "remote": {"100": [990.0, 1000.0, 1200.0], "75": [900.0, 1000.0, 1001.0], "50": [400.0, 490.0, 600.0]},
        "memory": {"100": [1000.0, 1100.0, 1200.0]},
    }
    record = {"disk_iops": 200, "data_mib": 48, "round_s": 3.0, "kernel": "6.1", "pages_per_s": rates}
    return record | {"remote_by_disk": ratios(rates)}


def test_the_ratio_is_that_of_the_medians_and_a_missed_one_is_said(curve: dict[str, Any], tmp_path: Path) -> None:
    assert curve["remote_by_disk"] == {"100": 1.0, "75": 4.0, "50": 4.9}
    assert "at least 5: MISSED" in curve_table(curve)
    assert "at least 5: met" in curve_table(curve | {"remote_by_disk": {"100": 1.0, "75": 4.0, "50": 5.0}})
    assert draw_curve(curve, tmp_path / "curve.png").stat().st_size > 10_000


def test_the_worker_reads_pages_at_random_as_they_were_written(tmp_path: Path) -> None:
    requests = "write 7\ncheck\nread 1 0.2\n"
    command = [sys.executable, "-S", "-P", str(WORKER), str(tmp_path), "2"]
    ended = subprocess.run(command, input=requests, capture_output=True, text=True, check=True)
    written, checked, read = map(json.loads, ended.stdout.splitlines())
    assert written == checked == {"pages": 512, "corrupt": 0}
    assert read["pages"] > 0
    assert read["corrupt"] == 0

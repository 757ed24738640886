"""The calibration of a machine: positive rates of what it can do, and none of what it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.runs import MachineSpeed
from services._host import calibration
from services._host.calibration import (
    calibrate,
    disk_write_bytes_per_s,
    measured_speed,
    processor_name,
    rate,
    speed_sentence,
)


@given(st.lists(st.floats(0.01, 2.0), min_size=2, max_size=20))
def test_the_rate_is_that_of_the_quickest_repetition(durations_s: list[float]) -> None:
    """Other work on the machine only ever makes a repetition slower."""
    now_s, left = [0.0], list(durations_s)

    def work() -> float:
        now_s[0] += left.pop(0)
        return 3.0

    found = rate(work, lambda: now_s[0], sum(durations_s[:-1]) - 1e-6 if len(durations_s) > 2 else 0.0)
    repeated = durations_s[: len(durations_s) - len(left)]
    assert len(repeated) >= 2
    assert found == pytest.approx(3.0 / min(repeated))


def test_this_machine_is_measured(tmp_path: Path) -> None:
    speed = measured_speed(tmp_path, part_s=0.01)
    assert min(speed.matmul_flops_per_cpu_s, speed.copy_bytes_per_cpu_s) > 1e6
    assert min(speed.disk_write_bytes_per_s, speed.loopback_bytes_per_s) > 1e3
    assert list(tmp_path.iterdir()) == []
    sentence = speed_sentence(speed)
    assert "Gflop/s of matrix products" in sentence
    assert "MB/s to the disk" in sentence


def test_a_disk_that_takes_nothing_is_not_measured(tmp_path: Path) -> None:
    assert disk_write_bytes_per_s(tmp_path / "absent", 0.01) == 0.0
    assert "disk" not in speed_sentence(MachineSpeed(matmul_flops_per_cpu_s=1.0, copy_bytes_per_cpu_s=1.0))


@pytest.mark.parametrize("printed", ["", "{}", '{"matmul_flops_per_cpu_s": 0, "copy_bytes_per_cpu_s": 1}', "exit"])
def test_a_calibration_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str) -> None:
    def answered(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if printed == "exit":
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0, printed.encode())

    monkeypatch.setattr(calibration.subprocess, "run", answered)
    assert calibrate(tmp_path) is None


def test_what_the_process_prints_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = MachineSpeed(matmul_flops_per_cpu_s=1e10, copy_bytes_per_cpu_s=2e9, processor="one")
    printed: list[str] = []
    monkeypatch.setattr(calibration, "measured_speed", lambda directory: known)
    monkeypatch.setattr(sys.stdout, "write", printed.append)
    monkeypatch.setattr(sys, "argv", ["calibration", str(tmp_path)])
    calibration.main()
    assert MachineSpeed.model_validate(json.loads(printed[0])) == known


def test_the_processor_s_name() -> None:
    assert processor_name("processor\t: 0\nmodel name\t: AMD EPYC 7B12\ncpu MHz\t: 2250\n") == "AMD EPYC 7B12"
    assert processor_name("BogoMIPS: 50.00\n") == ""

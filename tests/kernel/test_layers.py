"""`turnbuckle layers` in a sandbox: the layers are measured under its quota, and nothing is left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from schemas.layers import LayerProfile
from services._host.cgroupfs import CgroupLayout, detect
from services._jobs.sandbox.records import SANDBOXES_ROOT
from services._runtime.exit_code import ExitCode
from tests.support.tool_process import Tool

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(180)]

MODEL = """
from pathlib import Path
import torch
from torch import nn

def build():
    Path({seen!r}).write_text(Path("/proc/self/cgroup").read_text())
    return nn.Sequential(nn.Linear(4, 4)), torch.ones(1, 4)
"""


async def started(directory: Path, *words: str) -> Tool:
    """On a model that says in which control groups it is."""
    (directory / "model.py").write_text(MODEL.format(seen=str(directory / "seen")))
    model = f"{directory}/model.py:build"
    return await Tool.start(
        "layers.command", model, "--device", "sandbox:0.5", "--out", directory / "half.json", *words
    )


def cpu_directory(seen: Path, layout: CgroupLayout) -> Path:
    """Of the control group that carries the processor time of the process that measures."""
    group = next(line.partition(SANDBOXES_ROOT)[2] for line in seen.read_text().splitlines() if SANDBOXES_ROOT in line)
    return Path(layout.directories(f"{SANDBOXES_ROOT}{group}")["cpu"])


def quota_and_period_us(group: Path, version: int) -> list[str]:
    if version == 2:
        return (group / "cpu.max").read_text().split()
    return [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]


async def test_half_of_a_processor_until_ctrl_c(tmp_path: Path) -> None:
    """Half of a period of 10 ms is 5 ms."""
    tool, layout = await started(tmp_path, "--batch-up-to", "256"), detect()
    try:
        await tool.until_event("progress", 120)
        group = cpu_directory(tmp_path / "seen", layout)
        assert quota_and_period_us(group, layout.version) == ["5000", "10000"]
        tool.process.send_signal(signal.SIGINT)
        code, told = await tool.end()
    finally:
        await tool.kill()

    assert (code, tool.events[-1]["event"]) == (ExitCode.INTERRUPTED, "error"), told
    assert tool.events[-1]["message"] == "interrupted: nothing was written"
    assert not (tmp_path / "half.json").exists()
    assert not group.exists()


async def test_the_profile_is_of_the_sandbox(tmp_path: Path) -> None:
    tool = await started(tmp_path, "--batch-up-to", "1")
    try:
        code, told = await tool.end(120)
    finally:
        await tool.kill()

    assert code == ExitCode.OK, told
    profile = LayerProfile.model_validate_json((tmp_path / "half.json").read_bytes())
    assert (profile.kind, profile.microbatches, profile.classes[0].name) == ("sandbox:0.5", 1, "Linear")
    assert not cpu_directory(tmp_path / "seen", detect()).exists()


async def test_a_layer_that_fails_inside_is_said_once(tmp_path: Path) -> None:
    tool = await started(tmp_path, "--input-shape", "5")
    try:
        code, told = await tool.end(120)
    finally:
        await tool.kill()

    assert code == ExitCode.BAD_DATA
    assert [event["event"] for event in tool.events] == ["error"]
    assert tool.events[0]["message"].startswith("layer 0 fails: RuntimeError: mat1 and mat2")
    assert told.count("error:") == 1

"""A machine of 1 GiB, two applications that may use 1 GiB each, growers in both: whose refusal comes first?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.vm.guest import Guest, RunningMachine
from tests.lab.vm.guest_pytest import python

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(1_200)]

MEMORY_MIB = 1024
MIB = 1 << 20


def run(guest: Guest, directory: Path, *arguments: str, memory_mib: int = MEMORY_MIB) -> Any:
    machine = RunningMachine(guest.image, directory, memory_mib=memory_mib, cores=1)
    try:
        ended = machine.start([python(), "-m", "tests.lab.vm.guest_node_budget", *arguments]).wait(1_000)
    finally:
        machine.kill()
    assert ended.exit_code == 0, ended.output[-4000:]
    return json.loads(ended.output.splitlines()[-1])


def test_our_refusal_comes_before_the_kernel_s_global_kill(
    quick_guest: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = run(quick_guest, tmp_path / "machine")
    with capsys.disabled():
        print(f"\n  {seen}")  # noqa: T201 - figures
    assert seen["global"] == []
    assert "the memory budget of node guest is used up" in seen["refusals"][0]
    assert 0.5 * seen["allocatable"] < seen["highest"] <= seen["allocatable"] < (MEMORY_MIB - 256) * MIB


def test_beside_unmanaged_processes_no_more_is_promised_than_is_available(
    quick_guest: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 GiB, of which 400 MiB are available when two applications of 1 GiB begin; 100 are kept free."""
    seen = run(quick_guest, tmp_path / "machine", "400", memory_mib=2 * MEMORY_MIB)
    with capsys.disabled():
        print(f"\n  {seen}")  # noqa: T201 - figures
    assert seen["global"] == []
    assert "memory of node guest runs out: MemAvailable is" in seen["refusals"][0]
    assert seen["highest"] <= 400 * MIB

"""The load process: what it refuses, what it holds, and that it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services._host.simulation.load_schedule import Schedule
from services._host.simulation.load_worker import CHUNK_BYTES, Burner, HeldMemory
from tests.support.deadline import until


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_really_touched_and_really_given_back():
    memory = HeldMemory()
    before = resident_bytes()
    memory.resize(64 << 20)
    assert memory.held_bytes == 64 << 20
    assert resident_bytes() - before > 60 << 20
    memory.resize(CHUNK_BYTES)
    assert memory.held_bytes == CHUNK_BYTES
    assert resident_bytes() - before < 8 << 20
    memory.resize(0)


def test_a_slice_burns_its_demand_and_sleeps_to_its_end():
    burner = Burner(Schedule(((10.0, 0.3, 0),), 0.0, 1), 1.0, time.monotonic(), None)
    start_s, cpu_s = time.monotonic(), time.thread_time()
    for _ in range(20):
        burner.run_slice()
    used_s, passed_s = time.thread_time() - cpu_s, time.monotonic() - start_s
    assert passed_s > 0.15
    # 30 % of 20 slices of 10 ms; less if this machine is busy, never much more
    assert used_s < 0.06 * 3
    assert used_s > 0.01


def test_without_demand_it_sleeps():
    burner = Burner(Schedule(((0.2, 0.0, 0), (10.0, 1.0, 0)), 0.0, 1), 1.0, time.monotonic(), None)
    cpu_s, start_s = time.thread_time(), time.monotonic()
    burner.run_slice()
    assert time.monotonic() - start_s > 0.15
    assert time.thread_time() - cpu_s < 0.1


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "services._host.simulation.load_worker", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("profile", ["{", "{}", '{"phases": []}', '{"phases": [{"duration_s": 0}]}', "/absent.json"])
def test_a_profile_that_cannot_be_used_ends_with_2_and_says_so(profile):
    with start("--profile", profile) as process:
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 2
    assert complaint.startswith("load_worker: cannot use the profile: ")


@pytest.mark.parametrize("cores", [0.0, 0.1])
async def test_it_ends_on_sigterm_idle_or_busy(tmp_path, cores):
    profile = {"phases": [{"duration_s": 100, "cpu_cores": cores, "memory_bytes": 30 << 20}], "threads": 2}
    (tmp_path / "load.json").write_text(json.dumps(profile))
    with start("--profile", str(tmp_path / "load.json")) as process:
        statm = Path(f"/proc/{process.pid}/statm")
        await until(lambda: int(statm.read_text().split()[1]) * 4096 > 30 << 20, what="memory held")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_it_imports_nothing_but_the_standard_library():
    code = (
        "import sys, services._host.simulation.load_worker;"
        "print(*{m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names - {'__main__'})"
    )
    listed = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert listed.stdout.split() == ["services"]

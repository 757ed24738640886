"""The load worker in a real control group does what its profile says."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from services._host.simulation.load_profile import ContainerLoad, LoadPhase
from tests.support.cgroup_lab import wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.machine]
MIB = 1 << 20


def test_cpu_and_memory_follow_the_profile(lab):
    load = ContainerLoad(
        name="web",
        phases=(
            LoadPhase(duration_s=10, cpu_cores=0.3, memory_bytes=80 * MIB),
            LoadPhase(duration_s=60, cpu_cores=0, memory_bytes=0),
        ),
        memory_rate_bytes_s=200 * MIB,
    )
    group = lab.group(quota_us=200_000)
    handle = lab.handle(group)
    join = "import os, sys; sys.stdin.readline(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    worker = ["-m", "services._host.simulation.load_worker", "--profile", load.model_dump_json(), "--exit-with-parent"]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", join, *worker], stdin=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    lab.processes.append(process)
    group.add_process(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: handle.read().memory_bytes > 80 * MIB, what="memory held")
    start_s, before = time.monotonic(), handle.read()
    wait_until(lambda: handle.read().usage_us - before.usage_us > 150_000, what="half a second of work")
    used_cores = (handle.read().usage_us - before.usage_us) / 1e6 / (time.monotonic() - start_s)
    assert used_cores < 0.45
    assert handle.read().memory_bytes > 80 * MIB, "all of it in the first phase"
    wait_until(lambda: handle.read().memory_bytes < 30 * MIB, what="memory given back")
    # Idle: the kernel's period timer stops, as it does for any container that wants nothing
    idle_s, before = time.monotonic(), handle.read()
    wait_until(lambda: time.monotonic() - idle_s > 0.4)
    assert handle.read().nr_periods - before.nr_periods <= 3
    process.terminate()
    assert process.wait(timeout=60) == 0

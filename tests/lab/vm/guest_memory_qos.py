"""A memory.high as of the kubelet's Memory QoS, on a real kernel: run by tests/lab/test_cgroup_v2.py in the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._host.cgroup_processes import write_file
from services._host.cgroup_snapshot import WriteOutcome
from tests.support.cgroup_lab import CgroupLab, wait_until
from tests.support.memory_lab import MIB, grow, host_with_state, limit_files, memory_directory, stays_so

SLOW_S = 60.0


@pytest.fixture
def lab() -> Iterator[CgroupLab]:
    lab = CgroupLab(f"turnbuckle-test-{os.getpid()}")
    yield lab
    lab.close()


def test_who_is_slowed_at_the_kubelets_memory_high_waits_for_no_grant(lab: CgroupLab, tmp_path: Path) -> None:
    """It holds 40 MiB and a little, the guard's own memory.high would be 56."""
    group = lab.group(limit_bytes=64 * MIB)
    high = Path(memory_directory(lab, group), "memory.high")
    write_file(str(high), str(40 * MIB))
    found = limit_files(lab, group)
    host = host_with_state(lab, tmp_path)
    handle = host.open(lab.found(group))
    assert handle is not None
    handle.enable_oom_control()
    process = grow(lab, group, 60, stay_s=1000)

    def usage_bytes() -> int:
        state = handle.read_memory()
        assert state is not None
        assert not state.paused
        return state.usage_bytes

    wait_until(lambda: usage_bytes() >= 40 * MIB, within_s=SLOW_S, what="usage at the kubelet's memory.high")
    assert stays_so(lambda: usage_bytes() < 56 * MIB and process.poll() is None, 0.3)
    assert handle.write_memory(128 * MIB) is WriteOutcome.WRITTEN
    assert int(high.read_text()) == 40 * MIB
    assert not handle.oom_control_was_undone()
    assert handle.read_oom_kills() == 0
    process.kill()
    process.wait()
    wait_until(lambda: usage_bytes() < 8 * MIB, within_s=SLOW_S, what="the memory given back")
    handle.restore()
    assert limit_files(lab, group) == found
    handle.close()
    host.close()

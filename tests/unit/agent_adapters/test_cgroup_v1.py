"""Version 1 control files: parsing, limits, order of writes, restoring, vanishing."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from services._host.cgroup_snapshot import UNLIMITED, Counters, Limits, WriteOutcome
from services.agent.cgroup.open import open_host
from services.agent.cgroup.v1 import CgroupV1Host
from services.agent.state_files import StateDirectory
from tests.support.fake_cgroupfs import (
    CONTAINER,
    DIRECTORY,
    V1_HUGE,
    V1_TREE,
    FakeKernel,
    fake_layout,
    materialise,
    memsw_rule,
    ratio_rule,
    refuse,
)

MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    materialise(tmp_path, V1_TREE)
    return FakeKernel(tmp_path, monkeypatch)


@pytest.fixture
def host(kernel):
    host = open_host(fake_layout(kernel.base, 1))
    assert isinstance(host, CgroupV1Host)
    return host


@pytest.fixture
def open_handle(host):
    """Open when the test has laid out its files, and close at its end."""
    opened = []

    def opener():
        handle = host.open(CONTAINER)
        assert handle is not None
        opened.append(handle)
        return handle

    yield opener
    for handle in opened:
        handle.close()


def test_counters_are_converted_to_microseconds(open_handle):
    # 123456789 ns = 123456 us; 5000999 ns = 5000 us
    assert open_handle().read() == Counters(40, 7, 123_456, 5_000, 10 * MIB)


def test_only_the_periods(open_handle):
    assert open_handle().read_periods() == 40


def test_unknown_keys_in_cpu_stat_do_no_harm(kernel, open_handle):
    kernel.set("cpu.stat", "a_new_key 1\nnr_throttled 7\nnr_periods 40\nanother 2\nthrottled_time 5000")
    assert open_handle().read() == Counters(40, 7, 5, 5_000, 10 * MIB)


def test_limits(open_handle):
    assert open_handle().read_limits() == Limits(20_000, 64 * MIB)


def test_no_limits_are_unlimited(kernel, open_handle):
    kernel.set("cpu.cfs_quota_us", "-1")
    kernel.set("memory.limit_in_bytes", V1_HUGE)
    assert open_handle().read_limits() == Limits(UNLIMITED, UNLIMITED)


def test_limits_are_read_again_each_time(kernel, open_handle):
    handle = open_handle()
    kernel.set("cpu.cfs_quota_us", "33000")
    assert handle.read_limits() == Limits(33_000, 64 * MIB)


def test_quota_of_another_period_is_scaled(kernel, open_handle):
    kernel.set("cpu.cfs_period_us", "50000")
    # 20000 of 50000 us is 40000 of 100000 us
    assert open_handle().read_limits() == Limits(40_000, 64 * MIB)


def test_writing_a_quota_sets_the_period_first(kernel, open_handle):
    kernel.set("cpu.cfs_period_us", "50000")
    handle = open_handle()
    assert handle.write_quota(40_000) is WriteOutcome.WRITTEN
    assert kernel.writes == [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "40000")]
    assert handle.write_quota(41_000) is WriteOutcome.WRITTEN
    assert kernel.writes[2:] == [("cpu.cfs_quota_us", "41000")]


def test_restoring_quota_and_period_takes_the_order_that_the_kernel_accepts(kernel, open_handle):
    """Under a parent of 0.5 core: 60000/50000 in between would be refused, so the quota has to go first."""
    kernel.set("cpu.cfs_period_us", "50000")
    kernel.rules.append(ratio_rule(0.5))
    handle = open_handle()
    assert handle.write_quota(50_000) is WriteOutcome.WRITTEN
    kernel.writes.clear()
    handle.restore()
    assert kernel.writes == [("cpu.cfs_quota_us", "20000"), ("cpu.cfs_period_us", "50000")]
    assert kernel.refused == [("cpu.cfs_period_us", "50000")]


def test_a_refused_quota_puts_the_period_back(kernel, open_handle):
    kernel.set("cpu.cfs_period_us", "50000")
    kernel.rules.append(ratio_rule(0.5))
    assert open_handle().write_quota(90_000) is WriteOutcome.REFUSED
    assert (kernel.value("cpu.cfs_quota_us"), kernel.value("cpu.cfs_period_us")) == ("20000", "50000")


def test_memory_within_memsw_is_one_write(kernel, open_handle):
    kernel.rules.append(memsw_rule)
    assert open_handle().write_memory(32 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.limit_in_bytes", str(32 * MIB))]


def test_memsw_goes_up_before_and_comes_down_after_the_limit(kernel, open_handle):
    """Docker's memsw is twice the memory: 64 MiB of swap, which the container keeps."""
    kernel.rules.append(memsw_rule)
    handle = open_handle()
    assert handle.write_memory(200 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [
        ("memory.memsw.limit_in_bytes", str(264 * MIB)),
        ("memory.limit_in_bytes", str(200 * MIB)),
    ]
    kernel.writes.clear()
    assert handle.write_memory(20 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [
        ("memory.limit_in_bytes", str(20 * MIB)),
        ("memory.memsw.limit_in_bytes", str(128 * MIB)),
    ]


def test_a_refused_raise_puts_memsw_back(kernel, open_handle):
    kernel.rules.append(refuse("memory.limit_in_bytes", errno.EINVAL))
    assert open_handle().write_memory(200 * MIB) is WriteOutcome.REFUSED
    assert kernel.value("memory.memsw.limit_in_bytes") == str(128 * MIB)


def test_no_swap_accounting_is_fine(kernel, open_handle):
    kernel.path("memory.memsw.limit_in_bytes").unlink()
    assert open_handle().write_memory(200 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.limit_in_bytes", str(200 * MIB))]


def test_unlimited_memsw_is_left_alone(kernel, open_handle):
    kernel.set("memory.memsw.limit_in_bytes", V1_HUGE)
    kernel.set("memory.limit_in_bytes", V1_HUGE)
    handle = open_handle()
    assert handle.write_memory(200 * MIB) is WriteOutcome.WRITTEN
    handle.restore()
    assert kernel.writes == [("memory.limit_in_bytes", str(200 * MIB)), ("memory.limit_in_bytes", V1_HUGE)]


def test_limits_are_rounded_to_pages_as_the_kernel_does(kernel, host, open_handle):
    handle = open_handle()
    assert handle.write_memory(32 * MIB + 5) is WriteOutcome.WRITTEN
    assert handle.write_memory(32 * MIB + 9) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.limit_in_bytes", str(32 * MIB))] * 2
    assert host.no_op_writes == 1


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EINVAL, errno.EPERM])
def test_a_refusal_is_a_value(kernel, host, open_handle, code):
    kernel.rules += [refuse("memory.limit_in_bytes", code), refuse("cpu.cfs_quota_us", code)]
    handle = open_handle()
    assert handle.write_memory(8 * MIB) is WriteOutcome.REFUSED
    assert handle.write_quota(5_000) is WriteOutcome.REFUSED
    assert (host.tally.refused, host.writes_by_file) == (2, {})
    assert handle.read_limits() == Limits(20_000, 64 * MIB)


def test_only_what_was_changed_is_restored(kernel, open_handle):
    handle = open_handle()
    handle.write_quota(50_000)
    kernel.set("memory.limit_in_bytes", "1000000000")  # somebody else did that
    handle.restore()
    assert kernel.writes == [("cpu.cfs_quota_us", "50000"), ("cpu.cfs_quota_us", "20000")]


def test_restoring_writes_nothing_that_holds_already(kernel, host, open_handle):
    handle = open_handle()
    handle.write_quota(50_000)
    handle.write_quota(20_000)
    handle.restore()
    handle.restore()
    assert kernel.writes == [("cpu.cfs_quota_us", "50000"), ("cpu.cfs_quota_us", "20000")]
    assert host.no_op_writes == 0


def test_writes_are_counted_and_no_op_writes_proved(host, open_handle):
    handle = open_handle()
    for quota_us in (20_000, 30_000, 30_000, 31_000):
        handle.write_quota(quota_us)
    assert host.writes_by_file == {"cpu.cfs_quota_us": 4}
    assert host.no_op_writes == 2


def test_what_another_hand_wrote_counts_once_it_was_read(kernel, host, open_handle):
    handle = open_handle()
    handle.write_quota(30_000)
    kernel.set("cpu.cfs_quota_us", "-1")
    handle.read_limits()
    handle.write_quota(30_000)
    assert host.no_op_writes == 0


def test_configured_are_the_limits_before_any_agent_also_to_the_next_one(kernel, tmp_path):
    state = StateDirectory(tmp_path / "state")
    state.make()
    kernel.set("cpu.cfs_period_us", "50000")
    handle = open_host(fake_layout(kernel.base, 1), state).open(CONTAINER)
    assert handle is not None
    handle.write_quota(30_000)
    handle.write_memory(100 * MIB)
    # 20,000 us of 50,000 are 40,000 of 100,000
    assert handle.configured == Limits(40_000, 64 * MIB)
    handle.close()

    after = open_host(fake_layout(kernel.base, 1), state).open(CONTAINER)
    assert after is not None
    assert after.configured == Limits(40_000, 64 * MIB)
    assert after.read_limits() == Limits(30_000, 100 * MIB)
    after.restore()
    after.close()


def test_containers_without_limits_came_without(kernel, open_handle):
    kernel.set("cpu.cfs_quota_us", "-1")
    kernel.set("memory.limit_in_bytes", V1_HUGE)
    handle = open_handle()
    handle.write_quota(30_000)
    assert handle.configured == Limits(UNLIMITED, UNLIMITED)


def test_oom_kills(open_handle):
    assert open_handle().read_oom_kills() == 3


def test_a_kernel_before_4_13_counts_no_kills(kernel, open_handle):
    kernel.set("memory.oom_control", "oom_kill_disable 0\nunder_oom 0")
    handle = open_handle()
    assert (handle.read_oom_kills(), handle.read_memory().oom_kills) == (0, 0)


def test_a_vanished_container_cannot_be_opened(kernel, host):
    shutil.rmtree(kernel.base / "memory" / DIRECTORY)
    assert host.open(CONTAINER) is None


def test_after_removal_every_write_is_vanished(kernel, open_handle):
    handle = open_handle()
    for controller in ("cpu", "cpuacct", "memory"):
        shutil.rmtree(kernel.base / controller / DIRECTORY)
    assert handle.write_quota(30_000) is WriteOutcome.VANISHED
    assert handle.write_memory(200 * MIB) is WriteOutcome.VANISHED


def test_a_closed_handle_answers_as_if_vanished(open_handle):
    handle = open_handle()
    handle.close()
    handle.close()
    assert (handle.read(), handle.read_periods(), handle.read_limits(), handle.read_oom_kills()) == (None,) * 3 + (0,)
    assert handle.write_quota(30_000) is WriteOutcome.VANISHED
    handle.restore()


def test_nothing_stays_open_after_a_failed_opening(kernel, host):
    kernel.set("cpu.stat", "nothing of interest 1")
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    assert host.open(CONTAINER) is None
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before

"""Version 2 control files: parsing, cpu.max, and cuts of memory that never kill."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from services._host.cgroup_snapshot import UNLIMITED, Counters, Limits, WriteOutcome
from services.agent.cgroup.open import open_host
from services.agent.cgroup.v2 import MARGIN_BYTES, CgroupV2Host
from services.agent.ports import UnmanageableError
from services.agent.state_files import StateDirectory
from tests.support.fake_cgroupfs import CONTAINER, DIRECTORY, V2_TREE, FakeKernel, fake_layout, materialise, refuse

MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    materialise(tmp_path, V2_TREE)
    return FakeKernel(tmp_path, monkeypatch)


@pytest.fixture
def host(kernel):
    host = open_host(fake_layout(kernel.base, 2))
    assert isinstance(host, CgroupV2Host)
    return host


@pytest.fixture
def open_handle(host):
    opened = []

    def opener():
        handle = host.open(CONTAINER)
        assert handle is not None
        opened.append(handle)
        return handle

    yield opener
    for handle in opened:
        handle.close()


def test_counters(open_handle):
    handle = open_handle()
    assert handle.read() == Counters(40, 7, 123_456, 5_000, 10 * MIB)
    assert handle.read_periods() == 40


@pytest.mark.parametrize(
    ("cpu_max", "quota_us"),
    [("20000 100000", 20_000), ("max 100000", UNLIMITED), ("20000 50000", 40_000), ("300000 200000", 150_000)],
)
def test_cpu_max_is_scaled_to_the_period(kernel, open_handle, cpu_max, quota_us):
    kernel.set("cpu.max", cpu_max)
    assert open_handle().read_limits() == Limits(quota_us, 64 * MIB)


def test_no_memory_limit(kernel, open_handle):
    kernel.set("memory.max", "max")
    assert open_handle().read_limits() == Limits(20_000, UNLIMITED)


def test_quota_and_period_are_one_write_and_restored_as_found(kernel, open_handle):
    kernel.set("cpu.max", "max 50000")
    handle = open_handle()
    assert handle.write_quota(30_000) is WriteOutcome.WRITTEN
    handle.restore()
    assert kernel.writes == [("cpu.max", "30000 100000"), ("cpu.max", "max 50000")]


def test_an_equal_quota_is_a_no_op_write(host, open_handle):
    open_handle().write_quota(20_000)
    assert host.no_op_writes == 1


def test_a_raise_is_one_write(kernel, open_handle):
    assert open_handle().write_memory(100 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.max", str(100 * MIB))]


def test_a_cut_well_above_usage_is_one_write(kernel, open_handle):
    assert open_handle().write_memory(10 * MIB + MARGIN_BYTES) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.max", str(14 * MIB))]


def test_a_cut_too_close_to_usage_never_reaches_memory_max(kernel, host, open_handle):
    """What the kernel would answer with a kill: refused here, and memory.high is put back."""
    assert open_handle().write_memory(14 * MIB - 4096) is WriteOutcome.REFUSED
    assert kernel.writes == [("memory.high", str(10 * MIB - 4096)), ("memory.high", "max")]
    assert (kernel.value("memory.max"), host.tally.refused) == (str(64 * MIB), 1)


def test_reclaim_by_memory_high_makes_room_for_a_cut(kernel, open_handle):
    def reclaim(name, value):
        if name == "memory.high" and value != "max":
            kernel.set("memory.current", value)

    kernel.after_write = reclaim
    assert open_handle().write_memory(12 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.high", str(8 * MIB)), ("memory.max", str(12 * MIB)), ("memory.high", "max")]


def test_a_cut_from_no_limit_keeps_the_margin_too(kernel, open_handle):
    kernel.set("memory.max", "max")
    assert open_handle().write_memory(9 * MIB) is WriteOutcome.REFUSED
    assert kernel.value("memory.max") == "max"


def test_memory_high_of_the_kubelet_stays_where_it_is(kernel, open_handle):
    """Memory QoS (KEP-2570) writes it when the container starts."""
    kernel.set("memory.high", str(60 * MIB))
    handle = open_handle()
    assert handle.write_memory(100 * MIB) is WriteOutcome.WRITTEN
    assert kernel.writes == [("memory.max", str(100 * MIB))]
    handle.restore()
    assert (kernel.value("memory.max"), kernel.value("memory.high")) == (str(64 * MIB), str(60 * MIB))


def test_a_cut_never_lifts_memory_high_of_the_kubelet(kernel, open_handle):
    """In use are 10 MiB: the cut would lower memory.high to 8 MiB at first, which is above the kubelet's 6."""
    kernel.set("memory.high", str(6 * MIB))
    assert open_handle().write_memory(12 * MIB) is WriteOutcome.REFUSED
    assert kernel.writes == []


def test_a_container_of_memory_qos_is_refused_where_that_is_set_and_left_as_it_is(kernel, tmp_path):
    kernel.set("memory.high", str(60 * MIB))
    state = StateDirectory(tmp_path / "state")
    state.make()
    host = open_host(fake_layout(kernel.base, 2), state, refuse_memory_qos=True)
    with pytest.raises(UnmanageableError, match=r"memory\.high is 60 MiB, as of the kubelet's Memory QoS.*=cooperate"):
        host.open(CONTAINER)
    assert (kernel.writes, host.recorded()) == ([], [])


def test_a_container_without_memory_qos_is_managed_where_that_is_refused(kernel):
    handle = open_host(fake_layout(kernel.base, 2), refuse_memory_qos=True).open(CONTAINER)
    assert handle is not None
    assert handle.write_memory(100 * MIB) is WriteOutcome.WRITTEN
    handle.close()


def test_what_an_agent_did_that_cooperated_is_undone_by_one_that_refuses(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr("services._host.notifications.Notifications.watch", lambda *_: None)
    kernel.set("memory.high", str(60 * MIB))
    state = StateDirectory(tmp_path / "state")
    state.make()
    before = open_host(fake_layout(kernel.base, 2), state).open(CONTAINER)
    assert before is not None
    before.enable_oom_control()
    before.write_memory(100 * MIB)
    assert kernel.value("memory.high") == str(60 * MIB)
    before.write_memory(32 * MIB)
    assert kernel.value("memory.high") == str(28 * MIB)
    with pytest.raises(UnmanageableError, match="60 MiB"):
        open_host(fake_layout(kernel.base, 2), state, refuse_memory_qos=True).open(CONTAINER)
    assert (kernel.value("memory.max"), kernel.value("memory.high")) == (str(64 * MIB), str(60 * MIB))
    assert state.load(CONTAINER.key) is None


def test_restoring_never_cuts_below_usage(kernel, open_handle):
    handle = open_handle()
    handle.write_memory(100 * MIB)
    kernel.set("memory.current", str(80 * MIB))
    handle.restore()
    assert (kernel.value("memory.max"), kernel.value("memory.high")) == (str(100 * MIB), "max")


def test_restoring_no_limit(kernel, open_handle):
    kernel.set("memory.max", "max")
    handle = open_handle()
    handle.write_memory(100 * MIB)
    handle.restore()
    assert kernel.writes == [("memory.max", str(100 * MIB)), ("memory.max", "max")]


def test_configured_are_the_limits_before_any_agent_also_to_the_next_one(kernel, tmp_path):
    state = StateDirectory(tmp_path / "state")
    state.make()
    handle = open_host(fake_layout(kernel.base, 2), state).open(CONTAINER)
    assert handle is not None
    kernel.set("cpu.max", "50000 200000")  # by others, before any agent
    handle.read_limits()
    assert handle.configured == Limits(25_000, 64 * MIB)
    handle.write_memory(100 * MIB)
    assert handle.configured == Limits(25_000, 64 * MIB)
    handle.close()

    after = open_host(fake_layout(kernel.base, 2), state).open(CONTAINER)
    assert after is not None
    assert after.configured == Limits(25_000, 64 * MIB)
    assert after.read_limits() == Limits(25_000, 100 * MIB)
    after.restore()
    after.close()


def test_oom_kills(open_handle):
    assert open_handle().read_oom_kills() == 3


def test_a_refusal_is_a_value(kernel, open_handle):
    kernel.rules += [refuse("cpu.max", errno.EINVAL), refuse("memory.max", errno.EPERM)]
    handle = open_handle()
    assert handle.write_quota(30_000) is WriteOutcome.REFUSED
    assert handle.write_memory(100 * MIB) is WriteOutcome.REFUSED


def test_without_the_cpu_controller_it_cannot_be_managed(kernel, host):
    kernel.set("cpu.stat", "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000")
    assert host.open(CONTAINER) is None


def test_vanished(kernel, host, open_handle):
    handle = open_handle()
    shutil.rmtree(kernel.base / "unified" / DIRECTORY)
    assert handle.write_quota(30_000) is WriteOutcome.VANISHED
    assert handle.write_memory(100 * MIB) is WriteOutcome.VANISHED
    assert host.open(CONTAINER) is None
    handle.close()
    assert (handle.read(), handle.read_periods(), handle.read_limits(), handle.read_oom_kills()) == (None,) * 3 + (0,)
    assert handle.write_memory(10 * MIB) is WriteOutcome.VANISHED

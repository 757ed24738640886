"""A memory.high that the kubelet's Memory QoS has set, beside the memory guard: the lower one holds."""

from __future__ import annotations

import pytest

from services._host.cgroup_snapshot import WriteOutcome
from tests.support.fake_cgroupfs import CONTAINER
from tests.support.fake_container import Bench

MIB = 1 << 20


@pytest.fixture
def v2(tmp_path, monkeypatch):
    bench = Bench(tmp_path, 2, monkeypatch)
    yield bench
    bench.close()


def test_memory_high_is_the_lower_of_the_guards_and_the_kubelets(v2):
    """Memory QoS: request 44 MiB, limit 64 MiB, factor 0.9: 62 MiB. The guard's margins are 8, 32 and 4 MiB."""
    v2.kernel.set("memory.high", str(62 * MIB))
    handle = v2.handle()
    handle.enable_oom_control()
    assert v2.kernel.value("memory.high") == str(56 * MIB)
    handle.write_memory(256 * MIB)
    assert (v2.kernel.value("memory.max"), v2.kernel.value("memory.high")) == (str(256 * MIB), str(62 * MIB))
    assert not handle.oom_control_was_undone()
    handle.enable_oom_control()
    handle.write_memory(32 * MIB)
    assert v2.kernel.value("memory.high") == str(28 * MIB)
    handle.restore()
    assert (v2.kernel.value("memory.max"), v2.kernel.value("memory.high")) == (str(64 * MIB), str(62 * MIB))


def test_who_is_slowed_at_the_kubelets_memory_high_does_not_wait_for_a_grant(v2):
    """A higher memory.max would not help: the reserve is not spent on it."""
    v2.kernel.set("memory.high", str(40 * MIB))
    handle = v2.handle()
    handle.enable_oom_control()
    v2.kernel.set("memory.current", str(41 * MIB))
    state = handle.read_memory()
    assert state is not None
    assert (state.paused, v2.kernel.value("memory.high")) == (False, str(40 * MIB))
    v2.kernel.set("memory.current", str(30 * MIB))
    handle.write_memory(44 * MIB)  # the guard's own is an eighth lower: 38.5 MiB
    v2.kernel.set("memory.current", str(39 * MIB))
    state = handle.read_memory()
    assert state is not None
    assert (state.paused, int(v2.kernel.value("memory.high")) < 40 * MIB) == (True, True)


def test_the_oom_killer_takes_over_below_the_kubelets_memory_high(v2):
    v2.kernel.set("memory.high", str(60 * MIB))
    handle = v2.handle()
    handle.enable_oom_control()
    assert handle.enable_oom_killer() is WriteOutcome.WRITTEN
    assert v2.kernel.value("memory.high") == str(60 * MIB)


def test_a_lower_memory_high_that_the_kubelet_writes_later_is_kept_and_restored(v2):
    """A resize in place: 62 MiB become 48 and then 60; the guard's own is 56."""
    v2.kernel.set("memory.high", str(62 * MIB))
    handle = v2.handle()
    handle.enable_oom_control()
    for written, held in ((48, 48), (60, 56)):
        v2.kernel.set("memory.high", str(written * MIB))
        assert not handle.oom_control_was_undone()
        handle.enable_oom_control()
        assert v2.kernel.value("memory.high") == str(held * MIB)
    assert v2.noted()["memory.high"] == str(60 * MIB)
    v2.kernel.set("memory.high", "max")
    assert handle.oom_control_was_undone(), "raising the guard's own is reported"
    handle.enable_oom_control()
    handle.restore()
    assert v2.kernel.value("memory.high") == str(60 * MIB)


@pytest.mark.parametrize("first", ["read", "limit", "control"])
def test_a_lower_memory_high_is_kept_whatever_the_agent_does_first(v2, first):
    """Resized in place from 62 to 40 MiB with 41 in use: a notification, a limit update or a repair comes first."""
    v2.kernel.set("memory.high", str(62 * MIB))
    handle = v2.handle()
    handle.enable_oom_control()
    v2.kernel.set("memory.high", str(40 * MIB))
    v2.kernel.set("memory.current", str(41 * MIB))
    if first == "read":
        state = handle.read_memory()
        assert state is not None
        assert not state.paused, "a grant would not help"
    elif first == "limit":
        handle.write_memory(96 * MIB)
    handle.enable_oom_control()
    assert v2.kernel.value("memory.high") == str(40 * MIB)
    assert not handle.oom_control_was_undone()
    handle.restore()
    assert v2.kernel.value("memory.high") == str(40 * MIB)


def test_a_memory_high_that_comes_before_the_guard_is_kept_and_restored(v2):
    handle = v2.handle()
    v2.kernel.set("memory.high", str(40 * MIB))
    handle.enable_oom_control()
    assert v2.kernel.value("memory.high") == str(40 * MIB)
    handle.restore()
    assert v2.kernel.value("memory.high") == str(40 * MIB)


def test_a_lost_state_directory_does_not_make_the_guards_memory_high_the_kubelets(v2):
    v2.handle().enable_oom_control()
    assert v2.kernel.value("memory.high") == str(56 * MIB)
    v2.state.forget(CONTAINER.key)
    handle = v2.handle()
    handle.enable_oom_control()
    handle.write_memory(256 * MIB)
    assert v2.kernel.value("memory.high") == str(224 * MIB)
    handle.restore()
    assert v2.kernel.value("memory.high") == "max"

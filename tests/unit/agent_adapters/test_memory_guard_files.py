"""What the guard writes, on fake files: the order of writes, what is noted, what is put back."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from services._host.cgroup_snapshot import UNLIMITED, MemoryState, WriteOutcome
from services.agent.cgroup.simulated import SimulatedHost
from services.agent.cgroup.v2 import high_margin_bytes
from tests.support.cgroup_lab import wait_until
from tests.support.fake_cgroupfs import (
    CONTAINER,
    DIRECTORY,
    V1_HUGE,
    refuse,
)
from tests.support.fake_container import Bench

MIB = 1 << 20


@pytest.fixture
def v1(tmp_path, monkeypatch):
    bench = Bench(tmp_path, 1, monkeypatch)
    yield bench
    bench.close()


@pytest.fixture
def v2(tmp_path, monkeypatch):
    bench = Bench(tmp_path, 2, monkeypatch)
    yield bench
    bench.close()


def test_memory_of_version_1(v1):
    v1.kernel.set("memory.oom_control", "oom_kill_disable 1\nunder_oom 1\noom_kill 3")
    handle = v1.handle()
    assert handle.read_memory() == MemoryState(10 * MIB, 64 * MIB, paused=True, oom_kills=3)
    assert handle.read_reclaimable() == 4096
    v1.kernel.set("memory.limit_in_bytes", V1_HUGE)
    assert handle.read_memory().limit_bytes == UNLIMITED


def test_memory_of_version_2(v2):
    handle = v2.handle()
    assert handle.read_memory() == MemoryState(10 * MIB, 64 * MIB, paused=False, oom_kills=3, limit_hits=1)
    assert handle.read_reclaimable() == 8192
    v2.kernel.set("memory.high", str(10 * MIB))
    assert handle.read_memory().paused
    v2.kernel.set("memory.max", "max")
    assert handle.read_memory().limit_bytes == UNLIMITED


def test_version_1_sets_the_trap_once_and_registers_the_nearest_rung_first(v1, monkeypatch):
    registered = []
    monkeypatch.setattr(
        "services._host.usage_thresholds.UsageThresholds.register", lambda _ladder, rung: registered.append(rung)
    )
    handle = v1.handle()
    handle.enable_oom_control()
    handle.enable_oom_control()
    assert v1.kernel.writes == [("memory.oom_control", "1")]
    wait_until(lambda: len(registered) == 16)
    assert registered == list(range(2, 18)), "usage is 10 MiB, rungs are 8 MiB apart"
    v1.kernel.set("memory.usage_in_bytes", str(41 * MIB))
    handle.enable_oom_control()
    wait_until(lambda: len(registered) == 20)
    assert registered[16:] == [18, 19, 20, 21]


def test_a_registration_that_fails_is_tried_again_later(v1, monkeypatch):
    attempts = []

    def register(_ladder, rung):
        attempts.append(rung)
        if len(attempts) == 1:
            raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("services._host.usage_thresholds.UsageThresholds.register", register)
    handle = v1.handle()
    handle.enable_oom_control()
    wait_until(lambda: v1._hosts[0].registrar.failures == 1)
    assert attempts == [2]
    handle.enable_oom_control()
    wait_until(lambda: len(attempts) == 17)


def test_a_kernel_that_refuses_the_trap_leaves_it_unarmed(v1):
    v1.kernel.rules.append(refuse("memory.oom_control", errno.EPERM))
    handle = v1.handle()
    handle.enable_oom_control()
    assert not handle.oom_controlled


def test_release_and_restore_write_nothing_that_holds_already(v1):
    handle = v1.handle()
    assert handle.enable_oom_killer() is WriteOutcome.WRITTEN
    handle.restore()
    assert v1.kernel.writes == []
    assert v1.noted() == {}


def test_originals_are_noted_before_the_first_change_only(v1):
    v1.kernel.rules.append(refuse("cpu.cfs_quota_us", errno.EINVAL))
    handle = v1.handle()
    assert v1.noted() == {}
    handle.write_quota(30_000)
    assert v1.noted() == {"cpu.cfs_quota_us": "20000"}
    handle.enable_oom_control()
    handle.write_memory(100 * MIB)
    assert v1.noted() == {
        "cpu.cfs_quota_us": "20000",
        "memory.oom_control": "0",
        "memory.limit_in_bytes": str(64 * MIB),
        "memory.memsw.limit_in_bytes": str(128 * MIB),
    }


def test_an_agent_after_a_killed_one_restores_what_the_first_one_found(v1):
    first = v1.handle()
    first.write_quota(30_000)
    first.enable_oom_control()
    first.write_memory(100 * MIB)
    second = v1.handle()
    assert second.oom_controlled
    second.write_quota(40_000)
    second.restore()
    assert v1.kernel.value("cpu.cfs_quota_us") == "20000"
    assert v1.kernel.value("memory.limit_in_bytes") == str(64 * MIB)
    assert v1.kernel.value("memory.memsw.limit_in_bytes") == str(128 * MIB)
    assert v1.kernel.path("memory.oom_control").read_text() == "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
    assert v1.noted() == {}


def test_what_the_watchdog_has_raised_is_put_back_too(v1):
    handle = v1.handle()
    handle.enable_oom_control()
    v1.kernel.set("memory.limit_in_bytes", str(96 * MIB))
    handle.restore()
    assert v1.kernel.value("memory.limit_in_bytes") == str(64 * MIB)


def test_what_cannot_be_put_back_stays_noted(v1):
    handle = v1.handle()
    handle.write_memory(100 * MIB)
    v1.kernel.rules.append(refuse("memory.limit_in_bytes", errno.EBUSY))
    handle.restore()
    assert v1.noted()["memory.limit_in_bytes"] == str(64 * MIB)
    v1.kernel.rules.clear()
    handle.restore()
    assert v1.noted() == {}


def test_the_note_of_a_vanished_container_is_removed(v1):
    handle = v1.handle()
    handle.write_quota(30_000)
    for controller in ("cpu", "cpuacct", "memory"):
        shutil.rmtree(v1.kernel.base / controller / DIRECTORY)
    handle.close()
    assert v1.noted() == {}


def test_a_state_directory_that_goes_away_does_not_keep_limits_from_being_written(v1):
    handle = v1.handle()
    shutil.rmtree(v1.state.path)
    handle.enable_oom_control()
    assert handle.oom_controlled
    assert handle.write_memory(100 * MIB) is WriteOutcome.WRITTEN


def test_leftovers_of_an_earlier_boot_are_not_touched(v1, monkeypatch):
    v1.handle().write_quota(30_000)
    monkeypatch.setattr("services._host.boot_records.BOOT_ID", Path("/proc/version"))
    assert v1.host().release_leftovers() == []
    assert v1.kernel.value("cpu.cfs_quota_us") == "30000"


@pytest.mark.parametrize(
    ("version", "requests", "limits"),
    [
        (
            1,
            {"cpu": "cpu.shares", "memory": "memory.soft_limit_in_bytes"},
            {"cpu.cfs_quota_us", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"},
        ),
        (2, {"unified": "cpu.weight"}, {"cpu.max", "memory.max", "memory.high"}),
        (2, {"unified": "memory.min"}, {"cpu.max", "memory.max", "memory.high"}),
        (2, {"unified": "memory.low"}, {"cpu.max", "memory.max", "memory.high"}),
    ],
)
def test_limits_are_written_and_never_what_requests_become(tmp_path, monkeypatch, version, requests, limits):
    """CPU requests become cpu.shares or cpu.weight, memory requests memory.min or memory.low (docs/autoscalers.md)."""
    bench = Bench(tmp_path, version, monkeypatch)
    files = [tmp_path / hierarchy / DIRECTORY / name for hierarchy, name in requests.items()]
    for file in files:
        file.write_text("256\n")
    handle = bench.handle()
    handle.enable_oom_control()
    for quota_us, limit_mib in ((30_000, 256), (10_000, 32), (90_000, 400)):
        assert handle.write_quota(quota_us) is WriteOutcome.WRITTEN
        assert handle.write_memory(limit_mib * MIB) is WriteOutcome.WRITTEN
    handle.enable_oom_killer()
    handle.restore()

    assert {name for name, _ in bench.kernel.writes} == limits
    assert [file.read_text() for file in files] == ["256\n"] * len(files)
    bench.close()


@pytest.mark.parametrize(("limit", "margin"), [(16, 4), (32, 4), (64, 8), (256, 32), (4096, 32)])
def test_the_margin_below_memory_max(limit, margin):
    assert high_margin_bytes(limit * MIB) == margin * MIB


def test_version_2_keeps_memory_high_below_memory_max(v2):
    handle = v2.handle()
    handle.enable_oom_control()
    handle.enable_oom_control()
    assert handle.write_memory(256 * MIB) is WriteOutcome.WRITTEN
    assert v2.kernel.writes == [
        ("memory.high", str(56 * MIB)),
        ("memory.max", str(256 * MIB)),
        ("memory.high", str(224 * MIB)),
    ]
    assert not handle.oom_control_was_undone()
    v2.kernel.set("memory.high", "max")
    assert handle.oom_control_was_undone()
    handle.enable_oom_control()
    assert (handle.oom_control_was_undone(), v2.kernel.value("memory.high")) == (False, str(224 * MIB))
    handle.restore()
    assert (v2.kernel.value("memory.max"), v2.kernel.value("memory.high")) == (str(64 * MIB), "max")


def test_an_armed_cut_slows_first_and_cuts_then(v2):
    handle = v2.handle()
    handle.enable_oom_control()
    v2.kernel.writes.clear()
    assert handle.write_memory(32 * MIB) is WriteOutcome.WRITTEN
    assert v2.kernel.writes == [("memory.high", str(28 * MIB)), ("memory.max", str(32 * MIB))]


def test_who_grows_into_an_armed_cut_keeps_the_old_limit(v2):
    handle = v2.handle()
    handle.enable_oom_control()

    def grow(name, _value):
        if name == "memory.high":
            v2.kernel.set("memory.current", str(30 * MIB))

    v2.kernel.after_write = grow
    assert handle.write_memory(32 * MIB) is WriteOutcome.REFUSED
    assert (v2.kernel.value("memory.max"), v2.kernel.value("memory.high")) == (str(64 * MIB), str(56 * MIB))
    assert not handle.oom_control_was_undone()


def test_released_version_2_has_no_memory_high(v2):
    handle = v2.handle()
    handle.enable_oom_control()
    assert handle.enable_oom_killer() is WriteOutcome.WRITTEN
    assert (handle.oom_controlled, v2.kernel.value("memory.high")) == (False, "max")
    handle.write_memory(100 * MIB)
    assert v2.kernel.value("memory.high") == "max"
    handle.enable_oom_control()
    assert v2.kernel.value("memory.high") == str(100 * MIB - high_margin_bytes(100 * MIB))


def test_without_a_limit_there_is_no_memory_high_to_guard_with(v2):
    v2.kernel.set("memory.max", "max")
    handle = v2.handle()
    handle.enable_oom_control()
    assert handle.oom_controlled
    assert v2.kernel.writes == []
    handle.write_memory(64 * MIB)
    assert v2.kernel.writes == [("memory.high", str(56 * MIB)), ("memory.max", str(64 * MIB))]


def test_an_agent_after_a_killed_one_takes_memory_high_on(v2):
    v2.kernel.set("memory.high", str(40 * MIB))
    v2.handle().enable_oom_control()
    second = v2.handle()
    assert second.oom_controlled
    assert not second.oom_control_was_undone()
    second.restore()
    assert v2.kernel.value("memory.high") == str(40 * MIB)


def test_a_simulated_container_is_not_guarded():
    host = SimulatedHost([])
    assert (host.memory_guard, host.notification_fd, host.take_notifications(), host.release_leftovers()) == (
        "sampled",
        None,
        [],
        [],
    )


@pytest.mark.parametrize("bench", ["v1", "v2"])
def test_the_next_agent_knows_what_was_managed_whether_or_not_it_was_changed(bench, request):
    bench = request.getfixturevalue(bench)
    bench.handle()
    [recorded] = bench.host().recorded()
    assert (recorded.key, recorded.app, recorded.source) == (CONTAINER.key, CONTAINER.app, CONTAINER.source)
    again = bench.host().open(recorded)
    assert again.read_limits().memory_bytes == 64 * MIB
    again.close()

    assert bench.host().release_leftovers() == []  # nothing was changed
    assert bench.host().recorded() == []

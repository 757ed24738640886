"""The guard of a container's memory against the real kernel, of either version."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from services._host.cgroup_processes import write_file
from services._host.cgroup_snapshot import NotificationKind, WriteOutcome
from services._host.cgroupfs import ManagedCgroup
from tests.support.cgroup_lab import wait_until
from tests.support.memory_lab import (
    MIB,
    alarms_within,
    follow_growth,
    grow,
    host_with_state,
    limit_files,
    memory_directory,
    open_descriptors,
    stays_so,
)

pytestmark = pytest.mark.root
SLOW_S = 60.0
"""For what takes milliseconds here, and many times that in an emulated machine."""


@pytest.fixture
def host(lab, tmp_path):
    host = host_with_state(lab, tmp_path / "state")
    yield host
    host.close()


@pytest.fixture
def armed(lab, host):
    """A group of 64 MiB that is guarded, with its handle."""
    group = lab.group(limit_bytes=64 * MIB)
    handle = host.open(lab.found(group))
    handle.enable_oom_control()
    assert handle.oom_controlled
    yield group, handle
    handle.close()


def test_who_grows_is_given_more_and_never_killed(lab, host, armed):
    group, handle = armed
    process = grow(lab, group, 600)
    raises = follow_growth(host, handle, process, SLOW_S)
    assert process.wait() == 0
    assert raises > 0
    assert handle.read_oom_kills() == 0


def test_thresholds_alarm_before_the_limit_is_near(lab, host, armed):
    group, handle = armed
    if lab.layout.version == 1:
        wait_until(lambda: host.registrar.registrations >= 7, what="rungs up to 56 MiB")
    host.take_notifications()
    grow(lab, group, 58 if lab.layout.version == 2 else 40, stay_s=1000)
    notifications = alarms_within(host, SLOW_S)
    assert {alarm.kind for alarm in notifications} == {NotificationKind.NEAR}
    assert {alarm.key for alarm in notifications} == {lab.found(group).key}
    assert handle.read_memory().usage_bytes < 64 * MIB


def test_at_the_limit_tasks_wait_and_a_raise_lets_them_go_on(lab, host, armed):
    group, handle = armed
    process = grow(lab, group, 100, stay_s=1000)
    wait_until(lambda: handle.read_memory().paused, within_s=SLOW_S, what="the wait")
    assert stays_so(lambda: process.poll() is None, 0.3)
    kinds = {alarm.kind for alarm in host.take_notifications()}
    assert (NotificationKind.PAUSED if lab.layout.version == 1 else NotificationKind.NEAR) in kinds
    assert handle.write_memory(200 * MIB) is WriteOutcome.WRITTEN
    assert process.stdout.read(5) == "grown"
    assert not handle.read_memory().paused
    assert handle.read_oom_kills() == 0


def test_released_the_kernel_kills_as_it_always_does(lab, armed):
    group, handle = armed
    process = grow(lab, group, 100, stay_s=1000)
    wait_until(lambda: handle.read_memory().paused, within_s=SLOW_S, what="the wait")
    assert handle.enable_oom_killer() is WriteOutcome.WRITTEN
    assert not handle.oom_controlled
    assert process.wait(timeout=SLOW_S) == -signal.SIGKILL
    wait_until(lambda: handle.read_memory().oom_kills >= 1, what="the kill in the counter")
    handle.enable_oom_control()
    assert handle.oom_controlled
    again = grow(lab, group, 100, stay_s=1000)
    wait_until(lambda: handle.read_memory().paused, within_s=SLOW_S, what="the wait")
    assert again.poll() is None
    assert handle.write_memory(200 * MIB) is WriteOutcome.WRITTEN
    assert again.stdout.read(5) == "grown"


def test_a_guard_undone_by_other_hands_is_noticed_and_repaired(lab, armed):
    group, handle = armed
    assert not handle.oom_control_was_undone()
    file = "memory.oom_control" if lab.layout.version == 1 else "memory.high"
    write_file(f"{memory_directory(lab, group)}/{file}", "0" if lab.layout.version == 1 else "max")
    assert handle.oom_control_was_undone()
    handle.enable_oom_control()
    assert handle.oom_controlled
    assert not handle.oom_control_was_undone()


def test_what_was_found_first_survives_a_killed_agent(lab, tmp_path):
    group = lab.group(limit_bytes=64 * MIB)
    found = limit_files(lab, group)
    first = host_with_state(lab, tmp_path)
    dead = first.open(lab.found(group))
    dead.enable_oom_control()
    assert dead.write_memory(100 * MIB) is WriteOutcome.WRITTEN
    dead.close()  # all that kill -9 leaves to be done
    first.close()
    assert limit_files(lab, group) != found
    second = host_with_state(lab, tmp_path)
    handle = second.open(lab.found(group))
    handle.restore()
    assert limit_files(lab, group) == found
    handle.close()
    assert list((tmp_path / "originals").iterdir()) == []
    second.close()


def test_leftovers_of_a_killed_agent_are_given_back(lab, tmp_path):
    """One that nobody manages any more, one that is managed again, one that has vanished."""
    groups = [lab.group(name, limit_bytes=64 * MIB) for name in ("left", "managed", "vanished")]
    found = limit_files(lab, groups[0])
    first = host_with_state(lab, tmp_path)
    for group in groups:
        handle = first.open(lab.found(group))
        handle.enable_oom_control()
        handle.write_memory(100 * MIB)
        handle.close()
    first.close()
    changed = limit_files(lab, groups[1])
    wait_until(groups[2].remove)

    second = host_with_state(lab, tmp_path)
    handle = second.open(lab.found(groups[1]))
    assert second.release_leftovers() == [lab.found(groups[0]).key]
    assert limit_files(lab, groups[0]) == found
    assert limit_files(lab, groups[1]) == changed
    assert [path.stem for path in (tmp_path / "originals").iterdir()] == [lab.found(groups[1]).key]
    handle.close()
    second.close()


def test_a_group_made_again_under_the_same_name_is_not_given_the_old_ones_values(lab, tmp_path):
    group = lab.group(limit_bytes=64 * MIB)
    first = host_with_state(lab, tmp_path)
    handle = first.open(lab.found(group))
    handle.enable_oom_control()
    handle.write_memory(100 * MIB)
    state_file = next((tmp_path / "originals").iterdir())
    note = state_file.read_bytes()
    wait_until(group.remove)
    handle.close()
    assert not state_file.exists()

    state_file.write_bytes(note)  # as if it had been killed
    again = ManagedCgroup.create(lab.layout, group.directory, limit_bytes=80 * MIB)
    handle = first.open(lab.found(again))
    handle.write_memory(120 * MIB)
    handle.restore()
    assert handle.read_limits().memory_bytes == 80 * MIB
    handle.close()
    first.close()


def test_closed_handles_leave_nothing_open(lab, host):
    handles = [host.open(lab.found(lab.group(f"c{number}", limit_bytes=64 * MIB))) for number in range(5)]
    for handle in handles:
        handle.close()
    before = open_descriptors()
    for number in range(5):
        handle = host.open(lab.found(lab.group(f"d{number}", limit_bytes=64 * MIB)))
        handle.enable_oom_control()
        handle.close()
        handle.close()
        handle.enable_oom_control()
        assert not handle.oom_controlled
    wait_until(lambda: open_descriptors() == before, what="registrations under way to end")
    assert host.take_notifications() == []


def test_a_vanished_group_can_be_armed_by_nobody(lab, host, armed):
    group, handle = armed
    wait_until(group.remove)
    handle.enable_oom_control()
    assert not handle.oom_controlled
    assert handle.read_memory() is None
    assert handle.enable_oom_killer() is WriteOutcome.VANISHED
    assert (handle.read_reclaimable(), handle.oom_control_was_undone()) == (0, False)
    handle.restore()
    assert host.tally.failed_oom_controls == 0


def version_1_only(lab) -> None:
    if lab.layout.version == 2:
        pytest.skip("thresholds and trap are of version 1")


def test_reclaimable_is_page_cache(lab, armed, tmp_path):
    version_1_only(lab)  # the emulated machine has no file system but tmpfs to write to, whose pages are no cache
    group, handle = armed
    assert handle.read_reclaimable() < 4 * MIB
    code = f"import os, time; f = open({str(tmp_path / 'cache')!r}, 'wb'); f.write(bytes(16 << 20)); f.flush()\n"
    lab.start(group, code + "os.fsync(f.fileno()); time.sleep(1000)")
    wait_until(lambda: 12 * MIB < handle.read_reclaimable() < 24 * MIB, within_s=60, what="the file, not its buffer")


def test_an_agent_that_comes_later_hears_of_those_who_wait_already(lab, host):
    version_1_only(lab)
    group = lab.group(limit_bytes=32 * MIB)
    write_file(f"{memory_directory(lab, group)}/memory.oom_control", "1")
    process = grow(lab, group, 50, stay_s=1000)
    handle = host.open(lab.found(group))
    wait_until(lambda: handle.read_memory().paused, what="the wait")
    handle.enable_oom_control()
    assert NotificationKind.PAUSED in {alarm.kind for alarm in host.take_notifications()}
    handle.write_memory(100 * MIB)
    assert process.stdout.read(5) == "grown"
    handle.close()


def test_the_ladder_follows_growth_and_is_made_anew_when_it_is_long(lab, host, armed, monkeypatch):
    version_1_only(lab)
    monkeypatch.setattr("services._host.usage_thresholds.MAX_THRESHOLDS", 20)
    group, handle = armed
    handle.write_memory(600 * MIB)
    wait_until(lambda: host.registrar.registrations == 16, what="the first rungs")
    process = grow(lab, group, 100, stay_s=1000)
    assert process.stdout.read(5) == "grown"
    handle.enable_oom_control()
    wait_until(lambda: host.registrar.registrations >= 28, what="twelve more")
    host.take_notifications()
    handle.enable_oom_control()  # too long: begun again above usage
    wait_until(lambda: host.registrar.registrations >= 44, what="the new ladder")
    host.take_notifications()
    grow(lab, group, 16, stay_s=1000)
    assert NotificationKind.NEAR in {alarm.kind for alarm in alarms_within(host, SLOW_S)}
    assert host.registrar.failures == 0


def test_docker_like_swap_limits_do_not_stop_a_raise(lab, host):
    version_1_only(lab)
    group = lab.group(limit_bytes=32 * MIB)
    memsw = Path(memory_directory(lab, group), "memory.memsw.limit_in_bytes")
    if not memsw.exists():
        pytest.skip("this kernel does not account for swap")
    write_file(str(memsw), str(64 * MIB))
    handle = host.open(lab.found(group))
    handle.enable_oom_control()
    process = grow(lab, group, 150, stay_s=1000)
    wait_until(lambda: handle.read_memory().paused, what="the wait")
    assert handle.write_memory(300 * MIB) is WriteOutcome.WRITTEN
    assert process.stdout.read(5) == "grown"
    process.kill()
    process.wait()
    wait_until(lambda: handle.read_memory().usage_bytes < 16 * MIB)
    handle.restore()
    assert int(memsw.read_text()) == 64 * MIB
    handle.close()

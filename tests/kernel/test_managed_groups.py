"""Managed control groups on the real kernel, and their discovery."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from services._host.cgroupfs import (
    CgroupUnavailableError,
    ManagedCgroup,
    can_manage,
    managed_directory,
    paths_of_pid,
)
from services.agent.discovery.managed import EMPTY_S, ManagedDiscovery
from services.agent.ports import GoneContainer, SourceAnswered
from tests.support.cgroup_lab import SLEEP, wait_until
from tests.support.deadline import until

pytestmark = pytest.mark.root
FORKS = """
import os, time
for _ in range(4):
    os.fork()
time.sleep(1000)
"""


def test_this_host_can_be_managed_and_the_probe_leaves_nothing(lab):
    assert can_manage(lab.layout) is None
    for mount in lab.layout.distinct_mounts():
        assert not list(Path(mount.directory).glob("turnbuckle-probe-*"))


def test_a_process_moves_in_and_is_seen_in_every_hierarchy(lab):
    group = lab.group()
    process = lab.start(group, SLEEP)
    assert group.process_ids() == [process.pid]
    assert group.is_populated()
    assert paths_of_pid(lab.layout, process.pid) == lab.layout.directories(group.directory)


def test_a_populated_group_is_not_removed(lab):
    group = lab.group()
    process = lab.start(group, SLEEP)
    assert group.remove() is False
    assert group.process_ids() == [process.pid]


def test_a_forking_group_is_killed_and_removed_with_its_parents(lab):
    group = lab.group()
    process = lab.start(group, FORKS)
    wait_until(lambda: len(group.process_ids()) == 16, what="16 processes")
    group.kill()
    process.wait(timeout=60)
    wait_until(lambda: group.process_ids() == [], what="an empty group")
    wait_until(group.remove)
    for mount in lab.layout.distinct_mounts():
        assert not Path(f"{mount.directory}/{lab.root}").exists()
    assert group.remove() is True
    assert group.process_ids() == []


def test_moving_a_vanished_process_or_into_a_vanished_group_is_false(lab):
    group = lab.group()
    process = lab.start(group, "pass")
    process.wait(timeout=60)
    assert group.add_process(process.pid) is False
    wait_until(group.remove)
    assert group.add_process(os.getpid()) is False


def test_the_name_of_a_control_file_is_refused_and_nothing_is_left(lab):
    name = "tasks" if lab.layout.version == 1 else "cgroup.procs"
    directory = managed_directory(name, "web", "0" * 12, lab.root)
    with pytest.raises(CgroupUnavailableError, match="a control file has that name"):
        ManagedCgroup.create(lab.layout, directory)
    for mount in lab.layout.distinct_mounts():
        assert not Path(f"{mount.directory}/{lab.root}").exists()


def test_a_refused_limit_leaves_nothing(lab):
    directory = managed_directory("lab", "web", "0" * 12, lab.root)
    with pytest.raises(CgroupUnavailableError, match="Invalid argument"):
        ManagedCgroup.create(lab.layout, directory, quota_us=1)
    for mount in lab.layout.distinct_mounts():
        assert not Path(f"{mount.directory}/{lab.root}").exists()


@pytest.mark.slow
async def test_discovery_finds_a_group_and_removes_it_once_its_process_has_ended(lab):
    group = lab.group()
    reports: list[object] = []

    def keep(report: object) -> None:
        if not isinstance(report, SourceAnswered):
            reports.append(report)

    task = asyncio.create_task(ManagedDiscovery(lab.layout, lab.root, interval_s=0.05).run(keep))
    process = lab.start(group, SLEEP)
    await until(lambda: reports == [lab.found(group)], within_s=60)
    process.kill()
    process.wait(timeout=60)
    ended = asyncio.get_running_loop().time()
    await until(lambda: len(reports) == 2, within_s=60)
    assert reports[1] == GoneContainer(lab.found(group).container_id)
    assert asyncio.get_running_loop().time() - ended >= EMPTY_S
    assert group.add_process(os.getpid()) is False  # it has been removed
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

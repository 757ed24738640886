"""What making a managed group writes in version 2, on ordinary files. Version 1 is shown on the kernel itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services._host.cgroup_processes import CgroupProcesses
from services._host.cgroupfs import CgroupUnavailableError, ManagedCgroup, can_manage
from tests.support.fake_cgroupfs import DIRECTORY, fake_layout, materialise


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A mount at which somebody has enabled memory already, and directories as the kernel would fill them."""
    materialise(
        tmp_path,
        {
            "unified": {
                "cgroup.controllers": "cpuset cpu io memory pids\n",
                "cgroup.subtree_control": "memory pids\n",
            },
            "unified/turnbuckle": {"cgroup.subtree_control": "cpu memory\n"},
            "unified/turnbuckle/shop": {"cgroup.subtree_control": ""},
            f"unified/{DIRECTORY}": {
                "cgroup.subtree_control": "",
                "cgroup.procs": "",
                "cgroup.kill": "",
                "cpu.max": "max 100000\n",
                "memory.max": "max\n",
            },
        },
    )
    return tmp_path / "unified"


def test_controllers_are_enabled_down_the_path_where_missing_and_never_in_the_leaf(top):
    ManagedCgroup.create(fake_layout(top.parent, 2), DIRECTORY, 20_000, 64 << 20)
    assert (top / "cgroup.subtree_control").read_text().startswith("+cpu")
    assert (top / "turnbuckle/cgroup.subtree_control").read_text() == "cpu memory\n"
    assert (top / "turnbuckle/shop/cgroup.subtree_control").read_text() == "+cpu +memory"
    assert (top / DIRECTORY / "cgroup.subtree_control").read_text() == ""
    assert (top / DIRECTORY / "cpu.max").read_text().startswith("20000 100000")
    assert (top / DIRECTORY / "memory.max").read_text().startswith(str(64 << 20))


def test_without_limits_none_are_written(top):
    ManagedCgroup.create(fake_layout(top.parent, 2), DIRECTORY)
    assert (top / DIRECTORY / "cpu.max").read_text() == "max 100000\n"
    assert (top / DIRECTORY / "memory.max").read_text() == "max\n"


def test_a_quota_may_have_a_period_of_its_own_and_be_taken_away(top):
    group = ManagedCgroup(fake_layout(top.parent, 2), DIRECTORY)
    for quota_us, written in ((2_500, "2500 20000"), (None, "max 20000")):
        (top / DIRECTORY / "cpu.max").write_text("")
        group.write_quota(quota_us, 20_000)
        assert (top / DIRECTORY / "cpu.max").read_text() == written


def test_the_whole_group_is_killed_by_one_write(top):
    ManagedCgroup(fake_layout(top.parent, 2), DIRECTORY).kill()
    assert (top / DIRECTORY / "cgroup.kill").read_text() == "1"


def test_a_group_is_frozen_and_thawed_by_one_write(top):
    plain = fake_layout(top.parent, 2)
    layout = replace(plain, freezer=plain.mounts["cpu"])
    (top / DIRECTORY / "cgroup.freeze").write_text("0")
    group = ManagedCgroup(layout, DIRECTORY, freezer=True)
    assert group.freeze()
    assert (top / DIRECTORY / "cgroup.freeze").read_text() == "1"
    again = CgroupProcesses(**group.place)
    assert again.thaw()
    assert (top / DIRECTORY / "cgroup.freeze").read_text() == "0"
    (top / DIRECTORY / "cgroup.freeze").unlink()  # a kernel before 5.2
    assert not group.freeze()
    assert not ManagedCgroup(layout, DIRECTORY).freeze()


def test_a_parent_that_cannot_pass_controllers_on_is_named(top):
    (top / "turnbuckle/shop/cgroup.subtree_control").unlink()
    (top / "turnbuckle/shop/cgroup.subtree_control").mkdir()
    with pytest.raises(CgroupUnavailableError, match=r"turnbuckle/shop/cgroup\.subtree_control: Is a directory"):
        ManagedCgroup.create(fake_layout(top.parent, 2), DIRECTORY)


def test_missing_controllers_are_named(top):
    (top / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    reason = can_manage(fake_layout(top.parent, 2))
    assert reason is not None
    assert reason.endswith("controllers missing at " + str(top) + ": memory")


def test_a_read_only_mount_is_named(tmp_path):
    layout = fake_layout(tmp_path, 2)
    for name, mount in layout.mounts.items():
        layout.mounts[name] = type(mount)(mount.directory, "/", read_only=True)  # type: ignore[index] # a dict here
    assert can_manage(layout) == f"{tmp_path}/unified is mounted read-only"

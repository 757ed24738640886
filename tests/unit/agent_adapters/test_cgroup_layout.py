"""Finding mounts and a process's groups from /proc, and the names of managed groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import NAME_PATTERN
from schemas.containers import ContainerSource
from services._host.cgroupfs import (
    CgroupUnavailableError,
    ControllerMount,
    ManagedName,
    detect,
    managed_directory,
    parse_managed,
    paths_of_pid,
)
from services.agent.cgroup.host import container_directories
from services.agent.ports import FoundContainer

ROOT = "25 1 8:1 / / rw,relatime - ext4 /dev/vda rw\n"
V1_SEPARATE = ROOT + (
    "31 25 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n"
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
V1_COMBINED = ROOT + (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:10 master:3 - cgroup cgroup rw,memory\n"
)
V2 = ROOT + "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
HYBRID = V1_COMBINED + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"


@pytest.fixture
def layout_of(tmp_path: Path):
    def detect_text(text: str):
        (tmp_path / "mountinfo").write_text(text)
        return detect(str(tmp_path / "mountinfo"))

    return detect_text


@pytest.fixture
def write_proc(tmp_path: Path):
    """Write /proc/42/cgroup and return the directory that stands for /proc."""

    def write(text: str) -> str:
        (tmp_path / "proc/42").mkdir(parents=True)
        (tmp_path / "proc/42/cgroup").write_text(text)
        return str(tmp_path / "proc")

    return write


def test_version_1_with_separate_mounts(layout_of):
    layout = layout_of(V1_SEPARATE)
    assert (layout.version, layout.hybrid) == (1, False)
    assert {name: mount.directory for name, mount in layout.mounts.items()} == {
        "cpu": "/sys/fs/cgroup/cpu",
        "cpuacct": "/sys/fs/cgroup/cpuacct",
        "memory": "/sys/fs/cgroup/memory",
    }
    assert len(layout.distinct_mounts()) == 3


def test_version_1_with_a_combined_mount(layout_of):
    layout = layout_of(V1_COMBINED)
    assert layout.mounts["cpu"] == layout.mounts["cpuacct"]
    assert layout.directories("a/b") == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct/a/b",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/a/b",
        "memory": "/sys/fs/cgroup/memory/a/b",
    }
    assert len(layout.distinct_mounts()) == 2


def test_version_2(layout_of):
    layout = layout_of(V2)
    assert (layout.version, layout.hybrid) == (2, False)
    assert layout.directories("a") == {"cpu": "/sys/fs/cgroup/a", "memory": "/sys/fs/cgroup/a"}


def test_a_hybrid_host_is_controlled_by_version_1(layout_of):
    layout = layout_of(HYBRID)
    assert (layout.version, layout.hybrid) == (1, True)


def test_the_whole_hierarchy_is_preferred_to_a_part_of_it(layout_of):
    layout = layout_of(V2 + "99 24 0:26 /docker/abc /elsewhere rw - cgroup2 cgroup2 rw\n")
    assert layout.mounts["cpu"].directory == "/sys/fs/cgroup"


def test_mount_options_and_escapes(layout_of):
    layout = layout_of(ROOT + r"30 24 0:26 / /my\040cgroups ro,nosuid - cgroup2 cgroup2 rw" + "\n")
    assert layout.mounts["memory"] == ControllerMount("/my cgroups", "/", read_only=True)


@pytest.mark.parametrize(
    ("mountinfo", "message"),
    [
        (ROOT, "no control group file system is mounted"),
        ("", "no control group file system is mounted"),
        ("garbage\n- - -\n" + ROOT, "no control group file system is mounted"),
        (V1_SEPARATE.replace("rw,memory", "rw,pids"), "mounted for cpu, cpuacct, but not for memory"),
    ],
)
def test_unusable_hosts_say_why(layout_of, mountinfo, message):
    with pytest.raises(CgroupUnavailableError, match=message):
        layout_of(mountinfo)


def test_missing_mountinfo_says_so(tmp_path):
    with pytest.raises(CgroupUnavailableError, match="No such file"):
        detect(str(tmp_path / "absent"))


def test_groups_of_a_process_in_version_1(layout_of, write_proc):
    proc = write_proc("9:cpuacct,cpu:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/x\n0::/unified\n")
    assert paths_of_pid(layout_of(V1_COMBINED), 42, proc) == {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct/docker/abc",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/docker/abc",
        "memory": "/sys/fs/cgroup/memory/docker/abc",
    }


def test_groups_of_a_process_in_version_2(layout_of, write_proc):
    proc = write_proc("0::/system.slice/docker-abc.scope\n")
    path = "/sys/fs/cgroup/system.slice/docker-abc.scope"
    assert paths_of_pid(layout_of(V2), 42, proc) == {"cpu": path, "memory": path}


def test_the_root_group(layout_of, write_proc):
    assert paths_of_pid(layout_of(V2), 42, write_proc("0::/\n")) == dict.fromkeys(("cpu", "memory"), "/sys/fs/cgroup")


def test_inside_a_container_paths_are_relative_to_the_mounts_root(layout_of, write_proc):
    """Without a cgroup namespace the mount shows /docker/outer as its root, but /proc names the whole path."""
    layout = layout_of(V2.replace("0:26 / ", "0:26 /docker/outer "))
    proc = write_proc("0::/docker/outer/turnbuckle/shop/web\n")
    assert paths_of_pid(layout, 42, proc)["cpu"] == "/sys/fs/cgroup/turnbuckle/shop/web"


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/docker/outer", "/docker/other"),
        ("/docker/outer", "/docker/outer2/x"),
        ("/", "/../other"),
        ("/", "/gone (deleted)"),
    ],
)
def test_groups_that_are_not_visible_are_none(layout_of, write_proc, root, path):
    layout = layout_of(V2.replace("0:26 / ", f"0:26 {root} "))
    assert paths_of_pid(layout, 42, write_proc(f"0::{path}\n")) == {"cpu": None, "memory": None}


def test_a_vanished_process_is_none(layout_of, tmp_path):
    assert paths_of_pid(layout_of(V2), 42, str(tmp_path)) == {"cpu": None, "memory": None}


def test_a_process_missing_in_one_hierarchy(layout_of, write_proc):
    paths = paths_of_pid(layout_of(V1_SEPARATE), 42, write_proc("2:cpu:/a\n3:memory:/a\n"))
    assert paths["cpuacct"] is None
    assert paths["cpu"] == "/sys/fs/cgroup/cpu/a"


def _docker(monkeypatch, path: str) -> FoundContainer:
    monkeypatch.setattr(
        "services.agent.cgroup.host.paths_of_pid",
        lambda layout, _pid: dict.fromkeys(layout.mounts, path),
    )
    return FoundContainer("f" * 64, "shop", "web", ContainerSource.DOCKER, pid=42)


def test_an_init_in_a_child_group_leads_to_the_containers_own_group(layout_of, monkeypatch):
    """Systemd in a container moves itself to init.scope; Docker's limits stand one level above."""
    container = _docker(monkeypatch, f"/sys/fs/cgroup/system.slice/docker-{'f' * 64}.scope/init.scope")
    directories = container_directories(layout_of(V2), container)
    assert directories is not None
    assert directories["cpu"] == f"/sys/fs/cgroup/system.slice/docker-{'f' * 64}.scope"


def test_the_root_group_is_never_managed(layout_of, monkeypatch):
    assert container_directories(layout_of(V2), _docker(monkeypatch, "/sys/fs/cgroup")) is None


names = st.from_regex(NAME_PATTERN, fullmatch=True).filter(lambda name: not name.endswith("\n"))
ids = st.text("0123456789abcdef", min_size=12, max_size=64)


@given(app=names, name=names, container_id=ids, root=st.sampled_from(["turnbuckle", "a/b"]))
def test_managed_directories_are_parsed_back(app, name, container_id, root):
    directory = managed_directory(app, name, container_id, root)
    assert parse_managed(directory, root) == ManagedName(app, name, container_id[:12])


@pytest.mark.parametrize(
    ("app", "name", "container_id"),
    [
        ("../etc", "web", "0" * 12),
        ("shop", "we/b", "0" * 12),
        ("shop", "", "0" * 12),
        ("shop", "web", "0" * 11),
        ("shop", "web", "zzzzzzzzzzzz"),
        ("shop\n", "web", "0" * 12),
    ],
)
def test_bad_names_have_no_directory(app, name, container_id):
    with pytest.raises(ValueError, match=r"match|hexadecimal"):
        managed_directory(app, name, container_id)


@pytest.mark.parametrize(
    "directory",
    [
        "turnbuckle/shop",
        "turnbuckle/shop/web",
        "turnbuckle/shop/web-012345",
        "turnbuckle/shop/-0123456789ab",
        "turnbuckle/shop/web-0123456789ab/inner-0123456789ab",
        "elsewhere/shop/web-0123456789ab",
        "turnbuckle/.hidden/web-0123456789ab",
        "",
    ],
)
def test_other_directories_are_not_managed(directory):
    assert parse_managed(directory) is None

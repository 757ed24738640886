"""Devices of this machine, and what its control groups let a process have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, ControllerMount
from services._host.own_limits import OwnLimits, own_limits
from services.collector.devices import machine
from services.collector.devices.options import SandboxPlace

GIB = 1 << 30


def layout(directory: Path, version: int) -> CgroupLayout:
    mount = ControllerMount(str(directory), "/", read_only=False)
    return CgroupLayout(version, hybrid=False, mounts={"cpu": mount, "memory": mount})


def proc(directory: Path, group: str, version: int) -> str:
    """A /proc in which this process is in a group."""
    place = directory / "proc" / str(os.getpid())
    place.mkdir(parents=True)
    lines = f"0::{group}\n" if version == 2 else f"3:cpu,cpuacct:{group}\n2:memory:{group}\n"
    (place / "cgroup").write_text(lines)
    return str(directory / "proc")


def write(group: Path, **files: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_least_limit_on_the_way_up_holds_in_version_2(tmp_path: Path) -> None:
    write(tmp_path / "cg")  # the root of version 2 has no such files
    write(tmp_path / "cg" / "a", cpu__max="50000 100000", memory__max=str(4 * GIB))
    write(tmp_path / "cg" / "a" / "b", cpu__max="max 100000", memory__max="max")
    write(tmp_path / "cg" / "a" / "b" / "c", cpu__max="200000 100000", memory__max=str(8 * GIB))

    found = own_limits(layout(tmp_path / "cg", 2), proc(tmp_path, "/a/b/c", 2))
    assert found == OwnLimits(0.5, 4 * GIB)


def test_and_in_version_1(tmp_path: Path) -> None:
    unlimited = {"memory__limit_in_bytes": "9223372036854771712", "cpu__cfs_quota_us": "-1"}
    write(tmp_path / "cg", **unlimited, cpu__cfs_period_us="100000")
    group = tmp_path / "cg" / "a"
    write(group, memory__limit_in_bytes=str(2 * GIB), cpu__cfs_quota_us="15000", cpu__cfs_period_us="10000")

    assert own_limits(layout(tmp_path / "cg", 1), proc(tmp_path, "/a", 1)) == OwnLimits(1.5, 2 * GIB)


def test_a_group_without_limits_has_none(tmp_path: Path) -> None:
    write(tmp_path / "cg" / "a", cpu__max="max 100000", memory__max="max")
    assert own_limits(layout(tmp_path / "cg", 2), proc(tmp_path, "/a", 2)) == OwnLimits(None, None)
    assert own_limits(layout(tmp_path / "cg", 2), str(tmp_path / "nowhere")) == OwnLimits(None, None)


def test_processors_have_what_their_control_group_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "own_limits", lambda _: OwnLimits(0.25, 64 << 20))
    monkeypatch.setattr(machine, "detect", lambda: None)
    found = machine.processors("cpu")

    assert (found.kind, found.count, found.memory_bytes, found.torch_device) == ("cpu", 1, 64 << 20, "cpu")
    assert ", of which this control group may use 0.25; the control group's limit, of " in found.about


def test_without_control_groups_they_have_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CgroupUnavailableError("none are mounted")

    monkeypatch.setattr(machine, "detect", missing)
    found = machine.processors("epyc")

    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.kind == "epyc"
    assert found.about.startswith(f"{len(os.sched_getaffinity(0))} core")


def test_processors_as_equal_devices_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "own_limits", lambda _: OwnLimits(None, 3 << 20))
    monkeypatch.setattr(machine, "detect", lambda: None)
    found = machine.processors("cpu", 2)

    assert (found.count, found.memory_bytes) == (2, 3 << 19)
    assert found.about.endswith(", in 2 equal parts")


def test_a_gpu_is_not_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver there is none; with one and without torch it is there, but its kind and memory are not known."""
    driver = tmp_path / "nvidiactl"
    assert machine.gpus((str(driver),)) == []
    driver.touch()
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    (found,) = machine.gpus((str(driver),))

    assert (found.kind, found.memory_bytes, found.torch_device) == ("?", None, "")
    assert "torch is not" in found.about


def test_gpus_that_are_alike_stand_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.collector.layers import gpu  # noqa: PLC0415 - torch

    visible = [("NVIDIA L4", 22 * GIB), ("NVIDIA RTX A6000", 48 * GIB), ("NVIDIA L4", 22 * GIB)]
    monkeypatch.setattr(gpu, "visible_gpus", lambda: visible)
    driver = tmp_path / "nvidiactl"
    driver.touch()

    found = machine.gpus((str(driver),))
    assert [(each.kind, each.count, each.memory_bytes, each.torch_device) for each in found] == [
        ("l4", 2, 22 * GIB, "cuda:0"),
        ("rtx-a6000", 1, 48 * GIB, "cuda:1"),
    ]


def test_sandboxes_are_as_given() -> None:
    (found,) = machine.sandboxes([SandboxPlace(0.5, GIB, 2)])

    assert (found.kind, found.count, found.memory_bytes) == ("sandbox:0.5", 2, GIB)

"""Moving a process to the top of every hierarchy, on directories that stand for mounts."""

from __future__ import annotations

from pathlib import Path

from services.agent.watchdog.process import move_to_root_groups


def mounts(tmp_path: Path, *names: str) -> Path:
    table = tmp_path / "mounts"
    lines = [f"cgroup {tmp_path / name} {filesystem} rw 0 0" for name, _, filesystem in map(_split, names)]
    table.write_text("\n".join(["tmpfs /tmp tmpfs rw 0 0", *lines]) + "\n", encoding="utf-8")
    return table


def _split(name: str) -> tuple[str, str, str]:
    return name.partition(":")


def test_it_is_written_to_every_hierarchy_of_either_version(tmp_path):
    for name in ("cpu", "devices", "unified"):
        (tmp_path / name).mkdir()
    assert move_to_root_groups(42, mounts(tmp_path, "cpu:cgroup", "devices:cgroup", "unified:cgroup2")) == []
    assert {name: (tmp_path / name / "cgroup.procs").read_text() for name in ("cpu", "devices", "unified")} == {
        "cpu": "42",
        "devices": "42",
        "unified": "42",
    }


def test_a_hierarchy_that_refuses_is_told_and_the_others_are_written(tmp_path):
    (tmp_path / "cpu").mkdir()
    refused = move_to_root_groups(42, mounts(tmp_path, "gone:cgroup", "cpu:cgroup"))
    assert refused == [f"{tmp_path / 'gone'}: No such file or directory"]
    assert (tmp_path / "cpu" / "cgroup.procs").read_text() == "42"

"""`turnbuckle doctor` says how control groups are read, and why not better."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError
from services._runtime.command.finding import Level
from services.agent.doctor import KERNEL_DIRECTORY_VARIABLE, check_kernel_programs
from tests.support.fake_cgroupfs import fake_layout

Layout = Callable[[], CgroupLayout]
REFUSED = "not permitted, not even to root"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return lambda: fake_layout(tmp_path, 1)


def loader(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = directory / "turnbuckle-kernel"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv(KERNEL_DIRECTORY_VARIABLE, str(directory))


def says(*programs: dict[str, Any]) -> str:
    return f"echo '{json.dumps(programs)}'"


def program(name: str, *, ok: bool = True) -> dict[str, Any]:
    return {"name": name, "ok": ok, "reason": "" if ok else REFUSED}


def test_everything_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    loader(tmp_path, monkeypatch, says(program("cgroups"), program("periods")))
    finding = check_kernel_programs(layout)
    assert (finding.level, finding.found) == (Level.OK, "all control groups in one read of the kernel's own table")


def test_what_fails_beside_the_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    loader(tmp_path, monkeypatch, says(program("cgroups"), program("periods", ok=False)))
    finding = check_kernel_programs(layout)
    assert finding.level is Level.NOTE
    assert finding.found.endswith(f"one read of the kernel's own table; periods: {REFUSED}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (says(program("cgroups", ok=False)), REFUSED),
        (says(), "the loader does not know the table"),
        ("echo nonsense", "does not run: Expecting value"),
        ("exit 1", "does not run"),
    ],
)
def test_files_are_read_where_the_table_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, text: str, reason: str
) -> None:
    loader(tmp_path, monkeypatch, text)
    finding = check_kernel_programs(layout)
    assert finding.level is Level.NOTE
    assert finding.found.startswith("control groups are read file by file: ")
    assert reason in finding.found


def test_what_is_not_built_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    monkeypatch.setenv(KERNEL_DIRECTORY_VARIABLE, str(tmp_path))
    finding = check_kernel_programs(layout)
    assert finding.found.endswith("turnbuckle-kernel is not there")
    assert finding.mend == "make kernel"


def test_without_control_groups_there_is_nothing_to_read() -> None:
    def none() -> CgroupLayout:
        raise CgroupUnavailableError("none")

    assert check_kernel_programs(none).level is Level.NOTE

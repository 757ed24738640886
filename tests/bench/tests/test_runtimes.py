"""Probes of runtimes: the newest line is what counts, and a case without a change says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.runtimes import cases
from tests.bench.runtimes.cases import Limits, Probe, write_limits
from tests.bench.runtimes.run import page_tables, text_of


def _probe(tmp_path: Path, script: str) -> Probe:
    return Probe((), ("sh", "-c", script, "sh", str(tmp_path / "go-on")), {})


def test_a_change_is_seen_once_the_probe_prints_it(tmp_path: Path) -> None:
    (tmp_path / "go-on").touch()
    line = """if [ -e "$1" ]; then echo '{"processors": 1}'; else echo '{"processors": 4}'; fi"""
    probe = _probe(tmp_path, f"while true; do {line}; sleep 0.05; done")
    try:
        before = probe.first()
        assert before == {"processors": 1}
        (tmp_path / "go-on").unlink()
        after, seconds = probe.after_change(before)
        assert after == {"processors": 4}
        assert seconds is not None
    finally:
        probe.end()


def test_a_runtime_that_does_not_follow_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "SETTLED_S", 0.3)
    probe = _probe(tmp_path, "while true; do echo '{\"processors\": 2}'; sleep 0.05; done")
    try:
        assert probe.after_change(probe.first()) == ({"processors": 2}, None)
    finally:
        probe.end()


@pytest.mark.parametrize("version", [1, 2])
def test_limits_are_written_as_the_version_has_them(tmp_path: Path, version: int) -> None:
    directories = (tmp_path,) if version == 2 else (tmp_path / "cpu", tmp_path / "memory")
    for directory in directories:
        directory.mkdir(exist_ok=True)
    write_limits(directories, Limits(0.3, 256))
    written = {
        file.name: file.read_text() for directory in directories for file in directory.iterdir() if file.is_file()
    }
    if version == 2:
        assert written == {"cpu.max": "30000 100000", "memory.max": str(256 << 20)}
    else:
        assert written == {
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "30000",
            "memory.limit_in_bytes": str(256 << 20),
        }


def _row(case: str, limits: str, processors: int, followed_after_s: float | None, **more: object) -> dict[str, object]:
    no_heap_limit = {"heap_limit_bytes": (1 << 63) - 1}
    fixed = {"case": case, "limits": limits, "processors": processors, "followed_after_s": followed_after_s}
    return no_heap_limit | fixed | more


SERIAL = {"heap_limit_bytes": 121 << 20, "pool_threads": 1, "collectors": "Copy, MarkSweepCompact"}
RECORD = {
    "versions": {"java": "openjdk 17.0.15 2025-04-15", "go": "go version go1.27.3 linux/amd64"},
    "parts": [
        {
            "cores": 8,
            "emulated": True,
            "machine_line": "8 processors, emulated",
            "rows": [
                _row("Go", "4 cores", 4, None),
                _row("Go", "3 cores", 3, 1.24),
                _row("Java", "0.3 cores", 1, None, **SERIAL),
                _row("Java", "4 cores", 1, None, **SERIAL),
            ],
        }
    ],
}


def test_a_case_is_a_row_with_what_changed_and_what_stayed() -> None:
    found = page_tables(RECORD)["emulated"]

    assert found["machine"] == "8 processors, emulated"
    assert found["columns"][0] == "8 processors (emulated, cgroup v2), Java 17.0.15, Go 1.27.3"
    assert found["rows"] == [
        ["Go", "4 cores → 3 cores", "4 → 3", "none", "", "", "1.2"],
        ["Java", "0.3 cores → 4 cores", "1", "121", "1", "serial", ""],
    ]


def test_the_text_has_columns_as_wide_as_their_cells() -> None:
    lines = text_of({"here": {"columns": ["a", "long name"], "rows": [["wide cell", "1"], ["b", ""]]}}).splitlines()

    assert lines == ["a          long name", "wide cell  1", "b"]


def test_a_floor_is_among_the_cases() -> None:
    """With the limits of an idle container, before and after others."""
    floors = [case for case in cases.cases(["java", "Probe"], ["probe"]) if cases.FLOOR in case.limits]

    assert [case.name.partition(",")[0] for case in floors] == ["Java", "Go"]
    assert all(case.limits[0] == case.limits[-1] == cases.FLOOR for case in floors)

"""The agent and kernel/records.h mean the same bytes; where containers stand in the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.apps import PERIOD_US
from services._host.bpf.cgroup_table import _RowIndex
from services._host.bpf.congestion import CongestionCounters
from services._host.bpf.loader import KernelPrograms
from services._host.bpf.loader_process import KernelProgramsError
from services._host.bpf.records import (
    COUNTERS,
    TABLE_ROWS,
    VERSION,
    WRITER,
    WRITER_COMM_BYTES,
    WRITER_LEVELS,
    WRITER_NAME_BYTES,
    Column,
    GroupFlag,
    Kind,
)
from services._host.cgroup_snapshot import Counters
from services.runner.core.flow_records import RECORD, FlowRecord

HEADER: Final = (Path(__file__).resolve().parents[3] / "kernel" / "records.h").read_text(encoding="utf-8")


def define(name: str) -> int:
    found = re.search(rf"#define {name} (\d+)", HEADER)
    assert found, name
    return int(found[1])


def test_a_row_is_what_the_kernel_writes() -> None:
    body = re.search(r"struct tb_group \{(.*?)\};", HEADER, re.DOTALL)
    assert body
    fields = re.findall(r"^\t__([us])(32|64) (\w+);", body[1], re.MULTILINE)
    assert [name for _, size, name in fields if size == "32"] == ["flags", "level"]
    names = [name for _, _, name in fields if name != "level"]
    assert names == [column.name.lower() for column in Column]
    assert names[COUNTERS] == list(Counters._fields)


def test_constants_are_the_kernels() -> None:
    assert (define("TB_VERSION"), define("TB_PERIOD_US")) == (VERSION, PERIOD_US)
    assert define("TB_TABLE_ROWS") == TABLE_ROWS
    for kind in Kind:
        assert define(f"TB_{kind.name}") == kind
    names = ("HAS_CPU", "HAS_MEMORY", "UNDER_OOM", "KILL_DISABLED", "THROTTLED")
    assert [define(f"TB_{name}") for name in names] == list(GroupFlag)


def test_a_writer_is_what_the_kernel_writes() -> None:
    body = re.search(r"struct tb_writer \{(.*?)\};", HEADER, re.DOTALL)
    assert body
    fields = re.findall(r"^\t(\w+) (\w+(?:\[\w+\])*);", body[1], re.MULTILINE)
    assert fields == [
        ("__u32", "pid"),
        ("__u32", "levels"),
        ("char", "comm[TB_COMM_BYTES]"),
        ("char", "names[TB_WRITER_LEVELS][TB_NAME_BYTES]"),
    ]
    assert define("TB_WRITER_LEVELS") == WRITER_LEVELS
    assert define("TB_COMM_BYTES") == WRITER_COMM_BYTES
    assert define("TB_NAME_BYTES") == WRITER_NAME_BYTES
    assert WRITER.size == 4 + 4 + 16 + 8 * 96


def test_an_iteration_is_what_the_kernel_writes() -> None:
    body = re.search(r"struct tb_iteration \{(.*?)\};", HEADER, re.DOTALL)
    assert body
    fields = re.findall(r"^\t(\w+) (\w+(?:\[\d+\])?);", body[1], re.MULTILINE)
    assert [name for _, name in fields[:6]] == [*FlowRecord._fields[:6]]
    assert fields[-1] == ("char", "congestion_control[16]")
    sizes = {"__u64": 8, "__u32": 4, "__u16": 2, "__u8": 1, "char": 1}
    lengths = [int(name.partition("[")[2].rstrip("]") or 1) for _, name in fields]
    assert sum(sizes[kind] * length for (kind, _), length in zip(fields, lengths, strict=True)) == RECORD.size


def test_counters_of_mltcp_are_what_the_kernel_counts() -> None:
    body = re.search(r"struct tb_congestion_counters \{(.*?)\};", HEADER, re.DOTALL)
    assert body
    assert re.findall(r"^\t__u64 (\w+);", body[1], re.MULTILINE) == list(CongestionCounters._fields)


ids = st.lists(st.integers(1, 60), unique=True, min_size=1, max_size=20)


@given(ids, st.lists(ids, min_size=1, max_size=5))
def test_containers_are_found_wherever_they_stand(wanted: list[int], tables: list[list[int]]) -> None:
    places = _RowIndex(np.array(wanted))
    for table in tables:
        rows = places.take(np.array([(number, number * 10) for number in table]))
        gone = [row for row, number in enumerate(wanted) if number not in table]
        assert places.vanished == gone
        for row, number in enumerate(wanted):
            assert row in gone or rows[row].tolist() == [number, number * 10]


def test_an_empty_table_is_an_error() -> None:
    with pytest.raises(OSError, match="empty"):
        _RowIndex(np.array([5])).take(np.zeros((0, len(Column)), dtype=np.int64))


def test_without_a_loader_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(KernelProgramsError, match="turnbuckle-kernel is not there; build it with: make kernel"):
        KernelPrograms(tmp_path, ["/nowhere"])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "ended with exit code 3"),
        ("not executable as a program", "cannot be started: Exec format error"),
    ],
)
def test_a_loader_that_fails_is_named(tmp_path: Path, script: str, reason: str) -> None:
    loader = tmp_path / "turnbuckle-kernel"
    loader.write_text(("#!/bin/sh\n" if script.startswith("exit") else "") + script)
    loader.chmod(0o755)
    with pytest.raises(KernelProgramsError, match=reason):
        KernelPrograms(tmp_path, ["/nowhere"])

"""Whether the owner of sandboxes or containers is dead, where /proc does not show other users' processes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from services._host.boot_records import start_ticks
from services._host.cgroupfs import CgroupLayout
from services._host.owner import Owner
from services._jobs.sandbox.records import RunRecord, sweep


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Owner:
    """A live process of another user under hidepid=2: no directory in /proc, and no permission to signal it."""
    pid = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))

    def kill(target: int, number: int) -> None:
        assert (target, number) == (pid, 0)
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    return replace(Owner.this_process(), pid=pid, started_ticks=7)


def test_an_owner_that_proc_hides_is_not_gone(hidden: Owner) -> None:
    assert not hidden.is_gone()


def test_after_a_reboot_a_hidden_process_is_another_one(hidden: Owner) -> None:
    assert replace(hidden, boot="another").is_gone()


def test_a_process_that_does_not_exist_is_gone_and_this_one_is_not() -> None:
    none = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))

    assert replace(Owner.this_process(), pid=none).is_gone()
    assert not Owner.this_process().is_gone()


@pytest.mark.parametrize("pid", ["self", "1", 1.0, True, None, [1]])
def test_a_record_whose_process_is_no_number_is_none_and_stops_no_sweep(tmp_path: Path, pid: object) -> None:
    record = RunRecord("a1b2", "cells", Owner.this_process())
    record.write(tmp_path)
    file = tmp_path / "a1b2.json"
    assert RunRecord.read(file) == record
    content = json.loads(file.read_text(encoding="utf-8"))
    content["owner"]["pid"] = pid
    file.write_text(json.dumps(content), encoding="utf-8")

    assert RunRecord.read(file) is None
    assert sweep(CgroupLayout(2, hybrid=False, mounts={}), tmp_path) == []
    assert file.exists(), "nobody knows whose it is"


def test_a_later_process_of_the_same_pid_is_not_the_owner() -> None:
    assert replace(Owner.this_process(), started_ticks=7).is_gone()


def test_what_is_left_of_a_dead_owner_that_nobody_has_waited_for_does_not_count() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert start_ticks(child) is None
        assert replace(Owner.this_process(), pid=child, started_ticks=7).is_gone()
    finally:
        os.waitpid(child, 0)

"""What `scripts/ci_clean.sh` removes of killed runs, and what it leaves to runs that live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from services._host.owner import Owner
from services._jobs.sandbox.records import RECORDS, SANDBOXES_ROOT, RunRecord
from tests.support.cgroup_lab import wait_until
from tests.support.fast_path_process import FreezerGroup

pytestmark = pytest.mark.root
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "ci_clean.sh"
JOINS = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
ORPHANS = JOINS + "if os.fork() == 0: time.sleep(300)\n"
STAYS = JOINS + "time.sleep(300)\n"


def started(code: str, group: FreezerGroup) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, str(group.path / "cgroup.procs")])


def cleaned() -> str:
    done = subprocess.run([str(SCRIPT)], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def test_a_frozen_group_of_orphans_goes_with_them_and_one_with_a_living_parent_stays() -> None:
    dead, alive = FreezerGroup(), FreezerGroup()
    (dead.path / "inner").mkdir()
    assert started(ORPHANS, dead).wait(60) == 0
    (orphan,) = dead.pids()
    # Of version 1: the same group in a hierarchy in which it is not frozen, and which comes first.
    twins = [directory / dead.path.name for directory in Path("/sys/fs/cgroup").glob("cpuacct*")]
    for twin in twins:
        twin.mkdir()
        (twin / "cgroup.procs").write_text(str(orphan))
    dead.freeze(on=True)
    process = started(STAYS, alive)
    try:
        wait_until(alive.pids, what="a process is in the group")

        printed = cleaned()

        assert all(f"removed control group {path}\n" in printed for path in (dead.path, *twins))
        assert str(alive.path) not in printed
        wait_until(lambda: not Path(f"/proc/{orphan}").exists(), what="the orphan is dead")
        assert alive.pids() == [process.pid]
    finally:
        process.kill()
        process.wait(60)
    assert f"removed control group {alive.path}\n" in cleaned()
    assert not alive.path.exists()


def test_what_bears_the_id_of_a_living_process_stays_though_it_is_empty() -> None:
    empty = FreezerGroup()
    own = empty.path.with_name(f"turnbuckle-probe-{os.getpid()}")
    own.mkdir()
    try:
        assert f"removed control group {empty.path}\n" in cleaned()
        assert own.is_dir()
    finally:
        own.rmdir()


def test_what_an_installation_runs_stays_although_init_is_its_parent() -> None:
    """As systemd is the parent of each service: a managed root of a name of its own, with containers."""
    group = FreezerGroup()
    root = group.path.with_name("turnbuckle-installed")
    group.path.rmdir()
    root.mkdir()
    group.path = root
    try:
        assert started(ORPHANS, group).wait(60) == 0
        (container,) = group.pids()

        assert str(root) not in cleaned()
        assert group.pids() == [container]
    finally:
        group.signal(signal.SIGKILL)
        group.remove()


def test_a_record_goes_once_its_owner_and_its_control_groups_are_gone() -> None:
    """Until then its control groups are found by it. Processes of another PID namespace are not seen here."""
    ended = subprocess.Popen(["true"])
    ended.wait(60)
    owner = replace(Owner.this_process(), pid=ended.pid)
    records = {
        name: RunRecord(f"{name}-{uuid.uuid4().hex[:8]}", SANDBOXES_ROOT, whose)
        for name, whose in {
            "gone": owner,
            "grouped": owner,
            "elsewhere": replace(owner, pid_namespace="pid:[1]"),
            "alive": Owner.this_process(),
        }.items()
    }
    for record in records.values():
        record.write(RECORDS)
    group = FreezerGroup()
    directory = group.path.with_name(records["grouped"].root) / records["grouped"].token
    group.path.rmdir()
    directory.mkdir(parents=True)
    process = subprocess.Popen(["sleep", "300"])
    (directory / "cgroup.procs").write_text(str(process.pid))
    try:
        cleaned()

        left = {name for name, record in records.items() if (RECORDS / f"{record.token}.json").exists()}
        assert left == {"grouped", "elsewhere", "alive"}
    finally:
        process.kill()
        process.wait(60)
        for record in records.values():
            (RECORDS / f"{record.token}.json").unlink(missing_ok=True)
        cleaned()
    assert not directory.exists()

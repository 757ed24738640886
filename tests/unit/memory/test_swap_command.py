"""`turnbuckle swap`: what it makes and says, and what it refuses, with a kernel of dictionaries; the doctor's check."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._runtime.command.finding import Level
from services._runtime.file_lock import FileLock
from services.cli.main import app
from services.memory import commands, swap_devices
from services.memory.adapters import disk as disk_adapter
from services.memory.adapters import programs, swap
from services.memory.adapters.disk import BlockDisk
from services.memory.adapters.page_io import pages_moved
from services.memory.core.block_path import usual_slab_bytes
from services.memory.host_check import MODULES, HostPaths, check_swap, unused_disks
from services.memory.swap_devices import SERVICE_LOCK, SwapDevices
from tests.support.swap_host import DISK, SwapHost

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwapHost:
    """The command's host."""
    made = SwapHost(300 * MIB)
    monkeypatch.setenv("TURNBUCKLE_MEMORY__STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(commands, "_devices", lambda: SwapDevices(tmp_path, lambda: made.as_host))
    monkeypatch.setattr(disk_adapter.BlockDisk, "size_bytes", lambda _self, _path: made.disk_bytes)
    monkeypatch.setattr(programs, "run", lambda command, *_more: made.ran.append(list(command)) or "")
    monkeypatch.setattr(swap, "used_bytes", lambda device: 5 * MIB if device in made.swapping else None)
    return made


def typed(*words: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(app, ["swap", *words], env={"COLUMNS": "200"})
    return ended.exit_code, ended.stdout, ended.stderr


def test_a_disk_is_attached_shown_and_detached(host: SwapHost, tmp_path: Path) -> None:
    code, out, notes = typed("attach", DISK, "--size", "120MiB", "--json")
    assert code == 0, notes
    # 120 MiB in slabs of 64 MiB, the least that is usual.
    expected = {"name": "swap", "disk": DISK, "size_bytes": 128 * MIB, "slab_bytes": 64 * MIB, "slabs": 2}
    assert json.loads(out) == expected | {"service_runs": False}
    assert host.ran == [["modprobe", "--all", *MODULES]]
    assert "until `turnbuckle run memory` runs here" in notes

    with SwapDevices(tmp_path, lambda: host.as_host).locked("swap") as device:
        host.export_bytes = 64 * MIB
        device.map_slab(1, "10.0.0.2:1", "secret")
        host.synchronized.add("swap-1")
        device.advance()
    code, out, _ = typed("status", "--json")
    [shown] = json.loads(out)["devices"]
    assert (shown["used_bytes"], shown["attached"]) == (5 * MIB, True)
    assert [(slab["state"], slab["daemon"]) for slab in shown["slabs"]] == [("unmapped", ""), ("remote", "10.0.0.2:1")]
    code, out, notes = typed("status")
    assert "swap: 128 MiB on /dev/vdb, 5 MiB in use; 1 of 2 slabs in remote memory" in out
    assert "nothing maps slabs" in notes

    code, out, _ = typed("detach", "--json")
    assert (code, json.loads(out)) == (0, {"name": "swap", "detached": True})
    assert (host.tables, host.swapping, host.nbd) == ({}, {}, {})
    assert json.loads(typed("status", "--json")[1])["devices"] == []


def test_a_service_that_runs_is_known(host: SwapHost, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / SERVICE_LOCK, b"")
    code, out, notes = typed("attach", DISK, "--json")
    lock.release()
    assert (code, json.loads(out)["service_runs"]) == (0, True)
    assert "turnbuckle run memory" not in notes


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("attach", DISK, "--size", "64 apples"), 2, "'64 apples' is no size"),
        (("attach", DISK, "--size", "0"), 2, "has to be more than 0"),
        (("attach", DISK, "--size", "1GiB"), 1, "has room for 4 slabs"),
        (("attach", DISK, "--slab-size", "3000000"), 1, "a multiple of 1048576"),
        (("attach", DISK, "--slab-size", "32GiB"), 1, "at most 17179869184"),
        (("attach", DISK, "--name", "Swap!"), 1, "is no name of a swap device"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(host: SwapHost, words: tuple[str, ...], code: int, said: str) -> None:
    done = typed(*words)
    assert done[0] == code
    assert said in done[2]
    assert host.tables == {}


def test_a_name_that_does_not_do_makes_no_file(host: SwapHost, tmp_path: Path) -> None:
    code, _, said = typed("attach", DISK, "--name", "../swap")
    assert (code, "is no name of a swap device" in said) == (1, True)
    assert not (tmp_path.parent / "swap.lock").exists()
    assert host.tables == {}


def test_a_swap_device_named_service_is_not_locked_by_the_service(host: SwapHost, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / SERVICE_LOCK, b"")
    assert typed("attach", DISK, "--name", "service")[0] == 0
    assert typed("detach", "service")[0] == 0
    lock.release()
    assert host.tables == {}


def test_a_disk_that_holds_something_needs_force_and_one_in_use_is_never_taken(host: SwapHost) -> None:
    host.found_content = "ext4"
    code, _, said = typed("attach", DISK)
    assert code == 1
    assert "/dev/vdb holds ext4, which would be lost: choose another disk, or use --force" in said
    host.disk_refusal = "is in use"
    assert typed("attach", DISK, "--force")[0] == 1
    assert host.tables == {}
    host.disk_refusal = ""
    assert typed("attach", DISK, "--force")[0] == 0


def test_only_root_attaches_and_everybody_may_look(host: SwapHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("attach", DISK)[0] == 0
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (("attach", DISK), ("detach",)):
        code, _, said = typed(*words)
        assert (code, f"sudo turnbuckle swap {words[0]}" in said) == (1, True)
    assert typed("status")[0] == 0
    assert host.swapping


def test_a_device_on_which_another_process_acts_is_not_touched(
    host: SwapHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_LOCK_WITHIN_S", 0.1)
    with SwapDevices(tmp_path, lambda: host.as_host).locked("swap"):
        code, _, said = typed("attach", DISK)
    assert code == 69
    assert f"pid {os.getpid()} acts on it" in said
    assert host.tables == {}


def test_what_a_failed_detach_has_left_is_said_and_undone_by_another(host: SwapHost) -> None:
    assert typed("attach", DISK)[0] == 0
    off = host.off
    host.off = lambda _device: (_ for _ in ()).throw(programs.ProgramError("swapoff: Cannot allocate memory"))  # type: ignore[method-assign]
    code, _, said = typed("detach")
    assert (code, "Cannot allocate memory" in said) == (69, True)
    assert "half made or half undone: turnbuckle swap detach swap" in typed("status")[1]
    host.off = off  # type: ignore[method-assign]
    assert typed("detach")[0] == 0
    assert host.tables == {}


def test_a_missing_program_or_module_is_said_with_its_remedy(host: SwapHost, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, remedy in (("dmsetup is not installed", "apt-get install"), ("modprobe: nbd not found", "doctor")):

        def fail(_command: object, error: str = error) -> str:
            raise programs.ProgramError(error)

        monkeypatch.setattr(programs, "run", fail)
        code, _, said = typed("attach", DISK)
        assert code == 69
        assert error in said
        assert remedy in said


def test_what_is_no_block_device_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    assert "losetup" in BlockDisk().refusal(str(file))
    assert not stat.S_ISBLK(file.stat().st_mode)


@pytest.mark.parametrize(("gib", "slab"), [(0.1, 64 * MIB), (2, 64 * MIB), (8, 256 * MIB), (32, GIB), (1000, GIB)])
def test_slabs_of_a_usual_size(gib: float, slab: int) -> None:
    assert usual_slab_bytes(int(gib * GIB)) == slab


def test_used_bytes_are_those_of_the_area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swaps = tmp_path / "swaps"
    swaps.write_text("Filename Type Size Used Priority\n/dev/dm-9 partition 131068 2048 100\n/a b file 8 4 -2\n")
    monkeypatch.setattr(swap, "_SWAPS", swaps)
    assert [swap.used_bytes(name) for name in ("/dev/dm-9", "/a b", "/dev/dm-8")] == [2 * MIB, 4096, None]


def test_pages_of_a_device_are_its_sectors(tmp_path: Path) -> None:
    node = Path("/dev/null")
    number = f"{os.major(node.stat().st_rdev)}:{os.minor(node.stat().st_rdev)}"
    (tmp_path / number).mkdir()
    (tmp_path / number / "stat").write_text("   7 0 80 1 9 0 24 1 0 1 1 0 0 0 0 0 0\n")
    # (80 + 24) sectors of 512 bytes, in pages of 4,096.
    assert pages_moved(str(node), tmp_path) == 13


class TestDoctor:
    """What a host needs, in one line."""

    @pytest.fixture
    def paths(self, tmp_path: Path) -> HostPaths:
        made = HostPaths(tmp_path / "sys", tmp_path / "modules", tmp_path / "swaps", tmp_path / "mounts")
        for name in ("vda", "vdb", "vdc", "vdd", "loop0", "zram0", "nbd0", "dm-0"):
            (made.sys / "block" / name / "holders").mkdir(parents=True)
            (made.sys / "block" / name / "size").write_text(f"{(20 << 30) // 512}\n")
        (made.sys / "block" / "vda" / "vda1").mkdir()
        (made.sys / "block" / "vda" / "vda1" / "partition").write_text("1\n")
        (made.sys / "block" / "vdd" / "holders" / "dm-0").mkdir()
        (made.sys / "module" / "dm_mod").mkdir(parents=True)
        made.modules.mkdir()
        (made.modules / "modules.builtin").write_text("kernel/drivers/md/raid1.ko\n")
        (made.modules / "modules.dep").write_text(
            "kernel/drivers/block/nbd.ko.xz:\nkernel/drivers/md/dm-raid.ko.xz: kernel/drivers/md/raid456.ko.xz\n"
        )
        made.swaps.write_text("Filename Type Size Used Priority\n")
        made.mounts.write_text("/dev/vda1 / ext4 rw 0 0\n/dev/vdc /data ext4 rw 0 0\n")
        return made

    def test_a_host_that_has_everything_is_shown_its_unused_disks(self, paths: HostPaths) -> None:
        found = check_swap(paths, lambda name: f"/sbin/{name}")
        assert found.level is Level.OK
        assert found.found == "nbd, dm_mod, dm_raid, raid1; 0 swap areas in use; unused disks: /dev/vdb (20 GiB)"
        assert unused_disks(paths) == [("/dev/vdb", 20 << 30)]

    def test_what_is_missing_is_named(self, paths: HostPaths) -> None:
        assert "not installed: dmsetup" in check_swap(paths, lambda name: None if name == "dmsetup" else name).found
        paths.mounts.write_text("/dev/vdb / ext4 rw 0 0\n/dev/vdc /data ext4 rw 0 0\n")
        assert "no disk without partitions" in check_swap(paths, str).found
        (paths.modules / "modules.dep").write_text("kernel/drivers/md/dm-raid.ko.xz:\n")
        found = check_swap(paths, str)
        assert (found.level, found.found) == (Level.NOTE, "this kernel has no nbd")
        paths.swaps.unlink()
        assert check_swap(paths, str).found == "this kernel has no swap"


def test_the_kernel_is_asked_only_where_something_is_to_be_done(tmp_path: Path) -> None:
    """`status` works where no NBD module is loaded."""
    devices = swap_devices.SwapDevices(tmp_path, lambda: pytest.fail("asked"))
    assert devices.names() == []
    assert devices.record("swap") is None
    assert devices.service_runs is False
